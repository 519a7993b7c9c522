"""Gradient2: `Gradient2Limit` of Netflix's concurrency-limits (2026-01).

    long = mean of the first 10 round trips, then an exponential average with factor 2/(W + 1)
    where long/r > 2, `long` is remembered as 0.95 of itself (the sample at hand still uses the old one)

    in_flight < L/2:     no change
    else                 g = clamp(tolerance * long/r, 0.5, 1)
                         L = clamp((1 - s) L + s (g L + q), min, max)

Drops are not looked at.

Regimes:
1. Steady: r wanders around `long`, g = 1, the limit grows by s q a sample.
2. Towards load: r outruns `long`, g < 1, the limit falls towards q/(1 - g).
3. Back from load: `long` is over r, falls by a twentieth a sample.

Because `long` follows r, **any** steady round trip, however bad, ends in regime 1, and the limit at max
(issue 137 there). With under 10 ended requests a window (see `windowed.py`) it never moves at all; with the
default minimum, which is its start too, it then stays at 20.
"""

from typing import Literal

from msgspec.structs import replace
from pydantic import Field

from controlplane.policy.limits.law import Bounded, LimitReason, RoundTrip, State, Window, after_each

_WARM_UP = 10


class Gradient2State(State, frozen=True, tag_field="law", tag="gradient2"):
    """`long_seconds` is the long average after `samples` round trips (counted up to the end of the warm-up),
    `warm_up_seconds` their sum."""

    long_seconds: float = 0.0
    samples: int = 0
    warm_up_seconds: float = 0.0


class Gradient2(Bounded):
    """Gradient2 with Netflix's defaults."""

    law: Literal["gradient2"] = "gradient2"
    initial_limit: int = Field(20, ge=1)
    min_limit: int = Field(20, ge=1)
    max_limit: int = Field(200, ge=1)
    smoothing: float = Field(0.2, gt=0, le=1)
    tolerance: float = Field(1.5, ge=1)
    queue_size: int = Field(4, ge=0)
    long_window: int = Field(600, ge=1)

    def start(self) -> Gradient2State:
        return Gradient2State(float(self.initial_limit), LimitReason.START, "nothing was observed yet")

    def observe(self, state: Gradient2State, window: Window) -> Gradient2State:
        return after_each(self._update, state, window)

    def _update(self, state: Gradient2State, sample: RoundTrip) -> Gradient2State:
        limit, seconds = state.limit, sample.seconds
        state = self._learn(state, seconds)
        long = state.long_seconds
        if long / seconds > 2:
            state = replace(state, long_seconds=long * 0.95)
        if sample.in_flight < limit / 2:
            detail = f"{sample.in_flight} in flight are under half of the limit"
            return replace(state, reason=LimitReason.APP_LIMITED, detail=detail)
        slope = max(0.5, min(1.0, self.tolerance * long / seconds))
        new = limit * (1 - self.smoothing) + self.smoothing * (limit * slope + self.queue_size)
        reason = LimitReason.ROUND_TRIP if slope < 1 else LimitReason.ROOM
        detail = f"a round trip of {seconds:.3g} s against a long average of {long:.3g} s"
        return replace(state, limit=self.clamp(new), reason=reason, detail=detail)

    def _learn(self, state: Gradient2State, seconds: float) -> Gradient2State:
        if state.samples < _WARM_UP:
            count, total = state.samples + 1, state.warm_up_seconds + seconds
            return replace(state, samples=count, warm_up_seconds=total, long_seconds=total / count)
        factor = 2.0 / (self.long_window + 1)
        return replace(state, long_seconds=state.long_seconds * (1 - factor) + seconds * factor)
