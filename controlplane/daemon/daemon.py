"""The daemon: on a schedule it takes samples, ticks, hands decisions on, writes the journal, tells listeners.

One tick, in this order, with nothing to wait for in between: orders and samples in, `policy.tick`, rule on
the decisions, journal, listeners. Whatever fails in it is told once, when it begins and when it is over;
the next tick comes in any case.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from controlplane.actuators.actuator import Actuator
from controlplane.actuators.gateway import GatewayActuator
from controlplane.daemon.clock import Clock
from controlplane.daemon.counts import Counts
from controlplane.daemon.dispatch import Dispatch
from controlplane.daemon.handover import Handover
from controlplane.daemon.inputs import InputCounts, Inputs
from controlplane.daemon.journal import Entry, Journal, TickFunction
from controlplane.daemon.journal_file import Matching
from controlplane.daemon.leader import Alone, Leader
from controlplane.daemon.orders import HOLD_KEY, Key, OrderBook, changes
from controlplane.daemon.salvage import salvage
from controlplane.daemon.schedule import Schedule
from controlplane.daemon.settings import DaemonSettings
from controlplane.daemon.steering import level
from controlplane.daemon.troubles import Troubles
from controlplane.daemon.upkeep import Upkeep
from controlplane.policy.lasting import lasting
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.proving import doubted
from controlplane.policy.settings import PolicySettings
from controlplane.policy.shares import Shares
from controlplane.signals.decision import Decision, Event, Hold, Orders, Override, Severity
from controlplane.signals.samples import Samples
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.status import Objective, Status

TickListener: TypeAlias = Callable[[FleetSnapshot, tuple[Decision, ...]], None]

DISCOVER_SECONDS = 5.0
WELL_AFTER_SECONDS = 60.0
"""Time without a failing tick after which ticks count as well: an odd page comes once an interval."""

PRUNE_SECONDS = 60.0
KEEP_SECONDS = 1.0
HEAR_SECONDS = 1.0
"""How often gateways are asked what they report: so long are their windows."""

_MOST_NOTES = 1000  # events of our own that wait for a tick that works

log = logging.getLogger(__name__)


class Running(NamedTuple):
    """What the daemon runs with, and what may change meanwhile; the places of its files may not."""

    policy: PolicySettings
    daemon: DaemonSettings
    inputs: Inputs


class Daemon:
    """The running control plane; the API's `State`. Made and used in one event loop.

    `memory` is that after the last tick.
    """

    def __init__(
        self,
        running: Running,
        journal: Journal,
        orders: OrderBook,
        *,
        clock: Clock,
        tick: TickFunction,
        actuators: Iterable[Actuator] = (),
        gateways: GatewayActuator | None = None,
        leader: Leader | None = None,
        upkeep: Upkeep | None = None,
        handover: Handover | None = None,
    ) -> None:
        """`gateways` is among the actuators, after those that have pools of their own. Without `leader` this
        daemon has no other beside it. One that follows another ticks and hears all the same, and acts on
        nothing."""
        self.running = running
        self._journal, self._book, self._clock = journal, orders, clock
        self._tick_function = tick
        self.memory = journal.memory
        self._gateways = gateways
        self._leader = leader or Alone(0)
        self._upkeep = upkeep
        self._term = self._leader.term  # as last told
        self._handover = handover or Handover(self._leader, orders)
        self._resumed: int | None = None  # the term in which what lasts was taken up
        others = tuple(actuators)
        self._dispatch = Dispatch(
            others if gateways is None else (*others, gateways),
            self._carried_out,
            leads=lambda: self._leader.seconds_left() > 0,
            first=self._handover.first,
            steady=clock.steady,
        )
        self._schedule = Schedule(self._job_failed, self._job_succeeded)
        self._troubles = Troubles()
        self._notes: deque[Event] = deque(maxlen=_MOST_NOTES)
        self._left = Samples()  # what no tick has taken in yet
        self._orders = journal.memory.orders  # as last told
        self._ended_by: dict[Key, str] = {}
        self._failed_at = float("-inf")  # Unix time of the last tick that failed
        self._listeners: list[TickListener] = []
        self._ordering = asyncio.Lock()
        self._snapshot: FleetSnapshot | None = None
        self._started_at = clock.now()
        self._counts = Counts()
        self._earlier = InputCounts({}, 0, 0)  # of inputs that were replaced since the start
        if journal.damage:
            self._note(self._event("journal-damaged", Severity.WARNING, journal.damage))

    # -- running -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look for targets and hear the gateways once, then let the schedule run.

        Gateways may have set limits by themselves while we were away; the first tick must know of that.
        """
        for name, job in (("discover", self._discover), ("hear", self._hear)):
            try:
                await job()
            except Exception as error:
                self._job_failed(name, error)
        self._schedule.every(DISCOVER_SECONDS, "discover", self._discover)
        self._schedule.every(self.running.inputs.poll_seconds, "poll", self._poll)
        self._schedule.every(HEAR_SECONDS, "hear", self._hear)
        self._schedule.every(PRUNE_SECONDS, "prune", self._prune)
        if self._upkeep is not None:
            self._schedule.every(KEEP_SECONDS, "keep", self._keep)
        self._schedule.every(self.running.daemon.tick, "tick", self.tick)
        self._schedule.start()

    async def stop(self) -> None:
        """Let go of everything; the journal is on the disk when this returns."""
        self._schedule.stop()
        await self._dispatch.close()
        if self._gateways is not None:
            await self._gateways.close()
        await self._leader.close()
        await self.running.inputs.close()
        if not await asyncio.to_thread(self._journal.close):
            log.error("the journal could not be written to its end: the disk does not answer")

    async def reconfigure(self, running: Running) -> None:
        """Go on with other settings from the next tick on."""
        old, self.running = self.running, running
        if running.inputs is not old.inputs:
            samples, events = old.inputs.take()
            self._note(*events)
            self._left = self._left.then(samples)
            await old.inputs.close()
            self._earlier = self._earlier.plus(old.inputs.counts)
            self._schedule.every(running.inputs.poll_seconds, "poll", self._poll)
            self._schedule.every(DISCOVER_SECONDS, "discover", self._discover)
        if running.daemon.tick != old.daemon.tick:
            self._schedule.every(running.daemon.tick, "tick", self.tick)
        self._journal.settings = running.daemon
        self._troubles.end("configuration")
        self._note(self._event("reload", Severity.INFO, "the configuration was read again"))

    def refuse(self, sentence: str) -> None:
        """Say that a new configuration was not taken: the old one stays."""
        # Each try is news: the words may be the same while the file is another.
        self._troubles.end("configuration")
        why = f"the new configuration is refused, the old one stays: {sentence}"
        self._begin("configuration", "reload-refused", why)

    async def tick(self) -> None:
        """One tick. What `policy.tick` raises costs the pages that it fails on, and never the loop."""
        started = time.perf_counter()
        now = self._clock.now()
        samples, events = self.running.inputs.take()
        self._note(*self._clock.take_events(), *events)
        if self._gateways is not None:
            self._note(*self._gateways.take_events())
        self._look_at_journal()
        self._look_at_leader(now)
        samples = self._left.then(samples)
        if now < self.memory.now:
            samples = self._go_back(samples, now)
        self._look_at_orders(now)
        self._left = samples = self._with_orders(samples)
        try:
            snapshot, decisions, memory = self._try(samples, now)
        except Exception as error:
            samples = salvage(samples, lambda fewer: self._works(fewer, now))
            self._tick_failed(error, self._left, samples, now)
            # Never to fail on the same page again: counters are cumulative, so a later page makes up for it.
            self._left = samples.standing()
            try:
                snapshot, decisions, memory = self._try(samples, now)
            except Exception:
                return
        if now - self._failed_at > WELL_AFTER_SECONDS:
            self._over("tick-failing", "tick-working", "no tick has failed for a minute")
        self._left = Samples()
        notes = tuple(self._notes)
        self._notes.clear()
        if self._resumed != self._term and self._term is not None and self._snapshot is not None:
            # Not in the first tick: actuators know by the snapshot what is theirs.
            self._resumed = self._term
            self._dispatch.resume(lasting(snapshot), snapshot)
        decisions = self._dispatch.take(decisions, snapshot, self.running.daemon)
        if self._gateways is not None and self._term is not None:
            told, boundary = self._gateways.told, self._gateways.told_boundary
            policy, settings = self.running.policy, self.running.daemon
            self._gateways.set_level(level(snapshot, memory, policy, settings, told, told_boundary=boundary))
        self._journal.append(
            Entry(now, self.running.policy, samples, decisions, snapshot.events, notes, self.memory, memory)
        )
        self.memory = memory
        if self._term is not None:
            self._leave()
        self._snapshot = msgspec.structs.replace(snapshot, events=(*notes, *snapshot.events))
        # Of several daemons one tries engines: each trial costs a token.
        self.running.inputs.doubt(doubted(snapshot) if self._term is not None else {})
        self._tell(self._snapshot, snapshot.events, decisions)
        self._counts.scraped(samples.scrapes, snapshot.replicas)
        self._counts.ticked(time.perf_counter() - started)

    # -- the API's State ---------------------------------------------------------------------------

    def now(self) -> float:
        return self._clock.now()

    def snapshot(self) -> FleetSnapshot | None:
        return self._snapshot

    def orders(self) -> Orders:
        return self._book.read(self._clock.now())

    def status(self) -> Status:
        policy, tick = self.running.policy, self._schedule.runs.get("tick")
        snapshot, settings, dispatch = self._snapshot, self.running.daemon, self._dispatch
        inputs = self._earlier.plus(self.running.inputs.counts)
        return Status(
            started_at=self._started_at,
            last_tick_at=None if self._snapshot is None else self._snapshot.at,
            tick_interval_seconds=self.running.daemon.tick,
            tick_seconds=self._counts.tick_seconds,
            ticks=self._counts.ticks,
            misfires=tick.misfires if tick else 0,
            missed_scrapes=inputs.missed_scrapes,
            scrapes=inputs.scrapes,
            scrape_failures=dict(self._counts.scrape_failures),
            dropped_samples=inputs.dropped_samples,
            probes=inputs.probes,
            journal_writes=self._journal.writes,
            journal_failures=self._journal.failures,
            journal_queue=self._journal.queued,
            decisions=dict(self._counts.decisions),
            events=dict(self._counts.events),
            limit_standings={} if snapshot is None else dispatch.limit_standings(snapshot, settings),
            pool_standings={} if snapshot is None else dispatch.pool_standings(snapshot, settings),
            boundary_standing=None if snapshot is None else dispatch.boundary_standing(snapshot, settings),
            objectives={
                name: Objective(pool.slo.ttft, pool.slo.tpot, pool.slo.objective)
                for name, pool in policy.pools.items()
            },
            troubles=self._troubles.sentences(),
            leads=self._leader.term is not None,
            out=frozenset() if snapshot is None else dispatch.out(snapshot, settings),
            follows=self._leader.follows,
        )

    def subscribe(self, listener: TickListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    async def decisions(
        self, *, since: float | None, target: str | None, action: str | None, limit: int
    ) -> Sequence[Decision]:
        """Decisions of the journal, newest first. Raises JournalError, an OSError."""
        matching = Matching(since=since, target=target, action=action, limit=limit)
        return await asyncio.to_thread(self._journal.decisions, matching)

    async def events(
        self, *, since: float | None, target: str | None, kind: str | None, limit: int
    ) -> Sequence[Event]:
        """Events of the journal, newest first. Raises JournalError, an OSError."""
        matching = Matching(since=since, target=target, kind=kind, limit=limit)
        return await asyncio.to_thread(self._journal.events, matching)

    async def hold(self, hold: Hold) -> None:
        self._must_be_told()
        async with self._ordering:
            await asyncio.to_thread(self._book.hold, hold.by, hold.reason)
            self._look_at_orders(self._clock.now())

    async def release(self, by: str) -> None:
        self._must_be_told()
        async with self._ordering:
            self._ended_by[HOLD_KEY] = by
            await asyncio.to_thread(self._book.release)
            self._look_at_orders(self._clock.now())

    async def override(self, override: Override) -> None:
        self._must_be_told()
        async with self._ordering:
            await asyncio.to_thread(self._book.override, override, self._clock.now())
            self._look_at_orders(self._clock.now())

    async def clear_override(self, scope: str, name: str, setting: str, by: str) -> bool:
        self._must_be_told()
        async with self._ordering:
            self._ended_by[scope, name, setting] = by
            found = await asyncio.to_thread(self._book.clear, scope, name, setting, self._clock.now())
            self._look_at_orders(self._clock.now())
            return found

    def _must_be_told(self) -> None:
        """Raises OSError where another daemon acts: an order that is kept here would bind nobody."""
        if self._leader.follows:
            raise OSError(None, f"this daemon follows {self._leader.follows}, which must be told")

    # -- the jobs ----------------------------------------------------------------------------------

    async def _poll(self) -> None:
        await self.running.inputs.poll()

    async def _hear(self) -> None:
        await self.running.inputs.hear()

    async def _discover(self) -> None:
        await self.running.inputs.discover()

    async def _prune(self) -> None:
        self._journal.prune(self._clock.now())

    async def _keep(self) -> None:
        if self._upkeep is not None and self._snapshot is not None and self._leader.seconds_left() > 0:
            await self._upkeep.keep(self._snapshot)

    def _job_failed(self, name: str, error: BaseException) -> None:
        if self._begin(
            f"job {name}", "job-failing", f"the job {name} fails: {type(error).__name__}: {error}"
        ):
            log.error("job failed", exc_info=error, extra={"fields": {"job": name}})

    def _job_succeeded(self, name: str) -> None:
        self._over(f"job {name}", "job-working", f"the job {name} works again")

    # -- parts of a tick ---------------------------------------------------------------------------

    def _try(self, samples: Samples, now: float) -> tuple[FleetSnapshot, tuple[Decision, ...], Memory]:
        return self._tick_function(samples, self.memory, self.running.policy, now)

    def _works(self, samples: Samples, now: float) -> bool:
        try:
            self._try(samples, now)
        except Exception:
            return False
        return True

    def _tick_failed(self, error: Exception, samples: Samples, kept: Samples, now: float) -> None:
        self._failed_at = now
        number = self.memory.tick + 1
        names = sorted({page.target for page in samples.scrapes} - {page.target for page in kept.scrapes})
        what = f"the pages of {', '.join(names[:5])} are left out" if names else "its samples are left out"
        if self._begin(
            "tick-failing", "tick-failing", f"tick {number} failed: {type(error).__name__}; {what}"
        ):
            log.error("tick failed", exc_info=error, extra={"fields": {"tick": number}})

    def _go_back(self, samples: Samples, now: float) -> Samples:
        """Begin anew at an earlier time; the samples without those of a time that is yet to come."""
        self.memory = rewind(self.memory, now)
        self._failed_at = min(self._failed_at, now)
        self._started_at = min(self._started_at, now)
        kept = tuple(page for page in samples.scrapes if page.at <= now)
        probes = tuple(probe for probe in samples.probes if probe.at <= now)
        return msgspec.structs.replace(samples, scrapes=kept, probes=probes)

    def _look_at_orders(self, now: float) -> None:
        """Tell what people have changed. After each order too: one may be taken back within a tick."""
        orders = self._book.read(now)
        if orders != self._orders:
            self._note(*changes(self._orders, orders, now, self._ended_by))
            self._ended_by.clear()
            self._orders = orders
            if self._term is not None:
                self._leave()

    def _with_orders(self, samples: Samples) -> Samples:
        """The samples with the orders, where memory has others."""
        changed = None if self._orders == self.memory.orders else self._orders
        return msgspec.structs.replace(samples, orders=changed)

    def _look_at_leader(self, now: float) -> None:
        """Begin to lead, or stop, where that has changed since the last tick."""
        if self._leader.trouble:
            self._begin("lease", "lease-failing", self._leader.trouble)
        else:
            self._over("lease", "lease-working", "the lease can be read and written again")
        if self._gateways is not None and self._gateways.outranked_by is not None:
            self._leader.outrank(self._gateways.outranked_by)
        term = self._leader.term
        if term is None or self._term is None:
            self._take_over(begins=term is not None)
        if term == self._term:
            return
        self._term = term
        if term is None:
            self._handover.lose()
            self._note(self._event("lost-lead", Severity.WARNING, "this daemon leads no longer"))
            return
        self._note(self._event("took-lead", Severity.INFO, f"this daemon leads with term {term}"))
        if self._gateways is not None:
            self._gateways.lead(Shares(term=term, now=now), term)

    def _take_over(self, *, begins: bool) -> None:
        """Take over what the leader has left, also orders: a hold that stood with the last one is never
        lost."""
        handed = self._handover.take_over(begins=begins)
        self._look_at_handover()
        if handed is not None:
            self._left = self._left.then(Samples(handed=handed))

    def _leave(self) -> None:
        """Leave to the next leader what it must know."""
        self._handover.leave(self._orders, self.memory)
        self._look_at_handover()

    def _look_at_handover(self) -> None:
        if self._handover.trouble:
            self._begin("handover", "handover-failing", self._handover.trouble)
        else:
            self._over("handover", "handover-working", "leaders know what others leave")

    def _look_at_journal(self) -> None:
        if self._journal.error:
            self._begin("journal", "journal-failing", f"{self._journal.error}; ticks go on without it")
        else:
            self._over("journal", "journal-working", "the journal is written again")

    def _tell(
        self, snapshot: FleetSnapshot, events: tuple[Event, ...], decisions: tuple[Decision, ...]
    ) -> None:
        """Log, count and pass on what one tick has to say. Notes have been logged when they came up."""
        for event in events:
            _log_event(event)
        for decision in decisions:
            _log_decision(decision)
        self._counts.told(decisions, events)
        failure: Exception | None = None
        for listener in tuple(self._listeners):
            try:
                listener(snapshot, decisions)
            except Exception as error:
                failure = failure or error
        if failure:
            self._job_failed("listeners", failure)
        else:
            self._job_succeeded("listeners")

    def _carried_out(self, decision: Decision) -> None:
        self._journal.outcome(decision.id, decision.outcome)
        _log_decision(decision)
        if self._upkeep is not None and self._snapshot is not None:
            self._upkeep.done(decision, self._snapshot)

    # -- troubles and events of our own --------------------------------------------------------------

    def _begin(self, name: str, kind: str, sentence: str) -> bool:
        """Trouble `name` stands; told where that is new, which is what this returns."""
        new = self._troubles.begin(name, sentence)
        if new:
            self._note(self._event(kind, Severity.WARNING, sentence))
        return new

    def _over(self, name: str, kind: str, sentence: str) -> None:
        if self._troubles.end(name):
            self._note(self._event(kind, Severity.INFO, sentence))

    def _event(self, kind: str, severity: Severity, sentence: str) -> Event:
        return Event(self._clock.now(), kind, "daemon", severity, sentence)

    def _note(self, *events: Event) -> None:
        """Tell events that no tick has made: logged now, in the journal with the next tick that works."""
        for event in events:
            _log_event(event)
        self._counts.told(events=events)
        self._notes.extend(events)


def _log_event(event: Event) -> None:
    level = logging.WARNING if event.severity is Severity.WARNING else logging.INFO
    log.log(level, event.sentence, extra={"fields": {"event": event.kind, "target": event.target}})


def _log_decision(decision: Decision) -> None:
    fields = {
        "decision": decision.id,
        "action": decision.action,
        "target": decision.target,
        "reason": decision.reason,
        "mode": decision.mode,
        "outcome": decision.outcome,
    }
    log.info(decision.sentence, extra={"fields": fields})
