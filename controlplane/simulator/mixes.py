"""Ready mixes of synthetic clients, read from mixes.toml."""

from functools import cache
from importlib.resources import files

import msgspec
from numpy.random import Generator

from controlplane.simulator.arrivals import GammaGaps
from controlplane.simulator.lengths import Lengths
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.workload import OpenLoop, Source


class MixSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One source of a mix; it sends `share` of its requests."""

    name: str
    share: float
    gap_cv: float
    swing_cv: float
    swing_seconds: float
    prompt: Lengths
    output: Lengths


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sources that together send `rate` requests a second, `like` a published trace."""

    like: str
    rate: float
    sources: tuple[MixSource, ...]

    def build(self, rate: float, until: float, rng: Generator) -> tuple[Source, ...]:
        """The sources at `rate` requests a second for `until` seconds; they come as unevenly as in the
        trace."""
        return tuple(
            Source(
                source.name,
                OpenLoop(
                    RateCurve.wander(rate * source.share, source.swing_cv, source.swing_seconds, until, own),
                    GammaGaps(source.gap_cv),
                ),
                source.prompt,
                source.output,
            )
            for source, own in zip(self.sources, rng.spawn(len(self.sources)), strict=True)
        )

    def build_steady(self, rate: float) -> tuple[Source, ...]:
        """The same lengths from Poisson streams of constant rate, for comparisons of one rate with
        another."""
        return tuple(
            Source(
                source.name,
                OpenLoop(RateCurve.constant(rate * source.share)),
                source.prompt,
                source.output,
            )
            for source in self.sources
        )


@cache
def mixes() -> dict[str, Mix]:
    """All mixes by name."""
    text = files(__package__).joinpath("mixes.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, Mix])


def mix(name: str) -> Mix:
    """The mix called `name`; ValueError with the known names otherwise."""
    if name not in mixes():
        raise ValueError(f"no mix is called {name!r}; there are {', '.join(mixes())}")
    return mixes()[name]
