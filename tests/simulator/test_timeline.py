"""The timeline tells who acts next, like looking at everyone."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulator.timeline import Timeline


class Clock:
    def __init__(self, at: float) -> None:
        self.at = at

    def next_event_time(self) -> float:
        return self.at


TIMES = st.one_of(st.just(inf), st.integers(0, 20).map(float))


@given(st.lists(TIMES, max_size=6), st.lists(st.tuples(st.integers(0, 5), TIMES), max_size=30))
def test_it_agrees_with_looking_at_everyone(start: list[float], changes: list[tuple[int, float]]) -> None:
    clocks = [Clock(at) for at in start]
    timeline = Timeline(clocks)
    for place, at in changes:
        assert timeline.next_time() == min((clock.at for clock in clocks), default=inf)
        if place < len(clocks):
            clocks[place].at = at
            timeline.changed(place)
    now = 10.0
    expected = sorted((clock.at, place) for place, clock in enumerate(clocks) if clock.at <= now)
    assert timeline.due(now) == [place for _, place in expected]
    assert timeline.due(now) == []
    for _, place in expected:
        clocks[place].at += 5.0
        timeline.changed(place)
    assert timeline.next_time() == min((clock.at for clock in clocks), default=inf)
