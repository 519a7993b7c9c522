"""Limits on the output: what is read, clamped, refused, written into the body, and reserved."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.admission.body_edit import read_body, with_limits
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.output_size import (
    Need,
    OutputBasis,
    OutputCeiling,
    OutputSettings,
    OutputSize,
    need,
    output_size,
)
from controlplane.gateway.admission.prompt_size import Basis, PromptSize
from controlplane.gateway.admission.size_calibration import Category

RESERVE = OutputSettings()
APPLY = OutputSettings(when_missing="apply", applied_tokens=700)
REQUIRE = OutputSettings(when_missing="require")
FREE = OutputCeiling()
CLAMP = OutputCeiling(tokens=1000)
REFUSE = OutputCeiling(tokens=1000, over="refuse")


def out(
    body: dict[str, Any],
    *,
    endpoint: Endpoint = Endpoint.CHAT,
    settings: OutputSettings = RESERVE,
    ceiling: OutputCeiling = FREE,
    learned: int | None = None,
) -> OutputSize:
    return output_size(endpoint, body, settings, ceiling, learned)


def prompt(tokens: int, sequences: int = 1) -> PromptSize:
    return PromptSize(tokens, sequences, Basis.IDS, True, Category.PROSE, 0, 0, 0)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (200, 200),
        ("200", 200),
        (" 200 ", 200),
        ("200.0", 200),
        (200.0, 200),
        (True, 1),
        (0, 0),
        (False, 0),
        (1, 1),
        (10**18, 10**18),
        (1e300, int(1e300)),
        # the engine's to judge
        (None, None),
        (-1, None),
        (0.5, None),
        ("", None),
        ("many", None),
        ("9" * 5000, None),
        (float("nan"), None),
        (float("inf"), None),
        ([200], None),
        ({"tokens": 200}, None),
    ],
)
def test_a_limit_is_read_as_engines_read_it(value: Any, read: int | None) -> None:
    assert out({"max_tokens": value}).cap_tokens == read


@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (Endpoint.CHAT, "max_completion_tokens"),
        (Endpoint.CHAT, "max_tokens"),
        (Endpoint.COMPLETIONS, "max_tokens"),
        (Endpoint.RESPONSES, "max_output_tokens"),
        (Endpoint.MESSAGES, "max_tokens"),
    ],
)
def test_each_endpoint_has_its_own_name_for_the_limit(endpoint: Endpoint, field: str) -> None:
    assert out({field: 33}, endpoint=endpoint).cap_tokens == 33
    others = {"max_tokens", "max_completion_tokens", "max_output_tokens"} - set(endpoint.limit_fields)
    strange = out(dict.fromkeys(others, 33), endpoint=endpoint)
    assert strange.cap_tokens == (16 if endpoint is Endpoint.COMPLETIONS else None)


@pytest.mark.parametrize(
    ("body", "learned", "tokens", "basis"),
    [
        ({}, None, 512, OutputBasis.UNLEARNED),
        ({}, 300, 300, OutputBasis.LEARNED),
        ({"max_tokens": 4000}, None, 4000, OutputBasis.STATED),
        ({"max_tokens": 4000}, 300, 300, OutputBasis.LEARNED),
        ({"max_tokens": 100}, 300, 100, OutputBasis.STATED),
        ({"min_tokens": 900}, None, 900, OutputBasis.UNLEARNED),
        ({"min_tokens": 900}, 300, 900, OutputBasis.LEARNED),
        ({"min_tokens": 900, "max_tokens": 800}, 300, 800, OutputBasis.STATED),
        ({"min_tokens": "x"}, 300, 300, OutputBasis.LEARNED),
        # an answer that may not end by itself is as long as its limit
        ({"max_tokens": 4000, "ignore_eos": True}, 300, 4000, OutputBasis.STATED),
    ],
)
def test_what_is_likely(body: dict[str, Any], learned: int | None, tokens: int, basis: OutputBasis) -> None:
    found = out(body, learned=learned)
    assert (found.tokens, found.basis) == (tokens, basis)
    assert not found.edits


def test_completions_without_a_limit_write_what_the_engine_says() -> None:
    for body in ({}, {"max_tokens": None}):
        found = out(body, endpoint=Endpoint.COMPLETIONS, settings=REQUIRE, learned=300)
        assert (found.tokens, found.cap_tokens, found.basis) == (16, 16, OutputBasis.ENGINE_DEFAULT)
        assert found.refusal is None
        assert not found.edits
    assert out({"max_tokens": -1}, endpoint=Endpoint.COMPLETIONS).tokens == 512


def test_apply_writes_the_default_where_the_limit_is_missing() -> None:
    found = out({}, settings=APPLY, learned=300)
    assert (dict(found.edits), found.cap_tokens, found.tokens) == ({"max_tokens": 700}, 700, 300)
    assert dict(out({}, settings=APPLY, endpoint=Endpoint.RESPONSES).edits) == {"max_output_tokens": 700}
    assert not out({"max_tokens": 5000}, settings=APPLY).edits
    assert dict(out({"max_completion_tokens": -1}, settings=APPLY).edits) == {"max_completion_tokens": 700}
    assert dict(out({}, settings=APPLY, ceiling=OutputCeiling(tokens=50)).edits) == {"max_tokens": 50}


def test_a_prompt_that_is_only_scored_is_left_alone() -> None:
    """`max_tokens: 0` with `echo` and `logprobs`: nothing is written, and nothing may be."""
    scored = {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}
    for settings in (RESERVE, APPLY, REQUIRE):
        for ceiling in (FREE, CLAMP, REFUSE):
            size = out(scored, endpoint=Endpoint.COMPLETIONS, settings=settings, ceiling=ceiling, learned=300)
            assert (size.tokens, size.cap_tokens, size.edits, size.refusal) == (0, 0, {}, None)


def test_require_refuses_where_the_limit_is_missing() -> None:
    refusal = out({}, settings=REQUIRE).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.param) == ("output_limit_missing", "max_completion_tokens")
    assert refusal.sentence == "max_completion_tokens is required: set how long the answer may be"
    assert out({"max_tokens": 5}, settings=REQUIRE).refusal is None
    assert out({}, settings=REQUIRE).tokens == 512, "what would have been reserved is told all the same"


def test_a_ceiling_clamps_every_limit_above_it() -> None:
    both = out({"max_completion_tokens": 100, "max_tokens": 4000}, ceiling=CLAMP)
    # Engines differ in which of the two they obey.
    assert (dict(both.edits), both.cap_tokens) == ({"max_tokens": 1000}, 100)
    text = out({"max_tokens": "4000"}, ceiling=CLAMP)
    assert (dict(text.edits), text.cap_tokens) == ({"max_tokens": 1000}, 1000)
    assert not out({"max_tokens": 1000}, ceiling=CLAMP).edits


def test_a_ceiling_binds_a_request_without_a_limit() -> None:
    for ceiling in (CLAMP, REFUSE):
        found = out({}, ceiling=ceiling)
        assert (dict(found.edits), found.cap_tokens, found.tokens) == ({"max_tokens": 1000}, 1000, 1000)
        assert found.refusal is None
    assert dict(out({"max_tokens": -1}, ceiling=CLAMP).edits) == {"max_tokens": 1000}
    assert not out({}, ceiling=CLAMP, endpoint=Endpoint.COMPLETIONS).edits, "it writes 16 by itself"
    low = out({}, ceiling=OutputCeiling(tokens=5), endpoint=Endpoint.COMPLETIONS)
    assert dict(low.edits) == {"max_tokens": 5}


def test_a_ceiling_can_refuse() -> None:
    found = out({"max_tokens": 40000}, ceiling=REFUSE)
    assert found.refusal is not None
    assert found.refusal.reason == "output_over_ceiling"
    assert found.refusal.sentence == "max_tokens 40000 is over the ceiling of 1000 tokens"
    assert out({"max_tokens": 1000}, ceiling=REFUSE).refusal is None


@pytest.mark.parametrize(
    ("endpoint", "body", "answers"),
    [
        (Endpoint.CHAT, {}, 1),
        (Endpoint.CHAT, {"n": 4}, 4),
        (Endpoint.CHAT, {"n": 4, "best_of": 9}, 4),
        (Endpoint.CHAT, {"n": "4"}, 4),
        (Endpoint.CHAT, {"n": 0}, 1),
        (Endpoint.CHAT, {"n": []}, 1),
        (Endpoint.COMPLETIONS, {"n": 2, "best_of": 5}, 5),
        (Endpoint.COMPLETIONS, {"n": 5, "best_of": 2}, 5),
        (Endpoint.RESPONSES, {"n": 5}, 1),
        (Endpoint.EMBEDDINGS, {"n": 5}, 0),
    ],
)
def test_answers(endpoint: Endpoint, body: dict[str, Any], answers: int) -> None:
    assert out(body, endpoint=endpoint).answers == answers


def test_too_many_answers_are_refused_in_a_sentence_of_fair_length() -> None:
    found = out({"n": 10**100}, ceiling=OutputCeiling(answers=8))
    assert found.refusal is not None
    assert (found.refusal.reason, found.refusal.param, found.answers) == ("too_many_answers", "n", 8)
    assert found.refusal.sentence == "n 10^32 or more is over the ceiling of 8 answers to one prompt"


@pytest.mark.parametrize(
    ("tokens", "sequences", "body", "context", "wanted"),
    [
        (1000, 1, {"max_tokens": 200, "n": 4}, 32768, Need(1800, 4, 1800)),
        # two prompts of 300 and 700 tokens
        (1000, 2, {"max_tokens": 200}, 32768, Need(1400, 2, 1400)),
        (1000, 2, {"max_tokens": 200, "n": 3}, 32768, Need(1000 + 3 * 400, 6, 1000 + 3 * 400)),
        (1000, 1, {}, 32768, Need(1512, 1, 32768)),
        (1000, 1, {"max_tokens": 40000}, 32768, Need(32768, 1, 32768)),
        (50000, 1, {"max_tokens": 10}, 32768, Need(32768, 1, 32768)),
        (1000, 1, {"max_tokens": 40000}, None, Need(41000, 1, 41000)),
        (1000, 1, {}, None, Need(1512, 1, 1 << 53)),
    ],
)
def test_need(tokens: int, sequences: int, body: dict[str, Any], context: int | None, wanted: Need) -> None:
    assert need(prompt(tokens, sequences), out(body), context) == wanted


def test_need_of_a_learned_output_may_grow_to_the_cap() -> None:
    assert need(prompt(1000), out({"max_tokens": 4000}, learned=300), 32768) == Need(1300, 1, 5000)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "min_tokens",
    "ignore_eos",
]


@given(
    st.sampled_from(Endpoint),
    st.dictionaries(st.sampled_from(FIELDS), junk | st.integers(1, 10**6)),
    st.sampled_from([RESERVE, APPLY, REQUIRE]),
    st.sampled_from([FREE, CLAMP, REFUSE]),
    st.none() | st.integers(0, 10**5),
    st.tuples(st.integers(0, 10**6), st.integers(1, 50), st.none() | st.integers(1, 10**6)),
)
def test_laws_for_any_request(  # noqa: PLR0917 (hypothesis hands them over by position)
    endpoint: Endpoint,
    body: dict[str, Any],
    settings: OutputSettings,
    ceiling: OutputCeiling,
    learned: int | None,
    size: tuple[int, int, int | None],
) -> None:
    tokens, sequences, context = size
    found = output_size(endpoint, body, settings, ceiling, learned)
    wanted = need(prompt(tokens, sequences), found, context)
    assert 0 <= wanted.tokens <= wanted.most_tokens
    assert wanted.sequences >= sequences
    if found.cap_tokens is not None:
        assert found.tokens <= found.cap_tokens
        if ceiling.tokens is not None:
            assert found.cap_tokens <= ceiling.tokens
    if context is not None:
        assert wanted.tokens <= sequences * max(1, found.answers) * context
    if found.edits:
        assert settings is not RESERVE or ceiling is not FREE, "reserve alone never edits"


@given(st.dictionaries(st.sampled_from(FIELDS), junk | st.integers(1, 10**6)))
def test_a_clamped_body_is_within_the_ceiling(body: dict[str, Any]) -> None:
    """What the engine gets, read again, asks for no more than the ceiling."""
    raw = json.dumps(body).encode()
    document = read_body(raw)
    assert isinstance(document, dict)
    found = out(document, ceiling=CLAMP)
    edited = read_body(with_limits(raw, document, found.edits))
    assert isinstance(edited, dict)
    again = out(edited, ceiling=CLAMP)
    assert again.cap_tokens is not None
    assert again.cap_tokens <= 1000
    assert not again.edits


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"when_missing": "apply"}, "when_missing: apply needs applied_tokens"),
        ({"when_missing": "guess"}, "'reserve', 'apply' or 'require'"),
        ({"unlearned_tokens": 0}, "greater than or equal to 1"),
        ({"default": 5}, "Extra inputs are not permitted"),
    ],
)
def test_bad_settings(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutputSettings(**fields)
