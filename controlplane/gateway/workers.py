"""Several workers of one gateway: forked from one process that only watches over them.

Each worker listens on the same addresses (the kernel spreads connections over them) and admits by its own
part of every replica and quota, so that together they never admit more than one would. Each holds the end of
a pipe that ends with the watching process: when that is killed, its workers stop in order.
"""

import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

_LEAST_LIFE_SECONDS = 1.0
"""A worker that ends sooner is not started again at once."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_log = logging.getLogger(__name__)

Run: TypeAlias = Callable[[int, int], None]
"""(index, file descriptor that can be read when the watching process is gone) -> runs until it is stopped."""


def watch_over(count: int, run: Run) -> int:
    """Run `count` workers in a process each until a signal stops them; returns the exit status.

    One that dies is started again. Call it before anything has begun a thread or an event loop.
    """
    return _Watch(run).over(count)


def spare_collector() -> None:
    """Have the garbage collector look less often, and never at what is there from the start.

    Requests leave few cycles behind, and with its own thresholds it looks for them every few of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class _Watch:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._workers: dict[int, tuple[int, float]] = {}  # index and start by process id
        self._is_stopping = False
        self._alive, self._held = os.pipe()

    def over(self, count: int) -> int:
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        for index in range(count):
            self._start(index)
        while self._workers:
            pid, status = os.wait()
            index, began = self._workers.pop(pid, (-1, 0.0))
            if index < 0 or self._is_stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            if time.monotonic() - began < _LEAST_LIFE_SECONDS:
                if code == os.EX_CONFIG:  # it has said why it cannot start
                    self._pass_on(signal.SIGTERM, None)
                    return code
                time.sleep(_LEAST_LIFE_SECONDS)
            fields = {"worker": index, "status": code}
            _log.warning("a worker ended and is started again", extra={"fields": fields})
            self._start(index)
        return 0

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = self._is_stopping or number != signal.SIGHUP
        for pid in tuple(self._workers):
            with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for just now
                os.kill(pid, signal.SIGTERM if number == signal.SIGINT else number)

    def _start(self, index: int) -> None:
        # A signal between the fork and the note of it would not reach the new worker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        if not self._is_stopping:
            pid = os.fork()
            if pid == 0:
                self._become(index, before)
            self._workers[pid] = (index, time.monotonic())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become(self, index: int, mask: set[signal.Signals | int]) -> None:
        """In the new process: run, and never return."""
        status = 1
        try:
            os.close(self._held)
            for number in _PASSED_ON:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._run(index, self._alive)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            os._exit(status)
