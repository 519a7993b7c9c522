"""Reads along a passing answer: tokens, first token, use, how it ended. The bytes go on as they came.

One account an answer; `feed` takes each piece and returns what goes to the client: the same bytes, but for
one case. Where we asked for usage and the client did not, the usage chunk is cut out of the stream, and the
usage that an engine then puts into other chunks (`continuous_usage_stats`) out of those; every other byte
stays. Only then does a piece wait until its event is whole.

An answer ended well where its body came to its end, an end of the answer itself was seen (a finish reason)
and no error. So a stream of an error event, of `[DONE]` alone, or one that was cut, has failed, though its
status was 200.
"""

import re
from typing import Protocol

import msgspec

from controlplane.gateway.admission.usage import Usage, read_usage
from controlplane.gateway.answer_event import Fact, read_answer, read_event
from controlplane.gateway.sse import LARGEST_EVENT_BYTES, Events

WHOLE_ANSWER_BYTES = 1 << 20
"""A longer JSON answer is read at its end only, where engines put the usage."""
_TAIL_BYTES = 4096
_LARGEST_COUNT = 2**40


class Account(Protocol):
    """What is known of an answer so far.

    `events` that have come (of a JSON answer: 1 at its end), `pieces` of text, `error_status` (HTTP) of the
    first error, 0 without one; `error` is that event's data. `has_begun`: the engine has made a first token.
    """

    has_begun: bool
    events: int
    pieces: int
    error_status: int
    error: bytes

    def feed(self, piece: bytes) -> bytes:
        """What of `piece`, and of what was held back before, goes to the client."""

    def close(self) -> bytes:
        """The body has ended, or was cut: what was held back."""

    @property
    def use(self) -> Usage | None:
        """The latest that the engine said."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the engine had in its cache."""

    @property
    def output_tokens(self) -> int:
        """Tokens written so far, as well as can be told."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer itself says that it came to its end without an error."""


class StreamAccount:
    """The account of a stream of server-sent events."""

    __slots__ = (
        "_cuts_usage",
        "_events",
        "_finished",
        "_held",
        "_last_was_cut",
        "_usage",
        "error",
        "error_status",
        "events",
        "has_begun",
        "has_ended",
        "pieces",
    )

    def __init__(self, *, cuts_usage: bool = False) -> None:
        self.events = 0
        self.pieces = 0
        self.error_status = 0
        self.error = b""
        self.has_begun = False
        self.has_ended = False  # by its own word
        self._finished = 0
        self._usage: dict[str, object] = {}
        self._events = Events()
        self._cuts_usage = cuts_usage
        self._held = b""  # of the event that is not whole yet
        self._last_was_cut = False

    def feed(self, piece: bytes) -> bytes:
        only = None if self._held else self._events.only(piece)
        if only is not None:  # the usual case, and this is done for each token
            fact = self._take(only)
            return piece if not self._cuts_usage else self._without_usage(piece, fact)
        if self._cuts_usage:
            return self._feed_and_cut(piece)
        for data, _ in self._events.feed(piece):
            if data is not None:
                self._take(data)
        return piece

    def close(self) -> bytes:
        held, self._held = self._held, b""
        return held

    @property
    def use(self) -> Usage | None:
        return read_usage(self._usage)

    @property
    def cached_tokens(self) -> int:
        return cached_tokens(self._usage)

    @property
    def output_tokens(self) -> int:
        use = self.use if self._usage else None
        return self.pieces if use is None else max(self.pieces, use.completion_tokens)

    @property
    def is_whole(self) -> bool:
        return self._finished > 0 and not self.error_status

    @property
    def is_between_events(self) -> bool:
        """Whether what was passed on ends with the end of an event."""
        return self._events.is_between and not self._held

    def _take(self, data: bytes) -> Fact:
        fact = read_event(data)
        self.events += 1
        if fact.begins:
            self.has_begun = True
        self.pieces += fact.pieces
        self._finished += fact.finished
        if fact.ends:
            self.has_ended = True
        if fact.usage:
            self._usage |= _fields(fact.usage)
        if fact.error_status and not self.error_status:
            self.error_status = fact.error_status
            self.error = data
        return fact

    def _feed_and_cut(self, piece: bytes) -> bytes:
        out: list[bytes] = []
        start = 0
        if not self._held and self._events.starts_with_rest(piece):
            start = 1
            if not self._last_was_cut:
                out.append(piece[:1])
        events = self._events.feed(piece)
        facts = [None if data is None else self._take(data) for data, _ in events]
        if events and not start and not any(fact is not None and fact.usage for fact in facts):
            self._last_was_cut = False
            end = events[-1][1]
            if not self._held and end == len(piece):  # the usual case
                return piece
            whole, self._held = self._held + piece[:end], piece[end:]
            return whole
        for (_, end), fact in zip(events, facts, strict=True):
            event = self._held + piece[start:end]
            start, self._held = end, b""
            out.append(self._without_usage(event, fact))
        self._held += piece[start:]
        if len(self._held) > LARGEST_EVENT_BYTES:
            out.append(self.close())
        return b"".join(out)

    def _without_usage(self, event: bytes, fact: Fact | None) -> bytes:
        """What of an event goes to a client that did not ask for usage."""
        self._last_was_cut = fact is not None and fact.bare
        if fact is None or not fact.usage:
            return event
        return b"" if fact.bare else without_usage(event, fact.usage)


