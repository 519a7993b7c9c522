"""About the most that can be had without foresight: a law told the whole day, except when bursts will begin.

    wanted = ceil(margin * most that is known to come until a cold start from now / CAPACITY)

It knows all swings ahead, and of a burst its whole course once it has begun. Who only sees what has come
knows less. How much to keep idle for bursts to come is a choice for it, too; it keeps a constant share.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from benchmarks.scaling.load import Day, Parts, parts
from benchmarks.scaling.pool import CAPACITY
from benchmarks.scaling.sight import Sight

_AHEAD_SECONDS = 300  # a start-up that is slower than nine in ten, with time to ask
_STEP_SECONDS = 5


class AllButBursts:
    """The law on one day."""

    interval = _STEP_SECONDS

    def __init__(self, day: Day, seed: int, margin: float) -> None:
        self._wanted = np.maximum(1, np.ceil(margin * _most_known(parts(day, seed)) / CAPACITY)).astype(int)

    def look(self, sight: Sight) -> int:
        return int(self._wanted[min(sight.now, len(self._wanted) - 1)])


def _most_known(of: Parts) -> NDArray[np.float64]:
    """The highest rate of the next minutes that is known of, at each second."""
    seconds = len(of.quiet)
    most, known = np.zeros(seconds), np.ones(seconds)
    begins = [0.0, *(start for start, _ in of.bursts)]
    for begin, factor in zip(begins, [known, *(factor for _, factor in of.bursts)], strict=True):
        known = np.maximum(known, factor)
        first = int(np.ceil(begin))
        ahead = np.pad((of.quiet * known)[first:], (0, _AHEAD_SECONDS), mode="edge")
        if len(ahead) > _AHEAD_SECONDS:
            most[first:] = sliding_window_view(ahead, _AHEAD_SECONDS + 1)[:, ::_STEP_SECONDS].max(axis=1)
    return most
