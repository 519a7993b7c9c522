"""What policy can be told: objectives, windows and thresholds."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    """Policy of one pool."""

    slo: Slo = Slo()


class PolicySettings(_Strict):
    """Policy of the fleet. `poll_interval` is the sources' own, told here so that bounds can be checked."""

    pools: dict[str, PoolPolicy] = {}
    poll_interval: Duration = Field(5.0, gt=0)
    stale_after: Duration = Field(20.0, gt=0, le=3600, description="a reading older than this is unknown")
    stalled_after: Duration = Field(
        30.0, ge=5, le=3600, description="work without a token for this long is a stall"
    )
    rate_window: Duration = Field(10.0, gt=0, description="rates are taken over at least this long")
    goodput_cell: Duration = Field(10.0, gt=0, description="goodput is bounded per engine and cell")
    window: Duration = Field(60.0, gt=0, le=3600, description="latency and goodput are told over this long")
    enough_requests: int = Field(20, ge=1, description="fewer requests in a window are too few to say")

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

    def slo(self, pool: str) -> Slo:
        """The objective of `pool`; a pool that is not configured has the default one."""
        return self.pools[pool].slo if pool in self.pools else Slo()
