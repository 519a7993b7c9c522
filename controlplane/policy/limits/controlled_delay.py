"""Controlled delay: a wait bound for each request, as Facebook uses CoDel in its servers (Maurer, "Fail at
Scale", ACM Queue 2015).

    bound = M  where the queue has not been empty for the last N
            N  otherwise

Regimes:
1. The queue empties now and then: it only evens out bursts, each request may wait N.
2. It has stood for N: whoever waits longer than M is shed, so those that are served were served soon.

There is no schedule of drops and nothing to learn, and it works against clients that do not slow down. 100 ms
and 5 ms did for all their services. In front of an engine N is about the TTFT objective.

The caller tells each time it finds the queue empty, and asks for the bound of each request that it queues.
"""

from typing import Self

import msgspec
from pydantic import Field, model_validator

from controlplane.policy.limits.law import Parameters
from controlplane.signals.units import Duration


class DelayState(msgspec.Struct, frozen=True):
    """`empty_at` is the last time at which the queue was known to be empty."""

    empty_at: float


class ControlledDelay(Parameters):
    """`interval` is N, `target` M."""

    interval: Duration = Field(0.1, gt=0)
    target: Duration = Field(0.005, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.target > self.interval:
            raise ValueError(f"target ({self.target:g} s) is over interval ({self.interval:g} s)")
        return self

    def start(self, now: float) -> DelayState:
        """The state of a queue that begins empty at `now` (seconds of any clock)."""
        return DelayState(now)

    def emptied(self, state: DelayState, now: float) -> DelayState:
        """After the queue was found empty at `now`."""
        return DelayState(now)

    def wait_bound_seconds(self, state: DelayState, now: float) -> float:
        """How long a request that is queued at `now` may wait."""
        return self.target if now - state.empty_at > self.interval else self.interval
