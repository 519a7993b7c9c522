"""Gradient: `GradientLimit` of Netflix's concurrency-limits (2026-01).

    r0 = smallest round trip since the last probe          q = max(4, floor(sqrt(floor L)))
    g  = clamp(tolerance * r0/r, 0.5, 1)

    drop:                L' = backoff * L
    in_flight < L/2:     no change
    else                 L' = g L + q
    where L' < L:        L' = max(min, (1 - s) L + s L')
    then                 L  = clamp(L', q, max)

    every N to 2N samples (drawn each time):  L = max(min, q), r0 forgotten

Regimes:
1. Round trips within `tolerance` of the smallest: g = 1, grows by q a sample.
2. Beyond: shrinks, by a tenth a sample at most, towards q/(1 - g).
3. Probe: falls to q, so that the next smallest round trip is one without a queue.
"""

import math
from typing import Literal

from msgspec.structs import replace
from pydantic import Field

from controlplane.policy.limits.law import Bounded, LimitReason, RoundTrip, State, Window, after_each


class GradientState(State, frozen=True, tag_field="law", tag="gradient"):
    """`no_load_seconds` is r0; `until_probe` counts down the samples to the next probe, None until the first
    window brings a random number."""

    no_load_seconds: float | None = None
    until_probe: int | None = None


class Gradient(Bounded):
    """Gradient with Netflix's defaults."""

    law: Literal["gradient"] = "gradient"
    initial_limit: int = Field(50, ge=1)
    max_limit: int = Field(1000, ge=4)
    smoothing: float = Field(0.2, gt=0, le=1)
    tolerance: float = Field(2.0, ge=1)
    backoff_ratio: float = Field(0.9, ge=0.5, le=1)
    probe_interval: int = Field(1000, ge=1)

    def start(self) -> GradientState:
        return GradientState(float(self.initial_limit), LimitReason.START, "nothing was observed yet")

    def observe(self, state: GradientState, window: Window) -> GradientState:
        countdown = self.probe_interval + int(window.random * self.probe_interval)
        if state.until_probe is None:
            state = replace(state, until_probe=countdown)
        return after_each(lambda s, sample: self._update(s, sample, countdown), state, window)

    def _update(self, state: GradientState, sample: RoundTrip, next_countdown: int) -> GradientState:
        assert state.until_probe is not None
        limit, seconds, queue = state.limit, sample.seconds, float(max(4, math.isqrt(int(state.limit))))
        if state.until_probe <= 0:
            return GradientState(
                max(float(self.min_limit), queue),
                LimitReason.PROBE,
                "cut to measure the round trip without a queue",
                until_probe=next_countdown,
            )
        no_load = seconds if state.no_load_seconds is None else min(state.no_load_seconds, seconds)
        state = replace(state, no_load_seconds=no_load, until_probe=state.until_probe - 1)
        slope = max(0.5, min(1.0, self.tolerance * no_load / seconds))
        detail = f"a round trip of {seconds:.3g} s against the smallest of {no_load:.3g} s"
        if sample.dropped:
            new, reason, detail = limit * self.backoff_ratio, LimitReason.DROP, "a request was dropped"
        elif sample.in_flight < limit / 2:
            detail = f"{sample.in_flight} in flight are under half of the limit"
            return replace(state, reason=LimitReason.APP_LIMITED, detail=detail)
        else:
            new = limit * slope + queue
            reason = LimitReason.ROUND_TRIP if slope < 1 else LimitReason.ROOM
        if new < limit:
            new = max(float(self.min_limit), limit * (1 - self.smoothing) + self.smoothing * new)
        new = max(queue, min(float(self.max_limit), new))
        return replace(state, limit=new, reason=reason, detail=detail)
