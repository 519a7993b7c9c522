"""What quarantine can be told."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from controlplane.policy.quarantine.needs import NEEDS
from controlplane.policy.quarantine.xids import LARGEST, XidOverride
from controlplane.signals.units import Duration, Share, duration_text


class QuarantineSettings(BaseModel):
    """When a GPU counts as broken, and how many nodes may be out at once: for any reason, not only ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stale_after: Duration = Field(
        90.0, gt=0, le=3600, description="a node is not seen where every report is older than this"
    )
    hold_down: Duration = Field(
        60.0, ge=0, le=3600, description="a proven fault must last this long before its node is taken"
    )
    missing_after: Duration = Field(
        120.0, ge=0, le=3600, description="a GPU must be missing this long, where nothing else agrees"
    )
    throttled_over: Duration = Field(
        600.0, ge=60, le=7200, description="slowdown by heat or power brake is judged over this long"
    )
    throttled_share: Share = Field(0.6, gt=0, le=1, description="share of that time that is sustained")
    clear_after: Duration = Field(
        300.0, ge=0, le=86400, description="a node must look well this long before it is released"
    )
    blame_window: Duration = Field(
        3600.0, gt=0, le=86400, description="XIDs of programs are compared over this"
    )
    blame_nodes: int = Field(2, ge=2, description="a program that fails on so many nodes is to blame")
    blame_pods: int = Field(3, ge=2, description="a GPU on which so many pods fail is suspect")
    restart_at_most_every: Duration = Field(
        600.0, gt=0, le=86400, description="the same workload is restarted at most once in this time"
    )
    storm_window: Duration = Field(
        300.0, gt=0, le=3600, description="faults of one cause that begin within this long are one event"
    )
    storm_nodes: int = Field(
        3,
        ge=2,
        description="so many nodes make a storm; half of the nodes where there are fewer than twice that",
    )
    max_share: Share = Field(
        0.2, ge=0, le=1, description="share of the nodes that may be out, of a pool and of all"
    )
    floor_nodes: int = Field(
        1, ge=0, description="so many may be out however few there are; 0: a small pool is never touched"
    )
    max_per_hour: int = Field(2, ge=1, description="nodes taken within an hour, of all")
    max_replica_share: Share = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a pool's replicas that may be kept from new requests for bad GPUs",
    )
    escalate_within: Duration = Field(
        604_800.0,
        gt=0,
        description="a fault that comes back within this asks for replacement, not one more reset",
    )
    breaker_rest: Duration = Field(
        1800.0, gt=0, le=86400, description="the breaker closes when its cause has been gone for this long"
    )
    mark: Literal["taint", "cordon", "both"] = Field("taint", description="how a node is taken")
    evict: bool = Field(False, description="also evict its pods, as far as disruption budgets allow")
    disabled_checks: tuple[str, ...] = Field((), description="checks that are not to be made")
    xids: dict[int, XidOverride] = Field({}, description="what stands in place of the table of XIDs, by code")

    @field_validator("xids")
    @classmethod
    def _codes(cls, xids: dict[int, XidOverride]) -> dict[int, XidOverride]:
        for code in xids:
            if not 0 < code <= LARGEST:
                raise ValueError(f"an XID lies between 1 and {LARGEST} (got {code})")
        return xids

    @field_validator("disabled_checks")
    @classmethod
    def _known_checks(cls, names: tuple[str, ...]) -> tuple[str, ...]:

        for name in names:
            if name not in NEEDS:
                raise ValueError(f"there is no check {name!r} (there are {', '.join(NEEDS)})")
        return names

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.storm_window < self.hold_down:
            raise ValueError(
                f"storm_window ({duration_text(self.storm_window)}) is under hold_down "
                f"({duration_text(self.hold_down)}): a node would be taken before a storm can be seen"
            )
        return self
