"""CoDel against a plain transcription of the RFC's pseudo-code, and what its description says of it."""

import math
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from controlplane.policy.limits.codel import Codel, CodelState, Detector, DetectorState

_TARGET, _INTERVAL = 0.005, 0.1


class RfcQueue:
    """RFC 8289 section 5, written down as it stands there: one queue, its own state, a loop in dequeue."""

    def __init__(self) -> None:
        self.queue: deque[float] = deque()
        self.first_above_time = 0.0
        self.drop_next = 0.0
        self.count = 0
        self.lastcount = 0
        self.dropping = False
        self.dropped: list[tuple[float, float]] = []

    def _dodequeue(self, now: float) -> tuple[float | None, bool]:
        ok_to_drop = False
        if not self.queue:
            self.first_above_time = 0.0
            return None, ok_to_drop
        packet = self.queue.popleft()
        sojourn_time = now - packet
        if sojourn_time < _TARGET or len(self.queue) <= 1:
            self.first_above_time = 0.0
        elif self.first_above_time == 0.0:
            self.first_above_time = now + _INTERVAL
        elif now >= self.first_above_time:
            ok_to_drop = True
        return packet, ok_to_drop

    def _drop(self, packet: float | None, now: float) -> None:
        assert packet is not None
        self.dropped.append((now, packet))

    @staticmethod
    def _control_law(t: float, count: int) -> float:
        return t + _INTERVAL / math.sqrt(count)

    def dequeue(self, now: float) -> float | None:
        packet, ok_to_drop = self._dodequeue(now)
        if self.dropping:
            if not ok_to_drop:
                self.dropping = False
            while now >= self.drop_next and self.dropping:
                self._drop(packet, now)
                self.count += 1
                packet, ok_to_drop = self._dodequeue(now)
                if not ok_to_drop:
                    self.dropping = False
                else:
                    self.drop_next = self._control_law(self.drop_next, self.count)
        elif ok_to_drop:
            self._drop(packet, now)
            packet, ok_to_drop = self._dodequeue(now)
            self.dropping = True
            delta = self.count - self.lastcount
            self.count = 1
            if delta > 1 and now - self.drop_next < 16 * _INTERVAL:
                self.count = delta
            self.drop_next = self._control_law(now, self.count)
            self.lastcount = self.count
        return packet


class OurQueue:
    """The machine, driven as its header says."""

    def __init__(self, law: Codel | None = None) -> None:
        self.law = law or Codel()
        self.state: CodelState = self.law.start()
        self.queue: deque[float] = deque()
        self.dropped: list[tuple[float, float]] = []

    def dequeue(self, now: float) -> float | None:
        while self.queue:
            packet = self.queue.popleft()
            self.state = self.law.dequeued(self.state, now, now - packet, len(self.queue))
            if not self.state.drop:
                return packet
            self.dropped.append((now, packet))
        self.state = self.law.emptied(self.state)
        return None


Event = tuple[str, int, int]  # "in" or "out", how many, over how many milliseconds


def _same_drops(events: list[Event]) -> RfcQueue:
    """Both queues through the same history."""
    theirs, ours = RfcQueue(), OurQueue()
    now = 1.0  # not 0, which the RFC takes for "not above"
    for kind, times, milliseconds in events:
        for _ in range(times):
            if kind == "in":
                theirs.queue.append(now)
                ours.queue.append(now)
            else:
                assert ours.dequeue(now) == theirs.dequeue(now)
            now += milliseconds / 1e3 / times
    assert ours.dropped == theirs.dropped
    state = ours.state
    assert (state.count, state.last_count, state.dropping) == (
        theirs.count,
        theirs.lastcount,
        theirs.dropping,
    )
    return theirs


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["in", "out"]), st.integers(1, 40), st.integers(0, 60)), max_size=80)
)
def test_drops_what_the_rfc_drops(events: list[Event]) -> None:
    _same_drops(events)


def test_drops_what_the_rfc_drops_in_histories_with_many_drops() -> None:
    draw = random.Random(3)
    drops = resumed = 0
    for _ in range(200):
        events = [(draw.choice(["in", "out"]), draw.randint(1, 40), draw.randint(0, 300)) for _ in range(60)]
        queue = _same_drops(events)
        drops += len(queue.dropped)
        resumed += queue.lastcount > 1
    # Without drops, and without dropping states that take up the rate of the last one, nothing was compared.
    assert drops > 1000
    assert resumed > 10


def test_drops_come_at_the_square_root_schedule_under_constant_overload() -> None:
    """Drop n comes interval/sqrt(n) after the one before: 0, 100, 170.7, 228.4, 278.4 ms after the first."""
    queue = OurQueue()
    drops: list[float] = []
    for tick in range(1, 40_000):
        now = tick / 10_000  # a dequeue each 0.1 ms; two arrive for each that leaves, so the queue only grows
        queue.queue.extend([now, now])
        known = len(queue.dropped)
        queue.dequeue(now)
        drops += [at for at, _ in queue.dropped[known:]]
    begin = drops[0]
    expected, at = [0.0], 0.0
    for count in range(1, 20):
        at += _INTERVAL / math.sqrt(count)
        expected.append(at)
    assert [drop - begin for drop in drops[:20]] == pytest.approx(expected, abs=2e-4)
    # The first drop: the queue's sojourn passes 5 ms at about 10 ms, one interval later it has stood.
    assert begin == pytest.approx(0.010 + _INTERVAL, abs=0.002)


def test_is_far_too_slow_for_clients_that_do_not_slow_down() -> None:
    """With an interval of a second the drop rate grows by a half a second each second: at twice a capacity of
    20 a second it takes 40 s to shed what comes too much, and by then 400 wait, for ten seconds each."""
    queue = OurQueue(Codel(detector=Detector(target="100ms", interval="1s")))
    waits = []
    for tick in range(1, 20 * 80):
        now = tick / 20
        queue.queue.extend([now, now])
        at = queue.dequeue(now)
        assert at is not None
        waits.append(now - at)
    assert max(waits) > 8.0
    assert 30.0 < waits.index(max(waits)) / 20 < 60.0


def test_detector_waits_a_whole_interval() -> None:
    law = Detector(target="100ms", interval="1s")
    state = law.start()
    for now, sojourn, overloaded in [
        (10.0, 0.3, False),  # above for the first time: would hold from 11.0 on
        (10.9, 0.3, False),
        (11.0, 0.3, True),
        (12.0, 0.1, True),  # the target itself is not under it
        (12.1, 0.09, False),  # once under: all forgotten
        (12.2, 0.3, False),
        (13.2, 0.3, True),
    ]:
        state = law.dequeued(state, now, sojourn, left=5)
        assert state.overloaded is overloaded, now


def test_detector_leaves_the_last_one_alone() -> None:
    law = Detector()
    stood = DetectorState(first_above_at=1.0)
    assert law.dequeued(stood, 2.0, 9.0, left=2).overloaded
    assert not law.dequeued(stood, 2.0, 9.0, left=1).overloaded
    assert law.emptied(stood) == DetectorState()


def test_target_must_be_under_the_interval() -> None:
    with pytest.raises(ValidationError, match=r"target \(2 s\) is over interval \(1 s\)"):
        Detector(target="2s", interval="1s")
