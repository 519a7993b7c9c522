"""The reservation ledger of one replica."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.gateway.admission.ledger import Ledger, Reservation, Settlement
from controlplane.gateway.admission.trail import Trail

MOST = 1 << 60


def ledger(budget: float = 10_000, limit: float = 4) -> Ledger:
    made = Ledger(extension_tokens=64)
    made.budget_tokens, made.limit = budget, limit
    return made


def test_settled_with_the_real_use_exactly_once() -> None:
    """Case E6's settlement: the usage event, then the close of the stream."""
    books = ledger()
    reservation = books.reserve(1200, 1, MOST)
    assert books.settle(reservation, 1010 + 40) == Settlement(charged_tokens=1050, returned_tokens=150)
    assert books.settle(reservation, 1010 + 40) is None
    assert (books.reserved_tokens, books.sequences) == (0, 0)


def test_budget_and_limit() -> None:
    books = ledger()
    assert books.fits(10_000, 1)
    books.reserve(6000, 3, MOST)
    assert books.fits(4000, 1)
    assert not books.fits(4001, 1)
    assert not books.fits(100, 2)
    assert not books.fits(4000, 1, ceiling=0.9)
    assert books.is_short_of_tokens(4001)
    assert not books.is_short_of_tokens(4000)


def test_others_count() -> None:
    books = ledger()
    books.foreign_tokens, books.foreign_sequences = 6000.0, 2.0
    books.reserve(1000, 1, MOST)
    assert books.fits(3000, 1)
    assert not books.fits(3001, 1)
    assert not books.fits(100, 2)


def test_without_a_known_budget_sequences_are_counted() -> None:
    books = ledger(budget=inf)
    for _ in range(4):
        assert books.fits(10**9, 1)
        books.reserve(10**9, 1, MOST)
    assert not books.fits(1, 1)


def test_a_stream_that_outgrows_its_reservation_closes_admission_until_it_fits() -> None:
    books = ledger()
    small = books.reserve(1000, 1, MOST)
    other = books.reserve(8900, 1, MOST)
    assert books.fits(100, 1)
    books.extend(small, 1000)
    assert (books.extensions, books.grown_tokens) == (0, 0), "as much as was reserved is no growth"
    books.extend(small, 1001)
    assert (books.extensions, books.grown_tokens, small.tokens) == (1, 65, 1065)
    books.extend(small, 1065)
    assert books.extensions == 1, "what comes next is covered"
    books.extend(small, 1200)
    assert books.reserved_tokens == 8900 + 1264 > books.budget_tokens
    assert not books.fits(0, 1)
    books.settle(other, 9000)
    assert books.fits(8000, 1)
    books.settle(small, 1264)
    assert (books.reserved_tokens, books.grown_tokens) == (0, 0)


def test_an_extension_stops_at_what_the_request_can_use_at_all() -> None:
    books = ledger()
    reservation = books.reserve(1000, 1, 1010)
    books.extend(reservation, 1001)
    assert reservation.tokens == 1010
    books.extend(reservation, 1020)
    assert reservation.tokens == 1020, "the engine knows better"


def test_what_an_idle_engine_says_of_others_keeps_nobody_out_for_ever() -> None:
    """vllm#29928: all clients hang up, and the gauges stay where they were until the next request."""
    books = ledger()
    books.foreign_tokens, books.foreign_sequences = 9900.0, 1000.0
    assert books.fits(200, 1)
    books.reserve(200, 1, MOST)
    assert not books.fits(200, 1), "one is enough to hear the truth"


def test_a_request_larger_than_the_share_is_let_in_alone() -> None:
    books = ledger()
    assert books.fits(25_000, 1)
    reservation = books.reserve(25_000, 1, MOST)
    assert books.reserved_tokens == 10_000
    assert not books.fits(1, 1)
    books.extend(reservation, 12_000)
    assert books.grown_tokens == 2064
    books.settle(reservation, 12_000)
    small = books.reserve(1, 1, MOST)
    assert not books.fits(25_000, 1), "not alone"
    books.settle(small, 1)


def test_a_request_of_more_sequences_than_the_limit_is_let_in_alone() -> None:
    books = ledger(limit=2)
    assert books.fits(100, 4)
    books.reserve(100, 4, MOST)
    assert not books.fits(100, 1)


