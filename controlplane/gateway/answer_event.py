"""What one event of a streamed answer says, and what a whole JSON answer says: text, use, end, failure.

One reader for all endpoints, because no two of them use a key for different things:

    chat, completions   choices[].delta / .text, choices[].finish_reason, usage, error; then [DONE]
    responses           type response.*.delta, response.completed | incomplete | failed with response.usage
    messages            type message_start (message.usage), content_block_delta, message_delta (usage,
                        delta.stop_reason), message_stop, error

The first token may be none to see: engines keep back thoughts that nobody asked for, and tool calls until
they are whole. But they send the head of the answer (chat: a delta with the role) with the first token that
they make; responses and messages have theirs at once, and begin with their first item or block.

Facts only: nothing of the text is kept.
"""

import re
from typing import Any

import msgspec

_NOTHING = msgspec.Raw(b"")
_BROKEN_OFF = frozenset({"abort", "error"})
"""Finish reasons by which an engine says that the answer is not whole."""


class Fact(msgspec.Struct, gc=False):
    """What an event says. `begins`: the engine writes, whether or not there is text to see yet. `pieces` of
    text it carries (one a choice), `finished` choices; `ends` that it is the last one. `usage` are the bytes
    of its usage object, `bare` that there is nothing else in it.

    `error_status` is the HTTP status that an error stands for (500 where it names none), 0 without an error.
    """

    pieces: int = 0
    finished: int = 0
    ends: bool = False
    usage: bytes = b""
    bare: bool = False
    error_status: int = 0
    begins: bool = False


DONE = Fact(ends=True)
UNREADABLE = Fact()
PIECE = Fact(1, begins=True)


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Inner(msgspec.Struct):
    """`response` of /v1/responses, `message` of /v1/messages."""

    usage: msgspec.Raw = _NOTHING
    error: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NOTHING
    error: Any = None
    type: Any = None
    delta: Any = None
    response: _Inner | None = None
    message: Any = None
    object: Any = None
    code: Any = None
    status: Any = None


class _Message(msgspec.Struct):
    """`message_start` of /v1/messages."""

    message: _Inner


_event = msgspec.json.Decoder(_Event)
_message = msgspec.json.Decoder(_Message)
_BEGINNINGS = frozenset({"response.output_item.added", "content_block_start"})
_STREAM_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete"})


def read_event(data: bytes) -> Fact:
    """What the data of one event says. Never raises: what cannot be read says nothing."""
    if data == b"[DONE]":
        return DONE
    try:
        event = _event.decode(data)
    except msgspec.ValidationError:
        return UNREADABLE
    except (msgspec.DecodeError, RecursionError):
        event_or_none = _lenient(data)
        if event_or_none is None:
            return UNREADABLE
        event = event_or_none
    if event.choices and event.error is None:  # the usual case
        return _of_choices(event.choices, event.usage)
    return _of_others(event, data)


def read_answer(body: bytes) -> Fact:
    """What a whole JSON answer (not streamed) says."""
    try:
        event = _event.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return UNREADABLE
    return Fact(
        finished=1,
        ends=True,
        usage=_present(event.usage),
        error_status=_error_status(event) if _is_error(event) else 0,
    )


def _of_choices(choices: list[_Choice], usage: msgspec.Raw) -> Fact:
    pieces = finished = 0
    ends_badly = False
    for choice in choices:
        delta = choice.delta
        if choice.text or (
            delta is not None
            and (
                delta.content
                or delta.tool_calls
                or delta.reasoning_content
                or delta.reasoning
                or delta.refusal
                or delta.function_call
            )
        ):
            pieces += 1
        if choice.finish_reason is not None:
            finished += 1
            ends_badly = ends_badly or str(choice.finish_reason) in _BROKEN_OFF
    told = _present(usage)
    if pieces == 1 and not finished and not told:  # the usual case, of each token
        return PIECE
    return Fact(pieces, finished, usage=told, error_status=500 if ends_badly else 0, begins=True)


def _of_others(event: _Event, data: bytes) -> Fact:
    kind = event.type if isinstance(event.type, str) else ""
    if _is_error(event):
        return Fact(usage=_present(event.usage), error_status=_error_status(event))
    usage = _present(event.usage)
    finished = 0
    if event.response is not None:
        usage = _present(event.response.usage)
    elif kind == "message_start":
        usage = _message_usage(data)
    delta = event.delta
    piece = False
    if kind.startswith("response."):
        piece = kind.endswith(".delta") and bool(delta)
    elif isinstance(delta, dict):
        piece = bool(delta.get("text") or delta.get("thinking") or delta.get("partial_json"))
        finished = int(delta.get("stop_reason") is not None)
    ends = kind in _STREAM_ENDS
    if ends and event.response is not None:
        finished = 1
    begins = piece or kind in _BEGINNINGS
    return Fact(int(piece), finished, ends, usage, bare=bool(usage) and not kind, begins=begins)


def _is_error(event: _Event) -> bool:
    return (
        event.error is not None
        or event.object == "error"
        or event.type in ("error", "response.failed", "response.error")
        or (event.response is not None and event.response.error is not None)
    )


def _error_status(event: _Event) -> int:
    """The status that an error names, in any of the places where engines put it."""
    inside = event.error if isinstance(event.error, dict) else {}
    for code in (inside.get("code"), inside.get("status"), event.code, event.status):
        status = int(code) if isinstance(code, str) and re.fullmatch("[0-9]{3}", code) else code
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return status
    kind = inside.get("type")
    return _STATUS_BY_TYPE.get(kind, 500) if isinstance(kind, str) else 500


_STATUS_BY_TYPE = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "NotFoundError": 404,
}


def _message_usage(data: bytes) -> bytes:
    try:
        return _present(_message.decode(data).message.usage)
    except (msgspec.MsgspecError, RecursionError):
        return b""


def _lenient(data: bytes) -> _Event | None:
    """An event with bytes that are no UTF-8."""
    try:
        return _event.decode(data.decode("utf-8", "replace").encode())
    except (msgspec.MsgspecError, RecursionError):
        return None


def _present(usage: msgspec.Raw) -> bytes:
    if usage is _NOTHING:
        return b""
    value = bytes(usage)
    return b"" if value == b"null" else value
