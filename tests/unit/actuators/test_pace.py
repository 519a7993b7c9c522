"""How fast a value may move, and how long a failure is waited for."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.actuators.pace import Backoff, step

values = st.integers(1, 1_000_000)
shares = st.floats(0.01, 1.0)
seconds = st.floats(0.0, 1e6)


@pytest.mark.parametrize(
    ("current", "wanted", "elapsed", "expected"),
    [
        (60, 58, 1.0, 58),
        (60, 120, 1.0, 90),
        (60, 120, 3600.0, 90),  # standing still for long earns nothing
        (60, 120, 0.5, 73),  # 60 * 1.5 ** 0.5 = 73.5
        (60, 10, 1.0, 40),
        (60, 60, 0.0, 60),
        (60, 61, 0.0, 60),
        (1, 100, 1.0, 2),  # by 1 in any case
        (2, 1, 1.0, 1),
    ],
)
def test_a_value_moves_by_half_of_it_a_second(
    current: int, wanted: int, elapsed: float, expected: int
) -> None:
    assert step(current, wanted, elapsed, 0.5) == expected


@given(values, values, seconds, shares)
def test_a_step_leads_towards_what_is_wanted_and_no_further_than_allowed(
    current: int, wanted: int, elapsed: float, share: float
) -> None:
    value = step(current, wanted, elapsed, share)
    assert min(current, wanted) <= value <= max(current, wanted)
    most = max(current * (1 + share), current + 1)
    least = min(current / (1 + share), current - 1)
    assert least - 1e-6 <= value <= most + 1e-6


@given(values, values, shares, st.floats(0.01, 3.0))
def test_steps_at_any_pace_arrive_and_no_second_sees_more_than_allowed(
    current: int, wanted: int, share: float, every: float
) -> None:
    """Called every so often, the value gets there in about the time that its rate takes."""
    needed = abs(math.log(wanted / current)) / math.log1p(share) + 2 / share + 5
    now, moved_at, value = 0.0, -math.inf, current
    moves = [(now, value)]
    while value != wanted:
        assert now < needed * max(1.0, every) * 3, "it does not arrive"
        new = step(value, wanted, now - moved_at, share)
        if new != value:
            value, moved_at = new, now
            moves.append((now, value))
        now += every
    for (begun, before), (at, after) in pairwise(moves):
        seconds = min(1.0, at - begun) if begun else 1.0
        factor = (1 + share) ** seconds
        assert after <= max(before * factor, before + seconds) + 1e-6
        assert after >= min(before / factor, before - seconds) - 1e-6


@given(st.integers(1, 60), st.floats(0.0, 1.0), st.floats(0.0, 1e4))
def test_the_wait_doubles_up_to_its_limit_and_luck_takes_half_at_most(
    failures: int, luck: float, asked: float
) -> None:
    backoff, now = Backoff(), 100.0
    for _ in range(failures):
        backoff = backoff.failed("no", now, luck, first_seconds=1.0, limit_seconds=30.0, asked_seconds=asked)
    longest = min(30.0, 2.0 ** (failures - 1))
    wait = backoff.until - now
    assert max(longest / 2, min(asked, 30.0)) - 1e-9 <= wait <= max(longest, min(asked, 30.0)) + 1e-9
    assert backoff.failures == failures


def test_a_wait_says_how_long_and_why() -> None:
    backoff = Backoff()
    assert backoff.sentence(0.0) == ""
    backoff = backoff.failed("http://g: connection refused", 10.0, 0.0, first_seconds=1.0, limit_seconds=8.0)
    assert backoff.sentence(10.6) == (
        "not tried: the next try is in 0.4 s, it failed once; last: http://g: connection refused"
    )
    assert backoff.sentence(11.0) == ""
    backoff = backoff.failed("http://g: HTTP status 500", 11.0, 0.0, first_seconds=1.0, limit_seconds=8.0)
    assert backoff.sentence(11.0).startswith(
        "not tried: the next try is in 2.0 s, it failed 2 times in a row"
    )
