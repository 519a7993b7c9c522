"""HTTP/1.1 with clients. Parsing is httptools' (llhttp, strict); what is here is the life of a connection.

Requests on one connection are answered one by one. A half close cannot be told from a close before something
is written, so either is a client that has gone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import cast

import httptools

from controlplane.gateway.inbound import (
    GATEWAY_FAILED,
    HEAD_BYTES,
    HEAD_TOO_LARGE,
    Answer,
    Header,
    Reply,
    Request,
    Server,
    body_too_large,
    place,
    refuse,
    too_large,
)

MOST_SENT_AHEAD = 8
_LINGER_SECONDS = 3.0
_WITHOUT_BODY = frozenset({204, 304})  # what came after these a client would take for the next answer
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_log = logging.getLogger(__name__)


class Http1Reply(Reply):
    __slots__ = ("_chunked", "_connection", "_has_body", "_head", "_transport")

    def __init__(self, connection: "Http1Connection", request: Request) -> None:
        super().__init__(request)
        self._connection = connection
        self._transport: asyncio.Transport = connection.transport
        self._chunked = False
        self._has_body = request.method != b"HEAD"
        self._head = b""  # not sent yet: it goes out together with what comes first

    @property
    def flows(self) -> bool:
        return not self._connection.is_full

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        framing: Header | None = None
        if status in _WITHOUT_BODY:
            self._has_body = False
        elif length is not None:
            framing = (b"content-length", b"%d" % length)
        elif self.request.version == b"1.0":
            self.request.keep_alive = False
        else:
            self._chunked = True
            framing = (b"transfer-encoding", b"chunked")
        if self._connection.closes_soon:
            self.request.keep_alive = False
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown"))]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if framing is not None:
            lines.append(b"%b: %b\r\n" % framing)
        if not self.request.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self.request.version == b"1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self.status = status
        self._head = b"".join(lines)

    def send(self, data: bytes) -> None:
        if data and self._has_body:
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if self._head:
                data, self._head = self._head + data, b""
            self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def end(self) -> None:
        self.flush()
        if self._chunked and self._has_body:
            self._transport.write(b"0\r\n\r\n")
        self._connection.replied(self)

    def end_broken(self) -> None:
        self.request.keep_alive = False
        self.end()

    def cut(self) -> None:
        self._connection.transport.abort()

    def forget_client(self) -> None:
        """Nobody is there any more: what is still sent goes nowhere."""
        self._transport = _NOWHERE


class _Nowhere(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


_NOWHERE = _Nowhere()


class Http1Connection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_ahead",
        "_body",
        "_body_bytes",
        "_deadline",
        "_head_bytes",
        "_headers",
        "_in_body",
        "_lingers",
        "_loop",
        "_parser",
        "_refusal",
        "_reply",
        "_request",
        "_server",
        "_task",
        "_url",
        "_without_wish",
        "is_full",
        "transport",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._ahead: deque[Request | Answer] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reply: Http1Reply | None = None
        self._request: Request | None = None
        self._refusal: Answer | None = None
        self._url = b""
        self._without_wish = b""  # the head of a request that asks for another protocol, as it is read again
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._in_body = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._lingers = False  # all is said; what still comes is thrown away
        self.is_full = False
        self._deadline = loop.time() + server.limits.receive_seconds

    @property
    def requests(self) -> int:
        return int(self._task is not None)

    @property
    def closes_soon(self) -> bool:
        return self._server.closes_soon

    def sweep(self, now: float) -> None:
        if self._task is None and now >= self._deadline:
            if self._lingers or self._in_body or self._head_bytes:
                self.transport.abort()
            else:
                self.transport.close()

    def wind_down(self) -> None:
        if self._task is None:
            self.transport.close()

    # -- of asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._server.accepted += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._ahead.clear()
        self._client_is_gone()

    def eof_received(self) -> bool:
        # The rest of a slow answer is not worth waiting for: nobody is there to read it.
        if self._task is not None:
            self._hang_up()
        return False

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        if not self._in_body:
            self._head_bytes += len(data)
        if self._task is None and self._head_bytes == len(data) and not self._in_body:
            self._deadline = self._loop.time() + self._server.limits.receive_seconds
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            _log.error("a request failed by our own fault", extra={"fields": {"error": place(error)}})
            self._give_up(GATEWAY_FAILED)
            return
        except httptools.HttpParserError as error:
            self._give_up(refuse(400, f"not a proper HTTP request ({_short(error)})"))
            return
        if not self._in_body and self._head_bytes > HEAD_BYTES:
            self._give_up(HEAD_TOO_LARGE)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is not None and self._request is None:
                self._give_up(self._refusal)
                return
            # A server may pass over the wish for another protocol, and then it is a request like any other.
            self._parser = httptools.HttpRequestParser(self)
            head, self._without_wish = self._without_wish, b""
            rest = head + data[upgrade.args[0] :]
            if rest:
                self._feed(rest)

    def pause_writing(self) -> None:
        self.is_full = True
        if self._reply is not None and self._reply.on_flow is not None:
            self._reply.on_flow(False)

    def resume_writing(self) -> None:
        self.is_full = False
        if self._reply is not None and self._reply.on_flow is not None:
            self._reply.on_flow(True)

    def _hang_up(self) -> None:
        self.transport.abort()
        self._client_is_gone()

    def _client_is_gone(self) -> None:
        if self._reply is not None:
            self._reply.forget_client()
        if self._task is not None:
            self._task.cancel()

    # -- of httptools --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._body = []
        self._body_bytes = 0
        self._refusal = None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._head_bytes = 0
        request = Request(
            self._parser.get_method(), self._url, self._parser.get_http_version().encode(), self._headers
        )
        if self._parser.should_upgrade() and _has_body(request):
            # The parser takes the body for the other protocol already. Java's client asks for h2c with each
            # first request of a connection, so the head is read once more, without the wish.
            if request.method == b"CONNECT":
                self._refusal = refuse(400, "a CONNECT cannot have a body")
            else:
                self._without_wish = _head_without_upgrade(request, self._url)
            return
        self._request = request
        self._refusal = too_large(self._server, request) or self._server.judge(request)
        expect = request.header(b"expect")
        if expect is not None and expect.lower() == b"100-continue" and self._task is None:
            if self._refusal is not None:  # the client will not send the body
                self._give_up(self._refusal)
            else:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif self._refusal is not None and self._task is None and _body_bytes(request) > HEAD_BYTES:
            self._give_up(self._refusal)  # so large a body is not read to its end anyhow

    def on_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._refusal is not None:
            if self._body_bytes > HEAD_BYTES:
                self._give_up(self._refusal)
            return
        if self._body_bytes > self._server.limits.body_bytes:
            self._body.clear()
            self._refusal = body_too_large(self._server.limits.body_bytes)
            return
        self._body.append(piece)

    def on_message_complete(self) -> None:
        self._in_body = False
        request, self._request = self._request, None
        if request is None or self._lingers or self.transport.is_closing():
            return
        request.keep_alive = self._parser.should_keep_alive()
        request.body = b"".join(self._body)
        self._body = []
        refusal, self._refusal = self._refusal, None  # told once, whatever the parser makes of what follows
        self._start(refusal or request, request)

    # -- one after the other -------------------------------------------------------------------------

    def replied(self, reply: Http1Reply) -> None:
        """The answer is sent as a whole."""
        self._reply = None
        if not reply.request.keep_alive or self.closes_soon:
            self.transport.close()

    def _start(self, what: Request | Answer, request: Request) -> None:
        if self._task is not None:
            waiting = sum(len(each.body) for each in self._ahead) + len(request.body)
            if len(self._ahead) >= MOST_SENT_AHEAD or waiting > self._server.limits.body_bytes:
                self._hang_up()
            else:
                self._ahead.append(what)
            return
        if isinstance(what, Answer):
            Http1Reply(self, request).send_whole(what)
            self._idle()
            return
        reply = self._reply = Http1Reply(self, request)
        self._task = self._loop.create_task(self._answer(request, reply))

    async def _answer(self, request: Request, reply: Http1Reply) -> None:
        try:
            await self._server.handle(request, reply)
        except Exception as error:
            _log.error("a request failed by our own fault", extra={"fields": {"error": place(error)}})
            if not reply.status and not self.transport.is_closing():
                reply.send_whole(GATEWAY_FAILED)
        finally:
            if self._reply is reply:  # it was not ended
                self._reply = None
                reply.cut()
            self._task = None
        self._next()

    def _next(self) -> None:
        if self._ahead and not self.transport.is_closing():
            what = self._ahead.popleft()
            if isinstance(what, Answer):
                self._give_up(what)
            else:
                self._start(what, what)
        else:
            self._idle()

    def _idle(self) -> None:
        self._deadline = self._loop.time() + self._server.limits.idle_seconds

    def _give_up(self, answer: Answer) -> None:
        """Answer what cannot be read to its end, if nothing else is being answered, and close.

        A socket that is closed with something unread resets the connection, and the client may never see the
        answer. So it is closed when the client has done so, or after a while.
        """
        if self._lingers or self.transport.is_closing():
            return
        if self._task is not None:
            self._hang_up()
            return
        self._lingers = True
        self._body.clear()
        self._deadline = self._loop.time() + _LINGER_SECONDS
        request = Request(b"GET", b"", b"1.1", [])
        reply = Http1Reply(self, request)
        reply.start(answer.status, answer.headers, len(answer.body))
        reply.send(answer.body)
        reply.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _head_without_upgrade(request: Request, url: bytes) -> bytes:
    lines = [b"%b %b HTTP/%b\r\n" % (request.method, url, request.version)]
    lines += [b"%b: %b\r\n" % header for header in request.headers if header[0] != b"upgrade"]
    return b"".join(lines) + b"\r\n"


def _has_body(request: Request) -> bool:
    return request.header(b"transfer-encoding") is not None or _body_bytes(request) > 0


def _body_bytes(request: Request) -> int:
    """What Content-Length says; the parser has seen that it is a number."""
    return int(request.header(b"content-length") or 0)


def _short(error: Exception) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:100]
