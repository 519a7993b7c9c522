"""Envoy's adaptive concurrency: `gradient_controller.cc` of envoyproxy/envoy.

    measuring minRTT:  L = min_limit until `request_count` requests that started since then have ended;
                       minRTT = their percentile; then L is what it was before
    else, every `update_interval` in which any request ended, with sampleRTT = the percentile of those:
                       g = clamp(minRTT * (1 + buffer) / sampleRTT, 0.5, 2)
                       L = clamp(floor(g L + sqrt(g L)), min_limit, max_limit)

    minRTT is measured first of all; again `interval` + uniform[0, jitter * interval) after each time; and at
    once where an update finds and leaves the limit at the minimum for the fifth time in a row.

Regimes:
1. Probe: a handful of slots, whatever the demand. For requests of seconds this lasts minutes.
2. sampleRTT within the buffer: g >= 1, grows by more than sqrt(L) an update.
3. Beyond: falls towards g/(1 - g)^2, by a half an update at most.

There is no rule for a limit that is not in use: an idle service drifts to the maximum. Requests that were
reset (here: dropped) count nowhere. The two intervals have no default in Envoy; ours are those of its
documentation. Envoy sorts round trips into a log-linear histogram, here they are kept as they are.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

from msgspec.structs import replace
from pydantic import Field, model_validator

from controlplane.policy.limits.law import LimitReason, Parameters, RoundTrip, State, Window
from controlplane.signals.units import Duration, Share

_TIMES_AT_MINIMUM = 5
_CLOCK_NOISE_SECONDS = 1e-6  # a window that ends when something is due may end a rounding error before it


class EnvoyGradientState(State, frozen=True, tag_field="law", tag="envoy-gradient"):
    """`deferred_limit` is the limit to come back to while minRTT is measured, else None. Requests that
    started before `epoch` are not sampled. `at_minimum` counts updates that kept the minimum. Times are those
    of the windows, None where nothing is due yet."""

    samples: tuple[float, ...] = ()
    deferred_limit: float | None = None
    min_rtt_seconds: float | None = None
    epoch: float | None = None
    next_probe_at: float | None = None
    next_update_at: float | None = None
    at_minimum: int = 0


class EnvoyGradient(Parameters):
    """Envoy's gradient controller with its defaults; `min_limit` is its `min_concurrency`, and its start."""

    law: Literal["envoy-gradient"] = "envoy-gradient"
    min_limit: int = Field(3, ge=1)
    max_limit: int = Field(1000, ge=1)
    update_interval: Duration = Field(0.1, gt=0)
    interval: Duration = Field(60.0, gt=0)
    jitter: Share = 0.15
    request_count: int = Field(50, ge=1)
    percentile: Share = Field(0.5, gt=0)
    buffer: Share = 0.25

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_limit > self.max_limit:
            raise ValueError(f"min_limit ({self.min_limit}) is over max_limit ({self.max_limit})")
        return self

    def start(self) -> EnvoyGradientState:
        limit = float(self.min_limit)
        return EnvoyGradientState(
            limit, LimitReason.PROBE, "measures the least round trip", deferred_limit=limit
        )

    def observe(self, state: EnvoyGradientState, window: Window) -> EnvoyGradientState:
        if not window.round_trips:
            state = replace(state, reason=LimitReason.TOO_FEW, detail="no request ended in the window")
        for sample in window.round_trips:
            state = self._sample(state, sample, window.random)
        if state.deferred_limit is not None:
            detail = f"{len(state.samples)} of {self.request_count} round trips to measure the least of them"
            return replace(state, reason=LimitReason.PROBE, detail=detail)
        if _due(state.next_update_at, window.end):
            state = replace(self._update(state), samples=(), next_update_at=window.end + self.update_interval)
        if state.at_minimum >= _TIMES_AT_MINIMUM or _due(state.next_probe_at, window.end):
            return replace(
                self.start(),
                deferred_limit=state.limit,
                min_rtt_seconds=state.min_rtt_seconds,
                epoch=window.end,
            )
        return state

    def _sample(self, state: EnvoyGradientState, sample: RoundTrip, random: float) -> EnvoyGradientState:
        if sample.dropped or (state.epoch is not None and sample.started < state.epoch):
            return state
        samples = (*state.samples, sample.seconds)
        if state.deferred_limit is None or len(samples) < self.request_count:
            return replace(state, samples=samples)
        end, least = sample.started + sample.seconds, self._percentile(samples)
        return EnvoyGradientState(
            state.deferred_limit,
            LimitReason.PROBE_OVER,
            f"the least round trip is {least:.3g} s",
            min_rtt_seconds=least,
            epoch=state.epoch,
            next_probe_at=end + self.interval * (1 + self.jitter * random),
            next_update_at=end + self.update_interval,
        )

    def _update(self, state: EnvoyGradientState) -> EnvoyGradientState:
        if not state.samples or state.min_rtt_seconds is None:
            return replace(state, reason=LimitReason.TOO_FEW, detail="no request ended since the last update")
        sample = self._percentile(state.samples)
        slope = max(0.5, min(2.0, state.min_rtt_seconds * (1 + self.buffer) / sample))
        scaled = state.limit * slope
        new = float(max(self.min_limit, min(self.max_limit, int(scaled + math.sqrt(scaled)))))
        stays_at_minimum = state.limit == new == self.min_limit
        return replace(
            state,
            limit=new,
            reason=LimitReason.ROUND_TRIP if slope < 1 else LimitReason.ROOM,
            detail=f"a round trip of {sample:.3g} s against the least of {state.min_rtt_seconds:.3g} s",
            at_minimum=state.at_minimum + 1 if stays_at_minimum else 0,
        )

    def _percentile(self, samples: Sequence[float]) -> float:
        return sorted(samples)[math.ceil(self.percentile * len(samples)) - 1]


def _due(at: float | None, now: float) -> bool:
    return at is not None and now >= at - _CLOCK_NOISE_SECONDS
