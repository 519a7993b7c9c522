"""A request to an engine, and what the engine tells about it."""

from typing import TypeAlias

import msgspec


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A named beginning: requests that share `name` have the same tokens from the first up to `end_tokens`.

    A name stands for all tokens before its end, so segments nest like a path: ("system prompt", 512), then
    ("session 7", 3000). The last may reach beyond the prompt: then generated tokens belong to it too, and the
    next turn of the session finds them in the prefix cache.
    """

    name: str
    end_tokens: int


class Request(msgspec.Struct, frozen=True, gc=False):
    """One sequence to generate.

    `output_tokens` is how many it will generate; the engine does not know that beforehand, only `max_tokens`
    (None: the same). A lower `priority` goes first under the priority policy.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    prefix: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"request {self.id}: prompt_tokens and output_tokens must be at least 1 "
                f"(got {self.prompt_tokens} and {self.output_tokens})"
            )
        if self.max_tokens is not None and self.max_tokens < self.output_tokens:
            raise ValueError(
                f"request {self.id}: output_tokens ({self.output_tokens}) is over "
                f"max_tokens ({self.max_tokens})"
            )

    @property
    def limit_tokens(self) -> int:
        """What the client asked for at most."""
        return self.output_tokens if self.max_tokens is None else self.max_tokens


class FirstToken(msgspec.Struct, frozen=True, gc=False):
    """The first token of a request came out at `at`."""

    request_id: str
    at: float


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The token number `generated` (from 2 on) came out at `at`; told only by engines made with
    `progress`."""

    request_id: str
    at: float
    generated: int


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """A running request lost its blocks at `at` and waits to be computed anew."""

    request_id: str
    at: float


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The last token came out at `at`. All times in seconds since the start of the run.

    `queued_at` is when the scheduler took the request in (the end of the step during which it arrived), as
    vLLM counts queue time; `reason` is vLLM's: "length" at max_tokens, else "stop".
    """

    request_id: str
    at: float
    reason: str
    arrived_at: float
    queued_at: float
    scheduled_at: float
    first_token_at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int

    @property
    def ttft_seconds(self) -> float:
        return self.first_token_at - self.arrived_at

    @property
    def tpot_seconds(self) -> float:
        """Mean seconds a token after the first; 0 of a single token, as vLLM counts it."""
        if self.output_tokens == 1:
            return 0.0
        return (self.at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def e2e_seconds(self) -> float:
        return self.at - self.arrived_at


Event: TypeAlias = FirstToken | Progress | Preempted | Finished