class BytesAccount:
    """The account of an answer that is neither text nor JSON (embeddings as bytes): it only has an end."""

    has_begun = False
    events = pieces = error_status = cached_tokens = output_tokens = 0
    error = b""
    use: Usage | None = None
    is_whole = True  # if its body came to its end

    def feed(self, piece: bytes) -> bytes:
        return piece

    def close(self) -> bytes:
        return b""


class JsonAccount:
    """The account of an answer that is one JSON document."""

    __slots__ = (
        "_finished",
        "_parts",
        "_size",
        "_usage",
        "error",
        "error_status",
        "events",
        "has_begun",
        "pieces",
    )

    def __init__(self) -> None:
        self.has_begun = False  # it shows nothing before it ends
        self.events = 0
        self.pieces = 0
        self.error_status = 0
        self.error = b""
        self._finished = False
        self._usage: dict[str, object] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        self._size += len(piece)
        self._parts.append(piece)
        if self._size > WHOLE_ANSWER_BYTES:
            self._parts = [b"".join(self._parts)[-_TAIL_BYTES:]]
        return piece

    def close(self) -> bytes:
        text = b"".join(self._parts)
        self._parts.clear()
        self.events = 1
        if self._size > WHOLE_ANSWER_BYTES:
            self._finished = True
            self._usage = _last_usage(text)
            return b""
        fact = read_answer(text)
        self._finished = fact.ends
        self.error_status = fact.error_status
        if fact.error_status:
            self.error = text
        if fact.usage:
            self._usage = _fields(fact.usage)
        return b""

    @property
    def use(self) -> Usage | None:
        return read_usage(self._usage)

    @property
    def cached_tokens(self) -> int:
        return cached_tokens(self._usage)

    @property
    def output_tokens(self) -> int:
        use = self.use
        return 0 if use is None else use.completion_tokens

    @property
    def is_whole(self) -> bool:
        return self._finished and not self.error_status


def cached_tokens(usage: dict[str, object]) -> int:
    """How many tokens of the prompt a `usage` object says that the engine had in its cache."""
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    value = (
        details.get("cached_tokens") if isinstance(details, dict) else usage.get("cache_read_input_tokens")
    )
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return max(0, min(value, _LARGEST_COUNT))


def without_usage(event: bytes, usage: bytes) -> bytes:
    """The bytes of an event without the member `usage` of its object, whose value is `usage`.

    An event whose JSON is spread over several lines stays as it is.
    """
    member = re.compile(rb'"usage"[ \t]*:[ \t]*' + re.escape(usage))
    places = [found.span() for found in member.finditer(event)]
    if not places:
        return event
    start, end = places[-1]
    before = event[:start].rstrip(b" \t")
    if before.endswith(b","):
        return before[:-1] + event[end:]
    after = event[end:].lstrip(b" \t")
    return event[:start] + (after[1:].lstrip(b" \t") if after.startswith(b",") else after)


def _fields(usage: bytes) -> dict[str, object]:
    try:
        fields = msgspec.json.decode(usage)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _last_usage(tail: bytes) -> dict[str, object]:
    """The `usage` at the end of a long JSON answer."""
    found = re.search(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})', tail)
    return {} if found is None else _fields(found[1])
