"""Bounds and patience of scaling."""

from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from controlplane.policy.scaling.target_ratio import TargetRatio
from controlplane.policy.scaling.work import Work
from controlplane.signals.units import Duration, Share, duration_text


def _law_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return str(value.get("law", "target-ratio" if "target" in value else "work"))
    return getattr(value, "law", None)


ScaleLaw: TypeAlias = Annotated[
    Annotated[Work, Tag("work")] | Annotated[TargetRatio, Tag("target-ratio")], Discriminator(_law_kind)
]


class ScaleSettings(BaseModel):
    """How many replicas a pool may have, and how quickly that may change. Without it a pool is not scaled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Both have to be written: a bound that nobody chose has emptied pools and filled clusters.
    min: int = Field(ge=0, strict=True, description="fewest replicas; 0: the pool may be scaled to zero")
    max: int = Field(ge=1, strict=True, description="most replicas")

    spare: int = Field(
        0, ge=0, strict=True, description="warm replicas kept beyond the need, while there is any"
    )
    # What one replica takes of the budget of all pools.
    gpus_per_replica: int = Field(1, ge=1, strict=True)
    cost_per_replica_hour: float = Field(0.0, ge=0, allow_inf_nan=False)
    law: ScaleLaw = Work()
    tolerance: Share = Field(0.1, lt=1, description="a need within this of what there is changes nothing")
    # What vLLM takes for an 8B to 35B model with warm page cache; a cold node takes five minutes and more.
    cold_start: Duration = Field(
        180.0, gt=0, description="from creating a replica until it serves; learned from those that start"
    )
    startup_timeout: Duration = Field(
        600.0, gt=0, description="a loading replica counts as capacity for so long at most"
    )
    max_surge_replicas: int = Field(
        4,
        ge=1,
        strict=True,
        description="most replicas asked for beyond those that are ready, or as many again",
    )
    # A replica costs minutes to load: what is taken away too early costs a cold start.
    down_after: Duration = Field(120.0, ge=0, description="fewer must have been enough for so long")
    down_every: Duration = Field(15.0, ge=0, description="time between two replicas that are taken away")
    hold: Duration = Field(300.0, ge=0, description="blind for so long, the count stays as it is")
    fallback_replicas: int | None = Field(
        None, ge=0, strict=True, description="blind for longer, at least so many; None: stay"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        if self.fallback_replicas is not None and not self.min <= self.fallback_replicas <= self.max:
            raise ValueError(
                f"fallback_replicas ({self.fallback_replicas}) is not between "
                f"min ({self.min}) and max ({self.max})"
            )
        if 0 < self.down_after < self.down_every:
            raise ValueError(
                f"down_after ({duration_text(self.down_after)}) is under "
                f"down_every ({duration_text(self.down_every)})"
            )
        return self

    def surge(self, ready: int) -> int:
        """Most replicas to ask for beyond the ready ones: a pool may double in one cold start."""
        return max(self.max_surge_replicas, ready)

    def clamp(self, replicas: int) -> int:
        return min(self.max, max(self.min, replicas))
