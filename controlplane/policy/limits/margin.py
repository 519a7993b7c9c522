"""The outer loop: how near to an objective the inner one may come, the mean step gap to that of TPOT, the p90
of the engine's part to that of TTFT.

    margin <- margin * exp(0.5 * (allowed * judged - missed) / in flight)

Of the requests that were `judged` in the window so many `missed` the objective. By cohorts (as many requests
as are in flight), since what was let in under a new margin ends only then.

What may be late follows from goodput, G = X * (1 - late), as a function of the limit L. It peaks where one
more per cent of L brings as much throughput as it makes late:

    dX/X = e * dL/L                          e: the elasticity of throughput (`elasticity.py`)
    dt/t = (1 - e) * dL/L                    what it does to the mean gap t = margin * objective
    late = Q(z),  z = ln(1/margin) / spread  requests scatter around the mean by `spread`, in the logarithm
    dlate = phi(z) / spread * dt/t

    dX/X = dlate / (1 - late)   <=>   z * phi(z) / (1 - Q(z)) = ln(1/margin) * e / (1 - e) = y

The margin that the loop has come to says how wide requests scatter, so y is known, and `allowed` is Q(z) of
the z that solves it: 2 y^2, near enough from 1 % to 16 % (z = 1). With a larger y no z does: more is worth
it, until the margin is so near to 1 that y has fallen. Long answers hardly scatter and come to 1 % or less,
prompts of thousands of tokens for answers of a few to 5 to 9 %, an engine whose steps are mostly fixed to
12 %; where sweeps of fixed limits peak, too. Where answers are one token, their round trip is the time to
first token, and the same holds of it.
"""

import math
from typing import NamedTuple

_LEAST_ALLOWED = 0.01  # of less a few hundred requests tell nothing
_MOST_ALLOWED = 0.3
_UNKNOWN_ELASTICITY = 0.2  # an engine that is well used
_SPEED = 0.5  # a cohort of which all are late takes a third or more
_LARGEST_STEP = 0.05  # a window; answers of a few tokens end several cohorts in one
LEAST = 0.3  # code completion needs 0.4 to 0.5; lower means that something else is wrong


def allowed(margin: float, elasticity: float | None) -> float:
    """The share of requests that may miss the objective."""
    e = _UNKNOWN_ELASTICITY if elasticity is None else elasticity
    y = -math.log(margin) * e / max(1e-6, 1 - e)
    return min(max(_LEAST_ALLOWED, 2 * y * y), _MOST_ALLOWED)


class Judged(NamedTuple):
    """Of how many `requests` a window told whether they met an objective, and how many `missed` it; None
    where not known."""

    requests: float | None
    missed: float | None


def trimmed(
    margin: float, elasticity: float | None, judged: Judged, mean_in_flight: float | None, most: float = 1.0
) -> float:
    """The margin after one more window, from `LEAST` to `most`."""
    if not judged.requests or judged.missed is None or not mean_in_flight:
        return margin
    surplus = allowed(margin, elasticity) * judged.requests - judged.missed
    change = min(max(_SPEED * surplus / max(1.0, mean_in_flight), -_LARGEST_STEP), _LARGEST_STEP)
    return min(most, max(LEAST, margin * math.exp(change)))
