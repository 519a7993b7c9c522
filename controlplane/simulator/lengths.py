"""How long prompts and answers are: distributions of token counts, drawn from a generator that is passed
in."""

from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]
Positive = Annotated[float, msgspec.Meta(gt=0)]
MOST_TOKENS = 10_000_000
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]


class _Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the distributions below."""


class Fixed(_Lengths, frozen=True, tag="fixed"):
    """Always the same."""

    tokens: Tokens

    def draw(self, rng: Generator, count: int) -> Counts:
        """`count` lengths in tokens, at least 1 each."""
        return np.full(count, self.tokens, dtype=np.int64)


class Lognormal(_Lengths, frozen=True, tag="lognormal"):
    """exp(normal) with the given median and sigma, cut at `largest`."""

    median: Positive
    sigma: Positive
    largest: Tokens

    def draw(self, rng: Generator, count: int) -> Counts:
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(drawn), 1, self.largest).astype(np.int64)


class Quantiles(_Lengths, frozen=True, tag="quantiles"):
    """Through published quantiles: `points` are (share, tokens), from share 0 to share 1, both rising.

    Between two points the logarithm of the length is uniform.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        tokens = [token for _, token in self.points]
        if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1:
            raise ValueError(f"quantile points must go from share 0 to share 1 (got {shares})")
        if shares != sorted(set(shares)) or tokens != sorted(tokens):
            raise ValueError(f"quantile points must rise (got {self.points})")
        if tokens[0] < 1 or tokens[-1] > MOST_TOKENS:
            raise ValueError(f"lengths lie between 1 and {MOST_TOKENS:,} tokens (got {self.points})")

    def draw(self, rng: Generator, count: int) -> Counts:
        shares, tokens = zip(*self.points, strict=True)
        drawn = np.exp(np.interp(rng.random(count), shares, np.log(tokens)))
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a mixture."""

    weight: Positive
    lengths: "Lengths"


class Mixture(_Lengths, frozen=True, tag="mixture"):
    """Each length comes from one of the parts, by weight: two lognormals make a bimodal distribution."""

    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1)]

    def draw(self, rng: Generator, count: int) -> Counts:
        weights = np.array([part.weight for part in self.parts])
        chosen = rng.choice(len(self.parts), size=count, p=weights / weights.sum())
        drawn = np.empty(count, dtype=np.int64)
        for index, part in enumerate(self.parts):
            mine = chosen == index
            drawn[mine] = part.lengths.draw(rng, int(mine.sum()))
        return drawn


Lengths: TypeAlias = Fixed | Lognormal | Quantiles | Mixture
