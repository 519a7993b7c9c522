"""The size of a prompt: every shape of request, every way to count, and no JSON that breaks it."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.prompt_size import (
    EXACT_UP_TO_BYTES,
    REPLY_TOKENS,
    TURN_TOKENS,
    Basis,
    PromptSize,
    counted_by_engine,
    learn_from_usage,
    prompt_size,
)
from controlplane.gateway.admission.prompt_text import MOST_ITEMS, Media, prompt_text
from controlplane.gateway.admission.size_calibration import Category, SizeCalibration


class Words:
    """Counts words; a text with special tokens has one more. Chats are their JSON's words."""

    def text_tokens(self, text: str, *, special: bool) -> int:
        return len(text.split()) + special

    def chat_tokens(self, body: Mapping[str, object]) -> int | None:
        return len(json.dumps(body["messages"]).split())


class Refuses(Words):
    def chat_tokens(self, body: Mapping[str, object]) -> int | None:
        raise ValueError("roles must alternate")


class NoTemplate(Words):
    def chat_tokens(self, body: Mapping[str, object]) -> int | None:
        return None


def size(endpoint: Endpoint, body: dict[str, Any], **options: Any) -> PromptSize:
    given = {"tenant": "acme", "calibration": SizeCalibration(), **options}
    return prompt_size(endpoint, body, len(json.dumps(body)), **given)


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def pieces(endpoint: Endpoint, body: dict[str, Any]) -> list[str]:
    return prompt_text(endpoint, body).pieces


KEYS = [
    "prompt", "input", "messages", "content", "type", "text", "tools", "functions", "documents", "system",
    "instructions", "role", "tool_calls", "function", "function_call", "arguments", "name", "image_url",
    "source", "data", "output", "summary", "stream",
]  # fmt: skip
KINDS = ["text", "image_url", "tool_result", "document", "function_call", "system", "user", ""]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=25,
)
objects = st.dictionaries(st.sampled_from(KEYS), anything, max_size=8)


@given(st.sampled_from(Endpoint), objects, st.sampled_from([None, Words(), Refuses(), NoTemplate()]))
@settings(max_examples=400, deadline=None)
def test_any_json_has_a_size(endpoint: Endpoint, body: dict[str, Any], tokenizer: Any) -> None:
    found = size(endpoint, body, tokenizer=tokenizer)
    assert found.tokens >= 0
    assert found.sequences >= 1
    assert found.media_tokens <= found.tokens


