"""Clocks, inputs, actuators and a small tick, all in the test's hand."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from controlplane.daemon.inputs import InputCounts
from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.memory import Memory, PoolMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Decision, Event, Evidence, Severity
from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import Samples, Scrape, Signals, Target
from controlplane.signals.snapshot import FleetSnapshot, Totals

NOON = 1_764_000_000.0
POLICY = PolicySettings()


def small_tick(
    samples: Samples, memory: Memory, settings: PolicySettings, now: float
) -> tuple[FleetSnapshot, tuple[Decision, ...], Memory]:
    """A tick that adds up what it gets, tells each new target and decides on each scrape."""
    number, pools = memory.tick + 1, dict(memory.pools)
    decisions: list[Decision] = []
    joined = [t.name for t in samples.targets or ()]
    events = [Event(now, "joined", name, Severity.INFO, f"{name} joined") for name in joined]
    for scrape in samples.scrapes:
        if not isinstance(scrape, Scrape):
            continue
        if scrape.engine == "poison":
            raise ValueError("a page that no tick can stand")
        totals = pools.get("chat", PoolMemory()).totals
        finished = totals.finished + scrape.server.numbers["finished"]
        pools["chat"] = PoolMemory(Totals(finished=finished))
        evidence = (Evidence("finished", finished, 0.5), Evidence("window", settings.window, 0.0))
        name, new = f"{number}-{len(decisions) + 1}", str(finished)
        decisions.append(Decision(name, now, "limit", scrape.target, "", new, "more", "so", evidence))
    orders = memory.orders if samples.orders is None else samples.orders
    after = Memory(number, now, orders, memory.replicas, pools)
    return FleetSnapshot(now, number, {}, {}, orders, tuple(events)), tuple(decisions), after


def page(
    finished: float, at: float = NOON, target: str = "a:8000", engine: str = "vllm", model: str = "m"
) -> Scrape:
    """One page that says how many requests were finished since the one before."""
    ttft = Histogram((0.1, 1.0, float("inf")), (finished / 2, finished, finished), finished * 0.3)
    signals = Signals({"running": 3.0}, {"finished_total": {"stop": finished}}, {"ttft": ttft})
    return Scrape(
        target, at, 0.01, engine, ">=0.20", (model,), {"0": signals}, Signals({"finished": finished})
    )


class Time:
    """A system clock and a steady one."""

    def __init__(self, wall: float = NOON, steady: float = 1000.0) -> None:
        self.wall_now, self.steady_now = wall, steady

    def pass_(self, seconds: float) -> None:
        self.wall_now += seconds
        self.steady_now += seconds

    def wall(self) -> float:
        return self.wall_now

    def steady(self) -> float:
        return self.steady_now


class FakeInputs:
    """Hands over what the test puts in."""

    poll_seconds = 0.05
    counts = InputCounts({"ok": 1}, 0, 0)

    def __init__(self) -> None:
        self.next = Samples()
        self.events: tuple[Event, ...] = ()
        self.discoveries = self.polls = self.heard = 0
        self.closed = False
        self.doubted: dict[str, str] = {}
        self.failure: Exception | None = None

    async def discover(self) -> None:
        self.discoveries += 1
        if self.failure:
            raise self.failure

    async def poll(self) -> None:
        self.polls += 1

    async def hear(self) -> None:
        self.heard += 1

    def doubt(self, models: Mapping[str, str]) -> None:
        self.doubted = dict(models)

    def take(self) -> tuple[Samples, tuple[Event, ...]]:
        samples, events = self.next, self.events
        self.next, self.events = Samples(), ()
        return samples, events

    async def close(self) -> None:
        self.closed = True


class Recorder:
    """An actuator that notes what it is asked to do."""

    name = "gateway"
    actions = frozenset({"limit"})

    def __init__(self, do: Callable[[Decision], Any] | None = None) -> None:
        self.done: list[Decision] = []
        self._do = do

    def takes(self, target: str, pool: str | None) -> bool:
        return True

    async def apply(self, decision: Decision) -> None:
        if self._do is not None:
            await self._do(decision)
        self.done.append(decision)


def settings(path: Path, **changes: Any) -> DaemonSettings:
    return DaemonSettings(journal=path).model_copy(update=changes)


class Writer:
    """Ticks into a journal the way the daemon does, without the daemon."""

    def __init__(self, journal: Journal, policy: PolicySettings = POLICY, now: float = NOON) -> None:
        self.journal, self.policy, self.now = journal, policy, now
        self.memory = journal.memory
        self.patient = True  # wait for the disk, because tests tick faster than seconds pass

    def tick(
        self, *scrapes: Scrape, notes: tuple[Event, ...] = (), targets: tuple[Target, ...] | None = None
    ):
        self.now += 1.0
        samples = Samples(targets=targets, scrapes=scrapes)
        snapshot, decisions, after = small_tick(samples, self.memory, self.policy, self.now)
        entry = Entry(self.now, self.policy, samples, decisions, snapshot.events, notes, self.memory, after)
        self.memory = after
        while self.patient and self.journal.queued > 50:
            time.sleep(0.001)
        self.journal.append(entry)


def finished(memory: Memory) -> float:
    return memory.pools["chat"].totals.finished


def note(kind: str, at: float = NOON) -> Event:
    return Event(at, kind, "daemon", Severity.WARNING, f"{kind}!")


def without_outcome(decision: Decision) -> Decision:
    return msgspec.structs.replace(decision, outcome="recorded")
