"""The plain law of scaling: what there is of something, over what one replica should have of it.

    need   = sum of the values of all replicas / target
    wanted = replicas          where need is within `tolerance` of them
             ceil(need)        else

The values are what each replica has: requests in flight, tokens a second, KV usage. For a ratio like KV usage
this is the Kubernetes HPA's `ceil(replicas * mean / target)`, as replicas * mean is the sum: the number of
replicas goes in once and only once, whatever the kind of metric.
"""

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_ROUNDING = 1e-9  # 0.9 * 4 / 0.6 must not need a seventh replica
_IMBALANCED = 2.0
_ENOUGH = 2


class TargetRatio(BaseModel):
    """`target` is what one replica should have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    law: Literal["target-ratio"] = "target-ratio"
    target: float = Field(10.0, gt=0, allow_inf_nan=False)

    def need(self, values: Sequence[float]) -> float:
        """Replicas, fractions included, for what those that report have."""
        return math.fsum(values) / self.target


def wanted(need: float, replicas: int, tolerance: float) -> int:
    """Whole replicas for `need`, where there are so many now."""
    if replicas > 0 and abs(need / replicas - 1.0) <= tolerance:
        return replicas
    return math.ceil(need - _ROUNDING)


def imbalance(values: Sequence[float]) -> float | None:
    """The largest value over the mean where that tells of bad balance (over 2 of it), else None.

    More replicas do not help an uneven load; better routing does.
    """
    mean = math.fsum(values) / len(values) if values else 0.0
    if len(values) < _ENOUGH or mean <= 0:
        return None
    ratio = max(values) / mean
    return ratio if ratio > _IMBALANCED else None
