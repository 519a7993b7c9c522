"""The daemon's eyes in virtual time: scrapes, with all that can be wrong with them, through `policy.tick`."""

from collections.abc import Iterable
from functools import reduce

import msgspec

from controlplane.policy.absorb import add
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.decision import SET_LIMIT, Decision, Event
from controlplane.signals.reading import Reason
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Signals, Target
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot, Totals
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.faults import (
    PrometheusAway,
    ScrapeFailing,
    ScrapeFault,
    ScrapeFrozen,
    ScrapeNan,
    ScrapeSlow,
)
from controlplane.simulator.scenario.fleet import Scrapes
from controlplane.simulator.scenario.gpus import Gpus
from controlplane.simulator.scenario.replica import Replica

_ROUNDING = 1e-6  # of times that are added up
_AT_ONCE_SECONDS = 0.1  # what comes so soon is in the tick of its round, which could as well be so much later
_GAUGES = ("running", "waiting", "kv_usage")


class Watch:
    """Scrapes `replicas` and ticks. `faults` are the scrape faults that hold now; `snapshot`, `events`,
    `decisions` and (apart, for they are many) `limit_decisions` are what came out so far. Without `gpus` it
    knows of none."""

    def __init__(
        self,
        replicas: tuple[Replica, ...],
        scrapes: Scrapes,
        settings: PolicySettings,
        gpus: Gpus | None = None,
    ) -> None:
        self.faults: list[ScrapeFault] = []
        self.snapshot: FleetSnapshot | None = None
        self.decisions: list[Decision] = []
        self.limit_decisions: list[Decision] = []
        self.events: list[Event] = []
        self._replicas = replicas
        self._gpus = gpus
        self._scrapes = scrapes
        self._settings = settings
        self._scrape_at = 0.0
        self._memory = Memory()
        self._late: list[tuple[float, Scrape]] = []
        self._pages: dict[str, Scrape] = {}
        self._targets: tuple[Target, ...] | None = None

    def look(self, now: float, outcomes: Iterable[OutcomeWindow] = ()) -> None:
        """A round of scrapes, if it is time for one, and a tick on all that arrived since the last."""
        samples = Samples(
            targets=self._changed_targets(),
            scrapes=tuple(self._arrived(now)),
            outcomes=tuple(outcomes),
        )
        if self._gpus is not None:
            samples = msgspec.structs.replace(
                samples,
                gpus=self._gpus.reports(now),
                gpu_nodes=tuple(self._gpus.nodes) if self.snapshot is None else None,
                placements=self._gpus.placements(),
                node_facts=self._gpus.facts(),
            )
        self.snapshot, decisions, self._memory = tick(samples, self._memory, self._settings, UNIX_START + now)
        for decision in decisions:
            (self.limit_decisions if decision.action == SET_LIMIT else self.decisions).append(decision)
        self.events += self.snapshot.events

    def replica(self, name: str) -> ReplicaSnapshot | None:
        """What is known of a replica; None before its first tick."""
        return self.snapshot.replicas.get(name) if self.snapshot is not None else None

    @property
    def totals(self) -> Totals:
        """What the daemon has counted of the fleet since the start."""
        pools = self.snapshot.pools.values() if self.snapshot is not None else ()
        return reduce(add, (pool.totals for pool in pools), Totals())

    def _changed_targets(self) -> tuple[Target, ...] | None:
        targets = tuple(
            Target(replica.name, replica.pool, f"http://{replica.name}:8000/metrics")
            for replica in self._replicas
            if replica.discovered
        )
        if targets == self._targets:
            return None
        self._targets = targets
        return targets

    def _arrived(self, now: float) -> Iterable[Scrape | ScrapeFailure]:
        """Pages that were asked for before and come only now, then those of this round."""
        due = [late for late in self._late if late[0] <= now]
        self._late = [late for late in self._late if late[0] > now]
        if any(isinstance(fault, PrometheusAway) for fault in self.faults):
            return
        for _, page in due:
            yield page
        if now < self._scrape_at - _ROUNDING:
            return
        self._scrape_at = now + self._scrapes.interval
        for replica in self._replicas:
            if not replica.discovered:
                continue
            seconds = self._seconds(replica.name)
            if replica.engine is None:
                yield self._failure(replica, now, "connection refused")
            elif seconds > self._scrapes.timeout or self._holds(ScrapeFailing, replica.name):
                yield self._failure(replica, now, f"no whole page after {self._scrapes.timeout:g} s")
            elif seconds <= _AT_ONCE_SECONDS:
                yield self._page(replica, now, seconds)
            else:
                self._late.append((now + seconds, self._page(replica, now + seconds, seconds)))

    def _page(self, replica: Replica, arrives: float, seconds: float) -> Scrape:
        """The page of now, which arrives later."""
        name = replica.name
        if self._holds(ScrapeFrozen, name) and name in self._pages:
            return msgspec.structs.replace(self._pages[name], at=UNIX_START + arrives)
        page = replica.scrape(arrives, seconds)
        self._pages[name] = page
        return _without_gauges(page) if self._holds(ScrapeNan, name) else page

    def _seconds(self, name: str) -> float:
        slow = [f.seconds for f in self.faults if isinstance(f, ScrapeSlow) and f.replica in (None, name)]
        return max(slow, default=self._scrapes.seconds)

    def _holds(self, kind: type[ScrapeFailing | ScrapeFrozen | ScrapeNan], name: str) -> bool:
        return any(isinstance(fault, kind) and fault.replica in (None, name) for fault in self.faults)

    def _failure(self, replica: Replica, at: float, why: str) -> ScrapeFailure:
        detail = f"http://{replica.name}:8000/metrics: {why}"
        return ScrapeFailure(replica.name, UNIX_START + at, Reason.SCRAPE_FAILED, detail)


def _without_gauges(page: Scrape) -> Scrape:
    """The page as its reader has it when the gauges on it are NaN."""
    engines = {}
    for name, signals in page.engines.items():
        numbers = {signal: value for signal, value in signals.numbers.items() if signal not in _GAUGES}
        unknown = {**signals.unknown, **dict.fromkeys(_GAUGES, Reason.NOT_A_NUMBER)}
        engines[name] = Signals(numbers, signals.by, signals.histograms, unknown)
    return msgspec.structs.replace(page, engines=engines)
