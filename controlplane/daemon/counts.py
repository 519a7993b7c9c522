"""What the daemon counts of itself since its start."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable

from controlplane.signals.decision import Decision, Event
from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import Scrape, ScrapeFailure

_TICK_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, math.inf)


class Counts:
    """Ticks and their times; decisions by (action, reason code), events by kind, failures by replica."""

    def __init__(self) -> None:
        self.ticks = 0
        self.decisions: Counter[tuple[str, str]] = Counter()
        self.events: Counter[str] = Counter()
        self.scrape_failures: Counter[str] = Counter()
        self._took = [0] * len(_TICK_BOUNDS)
        self._total_seconds = 0.0

    def ticked(self, seconds: float) -> None:
        self.ticks += 1
        self._took[bisect_left(_TICK_BOUNDS, seconds)] += 1
        self._total_seconds += seconds

    def told(self, decisions: Iterable[Decision] = (), events: Iterable[Event] = ()) -> None:
        self.decisions.update((decision.action, decision.reason) for decision in decisions)
        self.events.update(event.kind for event in events)

    def scraped(self, scrapes: Iterable[Scrape | ScrapeFailure], there: Container[str]) -> None:
        """Count the failures of replicas that are `there`; those of replicas that left are dropped."""
        self.scrape_failures.update(page.target for page in scrapes if isinstance(page, ScrapeFailure))
        for gone in [name for name in self.scrape_failures if name not in there]:
            del self.scrape_failures[gone]

    @property
    def tick_seconds(self) -> Histogram:
        below, cumulative = 0, []
        for inside in self._took:
            below += inside
            cumulative.append(float(below))
        return Histogram(_TICK_BOUNDS, tuple(cumulative), self._total_seconds)
