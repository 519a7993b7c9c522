"""One try at one engine: what comes back, held until it may go to the client, then passed on as it comes.

An `Attempt` is the sink of an exchange (`outbound.py`). Its first future, `opened`, says what the engine made
of the request:

    Opened          an answer that the client gets: its head is known and, of a stream, the first event,
                    unless that is longer in coming than the head is held
    EngineRefused   an error, by its status or by the first event of a stream with status 200
    Broken          nothing of use came back

Then `pass_on` joins it to the client's reply, and pieces go from one transport to the other in the callback
in which they arrive; no task is woken. `ended` says how it ended.
"""

import asyncio
from collections.abc import Callable

import msgspec

from controlplane.gateway.inbound import Header, Reply
from controlplane.gateway.inflate import BrokenGzipError, Inflate
from controlplane.gateway.outbound import Connection, Lost
from controlplane.gateway.stream_account import Account, BytesAccount, JsonAccount, StreamAccount

MOST_ERROR_BYTES = 1 << 20
"""An engine's error with a longer body is cut there."""
_HEARTBEAT = b": keep-alive\n\n"


class Opened(msgspec.Struct, frozen=True):
    """An answer. `length` is its Content-Length, None where the body goes in chunks."""

    status: int
    headers: list[Header]
    length: int | None


class EngineRefused(msgspec.Struct, frozen=True):
    """The engine's error, whole. `in_stream`: its status was 200 and the error came as the first event."""

    status: int
    headers: list[Header]
    body: bytes
    in_stream: bool = False


class Broken(msgspec.Struct, frozen=True):
    """No answer. `was_stale`: see `outbound.Lost`."""

    sentence: str
    was_stale: bool = False


class Ended(msgspec.Struct, frozen=True):
    """The end of an answer that went to the client. `cut` says why it is not whole, None where it is."""

    cut: str | None = None


class Wishes(msgspec.Struct, frozen=True):
    """What the client is to get: gzip if the engine sends it, and the usage chunk of a stream or not."""

    takes_gzip: bool
    cuts_usage: bool
    hold_seconds: float


