"""The engine is carried along with the clock, whatever the clock does."""

import asyncio
import heapq
from collections.abc import Callable

import pytest

from controlplane.simulator.constants import engine_model
from controlplane.simulator.engine import Engine
from controlplane.simulator.http.drive import Drive, Flow
from controlplane.simulator.request import FirstToken, Progress, Request
from controlplane.simulator.settings import EngineSettings

LAW = engine_model("h100-8b").law
SETTINGS = EngineSettings(num_gpu_blocks=2000, max_model_len=4096, max_num_seqs=16)
STARTED = 1e6


class Call:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Calls come when a test lets time pass, `late` so many seconds after they were due."""

    def __init__(self) -> None:
        self.now = STARTED
        self.late = 0.0
        self.wakes = 0
        self._calls: list[tuple[float, int, Call]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Call:
        call = Call(callback)
        heapq.heappush(self._calls, (when, len(self._calls) + self.wakes * 1000, call))
        return call

    def pass_until(self, end: float) -> None:
        while self._calls and self._calls[0][0] + self.late <= STARTED + end:
            when, _, call = heapq.heappop(self._calls)
            self.now = max(self.now, when + self.late)
            if call.callback is not None:
                self.wakes += 1
                call.callback()
        self.now = STARTED + end


class Driven:
    """An engine that is driven by a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.engine = Engine(LAW, SETTINGS, progress=True)
        self.drive = Drive(self.engine, self.clock)

    def ask(self, name: str, prompt: int = 100, output: int = 20, *, each: bool = True) -> Flow:
        return self.drive.submit(Request(name, prompt, output), asyncio.Event(), tells_each=each)


def token_times(output: int) -> list[float]:
    """When the tokens of one request come out of an engine that nobody drives."""
    engine = Engine(LAW, SETTINGS, progress=True)
    engine.submit(Request("r", 100, output), 0.0)
    return [event.at for event in engine.advance(60.0) if isinstance(event, FirstToken | Progress)]


def test_tokens_come_when_the_engine_says() -> None:
    driven, times = Driven(), token_times(20)
    flow = driven.ask("r")
    for count, at in enumerate(times):
        driven.clock.pass_until(at - 1e-6)
        assert flow.tokens == count
        driven.clock.pass_until(at + 1e-6)
        assert flow.tokens == count + 1
    assert flow.reason == "length"


def test_it_sleeps_between_steps_and_when_there_is_nothing_to_do() -> None:
    driven = Driven()
    driven.ask("r")
    driven.clock.pass_until(1.0)
    steps = driven.engine.counters.steps
    assert driven.clock.wakes <= steps + 1  # one to begin, one at the end of each step
    driven.clock.pass_until(3600.0)
    assert driven.clock.wakes <= steps + 1


def test_a_late_wake_tells_all_that_was_due_and_the_engine_is_not_late() -> None:
    driven, punctual = Driven(), Driven()
    driven.clock.late = 0.05
    late, flow = driven.ask("r"), punctual.ask("r")
    driven.clock.pass_until(2.0)
    punctual.clock.pass_until(2.0)
    assert (late.tokens, late.reason) == (flow.tokens, flow.reason) == (20, "length")
    assert driven.clock.wakes < punctual.clock.wakes / 3
    mine, other = driven.engine.counters, punctual.engine.counters
    mine.settle()
    other.settle()
    assert mine.e2e.total == pytest.approx(other.e2e.total)
    assert driven.drive.lateness().p50_seconds == pytest.approx(0.05)
    assert punctual.drive.lateness().longest_seconds == pytest.approx(0.0, abs=1e-9)


def test_a_timer_that_is_a_little_early_does_not_turn_time_back() -> None:
    driven, times = Driven(), token_times(3)
    driven.clock.late = -0.0004  # the resolution of a loop with milliseconds
    flow = driven.ask("r", output=3)
    driven.clock.pass_until(times[0])
    assert flow.tokens == 1
    assert driven.ask("s").tokens == 0  # would raise for a time that the engine has left behind
    driven.clock.late = 0.0
    driven.clock.pass_until(1.0)
    assert flow.reason == "length"


def test_who_wants_the_whole_is_woken_once() -> None:
    driven = Driven()
    flow = driven.ask("r", each=False)
    driven.clock.pass_until(token_times(20)[10])
    assert flow.tokens > 5
    assert not flow.changed.is_set()
    driven.clock.pass_until(1.0)
    assert flow.changed.is_set()


def test_an_abort_frees_blocks_and_leaves_no_trace_but_in_the_http_server() -> None:
    driven = Driven()
    flow, other = driven.ask("r", output=1000), driven.ask("s", output=100)
    driven.clock.pass_until(0.2)
    held = driven.engine.kv_usage
    driven.drive.abort(flow)
    driven.drive.abort(flow)
    driven.clock.pass_until(0.3)
    assert driven.engine.kv_usage < held
    driven.clock.pass_until(10.0)
    assert (flow.tokens < 1000, flow.reason, other.reason) == (True, None, "length")
    assert (driven.engine.counters.length, driven.engine.counters.stopped) == (1, 0)
    assert driven.engine.in_system == 0


def test_an_end_ends_all_with_what_they_have() -> None:
    driven = Driven()
    running, waiting = driven.ask("r", output=1000), driven.ask("s", output=5)
    driven.clock.pass_until(0.1)
    driven.drive.end_all()
    assert (running.reason, running.changed.is_set()) == ("abort", True)
    assert running.tokens > 0
    assert waiting.reason == "length"


def test_a_wedged_engine_stands_still_and_goes_on_where_it_stopped() -> None:
    driven = Driven()
    flow = driven.ask("r", output=100)
    driven.clock.pass_until(0.2)
    driven.drive.change(lambda engine: engine.wedge())
    stood = flow.tokens
    driven.clock.pass_until(50.0)
    assert flow.tokens == stood
    driven.drive.change(lambda engine: engine.unwedge())
    driven.clock.pass_until(52.0)
    assert flow.reason == "length"
