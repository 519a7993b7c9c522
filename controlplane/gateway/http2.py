"""HTTP/2 with clients: many requests at once on one connection. Frames and their states are h2's.

Flow control:
* To the client a stream sends what its window and the connection's allow. What they do not allow waits in the
  stream, and its engine is told to stop (`Reply.on_flow`): a slow reader slows itself only.
* From the client bodies are taken as they come; all unfinished ones of a connection together are no larger
  than one may be, and a stream that would be the one too many is refused unprocessed.

A client that resets a stream has hung up on that request. These end the connection (ENHANCE_YOUR_CALM):
* streams that are opened and reset at once (rapid reset): within a window more than `_MOST_RESETS` that were
  reset within a second of their start, and more than half of all that were opened;
* within a window more than `_MOST_NOISE` frames that ask for an answer and carry no request (settings, pings)
  or do nothing (priorities, empty data, unknown frames);
* more than `_MOST_UNSENT_BYTES` that the client does not take from the socket;
* more than `_MOST_SILENT_BYTES` from it that mean nothing (h2 waits for the end of a frame that is too long).
Header blocks are bounded by h2 and hpack: their size, and the number of continuation frames.

GOAWAY is said last, when no stream is open any more: clients that are built on h2 (httpx is) take nothing of
open streams after it. For the same reason a client that says it has hung up on all its streams.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from controlplane.gateway.inbound import (
    GATEWAY_FAILED,
    HEAD_BYTES,
    Header,
    Reply,
    Request,
    Server,
    body_too_large,
    place,
    too_large,
)

MOST_STREAMS = 128
"""At once, on one connection."""
_STREAM_WINDOW = 256 * 1024
_CONNECTION_WINDOW = 1024 * 1024
_MOST_UNSENT_BYTES = 16 * 1024 * 1024
_MOST_SILENT_BYTES = 2 * 1024 * 1024
_NOISE_WINDOW_SECONDS = 10.0
_MOST_NOISE = 1000
_MOST_RESETS = 200
_PREMATURE_SECONDS = 1.0
_log = logging.getLogger(__name__)


class _H2(H2Connection):
    MAX_CLOSED_STREAMS = 256  # so many are remembered, of each connection


class Http2Reply(Reply):
    """The answer on one stream."""

    __slots__ = ("_connection", "_ends", "_waiting", "is_done", "stalled_at", "stream_id")

    def __init__(self, connection: "Http2Connection", stream_id: int, request: Request) -> None:
        super().__init__(request)
        self._connection = connection
        self._waiting = bytearray()  # for the window to open
        self._ends = False
        self.stream_id = stream_id
        self.is_done = False  # all is sent, or nobody is there to send it to
        self.stalled_at: float | None = None

    @property
    def flows(self) -> bool:
        return not self._waiting and not self._connection.is_full

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        self.status = status
        head = [(b":status", b"%d" % status), *headers]
        if length is not None:
            head.append((b"content-length", b"%d" % length))
        if not self.is_done:
            self._connection.send_head(self, head)

    def send(self, data: bytes) -> None:
        if self.is_done or not data or self.request.method == b"HEAD":
            return
        must_wait = self._waiting or self._connection.is_full
        sent = 0 if must_wait else self._connection.send_data(self, data)
        if sent < len(data):
            was_waiting = bool(self._waiting)
            self._waiting += data[sent:]
            if not was_waiting:
                self.stalled_at = self._connection.now()
                if self.on_flow is not None:
                    self.on_flow(False)

    def flush(self) -> None:
        pass

    def end(self) -> None:
        self._ends = True
        if not self._waiting:
            self._finish()

    def end_broken(self) -> None:
        self.end()

    def cut(self) -> None:
        if not self.is_done:
            self._connection.reset(self, ErrorCodes.INTERNAL_ERROR)

    def window_opened(self) -> None:
        """There may be room again: send what waits, as far as it goes now."""
        if self.is_done or self._connection.is_full:
            return
        if self._waiting:
            sent = self._connection.send_data(self, bytes(self._waiting))
            del self._waiting[:sent]
            if sent:
                self.stalled_at = self._connection.now() if self._waiting else None
        if self._waiting:
            return
        if self._ends:
            self._finish()
        elif self.on_flow is not None:
            self.on_flow(True)

    @property
    def has_ended(self) -> bool:
        """Whether the handler has told the end."""
        return self._ends or self.is_done

    def forget_client(self) -> None:
        """Nobody is there any more: what is still sent goes nowhere."""
        self.is_done = True
        self.stalled_at = None
        self._waiting.clear()

    def _finish(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._connection.end_stream(self)


class _Stream:
    __slots__ = ("began", "body", "body_bytes", "is_whole", "reply", "request", "task")

    def __init__(self, request: Request, reply: Http2Reply, now: float) -> None:
        self.request = request
        self.reply = reply
        self.began = now
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.is_whole = False  # the client has sent all
        self.task: asyncio.Task[None] | None = None


class Http2Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        # Outbound headers are ours, or an engine's that httptools has read.
        config = H2Configuration(
            client_side=False,
            header_encoding=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = _H2(config)
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_BYTES,
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self._streams: dict[int, _Stream] = {}
        self._was_used = False
        self._silent_bytes = 0
        self._flush_is_due = False
        self._noise = self._resets = self._opened = 0
        self._noise_until = 0.0
        self._idle_at = loop.time() + server.limits.receive_seconds
        self.is_full = False

    @property
    def requests(self) -> int:
        return sum(stream.task is not None for stream in self._streams.values())

    def now(self) -> float:
        return self._loop.time()

    def sweep(self, now: float) -> None:
        limits = self._server.limits
        if not self._streams:
            if now >= self._idle_at:
                self._say_goodbye()
            return
        for stream in tuple(self._streams.values()):
            if not stream.is_whole and stream.task is None and now >= stream.began + limits.receive_seconds:
                self.reset(stream.reply, ErrorCodes.CANCEL)
            stalled_at = stream.reply.stalled_at
            if stream.task is None and stalled_at is not None and now >= stalled_at + limits.receive_seconds:
                self.reset(stream.reply, ErrorCodes.CANCEL)

    def wind_down(self) -> None:
        if not self._streams:
            self._say_goodbye()

    # -- of asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._server.accepted += 1
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._hang_up_all()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
            for event in events:
                self._handle(event)
                if self.transport.is_closing():
                    return
        except ProtocolError:  # h2 has its GOAWAY ready
            self._drop()
            return
        self._silent_bytes = 0 if events else self._silent_bytes + len(data)
        if self._silent_bytes > _MOST_SILENT_BYTES:
            self._calm_down()
        self._flush()
        self._close_if_done()

    def pause_writing(self) -> None:
        self.is_full = True
        for stream in tuple(self._streams.values()):
            if stream.reply.on_flow is not None:
                stream.reply.on_flow(False)

    def resume_writing(self) -> None:
        self.is_full = False
        self._window_opened(0)

    # -- of replies ----------------------------------------------------------------------------------

    # h2 knows already what the events still to be handled will tell: that a stream was reset, say. What it
    # does not let us send any more goes nowhere, and the event ends the rest.

    def send_head(self, reply: Http2Reply, headers: list[Header]) -> None:
        try:
            self._h2.send_headers(reply.stream_id, headers)
        except ProtocolError:
            reply.forget_client()
        self._flush_soon()

    def send_data(self, reply: Http2Reply, data: bytes) -> int:
        """Send as much as the windows allow; returns how many bytes."""
        sent, h2, stream_id = 0, self._h2, reply.stream_id
        try:
            while sent < len(data):
                room = min(h2.local_flow_control_window(stream_id), h2.max_outbound_frame_size)
                if room <= 0:
                    break
                h2.send_data(stream_id, data[sent : sent + room])
                sent = min(len(data), sent + room)
        except ProtocolError:
            reply.forget_client()
            return len(data)
        if sent:
            self._flush_soon()
        return sent

    def end_stream(self, reply: Http2Reply) -> None:
        stream = self._streams.get(reply.stream_id)
        with contextlib.suppress(ProtocolError):
            self._h2.end_stream(reply.stream_id)
            if stream is not None and not stream.is_whole:  # what still comes of the request is not wanted
                self._h2.reset_stream(reply.stream_id, ErrorCodes.NO_ERROR)
        self._flush_soon()
        self._let_go(reply.stream_id)

    def reset(self, reply: Http2Reply, code: ErrorCodes) -> None:
        """Break a stream off from our side."""
        stream = self._streams.get(reply.stream_id)
        reply.forget_client()
        if stream is not None:
            with contextlib.suppress(ProtocolError):
                self._h2.reset_stream(reply.stream_id, code)
            self._flush_soon()
            self._hang_up(stream)
            self._let_go(reply.stream_id)

    # -- of h2 ---------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case DataReceived():
                self._take_data(event)
            case WindowUpdated():
                self._window_opened(event.stream_id or 0)
            case RequestReceived():
                self._take_request(event)
            case StreamEnded():
                self._take_end(event.stream_id or 0)
            case StreamReset():
                self._take_reset(event.stream_id or 0)
            case RemoteSettingsChanged():
                self._count_noise()
                self._window_opened(0)
            case PingReceived() | PriorityUpdated() | UnknownFrameReceived():
                self._count_noise()
            case ConnectionTerminated():
                self._drop()
            case _:
                pass

    def _take_request(self, event: RequestReceived) -> None:
        stream_id = event.stream_id or 0
        self._opened += 1
        self._was_used = True
        request = _request(cast(list[Header], event.headers or []))
        reply = Http2Reply(self, stream_id, request)
        stream = self._streams[stream_id] = _Stream(request, reply, self.now())
        stream.is_whole = event.stream_ended is not None
        refusal = too_large(self._server, request) or self._server.judge(request)
        if refusal is not None:
            reply.send_whole(refusal)
        elif (request.header(b"expect") or b"").lower() == b"100-continue":
            self.send_head(reply, [(b":status", b"100")])

    def _take_data(self, event: DataReceived) -> None:
        stream_id, data = event.stream_id or 0, event.data or b""
        with contextlib.suppress(ProtocolError):
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
        stream = self._streams.get(stream_id)
        if not data and event.stream_ended is None:
            self._count_noise()
        if stream is None or stream.reply.status or not data:
            return
        most = self._server.limits.body_bytes
        stream.body.append(data)
        stream.body_bytes += len(data)
        stream.is_whole = event.stream_ended is not None
        if stream.body_bytes > most:
            stream.reply.send_whole(body_too_large(most))
        elif sum(each.body_bytes for each in self._streams.values() if not each.is_whole) > most:
            self.reset(stream.reply, ErrorCodes.REFUSED_STREAM)

    def _take_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.is_whole = True
        if not stream.reply.status:
            stream.request.body = b"".join(stream.body)
            stream.body.clear()
            stream.task = self._loop.create_task(self._answer(stream))

    def _take_reset(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        now = self.now()
        if now - stream.began < _PREMATURE_SECONDS:
            self._look_at_noise(now)
            self._resets += 1
            if self._resets > _MOST_RESETS and 2 * self._resets > self._opened:
                self._calm_down()
        self._hang_up(stream)
        self._let_go(stream_id)

    def _window_opened(self, stream_id: int) -> None:
        if stream_id:
            stream = self._streams.get(stream_id)
            if stream is not None:
                stream.reply.window_opened()
        else:
            for stream in tuple(self._streams.values()):
                stream.reply.window_opened()

    # -- inside --------------------------------------------------------------------------------------

    async def _answer(self, stream: _Stream) -> None:
        reply = stream.reply
        try:
            await self._server.handle(stream.request, reply)
        except Exception as error:
            _log.error("a request failed by our own fault", extra={"fields": {"error": place(error)}})
            if not reply.status and not reply.is_done:
                reply.send_whole(GATEWAY_FAILED)
        finally:
            stream.task = None
            if not reply.has_ended:
                reply.cut()
            self._let_go(reply.stream_id)
            self._close_if_done()

    def _hang_up(self, stream: _Stream) -> None:
        stream.reply.forget_client()
        if stream.task is not None:
            stream.task.cancel()

    def _hang_up_all(self) -> None:
        for stream in tuple(self._streams.values()):
            self._hang_up(stream)
        self._streams.clear()

    def _drop(self) -> None:
        """Nothing can be said on this connection any more but what h2 has ready."""
        self._hang_up_all()
        self._flush()
        self.transport.close()

    def _let_go(self, stream_id: int) -> None:
        """Forget a stream that is over on both sides, and for its handler."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.task is not None or not stream.reply.is_done:
            return
        del self._streams[stream_id]
        self._idle_at = self.now() + self._server.limits.idle_seconds

    def _say_goodbye(self) -> None:
        """Close; no stream is open."""
        if not self.transport.is_closing():
            self._h2.close_connection()
            self._drop()

    def _close_if_done(self) -> None:
        if self._server.closes_soon and self._was_used and not self._streams:
            self._say_goodbye()

    def _count_noise(self) -> None:
        self._look_at_noise(self.now())
        self._noise += 1
        if self._noise > _MOST_NOISE:
            self._calm_down()

    def _look_at_noise(self, now: float) -> None:
        if now >= self._noise_until:
            self._noise_until = now + _NOISE_WINDOW_SECONDS
            self._noise = self._resets = self._opened = 0

    def _calm_down(self) -> None:
        """The client is a burden."""
        if not self.transport.is_closing():
            _log.warning("a client's HTTP/2 connection is closed: too many resets or idle frames")
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._drop()

    def _flush_soon(self) -> None:
        """What several streams have to send goes out together."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        data = self._h2.data_to_send()
        if data and not self.transport.is_closing():
            self.transport.write(data)
            if self.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
                self.transport.abort()


def _request(headers: list[Header]) -> Request:
    pseudo = {name: value for name, value in headers if name.startswith(b":")}
    plain = [header for header in headers if not header[0].startswith(b":") and header[0] != b"cookie"]
    cookies = [value for name, value in headers if name == b"cookie"]
    if cookies:  # in pieces here, in one in HTTP/1.1
        plain.append((b"cookie", b"; ".join(cookies)))
    return Request(pseudo.get(b":method", b""), pseudo.get(b":path", b""), b"2", plain)
