"""What all faults of a scenario have in common: when they begin, and for how long they last."""

from pydantic import Field

from controlplane.simulator.scenario.strict import LongerThanNothing, Seconds, Strict


class AnyFault(Strict):
    at: Seconds

    @property
    def lasts(self) -> float | None:
        return None


class Lasting(AnyFault):
    duration: LongerThanNothing | None = Field(None, alias="for")

    @property
    def lasts(self) -> float | None:
        return self.duration
