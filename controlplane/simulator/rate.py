"""How many requests a second come when: a piecewise linear curve over time.

Steps, ramps, bursts and days are all such curves. Random arrivals follow one by a change of time: a stream
with one arrival a unit of its own time is stretched so that a unit passes whenever the area under the curve
grows by 1. That keeps the stream's burstiness, whatever the rate.
"""

from itertools import pairwise
from math import inf, pi, sin
from typing import Self

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray


class RateCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Linear between `points` (seconds, requests a second); constant before the first and after the last.

    Two points at one time are a jump. Raises ValueError for times that fall or rates under 0.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        times = [time for time, _ in self.points]
        if not self.points:
            raise ValueError("a rate curve needs at least one point")
        if times != sorted(times) or times[0] < 0:
            raise ValueError(f"times of a rate curve must rise from 0 on (got {times})")
        if any(rate < 0 for _, rate in self.points):
            raise ValueError(f"rates can't be under 0 (got {[rate for _, rate in self.points]})")

    @classmethod
    def constant(cls, rate: float) -> Self:
        return cls(((0.0, rate),))

    @classmethod
    def steps(cls, steps: tuple[tuple[float, float], ...]) -> Self:
        """Constant from each (seconds, rate) to the next; before the first as at the first."""
        cls(steps)  # what cannot be is refused by its own numbers, not by those of the curve made of it
        points = [steps[0]]
        for (_, before), (time, rate) in pairwise(steps):
            points += [(time, before), (time, rate)]
        return cls(tuple(points))

    @classmethod
    def burst(cls, rate: float, start: float, seconds: float, factor: float) -> Self:
        """`rate`, but `factor` times as much for some `seconds` from second `start` on."""
        return cls.steps(((0.0, rate), (start, rate * factor), (start + seconds, rate)))

    @classmethod
    def day(
        cls, low: float, high: float, *, period: float = 86400.0, peak: float = 0.0, days: int = 1
    ) -> Self:
        """A sine between `low` and `high` with its first peak at second `peak`, in 48 straight pieces a
        period."""
        middle, swing = (high + low) / 2, (high - low) / 2
        times = [period * i / 48 for i in range(48 * days + 1)]
        return cls(tuple((t, middle + swing * sin(2 * pi * (t - peak) / period + pi / 2)) for t in times))

    @classmethod
    def wander(cls, rate: float, cv: float, every: float, until: float, rng: Generator) -> Self:
        """Around `rate`, through independent gamma distributed heights of coefficient of variation `cv`.

        The heights are `every` so many seconds apart, straight lines between them.
        """
        shape = cv**-2
        heights = (rng.standard_gamma(shape, int(until / every) + 2) / shape * rate).tolist()
        return cls(tuple((i * every, height) for i, height in enumerate(heights)))

    def times(self, factor: float) -> "RateCurve":
        """The same curve, `factor` times as high."""
        return RateCurve(tuple((time, rate * factor) for time, rate in self.points))

    def at(self, time: float) -> float:
        """Requests a second at second `time`; at a jump the rate after it."""
        index = sum(1 for t, _ in self.points if t <= time)
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (t0, r0), (t1, r1) = self.points[index - 1], self.points[index]
        return r0 + (r1 - r0) * (time - t0) / (t1 - t0)

    def arrivals_until(self, time: float) -> float:
        """Expected arrivals from second 0 to `time`: the area under the curve."""
        area, last_time, last_rate = 0.0, 0.0, self.points[0][1]
        for point, rate in self.points:
            if point > time:
                break
            area += (last_rate + rate) / 2 * (point - last_time)
            last_time, last_rate = point, rate
        return area + (last_rate + self.at(time)) / 2 * (time - last_time)

    def when(self, arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
        """The times by which so many arrivals are expected; infinity where there will never be so many."""
        points = np.array([(0.0, self.points[0][1]), *self.points])
        times, rates = points[:, 0], points[:, 1]
        areas = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * np.diff(times))])
        piece = np.clip(np.searchsorted(areas, arrivals, side="right") - 1, 0, len(areas) - 1)
        rest = arrivals - areas[piece]
        rate = rates[piece]
        width = np.append(np.diff(times), inf)[piece]
        rise = np.append(np.diff(rates), 0.0)[piece]
        slope = np.divide(rise, width, out=np.zeros_like(rise), where=np.isfinite(width) & (width > 0))
        # Solve rate*x + slope*x^2/2 = rest in the form that also holds for slope 0 (and rate 0).
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * rest, 0.0))
        whole = rate + root
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(rest > 0, 2 * rest / whole, 0.0)
        return np.asarray(times[piece] + x)
