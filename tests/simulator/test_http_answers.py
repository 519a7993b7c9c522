"""What is said is settled by the question: lengths, stop strings, and names of blocks."""

from typing import Any

import numpy as np
import pytest

from controlplane.simulator.http.answer import Answer, Prompt, answers_to
from controlplane.simulator.http.ask import Ask, CompletionBody, Served, completion
from controlplane.simulator.http.errors import ApiError
from controlplane.simulator.settings import EngineSettings

SETTINGS = EngineSettings(num_gpu_blocks=1000, max_model_len=1024)


def asked(prompt: Any = "where is the moon", **more: Any) -> Ask:
    return completion(CompletionBody(prompt=prompt, **more), Served("m", SETTINGS.max_model_len))


def answer(ask: Ask, index: int = 0, seed: int = 0) -> Answer:
    return Answer(ask, Prompt(ask.prompts[0], SETTINGS.block_size), index, "r", SETTINGS, seed=seed)


def said(answer: Answer) -> str:
    return answer.text(answer.request.output_tokens)


def test_the_same_question_gets_the_same_answer_and_another_seed_another() -> None:
    ask = asked(max_tokens=900)
    assert said(answer(ask)) == said(answer(asked(max_tokens=900)))
    texts = {
        said(answer(ask)),
        said(answer(ask, seed=1)),
        said(answer(asked(max_tokens=900, seed=1))),
        said(answer(asked("where is the sun", max_tokens=900))),
        said(answer(asked(max_tokens=900, n=2), index=1)),
    }
    assert len(texts) == 5


def test_a_text_is_that_of_its_tokens() -> None:
    found = answer(asked(max_tokens=50, ignore_eos=True))
    tokens = [found.piece(i).decode() for i in range(50)]
    assert "".join(tokens) == said(found)
    assert found.text(7) == "".join(tokens[:7])
    assert all(token.startswith(" ") and token[1:].isalpha() for token in tokens)


def test_ignore_eos_uses_all_of_max_tokens_and_else_lengths_are_those_of_conversations() -> None:
    assert answer(asked(max_tokens=700, ignore_eos=True)).request.output_tokens == 700
    lengths = [answer(asked(f"question {i}", max_tokens=1000)).request.output_tokens for i in range(2000)]
    assert np.quantile(lengths, [0.5, 0.9]) == pytest.approx([129, 424], rel=0.1)


def test_max_tokens_ends_a_long_answer_and_min_tokens_lengthens_a_short_one() -> None:
    short = [answer(asked(f"question {i}", max_tokens=40)).request for i in range(300)]
    assert {request.limit_tokens for request in short} == {40}
    assert max(request.output_tokens for request in short) == 40
    assert min(request.output_tokens for request in short) < 40
    least = [
        answer(asked(f"question {i}", max_tokens=40, min_tokens=30)).request.output_tokens for i in range(300)
    ]
    assert min(least) == 30


def test_an_answer_is_cut_to_what_fits_the_context() -> None:
    request = answer(asked([5] * 1000, max_tokens=500, ignore_eos=True)).request
    assert (request.prompt_tokens, request.output_tokens, request.limit_tokens) == (1000, 24, 24)


def test_a_stop_string_ends_it_at_the_token_that_completes_it_and_is_not_said() -> None:
    whole = answer(asked(max_tokens=60, ignore_eos=True))
    words = said(whole).split()
    stop = words[10][-2:] + " " + words[11][:2]  # it begins in one token and ends in the next
    found = answer(asked(max_tokens=60, ignore_eos=True, stop=["never", stop]))
    first = said(whole).index(stop)
    assert said(found) == said(whole)[:first]
    assert found.stopped_by == stop
    tokens = found.request.output_tokens
    assert len(whole.text(tokens - 1)) < first + len(stop) <= len(whole.text(tokens))
    assert "".join(found.piece(i).decode() for i in range(tokens)) == said(found)


def test_a_stop_string_before_min_tokens_does_not_count() -> None:
    whole = said(answer(asked(max_tokens=60, ignore_eos=True)))
    stop = whole.split()[2]
    early = answer(asked(max_tokens=60, ignore_eos=True, stop=stop))
    late = answer(asked(max_tokens=60, ignore_eos=True, stop=stop, min_tokens=20))
    assert early.request.output_tokens <= 3
    assert late.request.output_tokens >= 20


