"""A law around a law: one sample a window instead of one a request, as `WindowedLimit` of Netflix's
concurrency-limits (2026-01) does it.

    a round trip under `threshold` is no sample
    a sample that ends after `next` closes the window:  next = its end + clamp(2 * smallest round trip of the
                                                               window, min_window, max_window)
    of at least `window_size` samples the inner law is told their mean round trip, the most in flight of any
    of them, and whether any was dropped; fewer are thrown away

The window is closed by samples only: a server that finishes few requests never has one. With the defaults
(1 s, 10 samples), 20 slots and answers of 6 s (3.3 a second), every window is thrown away, and the limit
stays where it started.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec.structs import replace
from pydantic import Field

from controlplane.policy.limits.aimd import Aimd, AimdState
from controlplane.policy.limits.gradient import Gradient, GradientState
from controlplane.policy.limits.gradient2 import Gradient2, Gradient2State
from controlplane.policy.limits.law import Law, LimitReason, Parameters, RoundTrip, State, Window
from controlplane.policy.limits.vegas import Vegas, VegasState
from controlplane.signals.units import Duration

Inner: TypeAlias = Annotated[Aimd | Vegas | Gradient | Gradient2, Field(discriminator="law")]
InnerState: TypeAlias = AimdState | VegasState | GradientState | Gradient2State


class WindowedState(State, frozen=True, tag_field="law", tag="windowed"):
    """The open window: `samples` so far with the sum and the smallest of their round trips (0 of none), the
    most in flight, whether any was dropped; a sample that ends after `next_at` closes it."""

    inner: InnerState
    next_at: float = 0.0
    samples: int = 0
    total_seconds: float = 0.0
    smallest_seconds: float = 0.0
    max_in_flight: int = 0
    dropped: bool = False


class Windowed(Parameters):
    """`inner`, fed with windows; Netflix's defaults."""

    law: Literal["windowed"] = "windowed"
    inner: Inner
    min_window: Duration = Field(1.0, ge=0.1)
    max_window: Duration = Field(1.0, ge=0.1)
    window_size: int = Field(10, ge=10)
    threshold: Duration = Field(100e-6, ge=0)

    def start(self) -> WindowedState:
        inner = self.inner.start()
        return WindowedState(inner.limit, inner.reason, inner.detail, inner)

    def observe(self, state: WindowedState, window: Window) -> WindowedState:
        for sample in window.round_trips:
            if sample.seconds >= self.threshold:
                state = self._add(state, sample, window.random)
        return state

    def _add(self, state: WindowedState, sample: RoundTrip, random: float) -> WindowedState:
        first = state.samples == 0
        state = replace(
            state,
            samples=state.samples + 1,
            total_seconds=state.total_seconds + sample.seconds,
            smallest_seconds=sample.seconds if first else min(state.smallest_seconds, sample.seconds),
            max_in_flight=max(state.max_in_flight, sample.in_flight),
            dropped=state.dropped or sample.dropped,
        )
        end = sample.started + sample.seconds
        return self._close(state, sample.started, end, random) if end > state.next_at else state

    def _close(self, state: WindowedState, started: float, end: float, random: float) -> WindowedState:
        next_at = end + min(max(2 * state.smallest_seconds, self.min_window), self.max_window)
        if state.samples < self.window_size:
            detail = f"{state.samples} of the {self.window_size} round trips that a window needs"
            return WindowedState(state.limit, LimitReason.TOO_FEW, detail, state.inner, next_at)
        mean = RoundTrip(started, state.total_seconds / state.samples, state.max_in_flight, state.dropped)
        told = Window(start=started, end=end, round_trips=(mean,), random=random)
        # The inner law and its state are of one kind, which no union can say.
        law: Law[InnerState] = self.inner  # type: ignore[assignment]
        inner = law.observe(state.inner, told)
        return WindowedState(inner.limit, inner.reason, inner.detail, inner, next_at)