@pytest.mark.parametrize(
    ("endpoint", "body", "texts"),
    [
        (Endpoint.COMPLETIONS, {"prompt": "one two"}, ["one two"]),
        (Endpoint.COMPLETIONS, {"prompt": ["one", "two"]}, ["one", "two"]),
        (Endpoint.EMBEDDINGS, {"input": ["a", "b"]}, ["a", "b"]),
        (Endpoint.EMBEDDINGS, chat({"role": "user", "content": "a"}), ["a"]),
        (
            Endpoint.CHAT,
            chat({"role": "user", "content": "a"}, {"role": "assistant", "content": None}),
            ["a"],
        ),
        (
            Endpoint.CHAT,
            chat(
                {
                    "role": "user",
                    "name": "ann",
                    "content": [{"type": "text", "text": "a"}, {"text": "b"}, "c"],
                },
                {"role": "assistant", "reasoning_content": "why", "refusal": "no"},
            ),
            ["a", "b", "c", "ann", "why", "no"],
        ),
        (
            Endpoint.CHAT,
            chat(tools=[{"f": "ü"}], functions=[1], documents=[{"text": "d"}]),
            ['[{"f": "ü"}]', "[1]", '[{"text": "d"}]'],
        ),
        (
            Endpoint.CHAT,
            chat(
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": {"a": 1}}}, 5]},
            ),
            ["f", "{}", "g", '{"a": 1}'],
        ),
        # A schema for the output masks logits; the model does not read it.
        (Endpoint.CHAT, chat({"content": "a"}, response_format={"json_schema": {"x": "y" * 999}}), ["a"]),
        (Endpoint.RESPONSES, {"input": "a", "instructions": "i"}, ["i", "a"]),
        (
            Endpoint.RESPONSES,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "4 C"},
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
                    {"type": "message", "content": "m"},
                ]
            },
            ["a", "f", "{}", "4 C", "s", "m"],
        ),
        (
            Endpoint.MESSAGES,
            {
                "system": [{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
                "tools": [{"name": "t"}],
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "x" * 500},
                            {"type": "tool_use", "id": "1", "name": "t", "input": {"k": 1}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "1", "content": "r"},
                            {"type": "tool_result", "content": [{"type": "text", "text": "s"}]},
                            {"type": "document", "source": {"type": "text", "data": "doc"}},
                        ],
                    },
                ],
            },
            ["sys", "a", "hm", "t", '{"k": 1}', "r", "s", "doc", '[{"name": "t"}]'],
        ),
    ],
)
def test_what_the_model_reads(endpoint: Endpoint, body: dict[str, Any], texts: list[str]) -> None:
    assert pieces(endpoint, body) == texts
    assert not prompt_text(endpoint, body).media


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}, "image"),
        ({"type": "input_image", "image_url": "https://files.example/a.png"}, "image"),
        ({"type": "image", "source": {"type": "base64", "data": "A" * 4000}}, "image"),
        ({"image_url": "https://files.example/a.png"}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "A" * 4000, "format": "wav"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "https://files.example/v.mp4"}}, "video"),
        ({"type": "hologram", "hologram": "A" * 4000}, "unknown"),
        ({"type": "document", "source": {"type": "base64", "data": "A" * 4000}}, "unknown"),
        ({"type": ["odd"]}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_media_count_by_their_figures(part: dict[str, Any], kind: str) -> None:
    figures = Media(image_tokens=11, audio_tokens=13, video_tokens=17, unknown_tokens=19)
    nested = {"type": "tool_result", "content": [part]}
    for message in ({"role": "user", "content": [part]}, {"role": "user", "content": [nested]}):
        found = size(Endpoint.MESSAGES, chat(message), media=figures)
        assert found.media_tokens == {"image": 11, "audio": 13, "video": 17, "unknown": 19}[kind]
        assert found.tokens == found.media_tokens + TURN_TOKENS + REPLY_TOKENS


def test_text_inside_an_unknown_part_counts_on_top() -> None:
    found = size(Endpoint.CHAT, chat({"content": [{"type": "citation", "text": "x" * 400}]}))
    assert found.media_tokens == Media().unknown_tokens
    assert found.tokens == Media().unknown_tokens + 100 + TURN_TOKENS + REPLY_TOKENS


def test_without_a_tokenizer_bytes_are_divided_by_the_ratio() -> None:
    assert size(Endpoint.COMPLETIONS, {"prompt": "x" * 401}).tokens == 101
    cjk = size(Endpoint.COMPLETIONS, {"prompt": "漢" * 100})
    assert (cjk.text_bytes, cjk.tokens, cjk.category) == (300, 75, Category.SCRIPT)
    assert cjk.basis is Basis.CALIBRATED
    talk = size(Endpoint.CHAT, chat({"content": "x" * 400}, {"content": "y" * 400}))
    assert talk.tokens == 200 + 2 * TURN_TOKENS + REPLY_TOKENS


@pytest.mark.parametrize(
    ("body", "tokens", "sequences"),
    [
        ({"prompt": [1, 2, 3]}, 3, 1),
        ({"prompt": [[1, 2], [3], []]}, 3, 3),
        ({"prompt": []}, 0, 1),
        ({"prompt": [[]]}, 0, 1),
        ({"prompt": ""}, 0, 1),
    ],
)
def test_token_ids_are_counted(body: dict[str, Any], tokens: int, sequences: int) -> None:
    found = size(Endpoint.COMPLETIONS, body, tokenizer=Words())
    assert (found.tokens, found.sequences, found.basis, found.exact) == (tokens, sequences, Basis.IDS, True)


def test_the_tokenizer_counts_prompts_with_their_special_tokens() -> None:
    found = size(Endpoint.COMPLETIONS, {"prompt": ["a b", "c"]}, tokenizer=Words())
    assert (found.tokens, found.sequences, found.basis, found.exact) == (5, 2, Basis.TOKENIZER, True)
    plain = size(Endpoint.COMPLETIONS, {"prompt": "a b", "add_special_tokens": False}, tokenizer=Words())
    assert plain.tokens == 2


def test_the_chat_template_is_exact_unless_tools_or_media_are_in_it() -> None:
    message = {"role": "user", "content": "a b"}
    words = len(json.dumps([message]).split())
    exact = size(Endpoint.CHAT, chat(message), tokenizer=Words())
    assert (exact.tokens, exact.basis, exact.exact) == (words, Basis.TOKENIZER, True)
    with_tools = size(Endpoint.CHAT, chat(message, tools=[{"type": "function"}]), tokenizer=Words())
    assert (with_tools.basis, with_tools.exact) == (Basis.TOKENIZER, False)
    picture = chat({"role": "user", "content": [{"type": "image_url"}]})
    with_image = size(Endpoint.CHAT, picture, tokenizer=Words())
    assert with_image.tokens == len(json.dumps(picture["messages"]).split()) + Media().image_tokens
    assert not with_image.exact


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.MESSAGES, {"system": "s t", "messages": [{"role": "user", "content": "a b"}]}),
        (Endpoint.RESPONSES, {"instructions": "s t", "input": "a b"}),
    ],
)
def test_rewritten_endpoints_count_texts_and_turns(endpoint: Endpoint, body: dict[str, Any]) -> None:
    found = size(endpoint, body, tokenizer=Words())
    assert found.tokens == 4 + 2 * TURN_TOKENS + REPLY_TOKENS
    assert (found.basis, found.exact) == (Basis.TOKENIZER, False)


