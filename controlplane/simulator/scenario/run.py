"""One run of a scenario in virtual time, event by event.

At equal times: tokens come out of engines first, then faults, scrapes and limits take effect, then the
gateway looks after its queue, then clients act. Every random stream has a generator of its own, made from the
seed, so the policy does not change what is sent.
"""

import gc
import heapq
from collections.abc import Callable
from math import exp, log1p, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator

from controlplane.gateway.admission.request import Fault
from controlplane.gateway.admission.verdict import Admitted, Refused, Verdict
from controlplane.policy.limits.law import Law, State
from controlplane.policy.limits.laws import AnyLaw
from controlplane.signals.decision import Decision
from controlplane.signals.snapshot import Totals
from controlplane.simulator.clients import Clients, Send
from controlplane.simulator.request import Finished, FirstToken, Preempted
from controlplane.simulator.scenario.books import Books, Mark
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.control import Control
from controlplane.simulator.scenario.elastic import Elastic
from controlplane.simulator.scenario.faults import ScrapeFault
from controlplane.simulator.scenario.gateway import Gateway
from controlplane.simulator.scenario.gpu_account import GpuAccount
from controlplane.simulator.scenario.gpu_faults import GpuFault
from controlplane.simulator.scenario.gpus import Gpus, GpuWatching
from controlplane.simulator.scenario.incidents import incidents
from controlplane.simulator.scenario.live import NOWHERE, Live
from controlplane.simulator.scenario.lookout import Lookout
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.replica import Replica
from controlplane.simulator.scenario.series import Series
from controlplane.simulator.scenario.streams import build_sources
from controlplane.simulator.scenario.truth import Truth
from controlplane.simulator.timeline import Timeline

Timer: TypeAlias = tuple[float, int, Callable[[float], None]]

_SECOND = 1.0  # how often tokens are told, books are looked at and a point is recorded
_WORKLOAD, _CLIENTS, _FLEET, _LAWS, _GATEWAY = range(5)  # random streams of a run


class Closing(NamedTuple):
    """A tick at which goodput cells closed: what the daemon had counted by then, and what was true."""

    at: float
    totals: Totals
    good: int
    good_tokens: int


