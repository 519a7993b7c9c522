"""What scaling sees of one pool over one look: work that came, work that waits, and what each replica did.

Work is counted in **tokens of work**: a prompt token is 1, an output token `OUTPUT_WEIGHT`. Requests differ
by a factor of a thousand in it, and how busy a GPU is says nothing about how much more it could do.
"""

import msgspec

OUTPUT_WEIGHT = 5.0
"""What an output token takes of an engine near its limit, in prompt tokens: its share of reading the weights,
and the KV cache of its context. The step law gives 4 for A100 8B and for 70B FP8 on two H100, 6 for H100
8B, at 100 sequences of 1,200 tokens each."""


def work_of(prompt_tokens: float, output_tokens: float) -> float:
    """Tokens of work of a request, or of many."""
    return prompt_tokens + OUTPUT_WEIGHT * output_tokens


class ReplicaSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One ready replica: `work` that it finished (tokens of work), sequences `in_flight` on average and the
    `limit` on them, and the mean `step_seconds` between two tokens of a stream. None: not known."""

    name: str
    work: float | None = None
    in_flight: float | None = None
    limit: float | None = None
    step_seconds: float | None = None


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One pool from `start` to `end` (Unix seconds), in tokens of work.

    `arrived` is all that clients asked for, whatever became of it: let in, queued or shed; None where nobody
    tells. Where engines tell and no gateway of ours, what they refused is not in it (`sees_shed` is False).
    `shed` says that some of it was refused. `backlog` waits at the end.
    """

    start: float
    end: float
    arrived: float | None
    sees_shed: bool = True
    shed: bool = False
    backlog: float = 0.0
    replicas: tuple[ReplicaSeen, ...] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.start
