"""Property tests and hand-picked bodies for the splice."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.gateway.admission.body_edit import (
    Unreadable,
    read_body,
    wants_stream_usage,
    with_limits,
    with_stream_usage,
)
from controlplane.gateway.admission.endpoint import Endpoint

OURS = ["max_tokens", "max_completion_tokens", "stream_options", "include_usage", "stream", "model"]
SPACE = st.text(" \t\n\r", max_size=3)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(['"', "\\", '{"max_tokens":1}', "}", "]", ",", ":", "\\u0000", "\ud83d\ude42"])
)
keys = st.text(max_size=8) | st.sampled_from(OURS)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=4) | st.dictionaries(keys, v, max_size=4), max_leaves=20
)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """`value` as JSON text with arbitrary white space, escapes and repeated keys."""
    if isinstance(value, dict):
        members = []
        for key, inner in value.items():
            if draw(st.integers(0, 5)) == 0:  # an earlier member of the same name, which the last one hides
                members.append((key, draw(written(draw(leaves)))))
            members.append((key, draw(written(inner))))
        body = ",".join(
            f"{draw(SPACE)}{draw(written(key))}{draw(SPACE)}:{draw(SPACE)}{text}{draw(SPACE)}"
            for key, text in members
        )
        return "{" + (body or draw(SPACE)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(SPACE) + draw(written(v)) + draw(SPACE) for v in value) + "]"
    if isinstance(value, str) and draw(st.booleans()):
        escaped = (f"\\u{unit:04x}" for unit in _units(value))
        return '"' + "".join(escaped) + '"'
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


def _units(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    document = draw(st.dictionaries(keys, values, max_size=6))
    bom = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    text = draw(SPACE) + draw(written(document)) + draw(SPACE)
    raw = bom + text.encode("utf-8", "surrogatepass")
    read = read_body(raw)
    assert isinstance(read, dict), read
    return raw, read


def one_place(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    """What was taken out and what was put in, where only one stretch of bytes differs."""
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return before[same : len(before) - tail], after[same : len(after) - tail]


@given(bodies(), st.sampled_from(["max_tokens", "max_completion_tokens"]), st.integers(0, 10**9))
@settings(max_examples=200, deadline=None)
def test_setting_a_limit_changes_that_key_and_nothing_else(
    body: tuple[bytes, dict[str, Any]], field: str, tokens: int
) -> None:
    raw, document = body
    after = with_limits(raw, document, {field: tokens})
    assert read_body(after) == {**document, field: tokens}
    taken, put = one_place(raw, after)
    assert len(put) <= len(f',"{field}":{tokens}')
    if field in document:
        assert len(after) - len(raw) == len(put) - len(taken)
    else:
        assert not taken, "a new key takes nothing away"


@given(bodies())
@settings(max_examples=200, deadline=None)
def test_asking_for_usage_changes_that_option_and_nothing_else(body: tuple[bytes, dict[str, Any]]) -> None:
    raw, document = body
    after = with_stream_usage(raw, document)
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        assert after == raw
        return
    assert read_body(after) == {**document, "stream_options": {**(options or {}), "include_usage": True}}
    _, put = one_place(raw, after)
    assert len(put) <= len(',"stream_options":{"include_usage":true}')


@given(bodies(), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_all_edits_together(body: tuple[bytes, dict[str, Any]], first: int, second: int) -> None:
    raw, document = body
    limits = {"max_tokens": first, "max_completion_tokens": second}
    after = with_stream_usage(with_limits(raw, document, limits), document)
    options = document.get("stream_options")
    wanted = {**document, **limits}
    if options is None or isinstance(options, dict):
        wanted["stream_options"] = {**(options or {}), "include_usage": True}
    assert read_body(after) == wanted


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{}", b'{"max_tokens":7}'),
        (b"{ \n }", b'{"max_tokens":7 \n }'),
        (b'{"a": 1}\n', b'{"a": 1,"max_tokens":7}\n'),
        (b'{\n  "a": 1\n}', b'{\n  "a": 1,"max_tokens":7\n}'),
        (b'{"max_tokens" :  900 , "a":1}', b'{"max_tokens" :  7 , "a":1}'),
        (b'{"max_tokens":null}', b'{"max_tokens":7}'),
        (b'{"max_tokens":"900"}', b'{"max_tokens":7}'),
        (b'{"max_tokens":[1,{"a":"]"}]}', b'{"max_tokens":7}'),
        # the last of several is the one that counts
        (b'{"max_tokens":1,"max_tokens":2}', b'{"max_tokens":1,"max_tokens":7}'),
        (b'{"max_tokens":1,"max\\u005ftokens":2}', b'{"max_tokens":1,"max\\u005ftokens":7}'),
        # a key of that name elsewhere is not ours
        (b'{"a":{"max_tokens":1}}', b'{"a":{"max_tokens":1},"max_tokens":7}'),
        (b'{"a":"\\"max_tokens\\":1"}', b'{"a":"\\"max_tokens\\":1","max_tokens":7}'),
        (b'{"x":"\\\\","max_tokens":1}', b'{"x":"\\\\","max_tokens":7}'),
        # numbers that no float holds, and a lone surrogate, stay as they are
        (
            b'{"seed":123456789012345678901234567890,"t":1E400,"s":"\\ud800","max_tokens":1}',
            b'{"seed":123456789012345678901234567890,"t":1E400,"s":"\\ud800","max_tokens":7}',
        ),
        (b'\xef\xbb\xbf{"a":NaN}', b'\xef\xbb\xbf{"a":NaN,"max_tokens":7}'),
    ],
)
def test_limits_by_hand(before: bytes, after: bytes) -> None:
    document = read_body(before)
    assert isinstance(document, dict)
    assert with_limits(before, document, {"max_tokens": 7}) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"stream":true}', b'{"stream":true,"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":null}', b'{"stream_options":{"include_usage":true}}'),
        (b'{"stream_options":{ }}', b'{"stream_options":{"include_usage":true }}'),
        (b'{"stream_options": {"b":1 } }', b'{"stream_options": {"b":1,"include_usage":true } }'),
        (b'{"stream_options":{"include_usage": false}}', b'{"stream_options":{"include_usage": true}}'),
        (
            b'{"stream_options":{"include_usage":true},"stream_options":{"include_usage":0}}',
            b'{"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}',
        ),
        (b'{"stream_options":"yes"}', b'{"stream_options":"yes"}'),
    ],
)
def test_stream_usage_by_hand(before: bytes, after: bytes) -> None:
    document = read_body(before)
    assert isinstance(document, dict)
    assert with_stream_usage(before, document) == after


@pytest.mark.parametrize(
    ("endpoint", "body", "wanted"),
    [
        (Endpoint.CHAT, {"stream": True}, True),
        (Endpoint.COMPLETIONS, {"stream": True, "stream_options": {}}, True),
        (Endpoint.CHAT, {"stream": True, "stream_options": {"include_usage": True}}, False),
        (Endpoint.CHAT, {"stream": True, "stream_options": 5}, False),
        (Endpoint.CHAT, {}, False),
        (Endpoint.CHAT, {"stream": False}, False),
        (Endpoint.RESPONSES, {"stream": True}, False),
        (Endpoint.MESSAGES, {"stream": True}, False),
    ],
)
def test_usage_is_asked_for_where_a_stream_would_end_without(
    endpoint: Endpoint, body: dict[str, object], wanted: bool
) -> None:
    assert wants_stream_usage(endpoint, body) is wanted


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "the body is not valid JSON: Expecting value (character 0)"),
        (b'{"a":1,}', "the body is not valid JSON: Expecting property name enclosed in double quotes"),
        (b'{"a":1} x', "the body is not valid JSON: Extra data (character 8)"),
        (b"\xff\xfe{\x00}\x00", "the body is not UTF-8"),
        ("{}".encode("utf-16-le"), "the body is not valid JSON"),
        (b"[1]", "the body is not a JSON object (got an array)"),
        (b"null", "the body is not a JSON object (got null)"),
        (b"true", "the body is not a JSON object (got a boolean)"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "the body holds a number with too many digits"),
    ],
)
def test_unreadable_bodies_are_told_in_a_sentence(raw: bytes, sentence: str) -> None:
    read = read_body(raw)
    assert isinstance(read, Unreadable)
    assert read.sentence.startswith(sentence)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    assert isinstance(read_body(raw), dict | Unreadable)


def test_nan_and_infinity_are_read_as_engines_read_them() -> None:
    read = read_body(b'{"temperature":NaN,"top_p":-Infinity}')
    assert isinstance(read, dict)
    assert read["top_p"] == -math.inf


def test_deep_nesting_and_long_strings_take_no_recursion() -> None:
    deep = b'{"a":' + b"[" * 400 + b"]" * 400 + b',"b":"' + b'\\"x' * 300_000 + b'","max_tokens":5}'
    document = read_body(deep)
    assert isinstance(document, dict)
    after = with_limits(deep, document, {"max_tokens": 7})
    assert after == deep.replace(b'"max_tokens":5', b'"max_tokens":7')
