"""An engine under observation: laws that hold in every run, whatever the workload.

- Nothing is lost: every request is finished, aborted or still inside.
- Work conservation: while a request is inside, a step runs; the engine's busy time is the time in which it
  did.
- Little's law: the requests inside, summed over time, are the times that requests spent inside, summed over
  requests.
- Tokens are made by requests only, and an empty engine holds no blocks.
"""

from math import inf

import pytest

from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event, Finished, Request


class LawfulEngine:
    """Passes everything on to `engine`, goes through time event by event and keeps its own accounts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 0.0
        self.arrived: dict[str, tuple[float, Request]] = {}
        self.hung_up: dict[str, float] = {}
        self.submitted = 0
        self.aborted = 0
        self.finished: list[Finished] = []
        self.time_inside = 0.0
        self.area = 0.0
        self.busy_seconds = 0.0

    def submit(self, request: Request, now: float) -> None:
        self._pass(now)
        self.engine.submit(request, now)
        self.submitted += 1
        self.arrived[request.id] = (now, request)

    def abort(self, request_id: str, now: float) -> None:
        self.engine.abort(request_id, now)
        if request_id in self.arrived:
            self.hung_up.setdefault(request_id, now)

    def next_event_time(self) -> float:
        return self.engine.next_event_time()

    def advance(self, to: float) -> list[Event]:
        events: list[Event] = []
        while self.now < to or self.engine.next_event_time() <= to:
            at = min(self.engine.next_event_time(), to)
            self._pass(at)
            ends_step = self.engine.is_busy and at == self.engine.next_event_time()
            for event in self.engine.advance(at):
                events.append(event)
                if isinstance(event, Finished):
                    self._leave(event.request_id, at)
                    self.finished.append(event)
                    # Ends before the hang-up is known; a hang-up in the same step counts as aborted.
                    assert self.hung_up.pop(event.request_id, inf) > at
            if ends_step:
                for request_id in [r for r, hung_up_at in self.hung_up.items() if hung_up_at <= at]:
                    self._leave(request_id, at)
                    del self.hung_up[request_id]
                    self.aborted += 1
            if self.engine.in_system and at < to:
                assert self.engine.is_busy, f"{self.engine.in_system} requests inside, no step runs at {at}"
        return events

    def _pass(self, to: float) -> None:
        """Time goes on to `to`, before which nothing happens."""
        self.area += self.engine.in_system * (to - self.now)
        self.busy_seconds += self.engine.is_busy * (to - self.now)
        self.now = to

    def _leave(self, request_id: str, at: float) -> None:
        self.time_inside += at - self.arrived.pop(request_id)[0]

    def check(self) -> None:
        """Assert the laws for the run so far."""
        engine, counters = self.engine, self.engine.counters
        counters.settle()
        assert engine.in_system == len(self.arrived)
        assert self.submitted == len(self.finished) + self.aborted + engine.in_system
        assert counters.aborted == self.aborted
        assert counters.stopped + counters.length == len(self.finished)

        inside = sum(self.now - arrived_at for arrived_at, _ in self.arrived.values())
        assert self.area == pytest.approx(self.time_inside + inside, rel=1e-9, abs=1e-9)

        if not engine.is_busy:
            assert counters.busy_seconds == pytest.approx(self.busy_seconds, rel=1e-9)
        assert counters.busy_seconds <= self.busy_seconds * (1 + 1e-9)

        made = sum(event.output_tokens for event in self.finished)
        read = sum(event.prompt_tokens for event in self.finished)
        assert counters.generation_tokens >= made
        assert counters.prompt_tokens >= read
        if not self.aborted and not engine.in_system:
            assert counters.generation_tokens == made
            assert counters.prompt_tokens == read
            assert counters.ttft.histogram().count == len(self.finished)
            assert counters.itl.histogram().count == made - len(self.finished)
        if not engine.in_system:
            assert engine.kv_usage == 0.0
        for event in self.finished:
            times = [event.arrived_at, event.queued_at, event.scheduled_at, event.first_token_at, event.at]
            assert times == sorted(times)


def run_all(engine: LawfulEngine, requests: list[tuple[float, Request]], until: float = inf) -> list[Event]:
    """Submit `requests` (time, request) in order, go on to the end or to `until`, check the laws."""
    events: list[Event] = []
    for at, request in requests:
        if at > engine.now:
            events += engine.advance(at)
        engine.submit(request, at)
    while (at := engine.next_event_time()) <= until and at < inf:
        events += engine.advance(at)
    engine.check()
    return events
