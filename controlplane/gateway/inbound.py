"""The client's side: an HTTP/1.1 server of asyncio protocols, one task a request.

Parsing is httptools' (llhttp, strict); what is here is the life of a connection. Measured against servers
with a framework in between, this leaves out all of the cost that grows with streams: a chunk goes from one
transport to the other without a task being woken (benchmarks/bench_gateway.py).

Rules:
* A request's head is judged (path, key, size) before its body is read; a refused one costs no memory.
* A handler starts when the whole body is there; requests on one connection are answered one by one.
* A connection that is closed from the other side, or half of it, is a client that has gone: the handler is
  cancelled at once. (A half close cannot be told from a close before something is written.)
* Time and size are bounded: for a head, for a body, for idling, for requests that were sent ahead.
"""

import asyncio
import logging
import os
import ssl
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import TypeAlias, cast

import httptools
import msgspec

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, and value."""

MOST_SENT_AHEAD = 8
_HEAD_BYTES = 64 * 1024
_TLS_HANDSHAKE_SECONDS = 10.0
_LINGER_SECONDS = 3.0
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_log = logging.getLogger(__name__)


class Limits(msgspec.Struct, frozen=True):
    """Bounds of what clients may send, in bytes and seconds."""

    body_bytes: int
    receive_seconds: float = 60.0
    idle_seconds: float = 75.0


class Request:
    """A request. `path` is as sent, without query; `body` is whole when a handler sees it.

    `tenant` is for whoever judges the head to set.
    """

    __slots__ = (
        "body",
        "headers",
        "keep_alive",
        "method",
        "path",
        "query",
        "tenant",
        "version",
    )

    def __init__(self, method: bytes, url: bytes, version: bytes, headers: list[Header]) -> None:
        self.method = method
        self.path, _, self.query = url.partition(b"?")
        self.version = version
        self.headers = headers
        self.body = b""
        self.keep_alive = False
        self.tenant = ""

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name (in lower case)."""
        for known, value in self.headers:
            if known == name:
                return value
        return None


class Answer(msgspec.Struct, frozen=True):
    """A whole answer of our own. Content-Length comes by itself."""

    status: int
    headers: tuple[Header, ...] = ()
    body: bytes = b""


class Reply:
    """The answer to one request: either `send_whole`, or `start`, `send` ..., `end`.

    `on_flow` is called with False when the client takes nothing more for now, with True when it does again.
    """

    __slots__ = ("_chunked", "_connection", "_head", "_transport", "on_flow", "request", "status")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self._transport: asyncio.Transport = connection.transport
        self._chunked = False
        self._head = b""  # not sent yet: it goes out together with what comes first
        self.request = request
        self.status = 0  # 0 before the start
        self.on_flow: Callable[[bool], None] | None = None

    @property
    def flows(self) -> bool:
        """Whether the client takes what is sent."""
        return not self._connection.is_full

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        """Begin. `length` None: it is not known, the body goes out in chunks. See `flush`."""
        framing: Header | None = None
        if length is not None:
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
        if data and self.request.method != b"HEAD":
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if self._head:
                data, self._head = self._head + data, b""
            self._transport.write(data)

    def flush(self) -> None:
        """Send the head, if it has not gone out with something of the body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def end(self) -> None:
        """The whole body has been sent."""
        self.flush()
        if self._chunked and self.request.method != b"HEAD":
            self._transport.write(b"0\r\n\r\n")
        self._connection.replied(self)

    def send_whole(self, answer: Answer) -> None:
        self.start(answer.status, answer.headers, len(answer.body))
        self.send(answer.body)
        self.end()

    def cut(self) -> None:
        """Break off, so that the client cannot take what it has for the whole answer."""
        self._connection.transport.abort()

    def forget_client(self) -> None:
        """Nobody is there any more: what is still sent goes nowhere."""
        self._transport = _NOWHERE


class _Nowhere(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


_NOWHERE = _Nowhere()
Handler: TypeAlias = Callable[[Request, Reply], Awaitable[None]]
Judge: TypeAlias = Callable[[Request], Answer | None]


def error_body(message: str, kind: str = "invalid_request_error", code: str | None = None) -> bytes:
    """The body of an error as OpenAI's clients read it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


JSON: Header = (b"content-type", b"application/json")


