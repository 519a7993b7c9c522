"""Several workers of one gateway: forked from one process that only watches over them.

Each worker listens on the same addresses (the kernel spreads connections over them) and admits by its own
part of every replica and quota, so that together they never admit more than one would.
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

_LEAST_LIFE_SECONDS = 1.0
"""A worker that ends sooner is not started again at once."""
_log = logging.getLogger(__name__)


def watch_over(count: int, run: Callable[[int], None]) -> int:
    """Run `count` workers, `run(index)` in a process each, until a signal stops them: the exit status.

    One that dies is started again. Call it before anything has begun a thread or an event loop.
    """
    workers: dict[int, tuple[int, float]] = {}  # index and start by process id
    stopping = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = stopping or number in (signal.SIGTERM, signal.SIGINT)
        for pid in tuple(workers):
            os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    for index in range(count):
        _start(index, run, workers)
    while workers:
        pid, status = os.wait()
        index, began = workers.pop(pid, (-1, 0.0))
        if index < 0 or stopping:
            continue
        code = os.waitstatus_to_exitcode(status)
        if time.monotonic() - began < _LEAST_LIFE_SECONDS:
            if code == os.EX_CONFIG:  # it has said why it cannot start
                stopping = True
                pass_on(signal.SIGTERM, None)
                continue
            time.sleep(_LEAST_LIFE_SECONDS)
        _log.warning(
            "a worker ended and is started again", extra={"fields": {"worker": index, "status": code}}
        )
        if not stopping:
            _start(index, run, workers)
    return 0


def spare_collector() -> None:
    """Have the garbage collector look less often, and never at what is there from the start.

    Requests leave few cycles behind, and with its own thresholds a quarter of the time of a short request goes
    into looking for them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _start(index: int, run: Callable[[int], None], workers: dict[int, tuple[int, float]]) -> None:
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        status = 1
        try:
            run(index)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(status)
    workers[pid] = (index, time.monotonic())
