"""What policy can be told: objectives, windows and thresholds."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane.policy.boundary.law import Boundary
from controlplane.policy.boundary.pair import PoolPair
from controlplane.policy.limits.laws import KeptLaw
from controlplane.policy.limits.slo_gradient import SloGradient
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.readiness import ReadinessSettings
from controlplane.policy.scaling.budget import ReplicaBudget
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.signals.units import Duration, Share, duration_text


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Slo(_Strict):
    """Objective of a pool: `objective` of all requests have TTFT and TPOT within their limits (seconds).

    TPOT is the mean time per output token of one request, not the gap between two tokens. The default
    limits lie on bucket edges of vLLM's histograms, so that they can be read exactly; SGLang's TTFT has edges
    at 2 s and 4 s.
    """

    ttft: Duration = Field(2.5, gt=0, le=600, description="most time to the first token of a good request")
    tpot: Duration = Field(0.05, gt=0, le=60, description="most mean time per output token after the first")
    objective: Share = Field(0.95, gt=0, lt=1, description="share of requests that should be good")


class PoolPolicy(_Strict):
    """Policy of one pool: its objective, and the law that limits each of its replicas.

    `slo-gradient` finds the limit that the objective allows, `fixed` keeps one number, `none` sets no limit.
    """

    slo: Slo = Slo()
    limits: KeptLaw = SloGradient()
    scale: ScaleSettings | None = None
    readiness: ReadinessSettings = ReadinessSettings()
    kv_overcommit: float = Field(
        1.0, gt=0, le=10, description="a gateway may reserve so many times the KV cache that an engine has"
    )
    max_num_seqs: int | None = Field(
        None, ge=1, description="sequences that an engine was started to run at once: its page does not tell"
    )

    @model_validator(mode="after")
    def _for_its_objective(self) -> Self:
        """A law that was given no objectives of its own has the pool's, in what is written down, too."""
        law = self.limits
        if isinstance(law, SloGradient):
            given = {name: getattr(law, name) for name in law.model_fields_set}
            own = {"ttft": self.slo.ttft, "tpot": self.slo.tpot}
            self.__dict__["limits"] = SloGradient.model_construct(**{**law.model_dump(), **own, **given})
        return self


_DEFAULT = PoolPolicy()


class PolicySettings(_Strict):
    """Policy of the fleet. `poll_interval` is the sources' own, told here so that bounds can be checked.

    `pair` is the gateways' own: the two pools of which `boundary` is the law.
    """

    pools: dict[str, PoolPolicy] = {}
    pair: PoolPair | None = None
    poll_interval: Duration = Field(5.0, gt=0)
    stale_after: Duration = Field(20.0, gt=0, le=3600, description="a reading older than this is unknown")
    stalled_after: Duration = Field(
        30.0, ge=5, le=3600, description="work without a token for this long is a stall"
    )
    rate_window: Duration = Field(10.0, gt=0, description="rates are taken over at least this long")
    goodput_cell: Duration = Field(10.0, gt=0, description="goodput is bounded per engine and cell")
    window: Duration = Field(60.0, gt=0, le=3600, description="latency and goodput are told over this long")
    enough_requests: int = Field(20, ge=1, description="fewer requests in a window are too few to say")
    budget: ReplicaBudget = ReplicaBudget()
    quarantine: QuarantineSettings = QuarantineSettings()
    boundary: Boundary = Boundary()

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.stale_after < 3 * self.poll_interval:
            raise ValueError(
                f"stale_after ({duration_text(self.stale_after)}) is under three polling intervals "
                f"(3 x {duration_text(self.poll_interval)}): one slow scrape would blind the control plane"
            )
        if self.window < self.goodput_cell:
            raise ValueError(
                f"window ({duration_text(self.window)}) is shorter than "
                f"goodput_cell ({duration_text(self.goodput_cell)})"
            )
        return self

    def pool(self, name: str) -> PoolPolicy:
        """The policy of a pool; one that is not configured has the default one."""
        return self.pools.get(name, _DEFAULT)

    def slo(self, pool: str) -> Slo:
        """The objective of a pool."""
        return self.pool(pool).slo
