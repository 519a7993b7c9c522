"""Reading along: the same account and the same bytes in whatever pieces; what each endpoint's events say."""

import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sse import cuts, in_pieces

from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.answer_event import read_event
from controlplane.gateway.inflate import BrokenGzipError, Inflate
from controlplane.gateway.stream_account import (
    WHOLE_ANSWER_BYTES,
    JsonAccount,
    StreamAccount,
    without_usage,
)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}], **fields)


USE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
LAST = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = event(choices=[], usage=USE)
ERROR = event(error={"message": "no", "code": 503})
EVENTS = (
    *(piece("hé"), piece("b", usage=USE), LAST, USAGE, ERROR, b"data: [DONE]\n\n", b": beat\n\n"),
    *(
        b"data: {broken\n\n",
        b'data: {"choices": 3}\n\n',
        b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
    ),
    *(piece("crlf").replace(b"\n", b"\r\n"), USAGE.replace(b"\n", b"\r"), b"event: x\nid: 3\n" + piece("f")),
)
bodies = st.lists(st.sampled_from(EVENTS), max_size=8).map(b"".join)
tails = st.sampled_from((b"", b'data: {"choi', b"data: [DONE]", b"\n"))


def facts(account: StreamAccount) -> tuple[object, ...]:
    return (
        *(account.events, account.pieces, account.error_status, account.error),
        *(account.use, account.cached_tokens, account.output_tokens, account.is_whole, account.has_ended),
    )


@given(bodies, tails, cuts, st.booleans())
def test_account_and_bytes_do_not_depend_on_the_pieces(
    body: bytes, tail: bytes, at: list[int], cuts_usage: bool
) -> None:
    whole = body + tail
    once, split = StreamAccount(cuts_usage=cuts_usage), StreamAccount(cuts_usage=cuts_usage)
    passed_on = once.feed(whole) + once.close()
    in_parts = b"".join(split.feed(part) for part in in_pieces(whole, at)) + split.close()
    assert facts(once) == facts(split)
    assert passed_on == in_parts
    if not cuts_usage:
        assert passed_on == whole


@given(bodies, cuts)
def test_of_what_is_cut_only_usage_is_missing(body: bytes, at: list[int]) -> None:
    account = StreamAccount(cuts_usage=True)
    passed_on = b"".join(account.feed(part) for part in in_pieces(body, at)) + account.close()
    assert b'"usage"' not in passed_on
    bare = re.escape(b'data: {"choices": [], "usage": ' + json.dumps(USE).encode() + b"}")
    without = re.sub(bare + rb"(\r\r|\n\n)", b"", body)
    assert passed_on == without.replace(b', "usage": ' + json.dumps(USE).encode(), b"")


def test_pieces_use_and_end_of_a_chat() -> None:
    account = StreamAccount()
    for part in (event(choices=[{"delta": {"role": "assistant", "content": ""}}]), piece("a"), piece("b")):
        account.feed(part)
    assert (account.pieces, account.output_tokens, account.use) == (2, 2, None)
    assert not account.is_whole
    account.feed(LAST + USAGE + b"data: [DONE]\n\n")
    assert (account.output_tokens, account.use) == (3, Usage(7, 3))
    assert account.is_whole
    assert account.has_ended


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b": beat\n\n", event(choices=[{"delta": {"role": "assistant", "content": ""}}])),
        (USAGE, event(choices=[{"text": "", "finish_reason": None}])),
        (
            event(type="response.created", response={}) + event(type="response.in_progress", response={}),
            event(type="response.output_item.added", item={"type": "reasoning"}),
        ),
        (
            event(type="message_start", message={}) + event(type="ping"),
            event(type="content_block_start", content_block={"type": "tool_use"}),
        ),
    ],
)
def test_an_answer_begins_before_there_is_text_to_see(first: bytes, then: bytes) -> None:
    account = StreamAccount()
    account.feed(first)
    assert not account.has_begun
    account.feed(then)
    assert (account.has_begun, account.pieces) == (True, 0)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"refusal": "no"},
    ],
)
def test_all_that_a_model_writes_is_text(delta: dict[str, Any]) -> None:
    assert read_event(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()).pieces == 1


def test_each_choice_of_a_chunk_counts() -> None:
    choices = [{"index": i, "text": "x", "finish_reason": None} for i in range(3)]
    assert read_event(json.dumps({"choices": choices}).encode()).pieces == 3


def test_a_finish_reason_may_be_anything() -> None:
    assert read_event(b'{"choices":[{"finish_reason":{"type":"stop"}}]}').finished == 1


