"""Outcome windows, kept for whoever reads them: all that ended after a time, for an hour.

Admission counts in the loop's time; here a window gets its Unix times, once, so that it is the same window
however often it is told.
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from controlplane.signals.samples import OutcomeWindow

KEPT_SECONDS = 3600.0
MOST_WINDOWS = 20_000
"""Most in one answer, and as many are kept: what `sources/gateways.py` takes."""


class ToldWindows:
    def __init__(self) -> None:
        self._windows: list[OutcomeWindow] = []  # in the order of their ends

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
        if new:
            self._windows.sort(key=_end)
            oldest = self._windows[-1].end - KEPT_SECONDS
            del self._windows[: bisect_right(self._windows, oldest, key=_end)]
            del self._windows[:-MOST_WINDOWS]
        return new

    def after(self, unix: float) -> list[OutcomeWindow]:
        return self._windows[bisect_right(self._windows, unix, key=_end) :]


def _end(window: OutcomeWindow) -> float:
    return window.end
