"""The load at the time at which a replica that is asked for now will serve: Holt's method, and how far off
it is.

    level  = a * rate + (1 - a) * (level + trend)               a: 40 minutes
    trend  = b * (level - level before) + (1 - b) * trend       b: 4 hours
    ahead  = level + trend * looks + stays * (rate - level)
    upper  = ahead * (1 + z * spread)

Load swings around its level within minutes, as quickly as a replica loads. A swing of now is half over by the
time at which a replica could serve it, so only the part of it that `stays` counts: the slope of what was off
the level that many looks later against what was off then, learned. `spread` is how far forecasts that have
come due were off, root mean square; z is the normal quantile of the assurance that is wanted.

A season (Holt-Winters) is not in it: with the true curve of the day given, forecasts three minutes ahead
saved half a percent of the replicas, for the state of a whole day.
"""

import math

import msgspec
from msgspec.structs import replace

LOOK_SECONDS = 15.0
"""From one look to the next, as the HPA's."""

_LEVEL = LOOK_SECONDS / 2400  # long against swings of five minutes, short against the day
_TREND = LOOK_SECONDS / 14400  # the day's slope; any quicker, and a swing would be a trend
_MEMORY = LOOK_SECONDS / 7200  # of spread and stays: some twenty swings
# One burst of three times the load must not widen the band for hours: nobody can keep replicas for that.
_FARTHEST = 0.5
# Before any forecast has come due; it counts for as much as five minutes of them.
_SPREAD_AT_FIRST = 0.2
_LOOKS_AT_FIRST = 20


class Made(msgspec.Struct, frozen=True):
    """A forecast whose time has not come: the level and the rate that it foretold, and what was `off`
    then."""

    level: float
    rate: float
    off: float


class Forecast(msgspec.Struct, frozen=True):
    """`level` and `off` (of the last minute) in units a second, `trend` in those a look. `awaited` are
    forecasts that have not come due, the oldest first; `due` counts those that have. `squares` and
    `products` are sums for the slope."""

    level: float
    trend: float = 0.0
    off: float = 0.0
    looks: int = 1
    awaited: tuple[Made, ...] = ()
    due: int = 0
    variance: float = _SPREAD_AT_FIRST**2
    squares: float = 0.0
    products: float = 0.0

    @property
    def stays(self) -> float:
        """The share of what is off the level now that still will be; all of it until something is learned."""
        return min(1.0, max(0.0, self.products / self.squares)) if self.squares > 0 else 1.0

    @property
    def spread(self) -> float:
        """How far forecasts are off, as a share of the rate."""
        return math.sqrt(self.variance)

    def ahead(self, looks: int) -> float:
        """The rate that is expected so many looks from now."""
        return max(0.0, self.level + self.trend * looks + self.stays * self.off)


def observe(before: Forecast | None, rate: float, looks: int) -> Forecast:
    """After one more look at the rate of the last minute; forecasts are made for `looks` ahead."""
    if before is None:
        return Forecast(rate)
    weight = max(_LEVEL, 1 / (1 + before.looks))
    level = weight * rate + (1 - weight) * (before.level + before.trend)
    trend = before.trend + _TREND * (level - before.level - before.trend)
    after = replace(before, level=level, trend=trend, off=rate - level, looks=before.looks + 1)
    made = Made(level + trend * looks, after.ahead(looks), after.off)
    awaited = (*before.awaited, made)
    if len(awaited) <= looks:
        return replace(after, awaited=awaited)
    return _judged(replace(after, awaited=awaited[-looks:]), awaited[-looks - 1], rate)


def _judged(after: Forecast, made: Made, rate: float) -> Forecast:
    """With what one forecast that has come due tells."""
    if made.rate <= 0 or made.level <= 0:
        return after
    error = min(_FARTHEST, max(-_FARTHEST, rate / made.rate - 1))
    weight = max(_MEMORY, 1 / (_LOOKS_AT_FIRST + 1 + after.due))
    scale = made.level**2  # so that the night counts as much as the day
    return replace(
        after,
        due=after.due + 1,
        variance=after.variance + weight * (error**2 - after.variance),
        squares=(1 - _MEMORY) * after.squares + made.off**2 / scale,
        products=(1 - _MEMORY) * after.products + made.off * (rate - made.level) / scale,
    )
