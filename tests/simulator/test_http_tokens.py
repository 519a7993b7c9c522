"""Text to tokens and back."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.simulator.http.tokens import LARGEST_PIECE, WORDS, chat, number, pieces, text_of

# Text that can stand in a JSON body: no lone surrogates.
texts = st.text(st.characters(exclude_categories=("Cs",)))


@given(texts)
def test_every_text_comes_back_from_its_numbers(text: str) -> None:
    numbers = [number(piece) for piece in pieces(text)]
    assert text_of(numbers) == text
    assert all(0 < n < 2**53 for n in numbers)


@given(texts, texts)
def test_text_that_goes_on_keeps_its_tokens_up_to_the_last(text: str, more: str) -> None:
    """Else the next turn of a conversation would not find its past in the prefix cache."""
    kept = pieces(text)[:-1]
    assert pieces(text + " " + more)[: len(kept)] == kept


@given(texts)
def test_there_are_no_more_tokens_than_bytes_and_none_is_too_long(text: str) -> None:
    found = pieces(text)
    assert b"".join(found) == text.encode()
    assert all(1 <= len(piece) <= LARGEST_PIECE for piece in found)


def test_words_of_answers_are_one_token_each() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(pieces(word.decode()) == [word] for word in WORDS)
    assert pieces(b"".join(WORDS).decode()) == list(WORDS)


def test_english_has_about_four_bytes_a_token() -> None:
    text = (
        "The servers are up, the GPUs are at 98 %, the queue is thousands deep, and almost no answer arrives "
        "in time. Nobody was paged, because every dashboard is green."
    )
    assert 3.5 < len(text) / len(pieces(text)) < 5.0


def test_numbers_of_another_vocabulary_are_shown_as_they_are() -> None:
    assert text_of([77, number(b" moon"), 2**62]) == f" [77] moon [{2**62}]"


def test_a_chat_is_marked_by_role_and_goes_on_where_it_ended() -> None:
    first = chat([("system", "be brief"), ("user", "hello")])
    assert first == [b"<syst>", b"be", b" brief", b"</s>", b"<user>", b"hello", b"</s>", b"<assi>"]
    second = chat([("system", "be brief"), ("user", "hello"), ("assistant", " moon lake"), ("user", "more")])
    assert second[: len(first) + 2] == [*first, b" moon", b" lake"]


def test_tools_are_part_of_the_prompt() -> None:
    bare, tooled = chat([("user", "hi")]), chat([("user", "hi")], [{"name": "look"}])
    assert tooled[-len(bare) :] == bare
    assert b'"name'[:5] in b"".join(tooled)
