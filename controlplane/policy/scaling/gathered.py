"""What gateways told of a pool since the last look, added up, and what a request is worth in tokens of work.

    came     = sent to a replica + shed + what the queue grew by           requests
    arrived  = came * work of a request * size of the offered / size of the served

The work of a request is that of the finished ones of the last ten minutes. Long requests are shed sooner than
short ones, so the finished are too small on average; how much is told by the classes of size, which count
both.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from controlplane.policy.scaling.seen import ReplicaSeen, work_of
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.size_class import SizeClass

_MEMORY_SECONDS = 600.0  # of the mix: long against one long request, short against the day
_MOST_SIZE_RATIO = 4.0  # of a few requests a ratio can be anything


class ReplicaSums(msgspec.Struct, frozen=True):
    """What one replica did, as all gateways together saw it; `limit` is the last that they told."""

    finished: int = 0
    output_tokens: int = 0
    sequence_seconds: float = 0.0
    gaps: int = 0
    gap_seconds: float = 0.0
    limit: float | None = None


class Gathered(msgspec.Struct, frozen=True):
    """Sums over the windows since the last look. `queued` waits by gateway, as it told last."""

    sent: int = 0
    shed: int = 0
    finished: int = 0
    tokens: int = 0
    queued: dict[str, int] = {}
    replicas: dict[str, ReplicaSums] = {}
    sizes: dict[int, SizeClass] = {}

    def plus(self, windows: Iterable[OutcomeWindow]) -> "Gathered":
        """With windows that were told since, the oldest first."""
        after = self
        for window in windows:
            after = Gathered(
                sent=after.sent + sum(one.sent for one in window.replicas.values()),
                shed=after.shed + window.refused,
                finished=after.finished + window.finished,
                tokens=after.tokens + window.tokens,
                queued={**after.queued, window.gateway: window.queued},
                replicas={**after.replicas, **_summed(after.replicas, window)},
                sizes={**after.sizes, **_sized(after.sizes, window.sizes)},
            )
        return after

    def only(self, gateways: Iterable[str]) -> "Gathered":
        """Without the queues of gateways that are not heard any more."""
        heard = set(gateways)
        return replace(self, queued={name: queued for name, queued in self.queued.items() if name in heard})

    def next(self) -> "Gathered":
        """The sums right after a look."""
        return Gathered(queued=self.queued)


class Mix(msgspec.Struct, frozen=True):
    """Requests that finished of late: how many, their prompt and output tokens; and requests and tokens by
    size, of the offered and of the served."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    offered: float = 0.0
    offered_tokens: float = 0.0
    served: float = 0.0
    served_tokens: float = 0.0

    def with_look(self, gathered: Gathered, seconds: float) -> "Mix":
        keep = math.exp(-seconds / _MEMORY_SECONDS)
        output = sum(one.output_tokens for one in gathered.replicas.values())
        sizes = gathered.sizes
        return Mix(
            requests=keep * self.requests + gathered.finished,
            prompt_tokens=keep * self.prompt_tokens + max(0, gathered.tokens - output),
            output_tokens=keep * self.output_tokens + output,
            offered=keep * self.offered + sum(size.offered for size in sizes.values()),
            offered_tokens=keep * self.offered_tokens + sum(e * size.offered for e, size in sizes.items()),
            served=keep * self.served + sum(size.served for size in sizes.values()),
            served_tokens=keep * self.served_tokens + sum(e * size.served for e, size in sizes.items()),
        )

    @property
    def prompt_each(self) -> float:
        """Prompt tokens of a finished request."""
        return self.prompt_tokens / self.requests if self.requests > 0 else 0.0

    @property
    def work_each(self) -> float | None:
        """Tokens of work of a request that comes; None where none has finished."""
        if self.requests <= 0:
            return None
        work = work_of(self.prompt_tokens, self.output_tokens) / self.requests
        if self.offered <= 0 or self.served_tokens <= 0:
            return work
        ratio = self.offered_tokens * self.served / (self.offered * self.served_tokens)
        return work * min(_MOST_SIZE_RATIO, max(1 / _MOST_SIZE_RATIO, ratio))


def replica_seen(name: str, sums: ReplicaSums, mix: Mix, seconds: float) -> ReplicaSeen:
    """What a replica did in so many seconds."""
    return ReplicaSeen(
        name=name,
        work=work_of(sums.finished * mix.prompt_each, sums.output_tokens),
        in_flight=sums.sequence_seconds / seconds,
        limit=sums.limit,
        step_seconds=sums.gap_seconds / sums.gaps if sums.gaps else None,
    )


def _summed(before: Mapping[str, ReplicaSums], window: OutcomeWindow) -> dict[str, ReplicaSums]:
    after, seconds = {}, window.end - window.start
    for name, seen in window.replicas.items():
        old = before.get(name, ReplicaSums())
        flight = seen.in_flight if seen.mean_in_flight is None else seen.mean_in_flight
        after[name] = ReplicaSums(
            finished=old.finished + seen.finished,
            output_tokens=old.output_tokens + seen.output_tokens,
            sequence_seconds=old.sequence_seconds + flight * seconds,
            gaps=old.gaps + seen.gaps,
            gap_seconds=old.gap_seconds + seen.gap_seconds,
            limit=old.limit if seen.limit is None else seen.limit,
        )
    return after


def _sized(before: Mapping[int, SizeClass], sizes: Mapping[int, SizeClass]) -> dict[int, SizeClass]:
    after = {}
    for edge, size in sizes.items():
        old = before.get(edge, SizeClass())
        after[edge] = SizeClass(old.offered + size.offered, old.served + size.served)
    return after
