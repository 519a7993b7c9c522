"""Additive increase, multiplicative decrease: `AIMDLimit` of Netflix's concurrency-limits (2026-01).

    drop, or round trip > timeout:   L' = floor(backoff * L)
    else 2 * in_flight >= L:         L' = L + 1
    then                             L  = clamp(L', min, max)

Regimes:
1. In use and in time: one slot more for each round trip.
2. A drop or a timeout: a tenth less at once.
3. Not in use: stays.

Its signal is a deadline, not a queue, so it settles where requests just time out, and saws around it. The
default deadline means nothing for streams of minutes.
"""

from typing import Literal

from pydantic import Field

from controlplane.policy.limits.law import Bounded, LimitReason, RoundTrip, State, Window, after_each
from controlplane.signals.units import Duration


class AimdState(State, frozen=True, tag_field="law", tag="aimd"):
    pass


class Aimd(Bounded):
    """AIMD with Netflix's defaults."""

    law: Literal["aimd"] = "aimd"
    initial_limit: int = Field(20, ge=1)
    min_limit: int = Field(20, ge=1)
    max_limit: int = Field(200, ge=1)
    backoff_ratio: float = Field(0.9, ge=0.5, lt=1)
    timeout: Duration = Field(5.0, gt=0)

    def start(self) -> AimdState:
        return AimdState(float(self.initial_limit), LimitReason.START, "nothing was observed yet")

    def observe(self, state: AimdState, window: Window) -> AimdState:
        return after_each(self._update, state, window)

    def _update(self, state: AimdState, sample: RoundTrip) -> AimdState:
        limit = state.limit
        if sample.dropped:
            limit = float(int(limit * self.backoff_ratio))
            reason, detail = LimitReason.DROP, "a request was dropped"
        elif sample.seconds > self.timeout:
            limit = float(int(limit * self.backoff_ratio))
            reason = LimitReason.ROUND_TRIP
            detail = f"a round trip of {sample.seconds:.3g} s is over the timeout of {self.timeout:.3g} s"
        elif sample.in_flight * 2 >= limit:
            limit += 1
            reason, detail = LimitReason.ROOM, "round trips are in time and the limit is in use"
        else:
            reason = LimitReason.APP_LIMITED
            detail = f"{sample.in_flight} in flight are under half of the limit"
        return AimdState(self.clamp(limit), reason, detail)
