"""The engine's own max_num_seqs, learned from its pages: when, what is mistaken for it, and how that ends."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limit_windows import number

from controlplane.policy.limits.law import LimitReason, Window
from controlplane.policy.limits.seats import Seats
from controlplane.policy.limits.slo_gradient import SloGradient, SloGradientState
from controlplane.signals.reading import Known

Page = tuple[float, float]  # running and waiting


def window(page: Page, end: float = 5.0, kv_usage: float = 0.4) -> Window:
    running, waiting = page
    return Window(
        start=end - 5.0,
        end=end,
        running=number(running, end),
        waiting=number(waiting, end),
        kv_usage=number(kv_usage, end),
    )


def after(pages: Iterable[Page], seats: Seats | None = None, *, in_use: bool = True) -> Seats:
    seats = seats or Seats()
    for page in pages:
        seats = seats.after(window(page), in_use=in_use)
    return seats


LEARNED = after([(256.0, 40.0)] * 3)


@pytest.mark.parametrize(
    "pages", [[(256, 40)] * 3, [(256, 90), (251, 8), (254, 30)], [(1, 1)] * 3, [(3, 1)] * 3]
)
def test_three_pages_that_agree(pages: list[Page]) -> None:
    assert after(pages[:2]).number is None
    assert after(pages).number == pages[-1][0]


@pytest.mark.parametrize(
    "pages",
    [
        [(256, 5)] * 9,  # a few have just come
        [(60, 1)] * 9,
        [(15, 8), (12, 6), (18, 9), (14, 7)] * 3,  # waves of arrivals, cut short by the token budget
        [(0, 40)] * 9,  # the engine pauses
        [(256, 0)] * 9,
    ],
)
def test_what_is_no_queue_for_seats(pages: list[Page]) -> None:
    assert after(pages).number is None


def test_a_full_cache_is_reason_enough_to_wait() -> None:
    seats = Seats()
    for _ in range(9):
        seats = seats.after(window((100.0, 40.0), kv_usage=0.95), in_use=True)
    assert seats == Seats()


def test_an_old_page_is_not_seen_twice() -> None:
    seats = Seats()
    for end in range(5, 50, 5):
        seen = window((256.0, 40.0), float(end))
        if end > 5:
            seen = Window(start=seen.start, end=seen.end, running=Known(256.0, 5.0), waiting=Known(40.0, 5.0))
        seats = seats.after(seen, in_use=True)
    assert seats.pages == 1


class TestMistaken:
    """20 was learned, of an engine that runs more."""

    seats = after([(20.0, 9.0)] * 3)

    def test_others_wait_although_fewer_run(self) -> None:
        assert after([(14.0, 4.0)], self.seats).number is None

    def test_more_run(self) -> None:
        assert after([(24.0, 0.0)], self.seats).number is None

    def test_is_tried_after_three_minutes_and_then_soon_gone(self) -> None:
        """The limit lets in no more than that, so nothing else would ever show it."""
        numbers = []
        seats = self.seats
        for _ in range(200):
            seats = after([(19.0, 0.0)], seats)
            numbers.append(seats.number)
        assert set(numbers[:36]) == {20}
        assert numbers[60] == 32
        assert numbers[-1] is None

    def test_is_not_tried_while_the_limit_is_not_in_use(self) -> None:
        assert after([(3.0, 0.0)] * 500, self.seats, in_use=False).number == 20


def test_the_right_one_is_found_again_by_the_first_queue() -> None:
    tried = after([(241.0, 0.0)] * 42, LEARNED)
    assert tried.number == 288
    assert after([(256.0, 9.0)], tried) == LEARNED


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=40))
def test_is_never_under_what_really_ran_while_others_waited(pages: list[tuple[int, int]]) -> None:
    seats = Seats()
    for page in pages:
        seats = seats.after(window(page), in_use=True)
        if seats.number is not None:
            assert seats.number >= page[0] / 1.03 - 1


class TestInTheLaw:
    law = SloGradient(ttft="1s", tpot="50ms")
    state = SloGradientState(300.0, LimitReason.START, "", starting=False, seats=LEARNED)

    def test_is_as_good_as_a_number_that_was_told(self) -> None:
        state = self.law.observe(self.state, Window(start=0.0, end=1.0))
        assert (state.limit, state.reason) == (241.0, LimitReason.MAX_NUM_SEQS)
        assert state.detail == "requests wait in the engine while 256 run"

    def test_a_number_that_was_told_wins(self) -> None:
        state = self.law.observe(self.state, Window(start=0.0, end=1.0, max_num_seqs=512))
        assert state.limit == 300.0
        state = self.law.observe(self.state, Window(start=0.0, end=1.0, max_num_seqs=100))
        assert state.detail == "the engine runs at most 100 sequences"

    def test_is_forgotten_at_a_restart(self) -> None:
        assert self.law.observe(self.state, Window(start=0.0, end=1.0, restarted=True)).seats == Seats()
