"""The averages of the step gap, against sums over requests and against the formula."""

import math
import random

import pytest
from limit_windows import number

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.pace import Average, Pace
from controlplane.signals.reading import Reason, Unknown


def second(end: float, gap_seconds: float, **more: float) -> Window:
    return Window(start=end - 1.0, end=end, step_gap=number(gap_seconds, end), **more)


def test_is_what_a_stream_sees() -> None:
    """A stream that lives through fast and slow seconds gets what those allow: their mean rate."""
    draw = random.Random(3)
    gaps = [draw.choice([0.01, 0.02, 0.3]) for _ in range(4000)]
    tokens = sum(1 / gap for gap in gaps)
    life = Average()
    for gap in gaps:
        life = life.after(1 / gap, 1.0, 1e9)
    assert life.inverse == pytest.approx(4000 / tokens, rel=1e-3)
    assert life.inverse < 0.5 * sum(gaps) / 4000


def test_the_first_window_counts_alone_and_the_weight_tells_how_little_that_is() -> None:
    pace = Pace().after(second(1.0, 0.03), 10)
    assert pace.lately.inverse == pytest.approx(0.03)
    assert pace.lately.weight == pytest.approx(1 - math.exp(-1 / 2))


def test_life_follows_from_littles_law() -> None:
    pace = Pace()
    for end in range(1, 200):
        pace = pace.after(second(float(end), 0.03, mean_in_flight=60.0, paced=4.0, slow=0.0), 60)
    assert pace.life_seconds == pytest.approx(15.0)
    # It is what the long average is over; the short one is over 4 s at most.
    changed = pace.after(second(200.0, 0.06, mean_in_flight=60.0, paced=4.0, slow=0.0), 60)
    moved = (1 / 0.03 - 1 / 0.06) / (1 / 0.03)
    assert 1 - 0.03 / (changed.in_a_life.inverse or 0) == pytest.approx(
        moved * -math.expm1(-1 / 15), rel=1e-3
    )
    assert 1 - 0.03 / (changed.lately.inverse or 0) == pytest.approx(moved * -math.expm1(-1 / 4), rel=1e-3)


def test_a_cut_forgets_the_short_average_only() -> None:
    pace = Pace().after(second(1.0, 0.03, mean_in_flight=5.0, paced=1.0, slow=0.0), 10)
    after = pace.cut()
    assert (after.lately, after.lately.inverse) == (Average(), None)
    assert (after.in_a_life, after.life_seconds) == (pace.in_a_life, pace.life_seconds)


def test_an_idle_second_weighs_by_what_was_in_use() -> None:
    """Between two bursts a few streams are fast, whatever the limit."""
    busy = Pace().after(second(1.0, 0.06, mean_in_flight=40.0), 40)
    idle = busy.after(second(2.0, 0.008, mean_in_flight=8.0), 40)
    assert idle.lately.weight == pytest.approx(1 - math.exp(-1.2 / 2))
    none = busy.after(second(2.0, 0.008, mean_in_flight=0.0), 40)
    assert none.lately.weight == pytest.approx(1 - math.exp(-1.1 / 2))


@pytest.mark.parametrize("gap", [number(0.0, 1.0), number(0.02, 0.0), Unknown(Reason.NO_TRAFFIC, 1.0)])
def test_without_a_new_gap_nothing_changes(gap: object) -> None:
    assert Pace().after(Window(start=0.0, end=1.0, step_gap=gap), 10) == Pace()
