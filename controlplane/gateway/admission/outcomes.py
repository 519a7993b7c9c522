"""What became of the requests, counted in windows of one second, by pool and by replica.

A window is told when it is over. Windows that nobody has taken are kept for ten minutes.
"""

from collections import deque

from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.snapshot import Quantiles

_WINDOW_SECONDS = 1.0
_MOST_WINDOWS = 600


class ReplicaTally:
    __slots__ = (
        "failed",
        "finished",
        "first_tokens",
        "gap_seconds",
        "gaps",
        "max_sequences",
        "output_tokens",
        "overloaded",
        "sent",
        "sequences",
        "token_steps",
    )

    def __init__(self, sequences: int = 0) -> None:
        self.sequences = sequences
        self.max_sequences = sequences
        self.clear()

    def clear(self) -> None:
        self.max_sequences = self.sequences
        self.sent = self.finished = self.failed = self.overloaded = 0
        self.first_tokens: list[float] = []
        self.gaps = 0
        self.gap_seconds = 0.0
        self.output_tokens = 0
        self.token_steps = 0.0

    def window(self) -> ReplicaWindow:
        return ReplicaWindow(
            sent=self.sent,
            finished=self.finished,
            failed=self.failed,
            overloaded=self.overloaded,
            in_flight=self.sequences,
            max_in_flight=self.max_sequences,
            first_token=quantiles(self.first_tokens),
            gaps=self.gaps,
            gap_seconds=self.gap_seconds,
            output_tokens=self.output_tokens,
            token_steps=self.token_steps,
        )


class PoolTally:
    __slots__ = (
        "client_errors",
        "failed",
        "finished",
        "gave_up",
        "good",
        "good_tokens",
        "in_flight",
        "queued",
        "shed",
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
        self.tokens = self.good_tokens = 0
        self.tokens_by_tenant: dict[str, int] = {}
        self.waits: list[float] = []

    def charge(self, tenant: str, tokens: int) -> None:
        self.tokens += tokens
        self.tokens_by_tenant[tenant] = self.tokens_by_tenant.get(tenant, 0) + tokens


class Outcomes:
    """The tallies of the running second, and the windows of the seconds before."""

    def __init__(self, gateway: str, now: float) -> None:
        self._gateway = gateway
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
            tally = self.replicas[pool, name] = ReplicaTally()
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
                replica.clear()
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
            replicas={key[1]: tally.window() for key, tally in self.replicas.items() if key[0] == name},
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
