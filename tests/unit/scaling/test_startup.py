"""How long replicas take to start, as a pool has shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.scaling import startup
from controlplane.policy.scaling.forecast import LOOK_SECONDS
from controlplane.policy.scaling.settings import ScaleSettings

SETTINGS = ScaleSettings(min=1, max=9, cold_start="1m", startup_timeout="10m")

seconds = st.floats(0.0, 86_400.0)


def cold_start(took: list[float], settings: ScaleSettings = SETTINGS) -> float:
    return startup.learned(startup.observe((), took, settings), settings).cold_start


def test_what_is_configured_holds_until_a_replica_has_started() -> None:
    assert startup.learned((), SETTINGS) == SETTINGS


def test_a_pool_that_is_slower_than_configured_is_believed_at_once() -> None:
    assert cold_start([180.0]) == 180.0


def test_a_pool_that_is_quicker_is_believed_late_and_never_under_half() -> None:
    slow = SETTINGS.model_copy(update={"cold_start": 180.0})
    assert cold_start([100.0] * 31, slow) == 180.0
    assert cold_start([100.0] * 32, slow) == pytest.approx(100.0)
    assert cold_start([20.0] * 32, slow) == pytest.approx(90.0)


def test_nine_in_ten_start_within_it_and_what_is_long_ago_is_forgotten() -> None:
    took = [100.0 + 10.0 * i for i in range(11)]
    assert cold_start(took) == pytest.approx(190.0)
    assert cold_start([500.0] * 9 + [70.0] * 32) == pytest.approx(70.0)


def test_one_that_took_too_long_or_was_hardly_seen_is_none_to_learn_from() -> None:
    assert startup.observe((), [LOOK_SECONDS, 600.5], SETTINGS) == ()


def test_one_that_takes_three_times_as_long_is_stuck() -> None:
    start_ups = startup.observe((), [60.0] * 3, SETTINGS)
    assert startup.learned(start_ups, SETTINGS).startup_timeout == pytest.approx(180.0)
    slow = startup.observe((), [300.0] * 16, SETTINGS)
    assert startup.learned(slow, SETTINGS).startup_timeout == SETTINGS.startup_timeout


@given(st.lists(st.lists(seconds, max_size=5), max_size=20))
def test_whatever_comes_it_stays_between_its_bounds(history: list[list[float]]) -> None:
    start_ups: tuple[float, ...] = ()
    for took in history:
        start_ups = startup.observe(start_ups, took, SETTINGS)
        found = startup.learned(start_ups, SETTINGS)
        seen = [*start_ups, SETTINGS.cold_start]
        assert len(start_ups) <= 32
        assert SETTINGS.cold_start / 2 <= found.cold_start <= max(seen) <= SETTINGS.startup_timeout
        assert found.cold_start <= found.startup_timeout <= SETTINGS.startup_timeout


@given(st.lists(seconds, min_size=1, max_size=30), st.floats(0.0, 500.0))
def test_slower_starts_never_make_it_shorter(took: list[float], more: float) -> None:
    slower = [min(SETTINGS.startup_timeout, one + more) for one in took if one > LOOK_SECONDS]
    took = [one for one in took if LOOK_SECONDS < one <= SETTINGS.startup_timeout]
    if len(slower) == len(took):
        assert cold_start(slower) >= cold_start(took) - 1e-9
