"""The time that ticks are told: follows the system clock and runs at its pace.

Laws and rates are taken over differences of time, so a clock that jumps would make them lie. Small steps
(a second, as NTP makes them) are followed. Where the system clock jumps forward, our time jumps with it.
Where it goes back a little, our time goes on at the pace of the steady clock until the system clock has
caught up. Where it goes back by more than some minutes, it was wrong before and is right now: our time goes
back with it, the one case in which it does. Each is told once, as an event.
"""

import time
from collections.abc import Callable

from controlplane.signals.decision import Event, Severity
from controlplane.signals.units import duration_text

STEP_SECONDS = 1.0
"""A difference of the system clock smaller than this is a step to follow, a larger one a jump to tell."""
LONGEST_AHEAD_SECONDS = 300.0
"""So far our time may run ahead of the system clock; where it would be further, it goes back."""
LEAP_SECONDS = 7 * 86400.0
LEAP = "clock-leap"
"""Kind of the event of a jump forward by more: the times before it say nothing of how old a thing is."""
_TINY = 1e-6  # the smallest amount that a Unix time in a float can show


class Clock:
    """Unix time in seconds, each call later than the one before it and than `after` but after a step back."""

    def __init__(
        self,
        after: float = 0.0,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steady = steady
        """Seconds that pass at their own pace and never jump."""
        self._wall = wall
        self._last = after
        self._events: list[Event] = []
        self._ahead = False
        behind = after - wall()
        self._offset = (after if behind > STEP_SECONDS else wall()) - steady()
        if behind > STEP_SECONDS:
            self.now()
        elif after and -behind > LEAP_SECONDS:
            why = "the daemon was away, or the system clock is wrong"
            self._tell(wall(), LEAP, f"the last tick in the journal is {_text(-behind)} old: {why}")

    def now(self) -> float:
        wall, own = self._wall(), self.steady() + self._offset
        if own - wall > LONGEST_AHEAD_SECONDS:
            self._set_back(wall, own - wall)
        elif own - wall > STEP_SECONDS:
            if not self._ahead:
                self._run_ahead(own - wall)
            wall = own
        else:
            if self._ahead:
                self._tell(wall, "clock-in-step", "the system clock has caught up with the time of the ticks")
            elif wall - own > STEP_SECONDS:
                kind = LEAP if wall - own > LEAP_SECONDS else "clock-jump"
                self._tell(wall, kind, f"the system clock jumped forward by {_text(wall - own)}")
            self._ahead = False
            self._offset = wall - self.steady()
        self._last = max(wall, self._last + _TINY)
        return self._last

    def take_events(self) -> tuple[Event, ...]:
        """What happened to the clock since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def _run_ahead(self, seconds: float) -> None:
        self._ahead = True
        self._tell(
            self._last,
            "clock-back",
            f"the system clock is {_text(seconds)} behind the last tick: "
            "time goes on at its own pace until the clock has caught up",
        )

    def _set_back(self, wall: float, seconds: float) -> None:
        self._ahead = False
        self._offset = wall - self.steady()
        self._last = wall - _TINY
        self._tell(
            wall,
            "clock-set-back",
            f"the system clock went back by {_text(seconds)}: time goes on from there, rates begin anew",
        )

    def _tell(self, at: float, kind: str, sentence: str) -> None:
        self._events.append(Event(at, kind, "daemon", Severity.WARNING, sentence))


def _text(seconds: float) -> str:
    return duration_text(round(seconds, 0 if seconds >= 10 else 1))
