"""CoDel (RFC 8289): tells a queue that stands from one that only bounces, and a schedule of drops against it.

Detector, at each dequeue, with the time that the head has waited (its sojourn):

    sojourn < target, or at most one is left behind:  nothing; what was above before is forgotten
    the first above:                                  remember first_above = now + interval
    now >= first_above:                               the queue has stood for an interval: overloaded

Dropper, on top of it (RFC section 5; `ok` is the detector's word on the head):

    dropping, not ok:                leave the dropping state, deliver
    dropping, now >= drop_next:      drop; count + 1; where the next head is ok,
                                     drop_next += interval / sqrt(count), and look again
    not dropping, ok:                drop; enter; deliver the next head, whatever it is
                                     count = what the last dropping state added, where that was more than 1
                                     and not 16 intervals ago; else 1
                                     drop_next = now + interval / sqrt(count)

CoDel assumes senders that slow down when dropped. Open-loop clients do not, and its drop rate grows by only
1/(2 interval^2) each second: with an interval of a second it takes 40 s to shed 20 a second. As a shedder for
those, let the detector shorten the wait that a queue allows, much as Facebook's servers do (Maurer, "Fail at
Scale", ACM Queue 2015). The gateway's queue does that, or drops as here (`gateway/admission/line.py`).

The machine is sans-I/O. The caller asks for each head that it takes off the queue:

    while queue:
        head = queue.popleft()
        state = codel.dequeued(state, now, sojourn_seconds=now - head.enqueued_at, left=len(queue))
        if not state.drop:
            return head
        shed(head)
    state = codel.emptied(state)
"""

import math
from enum import StrEnum
from typing import Self

import msgspec
from msgspec.structs import replace
from pydantic import Field, model_validator

from controlplane.policy.limits.law import Parameters
from controlplane.signals.units import Duration

_MEMORY_INTERVALS = 16  # a new dropping state this soon after the last one takes up its rate again


class DetectorState(msgspec.Struct, frozen=True):
    """`first_above_at`: when the queue will have stood for an interval; None while it is under the target."""

    first_above_at: float | None = None
    overloaded: bool = False


class Detector(Parameters):
    """Whether the sojourn was above `target` for a whole `interval`.

    For a queue of requests in front of an engine: a target of a tenth of the TTFT objective and an interval
    of one whole objective. The RFC's 5 ms and 100 ms are for packets.
    """

    target: Duration = Field(0.005, gt=0)
    interval: Duration = Field(0.1, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.target > self.interval:
            raise ValueError(f"target ({self.target:g} s) is over interval ({self.interval:g} s)")
        return self

    def start(self) -> DetectorState:
        return DetectorState()

    def dequeued(self, state: DetectorState, now: float, sojourn_seconds: float, left: int) -> DetectorState:
        """After a head was taken off at `now` that had waited `sojourn_seconds`; `left` are still queued."""
        if sojourn_seconds < self.target or left <= 1:
            return DetectorState()
        if state.first_above_at is None:
            return DetectorState(now + self.interval)
        return DetectorState(state.first_above_at, now >= state.first_above_at)

    def emptied(self, state: DetectorState) -> DetectorState:
        """After the queue was found empty."""
        return DetectorState()


class Next(StrEnum):
    """What the last dequeue leaves for the next head."""

    ANYTHING = "anything"
    AFTER_ENTRY = "after-entry"  # this dequeue entered the dropping state: the next head is delivered
    AFTER_DROP = "after-drop"  # this dequeue dropped on schedule: the next head moves the schedule on


class CodelState(msgspec.Struct, frozen=True):
    """`drop` says what is to be done with the head that was just taken off. The other names are the RFC's."""

    detector: DetectorState = DetectorState()
    drop: bool = False
    dropping: bool = False
    drop_next_at: float = 0.0
    count: int = 0
    last_count: int = 0
    after: Next = Next.ANYTHING


class Codel(Parameters):
    """The RFC's dropper."""

    detector: Detector = Detector()

    def start(self) -> CodelState:
        return CodelState()

    def dequeued(self, state: CodelState, now: float, sojourn_seconds: float, left: int) -> CodelState:
        """After a head was taken off at `now` that had waited `sojourn_seconds`; `left` are still queued."""
        detector = self.detector.dequeued(state.detector, now, sojourn_seconds, left)
        ok, after = detector.overloaded, state.after
        state = replace(state, detector=detector, drop=False, after=Next.ANYTHING)
        if after is Next.AFTER_ENTRY:
            return state
        if not state.dropping:
            return self._enter(state, now) if ok else state
        if not ok:
            return replace(state, dropping=False)
        if after is Next.AFTER_DROP:
            state = replace(state, drop_next_at=self._later(state.drop_next_at, state.count))
        if now < state.drop_next_at:
            return state
        return replace(state, drop=True, count=state.count + 1, after=Next.AFTER_DROP)

    def emptied(self, state: CodelState) -> CodelState:
        """After the queue was found empty, by whatever way."""
        # The dequeue that has just entered the dropping state stays in it, as the RFC has it.
        dropping = state.dropping and state.after is Next.AFTER_ENTRY
        detector = self.detector.emptied(state.detector)
        return replace(state, detector=detector, drop=False, dropping=dropping, after=Next.ANYTHING)

    def _enter(self, state: CodelState, now: float) -> CodelState:
        added = state.count - state.last_count
        recent = now - state.drop_next_at < _MEMORY_INTERVALS * self.detector.interval
        count = added if added > 1 and recent else 1
        return replace(
            state,
            drop=True,
            dropping=True,
            count=count,
            last_count=count,
            drop_next_at=self._later(now, count),
            after=Next.AFTER_ENTRY,
        )

    def _later(self, at: float, count: int) -> float:
        return at + self.detector.interval / math.sqrt(count)
