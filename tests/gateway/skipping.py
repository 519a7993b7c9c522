"""A clock that can be put forward: minutes pass when a test says so, hardly any on a slow machine."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


class SkippingLoop(asyncio.SelectorEventLoop):
    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def skip(seconds: float) -> None:
    """So much later it is, at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skipped += seconds


def in_skipping_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run this test in a loop whose clock `skip` puts forward."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=SkippingLoop) as runner:
            runner.run(test(*args, **fixtures))

    return run