def test_no_share_means_nothing() -> None:
    books = ledger(budget=0.0, limit=0.0)
    assert not books.fits(0, 1)
    assert not books.fits(25_000, 1)


class Books(RuleBasedStateMachine):
    """Any order of reserve, extend, settle (and settle again), with budgets, limits and others that move."""

    def __init__(self) -> None:
        super().__init__()
        self.books = ledger()
        self.open: list[tuple[Reservation, int]] = []
        self.closed: list[Reservation] = []

    @rule(tokens=st.integers(0, 15_000), sequences=st.integers(1, 5), ceiling=st.floats(0.1, 1))
    def reserve(self, tokens: int, sequences: int, ceiling: float) -> None:
        books = self.books
        if not books.fits(tokens, sequences, ceiling):
            return
        alone = not self.open
        reservation = books.reserve(tokens, sequences, MOST)
        self.open.append((reservation, tokens))
        others = 0.0 if alone else books.foreign_tokens
        assert books.reserved_tokens <= max(0.0, books.budget_tokens - others)
        assert books.sequences + books.foreign_sequences <= max(1.0, books.limit) or alone

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0), used=st.integers(0, 40_000))
    def extend(self, number: int, used: int) -> None:
        reservation, _ = self.open[number % len(self.open)]
        self.books.extend(reservation, used)
        assert reservation.tokens >= used

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0), used=st.integers(0, 40_000))
    def settle(self, number: int, used: int) -> None:
        reservation, _ = self.open.pop(number % len(self.open))
        settlement = self.books.settle(reservation, used)
        assert settlement is not None
        assert settlement.charged_tokens == used
        assert settlement.returned_tokens == max(0, reservation.tokens - used)
        self.closed.append(reservation)

    @precondition(lambda self: self.closed)
    @rule(number=st.integers(0))
    def settle_again(self, number: int) -> None:
        reservation = self.closed[number % len(self.closed)]
        assert self.books.settle(reservation, 1) is None
        self.books.extend(reservation, 10**6)

    @rule(
        budget=st.sampled_from([0.0, 500.0, 10_000.0, inf]),
        limit=st.sampled_from([1.0, 4.0, 1e6]),
        tokens=st.floats(0, 20_000),
        sequences=st.floats(0, 5),
    )
    def change(self, budget: float, limit: float, tokens: float, sequences: float) -> None:
        self.books.budget_tokens, self.books.limit = budget, limit
        self.books.foreign_tokens, self.books.foreign_sequences = tokens, sequences

    @invariant()
    def adds_up(self) -> None:
        assert self.books.reserved_tokens == sum(r.tokens for r, _ in self.open) >= 0
        assert self.books.sequences == sum(r.sequences for r, _ in self.open) >= 0
        assert self.books.grown_tokens == sum(r.grown_tokens for r, _ in self.open) >= 0


TestBooks = Books.TestCase


@given(st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 50)), min_size=1, max_size=80), st.floats(0, 1))
def test_the_trail_remembers_what_was_in_flight(steps: list[tuple[float, int]], where: float) -> None:
    trail = Trail()
    now = 100.0
    told: list[tuple[float, int]] = []
    for seconds, sequences in steps:
        now += seconds
        trail.note(now, sequences, sequences * 7)
        told.append((now, sequences))
    when = told[0][0] + where * (now - told[0][0])
    allowed = {s for at, s in told if when - 0.05 <= at <= when + 0.05}
    before = [s for at, s in told if at <= when + 1e-9]
    assert trail.at(when)[0] in allowed | {before[-1]}
    assert trail.at(when)[1] == trail.at(when)[0] * 7


def test_the_trail_is_bounded() -> None:
    trail = Trail()
    for step in range(5000):
        trail.note(step * 0.1, step, 0)
    assert len(trail._marks) == 600
    assert trail.at(1e9)[0] == 4999
    assert trail.at(0.0)[0] == 4400, "the oldest that is known"


@pytest.mark.parametrize("when", [-5.0, 0.0, 99.0])
def test_before_the_first_there_was_nothing(when: float) -> None:
    trail = Trail()
    trail.note(100.0, 3, 30)
    assert trail.at(when) == (0, 0)
