"""What is remembered of a pool, and how many replicas follow from it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_windows import SECONDS, pool

from controlplane.policy.boundary.learned import Learned, Pace, replicas_needed
from controlplane.signals.size_class import EDGES, SizeClass

HOUR = 3600.0


def learned(mix: dict[int, tuple[float, float]], **more: float) -> Learned:
    return Learned().learn(pool(mix, SECONDS, **more), SECONDS, HOUR)


def test_replicas_are_littles_law() -> None:
    """8 requests a second that stay for 5 s are 40 at work; 100 slots are to be 80 % full."""
    mix = {1024: (8.0, 5.0)}
    assert replicas_needed(pool(mix, 0.0), learned(mix), Learned(), EDGES, 0.8) == pytest.approx(0.5)


def test_kv_memory_counts_where_it_is_scarcer() -> None:
    mix = {32_768: (1.0, 10.0)}  # 10 at work, of 24,576 tokens each
    seen = pool(mix, 0.0, kv_tokens=100_000.0)
    assert replicas_needed(seen, learned(mix), Learned(), EDGES, 0.5) == pytest.approx(2 * 245_760 / 100_000)


def test_only_the_classes_asked_for_count() -> None:
    mix = {1024: (8.0, 5.0), 4096: (1.0, 10.0)}
    both = learned(mix)
    alone = replicas_needed(pool(mix, 0.0), both, Learned(), [4096], 1.0)
    assert alone == pytest.approx(0.1)
    assert replicas_needed(pool(mix, 0.0), both, Learned(), [], 1.0) == 0.0


def test_pace_is_a_line_over_sequences() -> None:
    """t = 8 ms + 0.65 ms a sequence, from two loads."""
    pace = Pace()
    for sequences in (10.0, 60.0):
        step = 0.008 + 0.00065 * sequences
        gaps = sequences * SECONDS / step
        pace = pace.add(gaps, gaps * step, sequences, SECONDS)
    assert pace.seconds_at(128.0) == pytest.approx(0.0912)
    assert pace.seconds_at(0.0) == pytest.approx(0.008)


def test_without_spread_the_pace_is_as_it_was_seen() -> None:
    pace = Pace().add(100.0, 2.0, 10.0, SECONDS).add(100.0, 2.1, 10.1, SECONDS)
    assert pace.seconds_at(200.0) == pytest.approx(0.0205)
    assert Pace().seconds_at(10.0) is None
    assert Pace().mean_seconds is None


def test_seconds_of_the_other_pool_are_counted_at_the_own_pace() -> None:
    """They ran among few others; here steps take three times as long."""
    mix = {1024: (1.0, 10.0)}
    at_work = 10.0
    fast = learned(mix)
    slow = Learned().learn(
        pool({2048: (1.0, 30.0)}, SECONDS, gaps=at_work * 1000, gap_seconds=at_work * 60.0), SECONDS, HOUR
    )
    slow_pool = pool({}, 0.0)
    need = replicas_needed(slow_pool, slow, fast, [1024], 1.0)
    assert need == pytest.approx(3 * 0.1)


def test_old_windows_fade() -> None:
    old = learned({1024: (8.0, 5.0)})
    empty = pool({}, 0.0, sizes={}, gaps=0.0, gap_seconds=0.0, in_flight=0.0)
    later = old.learn(empty, HOUR, HOUR)
    assert later.served == pytest.approx(old.served / math.e)
    assert later.seconds == pytest.approx(HOUR + SECONDS / math.e)


def test_after_a_long_silence_nothing_is_left() -> None:
    mix = {1024: (8.0, 5.0)}
    later = learned(mix).learn(pool({}, 0.0, sizes={}, gaps=0.0, gap_seconds=0.0), 30 * 24 * HOUR, HOUR)
    assert (later.served, later.pace) == (0.0, Pace())


def test_steps_that_no_engine_makes_teach_nothing() -> None:
    for gap_seconds in (1e-308, 0.0, 1e9):
        assert Pace().add(1.0, gap_seconds, 10.0, SECONDS) == Pace()


@given(
    windows=st.lists(
        st.tuples(st.floats(1.0, 600.0), st.sampled_from(EDGES), st.integers(0, 1000), st.floats(0.0, 100.0)),
        max_size=20,
    )
)
def test_memory_is_bounded_and_never_negative(windows: list[tuple[float, int, int, float]]) -> None:
    state = Learned()
    for seconds, edge, served, stays in windows:
        size = SizeClass(served, served, served * stays, served * stays * edge)
        seen = pool({}, 0.0, sizes={edge: size, 12_345: size})
        state = state.learn(seen, seconds, HOUR)
        assert set(state.sizes) <= set(EDGES), "classes of another version are not remembered"
        assert state.seconds <= HOUR + 600.0
        assert all(value >= 0 for each in state.sizes.values() for value in (each.served, each.token_seconds))
        assert replicas_needed(pool({}, 0.0), state, Learned(), EDGES, 0.85) >= 0.0