def refuse(status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> Answer:
    return Answer(status, (JSON,), error_body(message, kind, code))


_HEAD_TOO_LARGE = refuse(431, f"the head is over the limit of {_HEAD_BYTES} bytes")


class Server:
    """All connections of one process. `judge` looks at heads, `handle` answers."""

    def __init__(self, judge: Judge, handle: Handler, limits: Limits) -> None:
        self.judge = judge
        self.handle = handle
        self.limits = limits
        self.connections: set[Connection] = set()
        self.closes_soon = False
        self.accepted = 0

    def protocol(self) -> "Connection":
        """The factory of asyncio's `create_server`."""
        return Connection(self, asyncio.get_running_loop())

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return sum(connection.is_busy for connection in self.connections)

    def sweep(self, now: float) -> None:
        """Close connections that have had their time; call about once a second with the loop's time."""
        for connection in tuple(self.connections):
            connection.sweep(now)

    def wind_down(self) -> None:
        """Close what idles, and every other connection after its answer."""
        self.closes_soon = True
        for connection in tuple(self.connections):
            if not connection.is_busy:
                connection.transport.close()


class Connection(asyncio.Protocol):
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
        "is_full",
        "transport",
    )

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._ahead: deque[Request | Answer] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reply: Reply | None = None
        self._request: Request | None = None
        self._refusal: Answer | None = None
        self._url = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._in_body = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._lingers = False  # all is said; what still comes is thrown away
        self.is_full = False
        self._deadline = loop.time() + server.limits.receive_seconds

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    @property
    def closes_soon(self) -> bool:
        return self._server.closes_soon

    def sweep(self, now: float) -> None:
        if self._task is None and now >= self._deadline:
            if self._lingers or self._in_body or self._head_bytes:
                self.transport.abort()
            else:
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
            _log.error("a request failed by our own fault", extra={"fields": {"error": _place(error)}})
            self._give_up(refuse(500, "the gateway failed", "server_error", "gateway_failure"))
            return
        except httptools.HttpParserError as error:
            self._give_up(refuse(400, f"not a proper HTTP request ({_short(error)})"))
            return
        if not self._in_body and self._head_bytes > _HEAD_BYTES:
            self._give_up(_HEAD_TOO_LARGE)

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is not None and self._request is None:
                self._give_up(self._refusal)
                return
            # A server may pass over the wish for another protocol, and then it is a request like any other.
            self._parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
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
            # The parser takes the body for the other protocol already.
            self._refusal = refuse(400, "a request with a body cannot ask for another protocol")
            return
        self._request = request
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        too_large = _HEAD_TOO_LARGE if size > _HEAD_BYTES else self._too_large(request)
        self._refusal = too_large or self._server.judge(request)
        expect = request.header(b"expect")
        if expect is not None and expect.lower() == b"100-continue" and self._task is None:
            if self._refusal is not None:  # the client will not send the body
                self._give_up(self._refusal)
            else:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._refusal is not None:
            if self._body_bytes > _HEAD_BYTES:
                self._give_up(self._refusal)
            return
        if self._body_bytes > self._server.limits.body_bytes:
            self._body.clear()
            self._refusal = self._larger_than_allowed()
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
        self._start(self._refusal or request, request)

    # -- one after the other -------------------------------------------------------------------------

    def replied(self, reply: Reply) -> None:
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
            Reply(self, request).send_whole(what)
            self._idle()
            return
        reply = self._reply = Reply(self, request)
        self._task = self._loop.create_task(self._answer(request, reply))

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            await self._server.handle(request, reply)
        except Exception as error:
            _log.error("a request failed by our own fault", extra={"fields": {"error": _place(error)}})
            if not reply.status and not self.transport.is_closing():
                reply.send_whole(refuse(500, "the gateway failed", "server_error", "gateway_failure"))
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
        reply = Reply(self, request)
        reply.start(answer.status, answer.headers, len(answer.body))
        reply.send(answer.body)
        reply.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _too_large(self, request: Request) -> Answer | None:
        length = request.header(b"content-length")
        if length is not None and int(length) > self._server.limits.body_bytes:
            return self._larger_than_allowed()
        return None

    def _larger_than_allowed(self) -> Answer:
        limit = self._server.limits.body_bytes
        return refuse(413, f"the body is over the limit of {limit} bytes", code="request_too_large")


async def listen(
    server: Server, host: str, port: int, *, tls: ssl.SSLContext | None = None, shared: bool = False
) -> asyncio.Server:
    """Begin to accept connections. `shared`: several processes listen on the same port."""
    return await asyncio.get_running_loop().create_server(
        server.protocol,
        host,
        port,
        ssl=tls,
        backlog=4096,
        reuse_port=shared or None,
        ssl_handshake_timeout=None if tls is None else _TLS_HANDSHAKE_SECONDS,
    )


def _has_body(request: Request) -> bool:
    length = request.header(b"content-length")
    return request.header(b"transfer-encoding") is not None or (length is not None and int(length) > 0)


def _short(error: Exception) -> str:
    return (str(error).partition("\n")[0] or type(error).__name__)[:100]


def _place(error: Exception) -> str:
    """What failed and where: never the error's text, which may quote what a client sent."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno}"
