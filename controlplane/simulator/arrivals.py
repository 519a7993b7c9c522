"""When requests come: streams of arrivals that follow a rate curve, as bursty as their clients are."""

from collections.abc import Iterator
from math import gamma
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from controlplane.simulator.rate import RateCurve

_CHUNK = 512


class _Gaps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the gap distributions: independent gaps between arrivals, of mean 1.

    `rest` is what is left of a gap when one looks at the stream at any time: a long gap is met more often.
    """


class GammaGaps(_Gaps, frozen=True, tag="gamma"):
    """Gamma distributed gaps with coefficient of variation `cv`: 1 is a Poisson stream, more comes in
    bursts."""

    cv: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0

    def draw(self, rng: Generator, count: int) -> NDArray[np.float64]:
        shape = self.cv**-2
        return rng.standard_gamma(shape, count) / shape

    def rest(self, rng: Generator) -> float:
        shape = self.cv**-2
        return rng.random() * rng.standard_gamma(shape + 1) / shape


class WeibullGaps(_Gaps, frozen=True, tag="weibull"):
    """Weibull distributed gaps; a `shape` under 1 comes in bursts."""

    shape: Annotated[float, msgspec.Meta(ge=0.1, le=100)]

    def draw(self, rng: Generator, count: int) -> NDArray[np.float64]:
        return rng.weibull(self.shape, count) / gamma(1 + 1 / self.shape)

    def rest(self, rng: Generator) -> float:
        met = rng.standard_gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return rng.random() * float(met) / gamma(1 + 1 / self.shape)


class EvenGaps(_Gaps, frozen=True, tag="even"):
    """No randomness: one arrival a unit of time."""

    def draw(self, rng: Generator, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    def rest(self, rng: Generator) -> float:
        return rng.random()


Gaps: TypeAlias = GammaGaps | WeibullGaps | EvenGaps


def arrivals(curve: RateCurve, gaps: Gaps, rng: Generator, until: float) -> Iterator[float]:
    """Times of arrivals from second 0 to `until`, in order, of a stream that was already running before."""
    due = gaps.rest(rng)
    while True:
        steps = due + np.concatenate([[0.0], np.cumsum(gaps.draw(rng, _CHUNK))])
        due = float(steps[-1])
        for time in curve.when(steps[:-1]).tolist():
            if time >= until:
                return
            yield time
