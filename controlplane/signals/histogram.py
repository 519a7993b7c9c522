"""Cumulative histograms with upper bounds, as Prometheus exposes them.

Laws that hold here: counts never fall from one bound to the next, the last bound is +Inf, a delta of
two samples of one process is a histogram again, and merging never invents an edge: two layouts are
merged on the edges that they share, because only there are both counts known.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from operator import sub

import msgspec

from controlplane.signals.interval import Interval, exactly


class Histogram(msgspec.Struct, frozen=True):
    """`counts[i]` observations were at or under `bounds[i]`; `bounds[-1]` is +Inf.

    `total` is the sum of the observed values, None where it is not known (a NaN sum).
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None

    @property
    def count(self) -> float:
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        """Mean of the observed values; None of nothing, or without a known sum."""
        if self.total is None or self.count <= 0:
            return None
        mean = self.total / self.count
        return mean if math.isfinite(mean) else None

    def minus(self, earlier: "Histogram") -> "Histogram | None":
        """What was observed since `earlier`, or None if this is not a later state of the same histogram.

        None means a reset (a count fell) or a changed bucket layout; after a reset the whole of the
        new histogram is the growth (see `growth`).
        """
        if self.bounds != earlier.bounds:
            return None
        counts = tuple(map(sub, self.counts, earlier.counts))
        if min(counts) < 0:
            return None
        known = self.total is not None and earlier.total is not None
        total = self.total - earlier.total if known else None  # type: ignore[operator]
        # A page is not read by the engine at one instant, so buckets may be one observation ahead of
        # each other; the difference must still be cumulative.
        return Histogram(self.bounds, _rising(counts), total)

    def growth(self, earlier: "Histogram | None", *, restarted: bool = False) -> "Histogram":
        """What was observed since `earlier`, in the manner of `counter.increase`."""
        if restarted or earlier is None:
            return self
        return self.minus(earlier) or self

    def fraction_below(self, threshold: float) -> Interval | None:
        """Share of observations at or under `threshold`; None of nothing.

        Exact on a bucket edge; between two edges only the two neighbours are proven.
        """
        below = self.count_below(threshold)
        if below is None or self.count <= 0:
            return None
        return Interval(below.low / self.count, below.high / self.count)

    def count_below(self, threshold: float) -> Interval | None:
        """Number of observations at or under `threshold`, as an interval; None of an empty histogram."""
        if self.count <= 0:
            return None
        i = bisect_left(self.bounds, threshold)
        if i < len(self.bounds) and self.bounds[i] == threshold:
            return exactly(self.counts[i])
        low = self.counts[i - 1] if i > 0 else 0.0
        high = self.counts[i] if i < len(self.counts) else self.count
        return Interval(low, high)

    def quantile(self, q: float) -> float | None:
        """The `q` quantile (0 < q <= 1), linear inside a bucket as Prometheus's `histogram_quantile`.

        None of nothing. A quantile that falls into the +Inf bucket is the highest finite bound: the
        histogram cannot say more.
        """
        if self.count <= 0 or not 0.0 < q <= 1.0:
            return None
        rank = q * self.count
        i = bisect_left(self.counts, rank)
        i = min(i, len(self.counts) - 1)
        if math.isinf(self.bounds[i]):
            return self.bounds[i - 1] if i > 0 else None
        start = self.bounds[i - 1] if i > 0 else min(0.0, self.bounds[i])
        before = self.counts[i - 1] if i > 0 else 0.0
        inside = self.counts[i] - before
        if inside <= 0:
            return self.bounds[i]
        # Rounding may carry the interpolation a last bit past the bucket's end.
        return min(self.bounds[i], start + (self.bounds[i] - start) * (rank - before) / inside)


def histogram(buckets: Iterable[tuple[float, float]], total: float | None, count: float | None) -> Histogram:
    """A histogram from (upper bound, cumulative count) pairs in any order.

    `count` supplies the +Inf bucket where the page has none. Raises ValueError where neither is there
    or a bound occurs twice.
    """
    pairs = sorted(buckets)
    bounds = tuple(bound for bound, _ in pairs)
    if len(set(bounds)) != len(bounds):
        raise ValueError("a bucket bound occurs twice")
    counts = tuple(value for _, value in pairs)
    if not bounds or not math.isinf(bounds[-1]):
        if count is None:
            raise ValueError("no +Inf bucket and no count")
        bounds, counts = (*bounds, math.inf), (*counts, count)
    return Histogram(bounds, _rising(counts), total)


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """All observations of several histograms together; None of none.

    Equal layouts add up bucket by bucket. Different ones keep the edges that all of them have (+Inf
    at least): on those alone every count is known.
    """
    parts = list(histograms)
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    first = parts[0].bounds
    totals = [part.total for part in parts]
    total = None if None in totals else math.fsum(t for t in totals if t is not None)
    if all(part.bounds == first for part in parts):
        counts = tuple(sum(column, 0.0) for column in zip(*(part.counts for part in parts), strict=True))
        return Histogram(first, counts, total)
    shared = sorted(set(first).intersection(*(part.bounds for part in parts[1:])))
    at = [dict(zip(part.bounds, part.counts, strict=True)) for part in parts]
    counts = tuple(math.fsum(part[bound] for part in at) for bound in shared)
    return Histogram(tuple(shared), counts, total)


def _rising(counts: tuple[float, ...]) -> tuple[float, ...]:
    """The counts made cumulative again: each at least the one before it."""
    return tuple(accumulate(counts, max))
