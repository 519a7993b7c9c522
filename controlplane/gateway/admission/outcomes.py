"""What became of the requests, counted in windows of one second, by pool and by replica.

A window is told when it is over. Windows that nobody has taken are kept for ten minutes.
"""

from collections import deque
from typing import NamedTuple

from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.size_class import SizeClass, edge_of
from controlplane.signals.snapshot import Quantiles

_WINDOW_SECONDS = 1.0
_MOST_WINDOWS = 600


class ReplicaTally:
    """`awaited` are the streams without a first token: when each was sent, by ticket, the oldest first."""

    __slots__ = (
        "awaited",
        "changed_at",
        "failed",
        "finished",
        "first_tokens",
        "gap_seconds",
        "gaps",
        "late",
        "max_sequences",
        "max_tokens",
        "output_tokens",
        "overloaded",
        "paced",
        "sent",
        "sequence_seconds",
        "sequences",
        "slow",
        "token_steps",
        "tokens",
        "whole_tokens",
    )

    def __init__(self, now: float = 0.0) -> None:
        self.sequences = 0
        self.max_sequences = 0
        self.tokens = 0
        self.max_tokens = 0
        self.awaited: dict[int, float] = {}
        self.changed_at = now
        self.sequence_seconds = 0.0
        self.clear(now)

    def change(self, sequences: int, tokens: int, now: float) -> None:
        """So many more are in flight from now on, or fewer, and so much more is reserved for them."""
        self._pass(now)
        self.sequences += sequences
        self.tokens += tokens
        self.max_sequences = max(self.max_sequences, self.sequences)
        self.max_tokens = max(self.max_tokens, self.tokens)

    def finish(self, prompt_tokens: int, output_tokens: int) -> None:
        """A request has finished."""
        self.finished += 1
        self.output_tokens += output_tokens
        self.token_steps += output_tokens * (prompt_tokens + output_tokens / 2)

    def _pass(self, now: float) -> None:
        if now > self.changed_at:
            self.sequence_seconds += self.sequences * (now - self.changed_at)
            self.changed_at = now

    def clear(self, now: float) -> None:
        self.changed_at = now
        self.sequence_seconds = 0.0
        self.late = self.paced = self.slow = 0
        self.max_sequences, self.max_tokens = self.sequences, self.tokens
        self.sent = self.finished = self.failed = self.overloaded = 0
        self.first_tokens: list[float] = []
        self.gaps = 0
        self.gap_seconds = 0.0
        self.whole_tokens = 0
        self.output_tokens = 0
        self.token_steps = 0.0

    def window(self, start: float, end: float, late_after: float, limit: float | None) -> ReplicaWindow:
        """What happened from `start` to `end`; a stream is late where it has waited for so many seconds."""
        self._pass(end)
        return ReplicaWindow(
            sent=self.sent,
            finished=self.finished,
            failed=self.failed,
            overloaded=self.overloaded,
            in_flight=self.sequences,
            max_in_flight=self.max_sequences,
            mean_in_flight=self.sequence_seconds / (end - start),
            reserved_tokens=self.tokens,
            max_reserved_tokens=self.max_tokens,
            paced=self.paced,
            slow=self.slow,
            late=self.late,
            first_token=quantiles([*self.first_tokens, *self._late(start, end, late_after)]),
            gaps=self.gaps,
            gap_seconds=self.gap_seconds,
            whole_tokens=self.whole_tokens,
            output_tokens=self.output_tokens,
            token_steps=self.token_steps,
            limit=limit,
        )

    def _late(self, start: float, end: float, late_after: float) -> list[float]:
        """How long those have waited whose first token became late in this window, the oldest first: once
        each, or one that is stuck would speak for every window until it comes."""
        ages = []
        for sent_at in self.awaited.values():
            if end - sent_at <= late_after:
                break
            if start - sent_at <= late_after:
                ages.append(end - sent_at)
        return ages


class _SizeTally:
    __slots__ = ("offered", "sequence_seconds", "served", "token_seconds")

    def __init__(self) -> None:
        self.offered = self.served = 0
        self.sequence_seconds = self.token_seconds = 0.0

    def ran(self, seconds: float, sequences: int, tokens: int) -> None:
        """A request held so much of a replica for so long."""
        self.served += 1
        self.sequence_seconds += seconds * sequences
        self.token_seconds += seconds * tokens

    def told(self) -> SizeClass:
        return SizeClass(self.offered, self.served, self.sequence_seconds, self.token_seconds)