def test_a_chat_without_template_or_with_its_own_counts_texts_and_turns() -> None:
    message = {"role": "user", "content": "a b"}
    for body, tokenizer in (
        (chat(message), NoTemplate()),
        (chat(message, chat_template="{{ secret }}"), Words()),
    ):
        found = size(Endpoint.CHAT, body, tokenizer=tokenizer)
        assert (found.tokens, found.exact) == (2 + TURN_TOKENS + REPLY_TOKENS, False)


def test_a_tokenizer_that_fails_or_would_take_too_long_is_done_without() -> None:
    message = {"role": "user", "content": "a b"}
    refused = size(Endpoint.CHAT, chat(message), tokenizer=Refuses())
    assert (refused.basis, refused.tokens) == (Basis.CALIBRATED, 1 + TURN_TOKENS + REPLY_TOKENS)
    large = size(Endpoint.COMPLETIONS, {"prompt": "a " * EXACT_UP_TO_BYTES}, tokenizer=Words())
    assert (large.basis, large.tokens) == (Basis.CALIBRATED, EXACT_UP_TO_BYTES // 2)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.COMPLETIONS, {"prompt": None}),
        (Endpoint.COMPLETIONS, {"prompt": {"text": "x"}}),
        (Endpoint.COMPLETIONS, {"prompt_embeds": "A" * 400}),
        (Endpoint.CHAT, {}),
        (Endpoint.CHAT, {"messages": "hello"}),
        (Endpoint.CHAT, chat(*[{}] * (MOST_ITEMS + 1))),
        (Endpoint.RESPONSES, {"input": 5}),
    ],
)
def test_what_is_not_understood_counts_by_the_bytes_of_the_body(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    found = size(endpoint, body)
    assert (found.basis, found.sequences) == (Basis.BODY, 1)
    assert found.tokens == -(-len(json.dumps(body)) // 4)


def test_content_in_content_in_content_ends_somewhere() -> None:
    part: dict[str, Any] = {"type": "text", "text": "x"}
    for _ in range(100):
        part = {"type": "tool_result", "content": [part]}
    assert size(Endpoint.MESSAGES, chat({"content": [part]})).basis is Basis.BODY


def test_tools_too_deep_to_be_written_count_by_the_bytes_of_the_body() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    found = prompt_size(
        Endpoint.CHAT, chat(tools=deep), 200_000, tenant="acme", calibration=SizeCalibration()
    )
    assert (found.basis, found.tokens) == (Basis.BODY, 50_000)
    while deep:  # taken apart by hand: freeing it at once would recurse in C
        deep = deep.pop()


def test_a_huge_body_takes_no_longer_than_reading_it() -> None:
    """8 MB of ids, of parts and of text: linear work, far from seconds."""
    prompts: list[dict[str, Any]] = [
        {"prompt": list(range(1_000_000))},
        {"prompt": [[1]] * 1_000_000},
        {"prompt": "漢字" * 1_500_000},
    ]
    began = time.perf_counter()
    for body in prompts:
        prompt_size(Endpoint.COMPLETIONS, body, 8_000_000, tenant="acme", calibration=SizeCalibration())
    assert time.perf_counter() - began < 3.0


def test_the_engines_count_replaces_the_estimate_and_media_stay() -> None:
    body = chat({"content": [{"type": "image_url"}, {"type": "text", "text": "what is this?"}]})
    counted = counted_by_engine(size(Endpoint.CHAT, body), 21)
    assert (counted.tokens, counted.basis, counted.exact) == (21 + Media().image_tokens, Basis.ENGINE, False)
    assert counted_by_engine(size(Endpoint.COMPLETIONS, {"prompt": "x"}), 3).exact


def test_usage_teaches_the_ratio_of_the_text_without_turns() -> None:
    calibration = SizeCalibration(gamma=0.0)
    body = chat({"content": "x" * 3000})
    for _ in range(200):
        found = size(Endpoint.CHAT, body, calibration=calibration)
        learn_from_usage(calibration, "acme", found, 1000 + TURN_TOKENS + REPLY_TOKENS)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1] * 5000},
        {"prompt": {"x": "y" * 500}},
        {"prompt": "x" * 20},
    ],
)
def test_ids_unknown_bodies_and_short_texts_teach_nothing(body: dict[str, Any]) -> None:
    calibration = SizeCalibration()
    found = size(Endpoint.COMPLETIONS, body, calibration=calibration)
    learn_from_usage(calibration, "acme", found, 100)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == 4.0


def test_media_teach_nothing_about_text() -> None:
    calibration = SizeCalibration()
    body = chat({"content": [{"type": "image_url"}, {"type": "text", "text": "x" * 4000}]})
    learn_from_usage(calibration, "acme", size(Endpoint.CHAT, body), 9000)
    assert calibration.bytes_per_token(Category.PROSE, "acme") == 4.0