def test_an_aborted_answer_is_not_whole() -> None:
    account = StreamAccount()
    account.feed(piece("a") + event(choices=[{"delta": {}, "finish_reason": "abort"}]))
    assert not account.is_whole
    assert account.error_status == 500


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"error": {"message": "m", "code": 503}}, 503),
        ({"error": {"message": "m", "code": "429"}}, 429),
        ({"error": {"message": "m", "type": "overloaded_error"}}, 529),
        ({"error": "something"}, 500),
        ({"error": {"message": "m", "code": True}}, 500),
        ({"object": "error", "message": "m", "code": 400}, 400),
        ({"type": "error", "error": {"type": "api_error", "message": "m"}}, 500),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, 500),
    ],
)
def test_errors_and_the_status_that_they_stand_for(error: dict[str, Any], status: int) -> None:
    assert read_event(json.dumps(error).encode()).error_status == status


def test_messages_events() -> None:
    account = StreamAccount()
    usage = {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 1}
    account.feed(event(type="message_start", message={"usage": usage}))
    account.feed(
        event(type="ping") + event(type="content_block_delta", delta={"type": "text_delta", "text": "a"})
    )
    account.feed(event(type="content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}))
    assert account.pieces == 2
    account.feed(event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}))
    account.feed(event(type="message_stop"))
    assert account.use == Usage(25, 9)
    assert account.cached_tokens == 20
    assert account.is_whole
    assert account.has_ended


def test_responses_events() -> None:
    account = StreamAccount()
    account.feed(event(type="response.created", response={"usage": None}))
    account.feed(event(type="response.output_text.delta", delta="a"))
    account.feed(event(type="response.function_call_arguments.delta", delta="{"))
    assert account.pieces == 2
    use = {"input_tokens": 4, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 3}}
    account.feed(event(type="response.completed", response={"usage": use}))
    assert account.use == Usage(4, 6)
    assert account.cached_tokens == 3
    assert account.is_whole


def test_the_last_usage_wins() -> None:
    account = StreamAccount()
    account.feed(piece("a", usage={"prompt_tokens": 7, "completion_tokens": 1}))
    assert account.use == Usage(7, 1)
    account.feed(piece("b", usage={"prompt_tokens": 7, "completion_tokens": 5}))
    assert account.use == Usage(7, 5)
    account.feed(piece("c", usage=None))
    assert account.output_tokens == 5


@given(st.binary(max_size=200))
def test_nothing_makes_it_raise(data: bytes) -> None:
    read_event(data)
    account = StreamAccount(cuts_usage=True)
    account.feed(b"data: " + data + b"\n\n")
    account.close()
    whole = JsonAccount()
    whole.feed(data)
    whole.close()


@given(
    st.dictionaries(st.sampled_from(["choices", "usage", "error", "type", "delta", "response", "message"]),
                    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                                 lambda inner: st.lists(inner, max_size=3)
                                 | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8)),
)  # fmt: skip
def test_no_json_makes_it_raise(document: dict[str, Any]) -> None:
    read_event(json.dumps(document).encode())


def test_a_json_answer() -> None:
    account = JsonAccount()
    body = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": USE}).encode()
    assert b"".join(account.feed(body[i : i + 9]) for i in range(0, len(body), 9)) == body
    assert not account.is_whole
    account.close()
    assert account.is_whole
    assert account.use == Usage(7, 3)


def test_a_json_error_with_status_200_is_not_whole() -> None:
    account = JsonAccount()
    account.feed(b'{"error": {"message": "no", "code": 503}}')
    account.close()
    assert not account.is_whole
    assert account.error_status == 503


def test_the_usage_of_a_long_answer_is_read_and_little_of_it_kept() -> None:
    account = JsonAccount()
    account.feed(b'{"object":"list","data":[')
    for _ in range(WHOLE_ANSWER_BYTES // 5000 + 3):
        account.feed(b'{"embedding":[' + b"0.1," * 1250 + b"0]},")
        assert account._size < 10_000 or len(b"".join(account._parts)) <= WHOLE_ANSWER_BYTES
    account.feed(b'{}],"usage": {"prompt_tokens": 9, "total_tokens": 9, "prompt_tokens_details": {"a": 1}}}')
    account.close()
    assert account.use == Usage(9, 0)
    assert account.is_whole


def test_usage_is_taken_out_wherever_it_stands() -> None:
    for before in ('{"usage": {"a": 1}, "x": 2}', '{"x": 2, "usage": {"a": 1}}', '{"usage":{"a": 1}}'):
        for use in ('{"a": 1}',):
            left = without_usage(f"data: {before}\n\n".encode(), use.encode())
            assert json.loads(left[6:]) == {k: v for k, v in json.loads(before).items() if k != "usage"}


@given(st.binary(max_size=3000), cuts)
def test_gzip_in_pieces_and_members(text: bytes, at: list[int]) -> None:
    packed = gzip.compress(text) + gzip.compress(b"more")
    inflate = Inflate()
    assert b"".join(inflate.feed(part) for part in in_pieces(packed, at)) == text + b"more"


def test_gzip_larger_than_a_step_and_broken_gzip() -> None:
    text = bytes(3_000_000)
    inflate = Inflate()
    assert inflate.feed(gzip.compress(text)) == text
    with pytest.raises(BrokenGzipError):
        Inflate().feed(b"this is not gzip at all")
