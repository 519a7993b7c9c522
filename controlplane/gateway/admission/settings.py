"""What admission can be told."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane.gateway.admission.request import ServiceClass
from controlplane.policy.boundary.pair import PoolPair
from controlplane.signals.decision import Mode
from controlplane.signals.units import Duration, Share, duration_text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassSettings(_Strict):
    """What a class of requests expects: seconds until the first token and per token after it."""

    ttft: Duration = Field(gt=0)
    tpot: Duration = Field(gt=0)


class PoolObjectives(_Strict):
    """What requests of one pool expect, where that is not what they expect everywhere."""

    interactive: ClassSettings | None = None
    agent: ClassSettings | None = None
    batch: ClassSettings | None = None


_AS_EVERYWHERE = PoolObjectives()


class TenantSettings(_Strict):
    """What one tenant may have. No limit where none is set."""

    weight: float = Field(1.0, gt=0, description="its part of a full fleet, against those of the others")
    tokens_per_minute: int | None = Field(None, ge=1, description="prompt and output together")
    sequences: int | None = Field(None, ge=1, description="in flight at once, queued ones included")


class Dropping(StrEnum):
    """What is done against a queue that stands, besides refusing who could not be answered in time."""

    WAIT = "wait"  # who comes may wait for a shorter time
    CODEL = "codel"  # RFC 8289's dropper: one of the oldest after the other, faster and faster


class QueueSettings(_Strict):
    """The queue before the engines. Its real bound is time; the counts only bound memory."""

    most_requests: int = Field(10_000, ge=1)
    most_tokens: int = Field(100_000_000, ge=1)
    # Of a queue that stands. CoDel sheds what clients that do not slow down send too much of far too slowly.
    drop: Dropping = Field(
        Dropping.WAIT, description="by a shorter `wait`, or by `codel` (RFC 8289), for clients that back off"
    )
    # CoDel's target and interval, and the wait bound while it says "overloaded", in objectives (TTFT).
    overload_wait_target: Share = Field(0.1, gt=0)
    overload_interval: float = Field(1.0, gt=0)
    wait_while_overloaded: Share = Field(0.3, gt=0)
    # What is kept of the objective for the engine's own part is learned; more than this it never is, or one
    # bad minute would refuse everything for ever. Over the law's `ttft_share`: what that lets the engine take
    # must be kept for it, or who waits the longest is let in too late.
    engine_part_at_most: Share = Field(0.8, gt=0, lt=1)
    newest_first_while_overloaded: bool = False
    hold_back: Share = Field(0.1, lt=1, description="share of every replica that the lowest class leaves")


class BreakerSettings(_Strict):
    """When a replica is taken out of the choice for its failures, and how it comes back."""

    in_a_row: int = Field(5, ge=1)
    failed_ratio: Share = Field(0.5, gt=0)
    enough: int = Field(10, ge=1)
    window: Duration = Field(30.0, gt=0)
    open_for: Duration = Field(5.0, gt=0)
    open_for_at_most: Duration = Field(60.0, gt=0)
    trials: int = Field(2, ge=1)
    trial_timeout: Duration = Field(30.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.open_for > self.open_for_at_most:
            raise ValueError(
                f"open_for ({duration_text(self.open_for)}) is over "
                f"open_for_at_most ({duration_text(self.open_for_at_most)})"
            )
        return self


class RetrySettings(_Strict):
    """How many requests may be sent a second time.

    `least` is the breaker's `in_a_row`: a replica that dies in a quiet fleet fails as many until it is left
    out, and each of them can be served elsewhere.
    """

    ratio: Share = 0.1
    window: Duration = Field(10.0, gt=0)
    least: int = Field(5, ge=0, description="retries that each window allows anyhow")


class RoutingSettings(_Strict):
    """How a replica is chosen. Loads are shares of budget or limit, whichever is fuller."""

    slow_start: Duration = Field(30.0, gt=0, description="a fresh replica gets less than its share")
    # A cached prefix saves a prefill; it is not worth a queue. Eight requests are AIBrix's bound.
    affinity_load_margin: Share = 0.1
    affinity_sequences_margin: int = Field(8, ge=0)
    # Spill to the other pool opens where the own one is at least so full and the other at most, and shuts
    # later than it opens.
    spill_opens_at: Share = 0.85
    spill_shuts_at: Share = 0.75
    spill_into_at_most: Share = 0.7
    spill_into_until: Share = 0.85
    stale_after: Duration = Field(15.0, gt=0, description="engine readings older than this weigh against it")
    forget_after: Duration = Field(60.0, gt=0, description="and older than this they are forgotten")
    pause_after_overload: Duration = Field(1.0, gt=0, description="after an engine refused for load")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.spill_shuts_at > self.spill_opens_at:
            raise ValueError(
                f"spill_shuts_at ({self.spill_shuts_at}) is over spill_opens_at ({self.spill_opens_at})"
            )
        if self.spill_into_at_most > self.spill_into_until:
            raise ValueError(
                f"spill_into_at_most ({self.spill_into_at_most}) is over "
                f"spill_into_until ({self.spill_into_until})"
            )
        if self.stale_after >= self.forget_after:
            raise ValueError(
                f"stale_after ({duration_text(self.stale_after)}) is not under "
                f"forget_after ({duration_text(self.forget_after)})"
            )
        return self


class AdmissionSettings(_Strict):
    """Admission to the replicas of one model."""

    mode: Mode = Mode.OBSERVE
    interactive: ClassSettings = ClassSettings(ttft="2500ms", tpot="50ms")
    agent: ClassSettings = ClassSettings(ttft="10s", tpot="100ms")
    batch: ClassSettings = ClassSettings(ttft="2m", tpot="500ms")
    objectives: dict[str, PoolObjectives] = Field(
        {}, description="by pool, where they differ from those of the classes"
    )
    tenants: dict[str, TenantSettings] = {}
    other_tenants: TenantSettings = TenantSettings()
    input_weight: float = Field(1.0, ge=0, description="of a prompt token in fairness")
    output_weight: float = Field(2.0, gt=0, description="of an output token in fairness")
    queue: QueueSettings = QueueSettings()
    breaker: BreakerSettings = BreakerSettings()
    retries: RetrySettings = RetrySettings()
    routing: RoutingSettings = RoutingSettings()
    pools: PoolPair | None = None
    # A stream that outgrows its reservation: four of vLLM's blocks at a time.
    extension_tokens: int = Field(64, ge=1)
    standing_share: Share = Field(1.0, description="of every replica, where no grant says otherwise")

    def objective(self, pool: str, service_class: ServiceClass) -> ClassSettings:
        """What a request of a class expects of a pool."""
        of_pool = self.objectives.get(pool, _AS_EVERYWHERE)
        own: ClassSettings | None = getattr(of_pool, service_class.value)
        everywhere: ClassSettings = getattr(self, service_class.value)
        return own or everywhere

    def tenant(self, name: str) -> TenantSettings:
        return self.tenants.get(name, self.other_tenants)
