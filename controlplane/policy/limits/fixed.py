"""A limit that never moves: what most people run today, and the yardstick for everything else.

    L = limit

No regimes: right for one mix of requests on one engine, wrong for the next.
"""

from typing import Literal

from pydantic import Field

from controlplane.policy.limits.law import LimitReason, Parameters, State, Window


class FixedState(State, frozen=True, tag_field="law", tag="fixed"):
    pass


class Fixed(Parameters):
    """Always `limit`."""

    law: Literal["fixed"] = "fixed"
    limit: int = Field(ge=1)

    def start(self) -> FixedState:
        return FixedState(float(self.limit), LimitReason.FIXED, f"the limit is fixed at {self.limit}")

    def observe(self, state: FixedState, window: Window) -> FixedState:
        return state