class Attempt:
    """See above. `on_begin` is called when the engine has made its first token, and `on_pieces` with the
    number of new pieces of text, whenever some have come."""

    __slots__ = (
        "_connection",
        "_error_parts",
        "_held",
        "_hold_timer",
        "_inflate",
        "_is_stream",
        "_loop",
        "_on_begin",
        "_on_pieces",
        "_opening",
        "_reply",
        "_sends_plain",
        "_told_begin",
        "_told_pieces",
        "_wishes",
        "account",
        "ended",
        "last_at",
        "opened",
    )

    def __init__(
        self,
        connection: Connection,
        wishes: Wishes,
        on_begin: Callable[[], None],
        on_pieces: Callable[[int], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = connection
        self._wishes = wishes
        self._on_begin = on_begin
        self._on_pieces = on_pieces
        self.account: Account = JsonAccount()
        self.opened: asyncio.Future[Opened | EngineRefused | Broken] = self._loop.create_future()
        self.ended: asyncio.Future[Ended] = self._loop.create_future()
        self.last_at = 0.0  # when something was sent to the client
        self._opening: Opened | None = None
        self._hold_timer: asyncio.TimerHandle | None = None
        self._held: list[bytes] = []
        self._error_parts: list[bytes] | None = None
        self._inflate: Inflate | None = None
        self._sends_plain = False  # though the engine sent gzip
        self._is_stream = False
        self._reply: Reply | None = None
        self._told_begin = False
        self._told_pieces = 0

    # -- of the one who asked ------------------------------------------------------------------------

    def pass_on(self, reply: Reply) -> None:
        """Send what is held, and from now on everything as it comes. The reply has been started."""
        self._reply = reply
        reply.on_flow = self._flow
        held, self._held = self._held, []
        if held:
            reply.send(held[0] if len(held) == 1 else b"".join(held))
        reply.flush()
        self.last_at = self._loop.time()
        if not reply.flows:
            self._flow(False)

    def let_go(self) -> None:
        """Hang up on the engine, if it is still at it. Nothing more is told or sent."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        connection, self._connection = self._connection, None
        if self._reply is not None:
            self._reply.on_flow = None
            self._reply = None
        if connection is not None:
            connection.abort()

    @property
    def is_between_events(self) -> bool:
        """Whether an event of our own may be put into the stream here."""
        return (
            isinstance(self.account, StreamAccount)
            and self.account.is_between_events
            and (self._inflate is None or self._sends_plain)
        )

    def beat(self, now: float, silence_seconds: float) -> None:
        """Send a comment if the stream has been silent for so long."""
        if self._reply is not None and now - self.last_at >= silence_seconds and self.is_between_events:
            self._reply.send(_HEARTBEAT)
            self.last_at = now

    # -- of the exchange -----------------------------------------------------------------------------

    def answer_head(self, status: int, headers: list[Header]) -> None:
        kind = _value(headers, b"content-type").lower()
        encoding = _value(headers, b"content-encoding").lower()
        self._is_stream = kind.startswith(b"text/event-stream")
        if encoding == b"gzip":
            self._inflate = Inflate()
            self._sends_plain = not self._wishes.takes_gzip or (self._is_stream and self._wishes.cuts_usage)
        if status >= 400:
            self._error_parts = []
            self._opening = Opened(status, headers, None)
            return
        if self._is_stream:
            self.account = StreamAccount(cuts_usage=self._wishes.cuts_usage)
        elif kind and b"json" not in kind and not kind.startswith(b"text/"):
            self.account = BytesAccount()
        length: int | None = None
        if not self._is_stream and not self._sends_plain:
            text = _value(headers, b"content-length")
            length = int(text) if text.isdigit() else None
        self._opening = Opened(status, self._own_headers(headers), length)
        if not self._is_stream or self._wishes.hold_seconds <= 0:
            self._open(self._opening)
        else:
            self._hold_timer = self._loop.call_later(self._wishes.hold_seconds, self._open, self._opening)

    def answer_data(self, data: bytes) -> None:
        if self._error_parts is not None:
            self._error_parts.append(data)
            if sum(map(len, self._error_parts)) > MOST_ERROR_BYTES:
                self._open_error()
                self.let_go()
            return
        account = self.account
        plain = data
        if self._inflate is not None:
            plain = self._inflated(data)
        sent = account.feed(plain)
        if self._inflate is not None and not self._sends_plain:
            sent = data
        if account.has_begun and not self._told_begin and not account.error_status:
            self._told_begin = True
            self._on_begin()
        if account.pieces > self._told_pieces:
            new, self._told_pieces = account.pieces - self._told_pieces, account.pieces
            self._on_pieces(new)
        if self._reply is not None:
            self._reply.send(sent)
            self.last_at = self._loop.time()
            return
        self._held.append(sent)
        if account.events and not self.opened.done():
            self._first_event()

    def answer_end(self) -> None:
        self._connection = None
        if self._error_parts is not None:
            self._open_error()
            return
        rest = self.account.close()
        if self._reply is not None:
            self._reply.send(rest)
        elif rest:
            self._held.append(rest)
        if self._opening is not None:
            self._open(self._opening)
        self._end(None)

    def answer_lost(self, lost: Lost) -> None:
        self._connection = None
        rest = self.account.close()
        if self._reply is not None:
            self._reply.send(rest)
        if not self.opened.done():
            self._resolve(Broken(lost.sentence, lost.was_stale))
        self._end(lost.sentence)

    # -- inside --------------------------------------------------------------------------------------

    def _flow(self, flows: bool) -> None:
        if self._connection is not None:
            if flows:
                self._connection.resume()
            else:
                self._connection.pause()

    def _first_event(self) -> None:
        account, opening = self.account, self._opening
        assert opening is not None
        if account.error_status and not account.pieces:
            self._resolve(EngineRefused(account.error_status, [], account.error, in_stream=True))
            self.let_go()
        else:
            self._open(opening)

    def _open(self, opening: Opened) -> None:
        if not self.opened.done():
            self._resolve(opening)

    def _open_error(self) -> None:
        opening, parts = self._opening, self._error_parts
        assert opening is not None
        assert parts is not None
        body = b"".join(parts)
        headers = opening.headers
        if self._inflate is not None and self._sends_plain:
            body = self._inflated(body)
            headers = self._own_headers(headers)
        self._resolve(EngineRefused(opening.status, headers, body))

    def _resolve(self, opened: Opened | EngineRefused | Broken) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        if not self.opened.done():
            self.opened.set_result(opened)

    def _end(self, cut: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(Ended(cut))

    def _inflated(self, data: bytes) -> bytes:
        assert self._inflate is not None
        try:
            return self._inflate.feed(data)
        except BrokenGzipError:
            # Who gets gzip gets it as it is; who was to get plain text cannot.
            if self._sends_plain and self._connection is not None:
                connection = self._connection
                connection.abort()
                self.answer_lost(Lost("the engine's gzip is broken"))
            return b""

    def _own_headers(self, headers: list[Header]) -> list[Header]:
        if not self._sends_plain:
            return headers
        return [header for header in headers if header[0] != b"content-encoding"]


def _value(headers: list[Header], name: bytes) -> bytes:
    return next((value for known, value in headers if known == name), b"")
