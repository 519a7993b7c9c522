"""The accounts of a run: they hold for a good one and they notice a bad one."""

import msgspec
import pytest

from controlplane.simulator.scenario.books import Books, little_ratio
from controlplane.simulator.scenario.truth import jain


def test_books_of_a_small_queue_by_hand() -> None:
    books = Books()
    books.arrived(1.0)
    books.arrived(2.0)
    start = books.mark(2.5, elapsed=2.0)  # two inside since 1 and 2
    books.left(1.0, 4.0)
    books.arrived(5.0)
    books.left(2.0, 6.0)
    end = books.mark(7.0, elapsed=2.0)  # one inside since 5
    assert (start.area, start.stays) == (2.0, 0.0)
    # 1 from 1 to 2, 2 to 4, 1 to 5, 2 to 6, 1 to 7
    assert (end.area, end.stays) == (9.0, 7.0)
    # (9 - 2) request seconds, one arrival, two that stayed for 7 s together
    assert little_ratio(start, end) == pytest.approx(7.0 * 2 / (1 * 7.0))
    books.check(7.0, in_flight=1, queued=1, at_engines=0)


def test_a_request_that_is_lost_or_counted_twice_is_noticed() -> None:
    books = Books()
    books.arrived(0.0)
    books.arrived(0.0)
    books.left(0.0, 1.0)
    books.check(2.0, in_flight=1, queued=0, at_engines=1)
    for in_flight, queued, at_engines in ((0, 0, 0), (1, 1, 1), (1, 0, 0), (2, 1, 1)):
        with pytest.raises(AssertionError, match="1 requests should be in the system"):
            books.check(2.0, in_flight=in_flight, queued=queued, at_engines=at_engines)


def test_an_end_at_the_wrong_time_breaks_littles_law() -> None:
    books = Books()
    books.arrived(0.0)
    books.left(0.5, 2.0)  # it came at 0
    with pytest.raises(AssertionError, match="Little's law"):
        books.mark(3.0, elapsed=0.0)


def test_littles_law_is_demanded_of_a_steady_window_only() -> None:
    books = Books()
    start = books.mark(0.0, elapsed=0.0)
    assert little_ratio(start, books.mark(1.0, elapsed=0.0)) is None
    for second in range(1, 100):
        books.arrived(float(second))
        books.left(float(second), second + 0.5)
    end = books.mark(100.0, elapsed=0.0)
    assert little_ratio(start, end) == pytest.approx(1.0)
    # The same window with a tenth of the stays forgotten, and one that fills up and may be far from 1.
    with pytest.raises(AssertionError, match="off 1 in a steady window"):
        little_ratio(start, msgspec.structs.replace(end, stays=0.9 * end.stays))
    ratio = little_ratio(start, msgspec.structs.replace(end, inside=50, elapsed=1000.0, area=1000.0))
    assert ratio is not None
    assert ratio > 10


def test_jains_index_against_shares_by_hand() -> None:
    assert jain([5.0, 5.0], [9.0, 9.0]) == 1.0
    assert jain([6.0, 2.0], [9.0, 9.0]) == pytest.approx(8**2 / (2 * 40))  # the usual index
    assert jain([1.0, 9.0], [1.0, 50.0]) == 1.0  # who wants little and has it is not wronged
    assert jain([1.0, 9.0], [9.0, 50.0]) == pytest.approx((0.2 + 1.8) ** 2 / (2 * (0.2**2 + 1.8**2)))
    assert jain([0.0, 8.0], [0.0, 8.0]) == 1.0  # who wants nothing does not count
    assert jain([0.0, 0.0], [5.0, 5.0]) is None
    assert jain([], []) is None
