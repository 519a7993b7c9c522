"""How many tokens a piece holds: learned from answers that have ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.piece_size import PieceCount, PieceSize


def learned(pieces: int, tokens: int, answers: int = 60, sequences: int = 1) -> PieceSize:
    size = PieceSize()
    for _ in range(answers):
        size.learn(pieces, tokens, sequences)
    return size


def test_one_token_a_piece_until_something_is_learned() -> None:
    assert [PieceCount(PieceSize(), 1).tokens(pieces) for pieces in (1, 2, 7)] == [1, 2, 7]


def test_an_engine_that_sends_each_tenth_token() -> None:
    assert learned(31, 301).tokens == pytest.approx(10, rel=0.01)


def test_a_few_answers_are_enough_and_an_engine_that_changes_is_followed() -> None:
    size = learned(31, 301, answers=5)
    assert size.tokens > 8
    for _ in range(150):
        size.learn(300, 300, 1)
    assert size.tokens == pytest.approx(1, abs=0.01)


def test_the_first_piece_of_each_sequence_is_a_token() -> None:
    count = PieceCount(learned(41, 401, sequences=1), sequences=4)
    assert count.tokens(3) == 3
    assert count.tokens(3) == pytest.approx(1 + 20, abs=1)


def test_parts_of_tokens_are_told_when_they_are_whole() -> None:
    count = PieceCount(learned(201, 501), sequences=1)  # 2.5 a piece
    told = [count.tokens(1) for _ in range(101)]
    assert sum(told) == pytest.approx(251, abs=2)
    assert set(told) <= {1, 2, 3}


def test_an_answer_of_one_piece_and_one_without_text_teach_nothing() -> None:
    size = PieceSize()
    for pieces in (0, 1):
        size.learn(pieces, 500, 1)
    assert size.tokens == 1


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 128)), max_size=30),
    st.lists(st.integers(1, 10_000), max_size=30),
    st.integers(1, 128),
)
def test_never_fewer_tokens_than_pieces_and_bounded_whatever_engines_tell(
    answers: list[tuple[int, int, int]], pieces: list[int], sequences: int
) -> None:
    size = PieceSize()
    for answer in answers:
        size.learn(*answer)
    assert 1 <= size.tokens <= 1000
    count = PieceCount(size, sequences)
    for new in pieces:
        assert new <= count.tokens(new) <= 1000 * new + 1
