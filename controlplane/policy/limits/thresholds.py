"""Static thresholds: the saturation gate of llm-d's inference scheduler (2026).

    saturation = max(waiting / 5, kv_usage / 0.8)
    open while saturation < 1, shut from there on; metrics older than 200 ms count as saturated

Regimes:
1. Open: no limit at all; everything that comes between two looks goes to the engine.
2. Shut: nothing is sent while anything is in flight. A limit cannot say "none", and need not: it says 1, and
   an engine that has work has at least one in flight.

Nothing is learned: the thresholds are the same for every engine, objective and mix. With several engines
llm-d gates on the mean of their saturations (`saturation`), here each engine is gated by its own.
"""

from typing import Literal

from pydantic import Field

from controlplane.policy.limits.law import UNLIMITED, LimitReason, Parameters, State, Window
from controlplane.signals.reading import aged, known
from controlplane.signals.units import Duration, Share


class ThresholdsState(State, frozen=True, tag_field="law", tag="thresholds"):
    """`saturation` is 1 at the threshold, and infinite in effect (None) where it could not be seen."""

    saturation: float | None = None


class Thresholds(Parameters):
    """The gate of one engine, with llm-d's defaults."""

    law: Literal["thresholds"] = "thresholds"
    waiting: float = Field(5.0, gt=0)
    kv_usage: Share = Field(0.8, gt=0)
    stale_after: Duration = Field(0.2, gt=0)

    def start(self) -> ThresholdsState:
        return ThresholdsState(1.0, LimitReason.STALE, "the engine was not seen yet")

    def observe(self, state: ThresholdsState, window: Window) -> ThresholdsState:
        waiting = known(aged(window.waiting, window.end, self.stale_after))
        kv_usage = known(aged(window.kv_usage, window.end, self.stale_after))
        if waiting is None or kv_usage is None:
            return ThresholdsState(1.0, LimitReason.STALE, "waiting and KV usage are not seen: shut")
        value = self.saturation(waiting, kv_usage)
        detail = f"{waiting:.0f} wait and the KV cache is {kv_usage:.0%} full"
        if value >= 1.0:
            return ThresholdsState(1.0, LimitReason.SATURATED, detail, value)
        return ThresholdsState(UNLIMITED, LimitReason.NOT_SATURATED, detail, value)

    def saturation(self, waiting: float, kv_usage: float) -> float:
        """How saturated an engine is; 1 is the threshold."""
        return max(waiting / self.waiting, kv_usage / self.kv_usage)
