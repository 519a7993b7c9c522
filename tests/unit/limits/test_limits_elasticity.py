"""The elasticity of throughput, against engines whose step time is a line: fixed + slope * n."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limit_windows import number

from controlplane.policy.limits.elasticity import Elasticity
from controlplane.policy.limits.law import Window


def second(end: float, in_flight: float, gap: float, **more: Any) -> Window:
    """One in which all that are in flight decode."""
    seen = {"mean_in_flight": in_flight, "step_gap": number(gap, end), "tokens": in_flight / gap}
    return Window(start=end - 1.0, end=end, **(seen | more))


def climbed(fixed: float, slope: float, most: int) -> Elasticity:
    """After a slow start from one in flight, and a minute at `most`."""
    seen, end = Elasticity(), 0.0
    for in_flight in [*range(1, most), *[most] * 60]:
        end += 1.0
        seen = seen.after(second(end, in_flight, fixed + slope * in_flight), in_use=True)
    return seen


@pytest.mark.parametrize(
    ("fixed", "slope", "most"),
    [(0.018, 0.0004, 15), (0.008, 0.0002, 160), (0.012, 0.0005, 25), (0.01, 0.0, 50)],
)
def test_is_the_fixed_part_of_a_step(fixed: float, slope: float, most: int) -> None:
    step = fixed + slope * most
    assert climbed(fixed, slope, most).at(step) == pytest.approx(fixed / step, abs=0.05)


def test_is_less_the_longer_the_gap_that_a_limit_asks_for() -> None:
    seen = climbed(0.008, 0.0002, 20)  # 12 ms now
    assert seen.at(0.012) == pytest.approx(8 / 12, abs=0.03)
    assert seen.at(0.04) == pytest.approx(8 / 40, abs=0.01)
    assert seen.at(0.001) == seen.at(0.011), "slots take what they take"


def test_slots_that_wait_for_first_tokens_bring_none() -> None:
    """20 in flight of which 5 decode: the engine computes prompts, one more brings little."""
    seen = climbed(0.008, 0.0, 2)
    for end in range(100, 300):
        seen = seen.after(second(end, 20.0, 0.02, tokens=5 / 0.02), in_use=True)
    assert seen.at(0.02) == pytest.approx(0.008 / 0.08, abs=0.01)


def test_under_a_load_that_hardly_varies_half_of_the_gap_is_supposed() -> None:
    seen = Elasticity()
    for end in range(1, 100):
        seen = seen.after(second(end, 100.0, 0.03), in_use=True)
    assert seen.at(0.04) == pytest.approx(0.5 * 30 / 40)


def test_what_a_limit_that_is_not_in_use_shows_is_only_how_light_it_was() -> None:
    heavy = climbed(0.008, 0.0002, 100)
    lull = heavy.after(second(500.0, 1.0, 0.0081), in_use=False)
    assert (lull.tokens, lull.fewest_in_flight, lull.shortest_gap) == (heavy.tokens, 1.0, 0.0081)


@pytest.mark.parametrize(
    "more", [{"tokens": None}, {"tokens": 19.0}, {"mean_in_flight": None}, {"step_gap": number(0.0, 1.0)}]
)
def test_too_little_tells_nothing(more: dict[str, Any]) -> None:
    assert Elasticity().after(second(1.0, 5.0, 0.02, **more), in_use=True) == Elasticity()
    assert Elasticity().at(0.05) is None


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(1e-4, 10), st.floats(20, 1e6)), min_size=1))
def test_is_a_share(windows: list[tuple[float, float, float]]) -> None:
    seen = Elasticity()
    for end, (in_flight, gap, tokens) in enumerate(windows, 1):
        seen = seen.after(second(end, in_flight, gap, tokens=tokens), in_use=True)
    value = seen.at(0.05)
    assert value is not None
    assert 0 <= value <= 1
