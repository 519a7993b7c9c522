"""The client's side: what a handler sees of a request and its answer, and the server of all connections.

Two protocols are spoken: HTTP/1.1 (`http1.py`), and HTTP/2 (`http2.py`) with clients that choose it in the
TLS handshake. Both are asyncio protocols, one task a request. Measured against servers with a framework in
between, this leaves out all of the cost that grows with streams: a chunk goes from one transport to the other
without a task being woken (benchmarks/bench_gateway.py).

Rules of both:
* A request's head is judged (path, key, size) before its body is read; a refused one costs no memory.
* A handler starts when the whole body is there.
* A client that closes its connection, half of it, or its stream, has gone: the handler is cancelled at once.
* Time and size are bounded: for a head, for a body, for idling, for what is sent ahead or at once.
"""

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

import msgspec

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, and value."""

HEAD_BYTES = 64 * 1024


class Limits(msgspec.Struct, frozen=True):
    """Bounds of what clients may send, in bytes and seconds.

    Load balancers keep idle connections for up to ten minutes (Google's for 600 s, Amazon's for 60 s), and
    one that we close just when a request comes fails that request: so they are to close first.
    """

    body_bytes: int
    receive_seconds: float = 60.0
    idle_seconds: float = 620.0


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

    __slots__ = ("on_flow", "request", "status")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.status = 0  # 0 before the start
        self.on_flow: Callable[[bool], None] | None = None

    @property
    def flows(self) -> bool:
        """Whether the client takes what is sent."""
        raise NotImplementedError

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        """Begin. `length` is that of the body, None where it is not known. See `flush`."""
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Send the head, if it has not gone out with something of the body."""
        raise NotImplementedError

    def end(self) -> None:
        """The whole body has been sent."""
        raise NotImplementedError

    def send_whole(self, answer: Answer) -> None:
        self.start(answer.status, answer.headers, len(answer.body))
        self.send(answer.body)
        self.end()

    def end_broken(self) -> None:
        """The same of a body that ends with an error event: nothing more is to come on this connection."""
        raise NotImplementedError

    def cut(self) -> None:
        """Break off, so that the client cannot take what it has for the whole answer."""
        raise NotImplementedError


Handler: TypeAlias = Callable[[Request, Reply], Awaitable[None]]
Judge: TypeAlias = Callable[[Request], Answer | None]


def error_body(message: str, kind: str = "invalid_request_error", code: str | None = None) -> bytes:
    """The body of an error as OpenAI's clients read it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


JSON: Header = (b"content-type", b"application/json")


def refuse(status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> Answer:
    return Answer(status, (JSON,), error_body(message, kind, code))


HEAD_TOO_LARGE = refuse(431, f"the head is over the limit of {HEAD_BYTES} bytes")


class Client(Protocol):
    """One connection of a client."""

    transport: asyncio.Transport

    @property
    def requests(self) -> int:
        """How many are being answered."""
        ...

    def sweep(self, now: float) -> None:
        """Close it if it has had its time."""
        ...

    def wind_down(self) -> None:
        """Take nothing more; close once all is answered."""
        ...


class Server:
    """All connections of one process. `judge` looks at heads, `handle` answers."""

    def __init__(self, judge: Judge, handle: Handler, limits: Limits) -> None:
        self.judge = judge
        self.handle = handle
        self.limits = limits
        self.connections: set[Client] = set()
        self.closes_soon = False
        self.accepted = 0

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return sum(connection.requests for connection in self.connections)

    def sweep(self, now: float) -> None:
        """Close connections that have had their time; call about once a second with the loop's time."""
        for connection in tuple(self.connections):
            connection.sweep(now)

    def wind_down(self) -> None:
        """Close what idles, and every other connection after its answers."""
        self.closes_soon = True
        for connection in tuple(self.connections):
            connection.wind_down()


def too_large(server: Server, request: Request) -> Answer | None:
    """The refusal of a request whose head says that it is too large."""
    size = len(request.path) + len(request.query) + sum(map(_header_bytes, request.headers))
    if size > HEAD_BYTES:
        return HEAD_TOO_LARGE
    length = request.header(b"content-length")
    limit = server.limits.body_bytes
    return body_too_large(limit) if length is not None and length.isdigit() and int(length) > limit else None


def _header_bytes(header: Header) -> int:
    return len(header[0]) + len(header[1])


def body_too_large(limit: int) -> Answer:
    return refuse(413, f"the body is over the limit of {limit} bytes", code="request_too_large")


GATEWAY_FAILED = refuse(500, "the gateway failed", "server_error", "gateway_failure")


def place(error: Exception) -> str:
    """What failed and where: never the error's text, which may quote what a client sent."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(frame.filename)}:{frame.lineno}"
