"""Goodput over the last hour, for the charts: a point of each pool every ten seconds.

Kept in memory only: after a start the charts begin anew, and they say so. Prometheus has the long run.
"""

from collections import deque
from itertools import islice
from typing import NamedTuple

from controlplane.api.state import State
from controlplane.signals.decision import Decision
from controlplane.signals.snapshot import FleetSnapshot, PoolSnapshot

SPAN_SECONDS = 3600.0
STEP_SECONDS = 10.0
MOST_POOLS = 200
_MOST_POINTS = int(SPAN_SECONDS / STEP_SECONDS) + 1


class Point(NamedTuple):
    """Goodput of one pool at Unix time `at`: the proven interval of the ratio and the point inside it; None
    where nothing can be said."""

    at: float
    low: float | None
    high: float | None
    point: float | None


class History:
    """The points of all pools, as the ticks of `state` bring them."""

    def __init__(self, state: State) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._last = float("-inf")
        self._closed = False
        self._unsubscribe = state.subscribe(self._hear)

    def of(self, pool: str) -> tuple[Point, ...]:
        """The points of one pool, the oldest first."""
        return tuple(self._points.get(pool, ()))

    def close(self) -> None:
        """Hear no more ticks."""
        if not self._closed:
            self._closed = True
            self._unsubscribe()

    def _hear(self, snapshot: FleetSnapshot, _: tuple[Decision, ...]) -> None:
        at = snapshot.at
        if self._last <= at < self._last + STEP_SECONDS:
            return
        if at < self._last:  # the clock was set back
            self._points.clear()
        self._last = at
        for name, pool in islice(snapshot.pools.items(), MOST_POOLS):
            self._points.setdefault(name, deque(maxlen=_MOST_POINTS)).append(point(pool, at))
        for name in [name for name, points in self._points.items() if at - points[-1].at > SPAN_SECONDS]:
            del self._points[name]


def point(pool: PoolSnapshot, at: float) -> Point:
    """What a chart shows of a pool at Unix time `at`."""
    ratio = pool.goodput.ratio
    if ratio is None:
        return Point(at, None, None, None)
    return Point(at, ratio.low, ratio.high, pool.goodput.ratio_point)
