"""Square-root staffing: what is needed beyond the mean for the coming and going within a minute.

    needed = rate + z * sqrt(dispersion * rate / seconds)

`dispersion` is the variance of the work that comes in a look, over its mean (the index of dispersion of
counts, in tokens of work): requests come unevenly, and their sizes differ. It is taken from one look to the
next, so that slow changes, which the forecast knows of, are not in it. The larger a pool, the smaller the
share.
"""

import math

import msgspec

_MEMORY_LOOKS = 100  # 25 minutes: of ten samples a variance is half right


class Dispersion(msgspec.Struct, frozen=True):
    """`value` in tokens of work, from `looks` pairs of looks; `rate` was that of the last look."""

    rate: float
    value: float = 0.0
    looks: int = 0


def observe(before: Dispersion | None, rate: float, seconds: float) -> Dispersion:
    """After one more look of so many seconds at work that came at `rate`."""
    if before is None:
        return Dispersion(rate)
    mean = (before.rate + rate) / 2
    if mean <= 0:
        return msgspec.structs.replace(before, rate=rate)
    sample = (rate - before.rate) ** 2 / 2 * seconds / mean
    looks = before.looks + 1
    value = before.value + (sample - before.value) / min(looks, _MEMORY_LOOKS)
    return Dispersion(rate, value, looks)


def staffed(rate: float, dispersion: float, seconds: float, z: float) -> float:
    """The rate that the pool should be able to serve where `rate` comes on average."""
    return rate + z * math.sqrt(dispersion * rate / seconds)
