"""Server-sent events: each tick to everyone who listens, and nobody who listens slowly slows the tick.

A tick is encoded once and put into the queue of each stream. A stream whose queue is full has not kept
up: it loses what waits, gets one last event that says so, and ends. The client may come back; what it
missed is in the journal.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from controlplane.api import shapes
from controlplane.api.answers import summary_of
from controlplane.api.state import State
from controlplane.signals.decision import Decision
from controlplane.signals.snapshot import FleetSnapshot

MOST_STREAMS = 100
MOST_QUEUED_TICKS = 64
HEARTBEAT_SECONDS = 15.0
LONGEST_SEND_SECONDS = 30.0  # a client that takes nothing for so long is cut off

_log = logging.getLogger(__name__)


def _sse(event: str, data: str) -> bytes:
    """One server-sent event; `data` is JSON on one line."""
    return f"event: {event}\ndata: {data}\n\n".encode()


_DROPPED = _sse(
    "dropped", '{"reason":"too slow; what was missed is in /api/v1/events and /api/v1/decisions"}'
)
_END = _sse("end", '{"reason":"the daemon stops"}')


class Stream:
    """One listener. `frames` is what goes over the wire to it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_QUEUED_TICKS + 2)
        self._ended = False

    def put(self, frame: bytes) -> bool:
        """Queue one tick; False where the stream is dropped because its queue is full."""
        if self._ended:
            return True
        if self._queue.qsize() < MOST_QUEUED_TICKS:
            self._queue.put_nowait(frame)
            return True
        while not self._queue.empty():
            self._queue.get_nowait()
        self.end(_DROPPED)
        return False

    def end(self, last: bytes) -> None:
        """Let the stream end after `last`; what is queued still goes out before it."""
        if not self._ended:
            self._ended = True
            self._queue.put_nowait(last)
            self._queue.put_nowait(None)

    async def frames(self, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> AsyncIterator[bytes]:
        """Frames until the end; a comment where there was none for long, so that proxies keep the line."""
        while True:
            try:
                async with asyncio.timeout(heartbeat_seconds):
                    frame = await self._queue.get()
            except TimeoutError:
                yield b": heartbeat\n\n"
                continue
            if frame is None:
                return
            yield frame


class Streams:
    """All listeners of one daemon."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._open: set[Stream] = set()
        self._closed = False
        self._unsubscribe = state.subscribe(self._tell)
        self.dropped = 0

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def open(self) -> Stream | None:
        """A new listener, who gets the last snapshot at once; None where there are too many."""
        if len(self._open) >= MOST_STREAMS or self._closed:
            return None
        stream = Stream()
        self._open.add(stream)
        snapshot = self._state.snapshot()
        if snapshot is not None:
            stream.put(self._frame(snapshot, ()))
        return stream

    def leave(self, stream: Stream) -> None:
        self._open.discard(stream)

    def close(self) -> None:
        """End every stream: the daemon stops."""
        if self._closed:
            return
        self._closed = True
        self._unsubscribe()
        for stream in self._open:
            stream.end(_END)

    def _tell(self, snapshot: FleetSnapshot, decisions: tuple[Decision, ...]) -> None:
        if not self._open:
            return
        frame = self._frame(snapshot, decisions)
        for stream in self._open:
            if not stream.put(frame):
                self.dropped += 1

    def _frame(self, snapshot: FleetSnapshot, decisions: tuple[Decision, ...]) -> bytes:
        """One tick: its summary, its decisions, its events."""
        parts: list[tuple[str, shapes.Answer]] = [("snapshot", summary_of(snapshot, self._state.now()))]
        parts += [("decision", shapes.Decision.model_validate(decision)) for decision in decisions]
        parts += [("event", shapes.Event.model_validate(event)) for event in snapshot.events]
        return b"".join(_sse(kind, answer.model_dump_json()) for kind, answer in parts)


class StreamResponse(StreamingResponse):
    """The answer to one listener. Leaves `streams` however it ends."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, stream: Stream) -> None:
        super().__init__(stream.frames())
        self._streams, self._stream = streams, stream

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(LONGEST_SEND_SECONDS):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            self._streams.dropped += 1
            _log.info("a listener of the event stream took nothing for %.0f s: cut off", LONGEST_SEND_SECONDS)
        finally:
            self._streams.leave(self._stream)