class PoolTally:
    __slots__ = (
        "asked",
        "asked_tokens",
        "client_errors",
        "failed",
        "finished",
        "gave_up",
        "good",
        "good_tokens",
        "in_flight",
        "queued",
        "shed",
        "sizes",
        "tokens",
        "tokens_by_tenant",
        "waits",
        "would_shed",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        self.queued = 0
        self.clear()

    def clear(self) -> None:
        self.finished = self.good = self.failed = self.gave_up = self.client_errors = 0
        self.shed: dict[str, int] = {}
        self.would_shed: dict[str, int] = {}
        self.tokens = self.good_tokens = self.asked = self.asked_tokens = 0
        self.tokens_by_tenant: dict[str, int] = {}
        self.waits: list[float] = []
        self.sizes: dict[int, _SizeTally] = {}

    def size(self, sequence_tokens: int) -> "_SizeTally":
        """The tally of requests that are routed as so long."""
        edge = edge_of(sequence_tokens)
        tally = self.sizes.get(edge)
        if tally is None:
            tally = self.sizes[edge] = _SizeTally()
        return tally

    def ask(self, tokens: int) -> None:
        """A request came that needs so many."""
        self.asked += 1
        self.asked_tokens += tokens

    def charge(self, tenant: str, tokens: int) -> None:
        self.tokens += tokens
        self.tokens_by_tenant[tenant] = self.tokens_by_tenant.get(tenant, 0) + tokens


class Parted(NamedTuple):
    """The pool `short` gets what has up to `boundary_tokens`, and takes `longest_tokens` at most."""

    short: str
    boundary_tokens: int
    longest_tokens: int | None


class Outcomes:
    """The tallies of the running second, and the windows of the seconds before.

    A first token is late after `late_after` seconds. `limits` are those in force, by replica, and `parted` is
    the boundary.
    """

    def __init__(self, gateway: str, now: float, late_after: float) -> None:
        self._gateway = gateway
        self._late_after = late_after
        self.limits: dict[str, float] = {}
        self.parted: Parted | None = None
        self._start = now
        self.ends_at = now + _WINDOW_SECONDS
        self.pools: dict[str, PoolTally] = {}
        self.replicas: dict[tuple[str, str], ReplicaTally] = {}  # by pool and name
        self._windows: deque[OutcomeWindow] = deque()

    def pool(self, name: str) -> PoolTally:
        tally = self.pools.get(name)
        if tally is None:
            tally = self.pools[name] = PoolTally()
        return tally

    def replica(self, pool: str, name: str) -> ReplicaTally:
        tally = self.replicas.get((pool, name))
        if tally is None:
            tally = self.replicas[pool, name] = ReplicaTally(self._start)
        return tally

    def close(self, now: float) -> None:
        """End the running window, which is over. An idle time of many seconds is one window."""
        end = self._start + max(1, int((now - self._start) / _WINDOW_SECONDS)) * _WINDOW_SECONDS
        for name, pool in self.pools.items():
            self._windows.append(self._window(name, pool, end))
            pool.clear()
        for key, replica in list(self.replicas.items()):
            if not (replica.sequences or replica.max_sequences or replica.sent):
                del self.replicas[key]  # idle for a whole window: made anew when it is needed
            else:
                replica.clear(end)
        self._start, self.ends_at = end, end + _WINDOW_SECONDS
        while self._windows and self._windows[0].end < end - _MOST_WINDOWS * _WINDOW_SECONDS:
            self._windows.popleft()

    def take(self) -> tuple[OutcomeWindow, ...]:
        """The windows that are over and were not taken before."""
        windows = tuple(self._windows)
        self._windows.clear()
        return windows

    def _window(self, name: str, pool: PoolTally, end: float) -> OutcomeWindow:
        shed = sum(pool.shed.values())
        parted = self.parted if self.parted is not None and self.parted.short == name else None
        return OutcomeWindow(
            gateway=self._gateway,
            pool=name,
            start=self._start,
            end=end,
            offered=pool.finished + pool.failed + pool.gave_up + shed,
            finished=pool.finished,
            good=pool.good,
            failed=pool.failed,
            gave_up=pool.gave_up,
            shed=pool.shed,
            tokens=pool.tokens,
            good_tokens=pool.good_tokens,
            in_flight=pool.in_flight,
            queued=pool.queued,
            client_errors=pool.client_errors,
            would_shed=pool.would_shed,
            tokens_by_tenant=pool.tokens_by_tenant,
            wait=quantiles(pool.waits),
            replicas={
                replica: tally.window(self._start, end, self._late_after, self.limits.get(replica))
                for (pool_of, replica), tally in self.replicas.items()
                if pool_of == name
            },
            sizes={edge: tally.told() for edge, tally in pool.sizes.items()},
            asked=pool.asked,
            asked_tokens=pool.asked_tokens,
            boundary_tokens=None if parted is None else parted.boundary_tokens,
            longest_tokens=None if parted is None else parted.longest_tokens,
        )


def quantiles(values: list[float]) -> Quantiles | None:
    """The distribution of a window's values; None of none."""
    if not values:
        return None
    values = sorted(values)
    count = len(values)

    def at(q: float) -> float:
        return values[min(count - 1, int(q * count))]

    return Quantiles(float(count), sum(values) / count, at(0.5), at(0.9), at(0.95), at(0.99))
