"""The wait after failures: doubling, bounded, spread, and for ever without an overflow."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.signals.backoff import backoff_seconds


def test_the_wait_doubles_up_to_its_limit() -> None:
    waits = [backoff_seconds(n, 0.0, first_seconds=0.5, limit_seconds=30.0) for n in range(1, 9)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_luck_takes_up_to_half_of_it_away() -> None:
    assert backoff_seconds(2, 1.0, first_seconds=0.5, limit_seconds=30.0) == 0.5


@given(st.integers(1, 10**9), st.floats(0, 1), st.floats(0.001, 60), st.floats(0.001, 3600))
def test_however_often_it_fails_the_wait_is_within_its_limit(
    failures: int, luck: float, first: float, limit: float
) -> None:
    wait = backoff_seconds(failures, luck, first_seconds=first, limit_seconds=limit)
    assert min(first, limit) / 2 <= wait <= limit
