"""How fast a value may move, how long it is believed, and how long to wait after a failure: once, for every
actuator that sets values.

Pure: times are seconds of a steady clock, and luck (0..1) is an argument.
"""

import math

import msgspec

from controlplane.signals.backoff import backoff_seconds

LOOK_AGAIN_SECONDS = 10.0
"""So long a value that has arrived is believed: what holds it may start anew, or others may change it."""

_CREDIT_SECONDS = 1.0
"""A value that stood still for an hour may move no further at once than one that moved a second ago."""


def step(current: int, wanted: int, elapsed_seconds: float, most_per_second: float) -> int:
    """Where a value at `current` may go now on its way to `wanted`, `elapsed_seconds` after it last moved.

    In a second it may rise to (1 + most_per_second) times what it is, or fall to what would have risen to it;
    by 1 in any case, so that a small value never sticks.
    """
    seconds = min(max(0.0, elapsed_seconds), _CREDIT_SECONDS)
    factor = (1.0 + most_per_second) ** seconds
    highest: int = math.floor(max(current * factor, current + seconds))
    lowest: int = math.ceil(min(current / factor, current - seconds))
    return min(max(wanted, lowest), highest)


class Backoff(msgspec.Struct, frozen=True):
    """The wait after `failures` in a row: nothing is tried before `until`; `why` is what failed last."""

    failures: int = 0
    until: float = -math.inf
    why: str = ""

    def failed(
        self,
        why: str,
        now: float,
        luck: float,
        *,
        first_seconds: float,
        limit_seconds: float,
        asked_seconds: float = 0.0,
    ) -> "Backoff":
        """One failure more. Whoever asks to be left alone for `asked_seconds` is, up to `limit_seconds`."""
        failures = self.failures + 1
        wait = backoff_seconds(failures, luck, first_seconds=first_seconds, limit_seconds=limit_seconds)
        return Backoff(failures, now + max(wait, min(asked_seconds, limit_seconds)), why)

    def sentence(self, now: float) -> str:
        """Why nothing is tried now; empty where it may be."""
        if now >= self.until:
            return ""
        times = "once" if self.failures == 1 else f"{self.failures} times in a row"
        return f"not tried: the next try is in {self.until - now:.1f} s, it failed {times}; last: {self.why}"
