"""Asks many things once an interval, evenly spread, each at most once at a time.

Each has a phase in the interval that follows from its name, so 1,000 are asked one after the other and not
all at once, after a restart as before it. `start_due` starts what is due and never waits; what is still being
asked misses its turn, which is counted. Turns lie on a fixed grid of monotonic time: a late call, a suspended
machine or a clock that jumps costs turns, never a burst.
"""

import asyncio
import math
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

CALLS_PER_INTERVAL = 20
"""How often in an interval `start_due` should be called; under half of it, turns are missed."""

AT_ONCE = 16
"""So many may be asked at once."""


@dataclass(eq=False)
class _Turn(Generic[T]):
    """One thing to ask; `due` is the monotonic time of its next turn, `task` the question under way."""

    thing: T
    phase: float
    due: float
    task: asyncio.Task[None] | None = None


class Rounds(Generic[T]):
    """Calls `ask` with each thing once an interval (seconds), `most` at a time, on the running event loop.

    `offset` shifts all phases by a part of the interval, so that two rounds of the same names keep apart.
    """

    def __init__(
        self, interval: float, ask: Callable[[T], Awaitable[None]], *, most: int, offset: float = 0.0
    ) -> None:
        self.missed_turns = 0
        self._interval, self._ask, self._most, self._offset = interval, ask, most, offset
        self._turns: dict[str, _Turn[T]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def set(self, things: Mapping[str, T], now: float) -> None:
        """Ask these from now on, by name. The very same thing as before keeps its turn.

        New ones of a few are due at once, those of many at their turn: a first answer costs ten times what a
        later one does. The question to one that left is given up.
        """
        old = self._turns
        self._turns = {}
        for name, thing in things.items():
            turn = old.get(name)
            if turn is None or turn.thing is not thing:
                share = (zlib.crc32(name.encode()) / 2**32 + self._offset) % 1.0
                phase = share * self._interval
                due = now if len(things) <= AT_ONCE else self._turn_after(now, phase)
                turn = _Turn(thing, phase, due)
            self._turns[name] = turn
        for name, turn in old.items():
            if self._turns.get(name) is not turn and turn.task is not None:
                turn.task.cancel()

    def start_due(self, now: float) -> None:
        """Start what is due at monotonic time `now`; call CALLS_PER_INTERVAL times an interval.

        At most a tenth (twice the even rate) is started in one call, the longest due first.
        """
        # A turn is set at most one and a half intervals ahead; one further away is from before the clock
        # went back.
        due = [turn for turn in self._turns.values() if not now < turn.due < now + 1.6 * self._interval]
        due.sort(key=lambda turn: turn.due)
        room = min(
            max(AT_ONCE, math.ceil(len(self._turns) * 2 / CALLS_PER_INTERVAL)), self._most - len(self._tasks)
        )
        for turn in due:
            start = turn.task is None
            if start and room <= 0:
                continue  # it stays due and is the sooner served in the next calls
            if start:
                room -= 1
                turn.task = asyncio.get_running_loop().create_task(self._do(turn))
                self._tasks.add(turn.task)
                turn.task.add_done_callback(self._tasks.discard)
            passed_over = max(0, math.ceil((now - turn.due) / self._interval - 0.5))
            self.missed_turns += passed_over + (not start)
            turn.due = self._turn_after(now + self._interval / 2, turn.phase)

    async def close(self) -> None:
        """Give up all questions under way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _turn_after(self, time_: float, phase: float) -> float:
        """The first turn of that phase at or after a monotonic time."""
        return math.ceil((time_ - phase) / self._interval) * self._interval + phase

    async def _do(self, turn: _Turn[T]) -> None:
        try:
            await self._ask(turn.thing)
        finally:
            turn.task = None
