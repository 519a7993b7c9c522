"""What the daemon counts of itself since its start."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from controlplane.signals.decision import Decision, Event
from controlplane.signals.histogram import Histogram

_TICK_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, math.inf)


class Counts:
    """Ticks and how long they took; decisions by (action, reason code) and events by kind."""

    def __init__(self) -> None:
        self.ticks = 0
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.events: Counter[str] = Counter()
        self._took = [0] * len(_TICK_BOUNDS)
        self._total_seconds = 0.0

    def ticked(self, seconds: float) -> None:
        self.ticks += 1
        self._took[bisect_left(_TICK_BOUNDS, seconds)] += 1
        self._total_seconds += seconds

    def told(self, decisions: Iterable[Decision] = (), events: Iterable[Event] = ()) -> None:
        self.decisions.update((decision.action, decision.reason) for decision in decisions)
        self.events.update(event.kind for event in events)

    @property
    def tick_seconds(self) -> Histogram:
        below, cumulative = 0, []
        for inside in self._took:
            below += inside
            cumulative.append(float(below))
        return Histogram(_TICK_BOUNDS, tuple(cumulative), self._total_seconds)
