"""A request's JSON body: read once, and the only two edits ever made to it.

The engine gets the bytes that the client sent (key order, white space, big numbers, escapes). Where a limit
on the output has to be written, or usage asked for at the end of a stream, the new value is spliced into the
bytes and every other byte stays as it was. Where a key stands several times, engines (Python's json,
pydantic's jiter) obey the last one, so that is the one that is edited; a new key goes to the end for the
same reason.

The splice trusts that the body has been read by `read_body`, so its scanner only skips over values and
checks nothing; it does not recurse, and its work is linear in the body.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from controlplane.gateway.admission.endpoint import Endpoint

JsonObject: TypeAlias = dict[str, object]

_USAGE = b'{"include_usage":true}'
_SPACE = b" \t\n\r"
# Possessive quantifiers (*+): a string of megabytes is skipped without a stack of places to go back to.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_MEMBER = re.compile(rb"[ \t\n\r,]*+(" + _STRING + rb")[ \t\n\r]*+:[ \t\n\r]*+", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\x00-\x20,\]}]++", re.DOTALL)
_BRACKET = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)


class Unreadable(msgspec.Struct, frozen=True):
    """A body that is no JSON object; `sentence` says why, without a word of the body (a 400's text)."""

    sentence: str


def read_body(raw: bytes) -> JsonObject | Unreadable:
    """The object in a body, as Python's json reads it (NaN allowed, a byte-order mark too). UTF-8 only."""
    try:
        text = raw.decode("utf-8-sig", "surrogatepass")
        document = json.loads(text)
    except UnicodeDecodeError:
        return Unreadable("the body is not UTF-8")
    except json.JSONDecodeError as error:
        return Unreadable(f"the body is not valid JSON: {error.msg} (character {error.pos})")
    except RecursionError:
        return Unreadable("the body is nested too deeply")
    except ValueError:
        return Unreadable("the body holds a number with too many digits")
    if not isinstance(document, dict):
        return Unreadable(f"the body is not a JSON object (got {_KINDS.get(type(document), 'null')})")
    return document


_KINDS: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


def wants_stream_usage(endpoint: Endpoint, document: JsonObject) -> bool:
    """Whether usage has to be asked for, because a stream would end without it."""
    if endpoint not in (Endpoint.CHAT, Endpoint.COMPLETIONS) or document.get("stream") is not True:
        return False
    options = document.get("stream_options")
    if options is None:
        return True
    return isinstance(options, dict) and options.get("include_usage") is not True


def with_stream_usage(raw: bytes, document: JsonObject) -> bytes:
    """The body with `stream_options.include_usage` true; unchanged where `stream_options` is no object.

    `document` is what `read_body` made of the body.
    """
    start, end = _outer(raw)
    options = document.get("stream_options")
    if options is None:
        return _with_member(raw, start, end, "stream_options", _USAGE, present="stream_options" in document)
    if not isinstance(options, dict):
        return raw
    inner = _last_value(raw, start, "stream_options")
    return _with_member(raw, *inner, "include_usage", b"true", present="include_usage" in options)


def with_limits(raw: bytes, document: JsonObject, limits: Mapping[str, int]) -> bytes:
    """The body with each of `limits` (tokens by field) as a top-level number. `document`: see above."""
    for field, tokens in limits.items():
        start, end = _outer(raw)
        raw = _with_member(raw, start, end, field, b"%d" % tokens, present=field in document)
    return raw


def _with_member(raw: bytes, start: int, end: int, key: str, value: bytes, *, present: bool) -> bytes:
    """`raw` with `key` set in the object that fills raw[start:end]."""
    if present:
        at, after = _last_value(raw, start, key)
        return raw[:at] + value + raw[after:]
    last = end - 2
    while raw[last] in _SPACE:
        last -= 1
    comma = b"" if last == start else b","
    return b'%b%b"%b":%b%b' % (raw[: last + 1], comma, key.encode(), value, raw[last + 1 :])


def _outer(raw: bytes) -> tuple[int, int]:
    """From where to where the outermost object reaches."""
    return raw.index(b"{"), raw.rindex(b"}") + 1


def _last_value(raw: bytes, start: int, key: str) -> tuple[int, int]:
    """From where to where the last value of `key` reaches, in the object that begins at `start`."""
    found = None
    for name, at, after in _members(raw, start):
        if name == key:
            found = at, after
    if found is None:
        raise ValueError(f"the body has no {key}: it is not the one that was read")
    return found


def _members(raw: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Key, begin and end of the value, of each member of the object that begins at `start`."""
    member = _MEMBER.match(raw, start + 1)
    while member is not None:
        key, at = member[1], member.end()
        after = _value_end(raw, at)
        # Only a key with an escape has to be read to be known; surrogates cannot be one of ours.
        yield json.loads(key) if b"\\" in key else key[1:-1].decode("utf-8", "replace"), at, after
        member = _MEMBER.match(raw, after)


def _value_end(raw: bytes, at: int) -> int:
    """Where the value that begins at `at` ends."""
    if raw[at] not in b"{[":
        scalar = _SCALAR.match(raw, at)
        return at if scalar is None else scalar.end()
    depth = 0
    for token in _BRACKET.finditer(raw, at):
        byte = raw[token.start()]
        if byte in b"{[":
            depth += 1
        elif byte in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
    return len(raw)
