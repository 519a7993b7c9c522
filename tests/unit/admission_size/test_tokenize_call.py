"""What is asked of an engine's tokenizer, what is read from its answer, and usage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.tokenize_call import counted_tokens, tokenize_call
from controlplane.gateway.admission.usage import Usage, read_usage

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("endpoint", "body", "path", "asked"),
    [
        (
            Endpoint.COMPLETIONS,
            {"model": "m", "prompt": "a", "max_tokens": 5, "stream": True},
            "/tokenize",
            {"model": "m", "prompt": "a"},
        ),
        (
            Endpoint.COMPLETIONS,
            {"prompt": "a", "add_special_tokens": False},
            "/tokenize",
            {"prompt": "a", "add_special_tokens": False},
        ),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": "a"}, "/tokenize", {"model": "m", "prompt": "a"}),
        (
            Endpoint.CHAT,
            {"model": "m", "messages": MESSAGES, "tools": [1], "temperature": 0, "chat_template": None},
            "/tokenize",
            {"model": "m", "messages": MESSAGES, "tools": [1]},
        ),
        (
            Endpoint.MESSAGES,
            {"model": "m", "system": "s", "messages": MESSAGES, "max_tokens": 5},
            "/v1/messages/count_tokens",
            {"model": "m", "messages": MESSAGES, "system": "s"},
        ),
    ],
)
def test_questions(endpoint: Endpoint, body: dict[str, Any], path: str, asked: dict[str, Any]) -> None:
    call = tokenize_call(endpoint, body)
    assert call is not None
    assert (call.path, json.loads(call.body)) == (path, asked)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.COMPLETIONS, {"prompt": [1, 2]}),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}),
        (Endpoint.COMPLETIONS, {}),
        (Endpoint.EMBEDDINGS, {"input": [[1]]}),
        (Endpoint.CHAT, {"messages": None}),
        (Endpoint.RESPONSES, {"input": "a"}),
    ],
)
def test_what_no_engine_counts_is_not_asked(endpoint: Endpoint, body: dict[str, Any]) -> None:
    assert tokenize_call(endpoint, body) is None


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b'{"count": 5, "max_model_len": 100, "tokens": [1,2,3,4,5]}', 5),
        (b'{"input_tokens": 7}', 7),
        (b'{"count": 0}', 0),
        (b'{"count": -1}', None),
        (b'{"count": true}', None),
        (b'{"count": "5"}', None),
        (b'{"count": 1e99}', None),
        (b'{"error": {"message": "no"}}', None),
        (b"[5]", None),
        (b"<html>", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_answers(answer: bytes, count: int | None) -> None:
    assert counted_tokens(answer) == count


@given(st.binary(max_size=64))
def test_no_answer_raises(answer: bytes) -> None:
    counted_tokens(answer)


@pytest.mark.parametrize(
    ("fields", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}, Usage(10, 4)),
        ({"prompt_tokens": 10, "total_tokens": 10}, Usage(10, 0)),
        ({"prompt_tokens": 10, "completion_tokens": None}, Usage(10, 0)),
        (
            {"input_tokens": 10, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 8}},
            Usage(10, 4),
        ),
        (
            {
                "input_tokens": 2,
                "cache_read_input_tokens": 8,
                "cache_creation_input_tokens": 1,
                "output_tokens": 4,
            },
            Usage(11, 4),
        ),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 10**30}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage(fields: object, usage: Usage | None) -> None:
    assert read_usage(fields) == usage


def test_usage_sums() -> None:
    assert Usage(1010, 40).tokens == 1050
