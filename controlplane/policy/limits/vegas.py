"""Vegas, an estimate of the queue at the server: `VegasLimit` of Netflix's concurrency-limits (2026-01).

    queue = ceil(L * (1 - r0/r))              r0 = smallest round trip seen since the last probe
    lg    = max(1, floor(log10 L))

    drop:                    L' = L - lg
    2 * in_flight < L:       no change
    queue <= lg:             L' = L + 6 lg
    queue <  3 lg:           L' = L + lg
    queue >  6 lg:           L' = L - lg
    else                     no change
    then                     L  = (1 - s) L + s * clamp(L', min, max)

    r0 = r at every jitter * 30 * L th sample (jitter drawn in [0.5, 1) each time), and whenever r < r0

Regimes:
1. No queue (round trips at their minimum): quick growth.
2. A queue of one to six lg: slow growth, then rest.
3. A longer queue, or a drop: slow decrease.

A sample that sets r0 moves nothing. The probe is taken under whatever load there is: after it, a queue that
stood for long counts as none (issue 165 there), so a lasting overload ratchets the limit up.
"""

import math
from typing import Literal

from msgspec.structs import replace
from pydantic import Field

from controlplane.policy.limits.law import Bounded, LimitReason, RoundTrip, State, Window, after_each


class VegasState(State, frozen=True, tag_field="law", tag="vegas"):
    """`no_load_seconds` is r0, `since_probe` counts the samples since the last probe, `jitter` in [0.5, 1) is
    None until the first window brings a random number."""

    no_load_seconds: float | None = None
    since_probe: int = 0
    jitter: float | None = None


class Vegas(Bounded):
    """Vegas with Netflix's defaults."""

    law: Literal["vegas"] = "vegas"
    initial_limit: int = Field(20, ge=1)
    max_limit: int = Field(1000, ge=1)
    smoothing: float = Field(1.0, gt=0, le=1)
    probe_multiplier: int = Field(30, ge=1)

    def start(self) -> VegasState:
        return VegasState(float(self.initial_limit), LimitReason.START, "nothing was observed yet")

    def observe(self, state: VegasState, window: Window) -> VegasState:
        jitter = 0.5 + window.random / 2
        if state.jitter is None:
            state = replace(state, jitter=jitter)
        return after_each(lambda s, sample: self._update(s, sample, jitter), state, window)

    def _update(self, state: VegasState, sample: RoundTrip, next_jitter: float) -> VegasState:
        assert state.jitter is not None
        seconds, count = sample.seconds, state.since_probe + 1
        if state.jitter * self.probe_multiplier * state.limit <= count:
            return VegasState(
                state.limit,
                LimitReason.BASELINE,
                f"the reference was measured anew: {seconds:.3g} s",
                no_load_seconds=seconds,
                jitter=next_jitter,
            )
        state = replace(state, since_probe=count)
        if state.no_load_seconds is None or seconds < state.no_load_seconds:
            detail = f"a new smallest round trip: {seconds:.3g} s"
            return replace(state, reason=LimitReason.BASELINE, detail=detail, no_load_seconds=seconds)
        return self._steer(state, sample, state.no_load_seconds)

    def _steer(self, state: VegasState, sample: RoundTrip, no_load_seconds: float) -> VegasState:
        limit, step = state.limit, _log10(state.limit)
        queue = math.ceil(limit * (1 - no_load_seconds / sample.seconds))
        detail = f"the queue is estimated at {queue} of {limit:.0f}"
        if sample.dropped:
            new, reason, detail = limit - step, LimitReason.DROP, "a request was dropped"
        elif sample.in_flight * 2 < limit:
            detail = f"{sample.in_flight} in flight are under half of the limit"
            return replace(state, reason=LimitReason.APP_LIMITED, detail=detail)
        elif queue <= step:
            new, reason = limit + 6 * step, LimitReason.ROOM
        elif queue < 3 * step:
            new, reason = limit + step, LimitReason.ROOM
        elif queue > 6 * step:
            new, reason = limit - step, LimitReason.ROUND_TRIP
        else:
            return replace(state, reason=LimitReason.STEADY, detail=detail)
        new = (1 - self.smoothing) * limit + self.smoothing * self.clamp(new)
        return replace(state, limit=new, reason=reason, detail=detail)


def _log10(limit: float) -> int:
    return max(1, int(math.log10(int(limit))))
