"""An event loop in which waiting takes no time: whenever all tasks wait, the clock moves to the next timer.

What is handed to a thread by the loop is done at once instead, so that no time passes meanwhile. A thread
that was started otherwise is not waited for; a test that has one waits itself.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Lets virtual time pass where the loop would wait for real."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                return super().select(None)  # nothing but a thread can wake us
            self.passed += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`wall` is the system clock (Unix seconds); `jump` sets it."""

    def __init__(self, start: float) -> None:
        self._virtual = _Selector()
        self._start = start
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.passed

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def wall(self) -> float:
        return self._start + self._virtual.passed

    def jump(self, seconds: float) -> None:
        self._start += seconds


def run_virtually(loop: VirtualLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(coroutine)


def use_wall_of(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler see the loop's system clock instead of the machine's."""

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.fromtimestamp(loop.wall(), tz or UTC)

    for module in (
        "apscheduler.schedulers.base",
        "apscheduler.executors.base",
        "controlplane.daemon.schedule",
    ):
        monkeypatch.setattr(f"{module}.datetime", Datetime)
