"""The engines' side: HTTP/1.1 connections that are kept and used again, one exchange at a time on each.

An idle connection is dropped before the engine would do it (`idle_seconds`), and one that the engine has
closed is never taken. What remains is the race: the engine closes in the very moment in which we write. Then
nothing comes back on a connection that was used before (`Lost.was_stale`), and the request may be sent once
more on a new one. That an engine read the request and died looks the same on the wire, which is why this is a
retry like any other for the budget.
"""

import asyncio
import contextlib
import errno
import os
import ssl
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from controlplane.gateway.inbound import Header

_HEAD_BYTES = 64 * 1024
_KEPT_IDLE = 4096  # connections to one engine


class Origin(msgspec.Struct, frozen=True):
    """Where an engine listens."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """The origin of a URL that `sources.urls.engine_url` made."""
    parts = urlsplit(url)
    return Origin(parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme])


class UnreachableError(Exception):
    """No connection; nothing was sent. The text says why."""


class Lost(msgspec.Struct, frozen=True):
    """An exchange broke off. `was_stale`: on a connection that was used before, before a byte came back."""

    sentence: str
    was_stale: bool = False


class Sink(Protocol):
    """What an exchange is told, in this order: head, data ..., end; or lost at any point."""

    def answer_head(self, status: int, headers: list[Header]) -> None: ...

    def answer_data(self, data: bytes) -> None: ...

    def answer_end(self) -> None: ...

    def answer_lost(self, lost: Lost) -> None: ...


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    __slots__ = (
        "_complete",
        "_head_bytes",
        "_headers",
        "_keeps",
        "_parser",
        "_parts",
        "_pool",
        "_reads_until_close",
        "_sink",
        "_status",
        "_told_head",
        "answered",
        "idle_since",
        "is_open",
        "is_paused",
        "origin",
        "transport",
    )

    def __init__(self, pool: "Pool", origin: Origin) -> None:
        self._pool = pool
        self.origin = origin
        self._parser = httptools.HttpResponseParser(self)
        self._sink: Sink | None = None
        self._headers: list[Header] = []
        self._status = 0
        self._head_bytes = 0
        self._told_head = False
        self._parts: list[bytes] = []
        self._complete = False
        self._keeps = False
        self._reads_until_close = False
        self.answered = 0  # exchanges before this one
        self.idle_since = 0.0
        self.is_paused = False
        self.is_open = True

    def send(self, head_and_body: bytes, sink: Sink) -> None:
        """Begin an exchange; the connection must be free."""
        self._sink = sink
        self._told_head = False
        self._head_bytes = 0
        self.transport.write(head_and_body)

    def pause(self) -> None:
        """Take no more of the answer for now."""
        if not self.is_paused and self.is_open:
            self.is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self.is_open:
            self.is_paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Hang up at once; the sink hears nothing more."""
        self._sink = None
        self.is_open = False
        self.transport.abort()

    # -- of asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._pool.forget(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if self._reads_until_close and self._told_head and error is None:
            sink.answer_end()
        elif self._told_head or self._head_bytes:
            sink.answer_lost(Lost("the engine broke off its answer"))
        else:
            why = "the engine closed the connection without an answer"
            sink.answer_lost(Lost(why, was_stale=self.answered > 0))

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._sink is None:  # something that nobody asked for
            self.abort()
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break("the engine's answer is not proper HTTP")
            return
        if not self._told_head:
            if not self._status:
                if self._head_bytes > _HEAD_BYTES:
                    self._break(f"the head of the engine's answer is over {_HEAD_BYTES} bytes")
                return
            self._told_head = True
            self._sink.answer_head(self._status, self._headers)
        if self._parts and self._sink is not None:
            parts, self._parts = self._parts, []
            self._sink.answer_data(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._complete:
            self._finish()

    # -- of httptools --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("a second answer")
        self._headers = []
        self._status = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._status = status
        names = {name for name, _ in self._headers}
        bounded = b"content-length" in names or b"transfer-encoding" in names or status in (204, 304)
        self._reads_until_close = not bounded

    def on_body(self, piece: bytes) -> None:
        self._parts.append(piece)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        self._complete = False
        self._status = 0
        # An engine that answers before it has read the whole request is not ready for another one.
        if not self._keeps or self.transport.get_write_buffer_size() or not self.is_open:
            self.is_open = False
            self.transport.close()
        else:
            self.answered += 1
            self.resume()
            self._pool.give_back(self)
        if sink is not None:
            sink.answer_end()

    def _break(self, sentence: str) -> None:
        sink, self._sink = self._sink, None
        self.abort()
        if sink is not None:
            sink.answer_lost(Lost(sentence))


class Pool:
    """All connections to engines. `connected` and `reused` count what exchanges began with."""

    def __init__(
        self,
        tls: Callable[[Origin], tuple[ssl.SSLContext, str | None] | None],
        *,
        connect_seconds: float,
        idle_seconds: float,
    ) -> None:
        """`tls` gives the context and the name to check for an origin, None for none; may raise TlsError."""
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._idle: dict[Origin, list[Connection]] = {}
        self._connections: set[Connection] = set()
        self.connected = 0
        self.reused = 0

    @property
    def open(self) -> int:
        """Connections that are open, idle ones included."""
        return len(self._connections)

    async def take(self, origin: Origin, *, fresh: bool = False) -> Connection:
        """A connection that is free; a new one where `fresh`. Raises UnreachableError."""
        now = asyncio.get_running_loop().time()
        idle = self._idle.get(origin)
        while idle and not fresh:
            connection = idle.pop()
            if connection.is_open and not connection.transport.is_closing():
                if now - connection.idle_since < self._idle_seconds:
                    self.reused += 1
                    return connection
                connection.transport.close()
        return await self._connect(origin)

    def give_back(self, connection: Connection) -> None:
        connection.idle_since = asyncio.get_running_loop().time()
        idle = self._idle.setdefault(connection.origin, [])
        if len(idle) < _KEPT_IDLE:
            idle.append(connection)
        else:
            connection.is_open = False
            connection.transport.close()

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._connections.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None:
            with contextlib.suppress(ValueError):
                idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Drop what has idled for too long; call about once a second with the loop's time."""
        for origin, idle in list(self._idle.items()):
            # The list is in the order of idling: the oldest first.
            while idle and now - idle[0].idle_since >= self._idle_seconds:
                connection = idle.pop(0)
                connection.is_open = False
                connection.transport.close()
            if not idle:
                del self._idle[origin]

    def close(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()
        self._idle.clear()

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        context, name = self._tls(origin) or (None, None)
        server_name = (name or origin.host) if context is not None else None
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, origin),
                    origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=server_name,
                )
        except TimeoutError:
            raise UnreachableError(f"no connection within {self._connect_seconds:g} s") from None
        except ssl.SSLError as error:
            why = (error.reason or "failed").replace("_", " ").lower()
            raise UnreachableError(f"no TLS: {why}") from None
        except OSError as error:
            raise UnreachableError(_cause(error)) from None
        if not connection.is_open:
            raise UnreachableError("it closed the connection at once")
        self.connected += 1
        # Not when it is made: a connect that is cancelled just then closes without a word (uvloop).
        self._connections.add(connection)
        return connection


def _cause(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "this process has too many open files to connect"
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return "its name has no address" if error.errno is not None else "no connection"
