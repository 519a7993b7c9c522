"""Means over seeds, with 95 % intervals."""

from collections.abc import Iterable
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t, 1 to 9 degrees of freedom


class Mean(NamedTuple):
    """`interval` is half of the 95 % confidence interval; None of a single value."""

    value: float
    interval: float | None

    def text(self, form: str = ".1%") -> str:
        """Both for people."""
        return f"{self.value:{form}}" + ("" if self.interval is None else f" ± {self.interval:{form}}")

    @property
    def low(self) -> float:
        return self.value - (self.interval or 0.0)

    @property
    def high(self) -> float:
        return self.value + (self.interval or 0.0)


def mean(values: Iterable[float]) -> Mean:
    """Of at least one value."""
    found = list(values)
    n = len(found)
    return Mean(fmean(found), _T_95[min(n, 10) - 2] * stdev(found) / sqrt(n) if n > 1 else None)


def share(part: float, of: float) -> float:
    """A ratio; 1 where there is nothing to get."""
    return part / of if of else 1.0
