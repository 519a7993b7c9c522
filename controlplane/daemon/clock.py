"""The time that ticks are told: follows the system clock, runs at its pace, and never goes back.

Laws and rates are taken over differences of time, so a clock that jumps would make them lie. Small steps
(a second, as NTP makes them) are followed. Where the system clock goes back by more, our time goes on at
the pace of the steady clock until the system clock has caught up; where it jumps forward, our time jumps
with it. Either is told once, as an event.
"""

import time
from collections.abc import Callable

from controlplane.signals.decision import Event, Severity
from controlplane.signals.units import duration_text

STEP_SECONDS = 1.0
"""A difference of the system clock smaller than this is a step to follow, a larger one a jump to tell."""
_TINY = 1e-6  # the smallest amount that a Unix time in a float can show


class Clock:
    """Unix time in seconds, each call later than the one before it and than `after`."""

    def __init__(
        self,
        after: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._last = after
        self._events: list[Event] = []
        self._ahead = False
        behind = after - wall()
        self._offset = (after if behind > STEP_SECONDS else wall()) - steady()
        if behind > STEP_SECONDS:
            self._went_back(behind)

    def now(self) -> float:
        wall, own = self._wall(), self._steady() + self._offset
        if own - wall > STEP_SECONDS:
            if not self._ahead:
                self._went_back(own - wall)
            now = own
        else:
            if self._ahead:
                self._tell(wall, "clock-in-step", "the system clock has caught up with the time of the ticks")
            elif wall - own > STEP_SECONDS:
                self._tell(wall, "clock-jump", f"the system clock jumped forward by {_text(wall - own)}")
            self._ahead = False
            self._offset = wall - self._steady()
            now = wall
        self._last = max(now, self._last + _TINY)
        return self._last

    def take_events(self) -> tuple[Event, ...]:
        """What happened to the clock since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def _went_back(self, seconds: float) -> None:
        self._ahead = True
        self._tell(
            self._last,
            "clock-back",
            f"the system clock is {_text(seconds)} behind the last tick: "
            "time goes on at its own pace until the clock has caught up",
        )

    def _tell(self, at: float, kind: str, sentence: str) -> None:
        self._events.append(Event(at, kind, "daemon", Severity.WARNING, sentence))


def _text(seconds: float) -> str:
    return duration_text(round(seconds, 0 if seconds >= 10 else 1))
