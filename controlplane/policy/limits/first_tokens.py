"""Times to first token over as few windows as it takes to say something of their 90th percentile.

One window of a busy engine brings enough of them, one of a slow engine two or three. So windows are pooled,
the latest first, until they hold as many as are wanted; none may be too old. The pool's value is the median
of the windows' p90s, weighted by count and rounded down: of two windows or more, one that holds a monster
prompt is outvoted.
"""

import math
from typing import TypeAlias

import msgspec

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.sight import news_of_first_tokens


class FirstTokens(msgspec.Struct, frozen=True):
    """The first tokens that one window brought: `count` of them, 90 % within `p90_seconds`."""

    at: float
    count: float
    p90_seconds: float


Pool: TypeAlias = tuple[FirstTokens, ...]  # the oldest first


def pooled(pool: Pool, window: Window, wanted: int, memory_seconds: float) -> Pool:
    """The pool after one more window."""
    seen = news_of_first_tokens(window)
    if seen is not None:
        p90 = seen.value.p90
        if p90 is not None and math.isfinite(p90):
            pool = (*pool, FirstTokens(seen.at, seen.value.count, p90))
    kept: list[FirstTokens] = []
    held = 0.0
    for one in reversed(pool):
        if held >= wanted or window.end - one.at > memory_seconds:
            break
        kept.append(one)
        held += one.count
    return tuple(reversed(kept))


def count(pool: Pool) -> float:
    return sum(one.count for one in pool)


def p90_seconds(pool: Pool) -> float:
    """The pool's 90th percentile; the pool must not be empty."""
    half = count(pool) / 2
    ordered = sorted(pool, key=lambda one: one.p90_seconds)
    below = 0.0
    for one in ordered:
        below += one.count
        if below >= half:
            return one.p90_seconds
    return ordered[-1].p90_seconds
