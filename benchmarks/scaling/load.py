"""Days of requests, by seed: how many come each second.

On the day's sine the rate swings within minutes, and bursts come that nobody can foresee.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Rates = NDArray[np.float64]

_STEP_SECONDS = 10


class Day(NamedTuple):
    """From `low` requests a second at midnight to `high` at noon, times a swing (log-normal, with
    coefficient of variation `swing_cv`, forgotten over `swing_seconds`), times bursts: so many a day on
    average, to between `least` and `most` times the rate (even in the logarithm), within 30 to 240 s, for
    15 minutes on average (exponential), and gone as they came."""

    low: float
    high: float
    swing_cv: float
    bursts: float
    least: float
    most: float
    swing_seconds: float = 300.0
    burst_seconds: float = 900.0
    seconds: int = 86_400


SWINGING = Day(low=36.0, high=160.0, swing_cv=0.29, bursts=4.0, least=1.5, most=3.0)
"""Swings as in the Azure conversation trace (of the two sources of the mix azure-conv together; heights
there are 250 and 350 s apart), and four bursts a day."""

SUDDEN = Day(low=36.0, high=160.0, swing_cv=0.1, bursts=12.0, least=1.3, most=3.0)
"""Quiet, but a burst every other hour: what comes within a cold start nobody can be ready for, but by
replicas that idle all day."""


class Parts(NamedTuple):
    """Requests a second without bursts, and the bursts in their order: when each begins (seconds), and how
    many times as much comes in each second of the day."""

    quiet: Rates
    bursts: tuple[tuple[float, Rates], ...]


def parts(day: Day, seed: int) -> Parts:
    """What the rates of a day are made of."""
    rng = np.random.default_rng([seed, 1])
    seconds = np.arange(day.seconds)
    mean, swing = (day.high + day.low) / 2, (day.high - day.low) / 2
    rate = mean - swing * np.cos(2 * np.pi * seconds / day.seconds)
    return Parts(np.asarray(rate * _swing(day, rng)), tuple(_bursts(day, rng)))


def rates(day: Day, seed: int) -> Rates:
    """Requests a second that are expected, in each second."""
    quiet, bursts = parts(day, seed)
    return np.asarray(quiet * np.max([np.ones(day.seconds), *(factor for _, factor in bursts)], axis=0))


def arrivals(rate: Rates, seed: int) -> Counts:
    """Poisson counts of each second."""
    return np.random.default_rng([seed, 2]).poisson(rate)


def _swing(day: Day, rng: np.random.Generator) -> Rates:
    """An Ornstein-Uhlenbeck process in the logarithm, straight between its steps."""
    keep = np.exp(-_STEP_SECONDS / day.swing_seconds)
    noise = rng.standard_normal(day.seconds // _STEP_SECONDS + 2)
    value, values = noise[0], []
    for one in noise:
        value = keep * value + np.sqrt(1 - keep**2) * one
        values.append(value)
    sigma = np.sqrt(np.log1p(day.swing_cv**2))
    at = np.arange(len(values)) * _STEP_SECONDS
    return np.asarray(np.exp(sigma * np.interp(np.arange(day.seconds), at, values) - sigma**2 / 2))


def _bursts(day: Day, rng: np.random.Generator) -> Iterator[tuple[float, Rates]]:
    at = np.arange(day.seconds)
    for start in np.sort(rng.uniform(0, day.seconds, rng.poisson(day.bursts))):
        height = np.exp(rng.uniform(np.log(day.least), np.log(day.most)))
        ramp = np.exp(rng.uniform(np.log(30), np.log(240)))
        end = start + 2 * ramp + rng.exponential(day.burst_seconds)
        shape = np.clip(np.minimum((at - start) / ramp, (end - at) / ramp), 0, 1)
        yield float(start), 1 + (height - 1) * shape
