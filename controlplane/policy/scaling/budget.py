"""What all pools together may cost: GPUs there are, money that may be spent.

Nothing is taken away for it: a budget stops what would be added. What is left goes, replica by replica, to
the pool that has the least of what it wants.
"""

from collections.abc import Mapping

import msgspec
from pydantic import BaseModel, ConfigDict, Field


class ReplicaBudget(BaseModel):
    """Of the whole fleet; None: no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpus: int | None = Field(None, ge=0, strict=True, description="GPUs of all replicas of scaled pools")
    cost_per_hour: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="cost of all replicas of scaled pools, in any currency"
    )


class Claim(msgspec.Struct, frozen=True):
    """A pool that has asked for `asked` replicas and wants `wanted`, and what one of them takes."""

    asked: int
    wanted: int
    gpus: int
    cost_per_hour: float


def share_out(claims: Mapping[str, Claim], budget: ReplicaBudget) -> dict[str, int]:
    """How many replicas each pool may ask for; the pools in order of their names where they want alike."""
    granted = {name: min(claim.asked, claim.wanted) for name, claim in claims.items()}
    open_ = {name for name, claim in claims.items() if claim.wanted > granted[name]}
    while open_:
        name = min(sorted(open_), key=lambda pool: granted[pool] / claims[pool].wanted)
        more = {**granted, name: granted[name] + 1}
        if not _fits(more, claims, budget):
            open_.discard(name)
            continue
        granted = more
        if granted[name] >= claims[name].wanted:
            open_.discard(name)
    return granted


def _fits(counts: Mapping[str, int], claims: Mapping[str, Claim], budget: ReplicaBudget) -> bool:
    gpus = sum(count * claims[name].gpus for name, count in counts.items())
    cost = sum(count * claims[name].cost_per_hour for name, count in counts.items())
    return (budget.gpus is None or gpus <= budget.gpus) and (
        budget.cost_per_hour is None or cost <= budget.cost_per_hour + 1e-9
    )
