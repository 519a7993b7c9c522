"""The schedule: one run at a time, none lost without being counted, whatever the system clock does."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from daemon_fakes import NOON
from virtual_time import VirtualLoop, run_virtually, use_wall_of

from controlplane.daemon.schedule import Schedule


class Bench:
    """A schedule in virtual time, and what its jobs reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = VirtualLoop(NOON)
        use_wall_of(self.loop, monkeypatch)
        self.failed: list[tuple[str, BaseException]] = []
        self.succeeded: list[str] = []
        self.schedule = Schedule(lambda *it: self.failed.append(it), self.succeeded.append, self.loop.time)

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            self.schedule.start()
            await test()
            self.schedule.stop()

        run_virtually(self.loop, whole())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def job(bench: Bench, runs: list[float], takes: float = 0.0) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        runs.append(bench.loop.time())
        await asyncio.sleep(takes)

    return run


def test_jobs_run_at_once_and_then_at_their_interval(bench: Bench) -> None:
    fast: list[float] = []
    slow: list[float] = []

    async def test() -> None:
        bench.schedule.every(0.25, "fast", job(bench, fast))
        bench.schedule.every(5.0, "slow", job(bench, slow))
        await asyncio.sleep(60.1)

    bench.run(test)
    assert len(fast) == 241
    assert len(slow) == 13
    assert max(b - a for a, b in pairwise(fast)) < 0.251
    assert bench.schedule.runs["fast"].misfires == 0
    assert set(bench.succeeded) == {"fast", "slow"}


def test_a_job_that_takes_too_long_runs_once_at_a_time_and_its_lost_turns_are_counted(bench: Bench) -> None:
    runs: list[float] = []

    async def test() -> None:
        bench.schedule.every(1.0, "tick", job(bench, runs, takes=3.5))
        await asyncio.sleep(40.5)

    bench.run(test)
    assert [round(at) for at in runs] == list(range(0, 41, 4))
    counts = bench.schedule.runs["tick"]
    assert (counts.overrun, counts.late) == (30, 0)


def test_a_blocked_loop_costs_turns_which_are_counted_and_never_a_burst(bench: Bench) -> None:
    runs: list[float] = []

    async def test() -> None:
        bench.schedule.every(1.0, "tick", job(bench, runs))
        await asyncio.sleep(10.1)
        bench.loop._virtual.passed += 30.0  # as if something had not given way for so long
        await asyncio.sleep(10.1)

    bench.run(test)
    assert len(runs) == 11 + 1 + 10
    assert bench.schedule.runs["tick"].misfires == 29


@pytest.mark.parametrize("seconds", [-86400.0, -3.0, 3.0, 86400.0, 40 * 365 * 86400.0])
def test_jobs_go_on_at_their_pace_when_the_system_clock_jumps(bench: Bench, seconds: float) -> None:
    runs: list[float] = []

    async def test() -> None:
        bench.schedule.every(1.0, "tick", job(bench, runs))
        await asyncio.sleep(10.1)
        bench.loop.jump(seconds)
        await asyncio.sleep(20.0)

    bench.run(test)
    gaps = [b - a for a, b in pairwise(runs)]
    assert max(gaps) < 3.01  # it takes a look at the clock to find out that it went back
    assert 27 <= len(runs) <= 32
    assert bench.schedule.runs["tick"].late <= 2


def test_a_job_that_raises_is_told_and_comes_again(bench: Bench) -> None:
    times = []

    async def failing() -> None:
        times.append(1)
        if len(times) < 3:
            raise ValueError("oh")

    async def test() -> None:
        bench.schedule.every(1.0, "tick", failing)
        await asyncio.sleep(4.5)

    bench.run(test)
    assert [(name, str(error)) for name, error in bench.failed] == [("tick", "oh")] * 2
    assert bench.succeeded == ["tick"] * 3
    assert (bench.schedule.runs["tick"].failed, bench.schedule.runs["tick"].done) == (2, 3)


def test_a_job_can_be_given_another_interval(bench: Bench) -> None:
    runs: list[float] = []

    async def test() -> None:
        bench.schedule.every(1.0, "tick", job(bench, runs))
        await asyncio.sleep(10.5)
        bench.schedule.every(0.1, "tick", job(bench, runs))
        await asyncio.sleep(1.05)

    bench.run(test)
    assert len(runs) == 11 + 11


def test_nothing_runs_after_the_stop(bench: Bench) -> None:
    runs: list[float] = []

    async def test() -> None:
        bench.schedule.every(1.0, "tick", job(bench, runs))
        await asyncio.sleep(2.5)
        bench.schedule.stop()
        await asyncio.sleep(10.0)

    bench.run(test)
    assert len(runs) == 3