def test_blocks_have_names_by_their_tokens_and_all_before() -> None:
    """What two requests share from the beginning has the same names, nothing after the first difference."""
    shared, limit = list(range(100)), {"max_tokens": 60, "ignore_eos": True}
    one = answer(asked([*shared, *[7] * 60], **limit)).request
    two = answer(asked([*shared, *[8] * 60], **limit)).request
    same = [a.name == b.name for a, b in zip(one.prefix, two.prefix, strict=True)]
    assert same == [True] * (100 // 16) + [False] * (220 // 16 - 100 // 16)
    assert [segment.end_tokens for segment in one.prefix] == list(range(16, 221, 16))


def test_the_next_turn_finds_the_answer_before_it() -> None:
    """The names go on through the answer, so a conversation that comes back is in the cache as a whole."""
    first = answer(asked("a b c d " * 20, max_tokens=100, ignore_eos=True))
    again = answer(asked("a b c d " * 20 + said(first) + " and then", max_tokens=5))
    ends = {segment.name: segment.end_tokens for segment in first.request.prefix}
    reach = max(ends[segment.name] for segment in again.request.prefix if segment.name in ends)
    assert reach == (first.request.prompt_tokens - 1 + 100) // 16 * 16


def test_every_prompt_gets_its_n_answers_in_order() -> None:
    ask = asked(["where is the moon", "and the sun"], max_tokens=90, n=2)
    found = list(answers_to(ask, "r", SETTINGS, 0))
    assert [one.index for one in found] == [0, 1, 2, 3]
    assert len({said(one) for one in found}) == 4
    assert said(found[0]) == said(answer(asked(max_tokens=90)))
    assert said(found[2]) == said(answer(asked("and the sun", max_tokens=90)))
    names = [{segment.name for segment in one.request.prefix} for one in found]
    assert not names[0] & names[2]


def test_an_answer_without_end_costs_no_more_memory_than_a_long_one() -> None:
    """Only so many of its blocks have names: a client may ask for a thousand such answers at once."""
    settings = EngineSettings(num_gpu_blocks=10_000, max_model_len=131_072)
    ask = completion(CompletionBody(prompt="a", max_tokens=131_000, ignore_eos=True), Served("m", 131_072))
    (endless,) = answers_to(ask, "r", settings, 0)
    assert endless.request.output_tokens == 131_000
    assert endless.request.prefix[-1].end_tokens == 8192


def test_a_late_stop_string_cuts_the_pieces_as_it_cuts_the_text() -> None:
    whole = answer(asked(max_tokens=900, ignore_eos=True))
    stop = said(whole)[-9:]
    found = answer(asked(max_tokens=900, ignore_eos=True, min_tokens=890, stop=stop))
    pieces = b"".join(map(found.piece, range(found.request.output_tokens))).decode()
    assert pieces == said(found) == said(whole)[:-9]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"max_tokens": 5000}, "max_tokens=5000 cannot be greater than max_model_len=1024"),
        ({"prompt": [5] * 1025}, "your prompt contains 1025 input tokens"),
        ({"prompt": "x" * 7000}, "7000 characters (more than 6144 characters"),
        ({"stop": [""]}, "stop cannot contain an empty string"),
        ({"n": 1025}, "n must be at most 1024, got 1025"),
        ({"n": 600, "prompt": ["a", "b"]}, "n must be at most 512, got 600"),
        ({"prompt": ["a"] * 1025}, "at most 1024 prompts, got 1025"),
        ({"prompt": [5] * 20_000, "n": 1000}, "must be at most 16777216, got 20000000"),
        ({"stop": ["a"] * 257}, "stop can have at most 256 strings, got 257"),
        ({"prompt": ["a", 5]}, "list of tokens"),
        ({"prompt": [[5], []]}, "list of tokens"),
        ({"prompt": [True]}, "list of tokens"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as refused:
        answer(asked(**more))
    assert refused.value.status == 400
    assert words in refused.value.body.decode()
