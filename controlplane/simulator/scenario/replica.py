"""One replica in virtual time: a process with an engine in it that can die, hang, slow down and come back."""

from math import inf

from controlplane.signals.samples import Scrape
from controlplane.simulator import metrics_page
from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.fleet import EngineGroup
from controlplane.simulator.scenario.live import Live
from controlplane.simulator.step import StepLaw

MODEL = "simulated"  # the served name
_ROUNDING_SECONDS = 1e-6


class Replica:
    """`engine` is None while no process answers, `discovered` says whether the daemon has it as a target.

    AssertionError where an engine idles while it has work, or was busy for another time than it had some.
    """

    def __init__(self, index: int, name: str, group: EngineGroup, cold_start_seconds: float) -> None:
        self.index = index
        self.name = name
        self.pool = group.pool
        self.settings = group.settings
        self.cold_start_seconds = cold_start_seconds
        self.engine: Engine | None = None
        self.discovered = True
        self.requests: dict[str, Live] = {}  # sent and not ended, in order
        self.streams: dict[str, Live] = {}  # those of them that stream
        self.inspect_next = False  # at the end of the next step
        self._law = group.law
        self._slowed_to: list[float] = []
        self._identity = metrics_page.Replica(MODEL, UNIX_START, self.settings)
        self._occupied_seconds = 0.0
        self._occupied_since: float | None = None
        self._was_wedged = False

    def next_event_time(self) -> float:
        """When its engine does something next; infinity if it does nothing."""
        return inf if self.engine is None else self.engine.next_event_time()

    def start(self, now: float) -> None:
        """A new process answers."""
        self.engine = Engine(self._slowed_law(), self.settings)
        self._identity = metrics_page.Replica(MODEL, UNIX_START + now, self.settings)
        self._occupied_seconds, self._occupied_since = 0.0, None
        self._was_wedged = False

    def die(self) -> list[Live]:
        """The process is gone. Returns its requests, in order."""
        broken = list(self.requests.values())
        self.requests, self.streams = {}, {}
        self.engine = None
        return broken

    def submit(self, live: Live, now: float) -> None:
        engine = self.engine
        assert engine is not None
        engine.submit(live.request, now)
        self.requests[live.request.id] = live
        if self._occupied_since is None:
            self._occupied_since = now

    def abort(self, request_id: str, now: float) -> None:
        """The client of a request hung up."""
        self.ended(request_id)
        if self.engine is not None:
            self.engine.abort(request_id, now)

    def ended(self, request_id: str) -> None:
        """The request is no more, or no longer of this replica."""
        del self.requests[request_id]
        self.streams.pop(request_id, None)

    def advance(self, now: float) -> list[Event]:
        """What the engine does at `now`, its next event time."""
        engine = self.engine
        assert engine is not None
        events = engine.advance(now)
        if self.inspect_next:
            self._inspect(engine, now)
        if engine.in_system:
            assert engine.is_busy, f"{self.name} idles at {now} s with {engine.in_system} requests inside"
        elif self._occupied_since is not None:
            self._occupied_seconds += now - self._occupied_since
            self._occupied_since = None
        return events

    def _inspect(self, engine: Engine, now: float) -> None:
        """At the end of a step: assert that the engine was busy just as long as it had work."""
        self.inspect_next = False
        if self._was_wedged:  # what came to an idle wedged engine waited without a step
            return
        occupied, busy = self._occupied_seconds, engine.counters.busy_seconds
        if self._occupied_since is not None:
            occupied += now - self._occupied_since
        assert abs(occupied - busy) <= _ROUNDING_SECONDS, (
            f"{self.name} had work for {occupied} s at {now} s and was busy for {busy} s"
        )

    def scrape(self, now: float, seconds: float) -> Scrape:
        """The page, had it arrived at `now` after `seconds`."""
        assert self.engine is not None
        return metrics_page.scrape(self._identity, self.engine.counters, self.name, UNIX_START + now, seconds)

    def wedge(self, now: float) -> None:
        if self.engine is not None:
            self.engine.advance(now)
            self.engine.wedge()
            self._was_wedged = True

    def unwedge(self, now: float) -> None:
        if self.engine is not None:
            self.engine.advance(now)
            self.engine.unwedge()

    def slow(self, to: float) -> None:
        """From the next step on the engine has the share `to` of its speed."""
        self._slowed_to.append(to)
        self._set_law()

    def end_slow(self, to: float) -> None:
        self._slowed_to.remove(to)
        self._set_law()

    def _set_law(self) -> None:
        if self.engine is not None:
            self.engine.set_law(self._slowed_law())

    def _slowed_law(self) -> StepLaw:
        law = self._law
        for share in self._slowed_to:
            law = law.slowed(1.0 / share)
        return law
