"""Outcome windows, kept for whoever reads them: all that ended after a time, for an hour, or as long as
memory allows.

Admission counts in the loop's time; here a window gets its Unix times, once, so that it is the same window
however often it is told.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from controlplane.signals.samples import OutcomeWindow

KEPT_SECONDS = 3600.0
MOST_PARTS = 50_000
"""Most windows that are kept, with what they say of each replica and size class: some 45 MB, eight minutes of
a hundred busy replicas."""


class ToldWindows:
    def __init__(self) -> None:
        self._windows: list[OutcomeWindow] = []  # in the order of their ends
        self._parts = 0

    def add(
        self, windows: Iterable[OutcomeWindow], unix_offset: float, *, is_alone: bool = False
    ) -> list[OutcomeWindow]:
        """Windows that are over; `unix_offset` makes Unix times of theirs. Returns them with those.

        `is_alone` says whether nobody steered us meanwhile.
        """
        new = [
            msgspec.structs.replace(
                window,
                start=round(window.start + unix_offset, 3),
                end=round(window.end + unix_offset, 3),
                is_alone=is_alone,
            )
            for window in windows
        ]
        self._windows += new
        self._parts += sum(map(_parts, new))
        if new:
            self._windows.sort(key=_end)
            self._forget(bisect_right(self._windows, self._windows[-1].end - KEPT_SECONDS, key=_end))
        return new

    def _forget(self, first: int) -> None:
        """Those before `first`, and more of the oldest while there are too many; never the newest."""
        self._parts -= sum(map(_parts, self._windows[:first]))
        while self._parts > MOST_PARTS and first < len(self._windows) - 1:
            self._parts -= _parts(self._windows[first])
            first += 1
        del self._windows[:first]

    def after(self, unix: float) -> list[OutcomeWindow]:
        return self._windows[bisect_right(self._windows, unix, key=_end) :]


def _parts(window: OutcomeWindow) -> int:
    return 1 + len(window.replicas) + len(window.sizes)


def _end(window: OutcomeWindow) -> float:
    return window.end