class Run:
    """A scenario and what is going on in it. `go` runs it to its end; then the results can be read."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        policy, slo = scenario.policy, scenario.slo
        rngs = [np.random.default_rng([scenario.seed, stream]) for stream in range(5)]
        admission = scenario.admission_settings
        self.truth = Truth(admission, scenario.warmup)
        self.books = Books()
        self.series = Series()
        self.marks: list[Mark] = []
        self.closings: list[Closing] = []
        self.replicas = _replicas(scenario, rngs[_FLEET])
        sources = build_sources(scenario.workload, scenario.duration, rngs[_WORKLOAD])
        self.clients = Clients(sources, rngs[_CLIENTS], scenario.duration)
        self.gateway = Gateway(admission, rngs[_GATEWAY])
        self.law: AnyLaw = policy.for_slo(slo)
        self.controls = policy.controls
        self.gpus = Gpus(scenario.gpus or GpuWatching(), scenario.nodes)
        self.gpu_account = GpuAccount(
            tuple(fault for fault in scenario.faults if isinstance(fault, GpuFault)), self.gpus
        )
        self.control = Control(
            scenario, self.replicas, self.gateway, self.gpus if scenario.gpus is not None else None
        )
        self.watch = self.control.watch
        self._by_name = {replica.name: replica for replica in self.replicas}
        self._states: list[State] = [self.law.start() for _ in self.replicas]
        self._lookouts = [
            Lookout(
                slo.ttft,
                replica.settings.max_num_seqs,
                round_trip=policy.round_trip,
                looks=policy.gauges == "looks",
            )
            for replica in self.replicas
            if not self.control.has_law
        ]
        self.elastic = Elastic(self.replicas, self.start, self._at, self.gpus.is_taken)
        self._stepped_at = [0.0] * len(self.replicas)  # when its engine last ended a step
        self._rng = rngs[_LAWS]
        self._live: dict[str, Live] = {}
        self._by_ticket: dict[int, Live] = {}  # those that wait at the gateway
        self._timers: list[Timer] = []
        self._numbered = 0
        self._engines = Timeline(self.replicas)

    def go(self) -> None:
        """Run to the end. AssertionError where a law of every run is broken.

        Without the garbage collector: a run makes no cycles, and looking for them takes time.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            self._go()
        finally:
            if collects:
                gc.enable()

    def _go(self) -> None:
        scenario = self.scenario
        for at, act in incidents(scenario, self._by_name, self, self.gpus):
            self._at(at, act)
        self._at(0.0, self._look)
        if self._lookouts:
            self._at(0.0, self._set_limits)
            self._at(scenario.policy.interval, self._move_limits)
        self._at(_SECOND, self._every_second)
        self._at(scenario.warmup, self._mark)
        self._until(scenario.duration)
        self._mark(scenario.duration)
        self._check(scenario.duration)

    # -- time ------------------------------------------------------------------------------------------

    def _until(self, end: float) -> None:
        clients, gateway, engines, timers = self.clients, self.gateway, self._engines, self._timers
        while True:
            engine_at = engines.next_time()
            timer_at = timers[0][0]
            gateway_at = gateway.poll_at
            now = min(engine_at, timer_at, gateway_at, clients.next_event_time())
            if now > end:
                return
            if now == engine_at:
                for place in engines.due(now):
                    self._step(self.replicas[place], now)
            elif now == timer_at:
                heapq.heappop(timers)[2](now)
            elif now == gateway_at:
                self._poll(now)
            else:
                self._act(now)

    def _at(self, time: float, act: Callable[[float], None]) -> None:
        """Do something at `time`; at equal times in the order of the calls."""
        self._numbered += 1
        heapq.heappush(self._timers, (time, self._numbered, act))

    # -- requests --------------------------------------------------------------------------------------

    def _act(self, now: float) -> None:
        """Clients send and hang up."""
        made_room = False
        for action in self.clients.advance(now):
            if isinstance(action, Send):
                live = Live(action)
                self._live[action.request.id] = live
                self.books.arrived(now)
                self.truth.offered(live)
                self._obey(self.gateway.offer(live, now), live, now)
            else:
                self._hang_up(action.request_id, now)
                made_room = True
        if made_room:
            self._poll(now)

    def _poll(self, now: float) -> None:
        """Carry out what the gateway decides on those that wait."""
        for verdict in self.gateway.poll(now):
            assert verdict.ticket is not None
            self._obey(verdict, self._by_ticket.pop(verdict.ticket.id), now)

    def _obey(self, verdict: Verdict, live: Live, now: float) -> None:
        if isinstance(verdict, Admitted):
            live.ticket = verdict.ticket
            self._send(live, self._by_name[verdict.replica], now)
        elif isinstance(verdict, Refused):
            del self._live[live.request.id]
            refusal = verdict.refusal
            self.books.left(live.sent_at, now)
            self.truth.refused(live, str(refusal.reason), now)
            self.clients.refused(live.request.id, now, float(refusal.retry_after or 0.0))
        else:
            live.ticket = verdict.ticket
            live.replica = NOWHERE
            self._by_ticket[verdict.ticket.id] = live

    def _send(self, live: Live, replica: Replica, now: float) -> None:
        self.gpu_account.sent(replica.name, now)
        if replica.engine is None:
            self._fail(live, Fault.UNREACHABLE, now)
            return
        live.replica = replica.index
        live.to_engine_at = now
        if self._lookouts:
            self._lookouts[replica.index].sent(live)
        replica.submit(live, now)
        self._engines.changed(replica.index)

    def _fail(self, live: Live, fault: Fault, now: float) -> None:
        """A replica does not serve the request."""
        instead = self.gateway.failed(live, fault, now)
        if instead is not None:
            self._obey(instead, live, now)
            return
        del self._live[live.request.id]
        self.books.left(live.sent_at, now)
        self.truth.has_failed(now)
        self.clients.failed(live.request.id, now)

    def _hang_up(self, request_id: str, now: float) -> None:
        live = self._live.pop(request_id)
        assert live.ticket is not None
        self.books.left(live.sent_at, now)
        self.truth.has_given_up(now)
        self.gateway.admission.client_gone(live.ticket, now)
        if live.replica == NOWHERE:
            del self._by_ticket[live.ticket.id]
        else:
            self.replicas[live.replica].abort(request_id, now)
            if self._lookouts:
                self._lookouts[live.replica].broken(live, now)

    def _step(self, replica: Replica, now: float) -> None:
        """A step of an engine ends."""
        made_room = False
        self._stepped_at[replica.index] = now
        for event in replica.advance(now):
            if isinstance(event, FirstToken):
                self._first_token(self._live[event.request_id], replica, now)
            elif isinstance(event, Finished):
                self._finished(self._live.pop(event.request_id), event, replica, now)
                made_room = True
            elif isinstance(event, Preempted):
                replica.streams.pop(event.request_id, None)  # its steps do not count its tokens any more
                self.truth.preempted(now)
        self._engines.changed(replica.index)
        if made_room:
            self._poll(now)

    def _first_token(self, live: Live, replica: Replica, now: float) -> None:
        assert live.ticket is not None
        assert replica.engine is not None
        live.first_token_at = now
        if not live.source.stream:  # nobody but the engine knows of it
            return
        live.first_step = replica.engine.counters.steps
        replica.streams[live.request.id] = live
        self.gateway.admission.tokens(live.ticket, 1, now)
        if self._lookouts:
            self._lookouts[replica.index].first_token(live, now)
        self.clients.first_token(live.request.id)

    def _finished(self, live: Live, event: Finished, replica: Replica, now: float) -> None:
        replica.ended(event.request_id)
        self.books.left(live.sent_at, now)
        self.truth.finished(live, now)
        if self._lookouts:
            self._lookouts[replica.index].finished(live, now)
        self.gateway.finished(live, event, now)
        self.clients.finished(event.request_id, now)

    # -- the fleet -------------------------------------------------------------------------------------

    def start(self, replica: Replica, now: float) -> None:
        if replica.engine is None:
            replica.start(now)

    def kill(self, replica: Replica, now: float) -> None:
        broken = replica.die()
        self._engines.changed(replica.index)
        for live in broken:
            if self._lookouts:
                self._lookouts[replica.index].broken(live, now)
            self._fail(live, Fault.BROKEN, now)
        self._poll(now)

    def wedge(self, replica: Replica, now: float) -> None:
        replica.wedge(now)
        self._engines.changed(replica.index)

    def unwedge(self, replica: Replica, now: float) -> None:
        replica.unwedge(now)
        self._engines.changed(replica.index)

    def begin_scrape_fault(self, fault: ScrapeFault, now: float) -> None:
        self.control.begin(fault)

    def end_scrape_fault(self, fault: ScrapeFault, now: float) -> None:
        self.control.end(fault)

    def lose_daemon(self, now: float) -> None:
        self.control.goes(now)

    def regain_daemon(self, now: float) -> None:
        self.control.comes(now)

    # -- control ---------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """The daemon hears the gateway, scrapes and ticks; the gateway is told what to do."""
        before, decided = self.watch.totals, len(self.watch.decisions)
        windows = self.control.look(now)
        self.truth.would_refuse += sum(
            sum(window.would_shed.values())
            for window in windows
            if window.end > UNIX_START + self.scenario.warmup
        )
        self._look_after_nodes(self.watch.decisions[decided:], now)
        self.scale(now)
        totals = self.watch.totals
        if totals != before:
            self.closings.append(Closing(now, totals, self.truth.all_good, self.truth.all_good_tokens))
        self._poll(now)
        self._at(now + self.control.interval, self._look)

    def _look_after_nodes(self, decisions: list[Decision], now: float) -> None:
        """Carry out what the daemon has decided on nodes, where it may."""
        snapshot = self.watch.snapshot
        if snapshot is not None and self.control.enforces and not self.control.is_away:
            self.gpus.carry_out(decisions)
            self.gpu_account.look(snapshot, decisions, now)

    def scale(self, now: float) -> None:
        """Carry out what the daemon has decided on replica counts."""
        snapshot = self.watch.snapshot
        if snapshot is None or self.control.is_away:
            return
        for pool in snapshot.pools.values():
            if pool.scale is not None:
                self.elastic.ask(pool.name, pool.scale.replicas, now)

    def _move_limits(self, now: float) -> None:
        """A window of every replica ends for a law that only we can run."""
        law: Law[State] = self.law  # type: ignore[assignment] # no union can say that state and law fit
        for i, (replica, lookout) in enumerate(zip(self.replicas, self._lookouts, strict=True)):
            window = lookout.window(
                now,
                replica.engine.counters if replica.engine is not None else None,
                self.watch.replica(replica.name),
                self._rng.random(),
            )
            self._states[i] = law.observe(self._states[i], window)
        self._set_limits(now)
        self._at(now + self.scenario.policy.interval, self._move_limits)

    def _set_limits(self, now: float) -> None:
        states = zip(self.replicas, self._states, strict=True)
        self.control.set_limits({replica.name: float(state.slots) for replica, state in states}, now)
        self._poll(now)

    @property
    def limit(self) -> float:
        """The limits in force of all replicas that are known, added up."""
        return sum(self.control.limit(replica.name) for replica in self.replicas if replica.discovered)

    # -- accounts --------------------------------------------------------------------------------------

    def _every_second(self, now: float) -> None:
        """Tokens are told, the books looked at, a point of the series recorded."""
        answering = {replica: replica.engine for replica in self.replicas if replica.engine is not None}
        for replica, engine in answering.items():
            stepped_at = self._stepped_at[replica.index]
            self.gateway.tokens(replica.streams.values(), engine.counters.steps, stepped_at)
        self._check(now)
        self.elastic.second()
        self.series.add(
            now,
            limit=sum(self.control.limit(replica.name) for replica in answering),
            in_flight=sum(len(replica.requests) for replica in self.replicas),
            queued=len(self._by_ticket),
            waiting=sum(engine.counters.waiting for engine in answering.values()),
            kv_usage=max((engine.kv_usage for engine in answering.values()), default=0.0),
            truth=self.truth,
        )
        self._at(now + _SECOND, self._every_second)

    def _mark(self, now: float) -> None:
        elapsed = sum(now - live.sent_at for live in self._live.values())
        self.marks.append(self.books.mark(now, elapsed))

    def _check(self, now: float) -> None:
        """Assert the laws of every run."""
        self._poll(now)
        queued = len(self._by_ticket)
        at_engines = sum(len(replica.requests) for replica in self.replicas)
        self.books.check(now, self.clients.in_flight, queued, at_engines)
        self.gateway.check(now, queued)
        for replica in self.replicas:
            replica.inspect_next = True


def _replicas(scenario: Scenario, rng: Generator) -> tuple[Replica, ...]:
    replicas: list[Replica] = []
    for group in scenario.fleet:
        sigma = sqrt(log1p(group.cold_start_cv**2))
        for name in group.replica_names:
            factor = exp(sigma * rng.standard_normal() - sigma**2 / 2)  # log-normal of mean 1
            replicas.append(Replica(len(replicas), name, group, group.cold_start * factor))
    return tuple(replicas)
