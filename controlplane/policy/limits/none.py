"""No control: everything goes to the engine, whose own queue takes what it cannot run."""

from typing import Literal

from controlplane.policy.limits.law import UNLIMITED, LimitReason, Parameters, State, Window


class NoneState(State, frozen=True, tag_field="law", tag="none"):
    pass


class NoLimit(Parameters):
    """A limit that no load reaches."""

    law: Literal["none"] = "none"

    def start(self) -> NoneState:
        return NoneState(UNLIMITED, LimitReason.UNLIMITED, "nothing limits this engine")

    def observe(self, state: NoneState, window: Window) -> NoneState:
        return state
