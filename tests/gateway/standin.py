"""An engine on loopback that does what a test's script says, byte by byte."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

SSE = "text/event-stream; charset=utf-8"
METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="acme/chat-8b"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="acme/chat-8b"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="acme/chat-8b"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10000"} 1.0
"""


class Call:
    """One request that an engine got, and the pen to answer it with."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter, connection: int) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = body
        self.connection = connection  # counted from 1
        self.is_closed = asyncio.Event()
        self.written = 0
        self._writer = writer

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document

    def send(self, data: bytes) -> None:
        """Bytes, as they are."""
        if not self._writer.is_closing():
            self._writer.write(data)
            self.written += 1

    async def drain(self) -> None:
        await self._writer.drain()

    def head(self, status: str = "200 OK", kind: str = "application/json", *more: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", *more]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self) -> None:
        self.send(b"0\r\n\r\n")

    def stream(self) -> None:
        """Begin a stream of events."""
        self.head("200 OK", SSE, "transfer-encoding: chunked")

    def whole(self, body: bytes, status: str = "200 OK", *more: str, kind: str = "application/json") -> None:
        self.head(status, kind, f"content-length: {len(body)}", *more)
        self.send(body)

    def fin(self) -> None:
        """Close in order."""
        self._writer.close()

    def reset(self) -> None:
        """Close with a RST."""
        sock = self._writer.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def until_closed(self) -> None:
        await asyncio.wait_for(self.is_closed.wait(), 60)


Script = Callable[[Call], Awaitable[None]]


async def says_hello(call: Call) -> None:
    """What an engine does where a test says nothing else."""
    if call.json.get("stream"):
        usage = (call.json.get("stream_options") or {}).get("include_usage")
        call.stream()
        for event in tokens("hello", " you"):
            call.chunk(event)
        call.chunk(event_of(finish_reason="stop"))
        if usage:
            call.chunk(USAGE)
        call.chunk(DONE)
        call.last_chunk()
    else:
        call.whole(ANSWER)


def event_of(content: str | None = None, finish_reason: str | None = None, **fields: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    event = {"id": "c1", "object": "chat.completion.chunk", "choices": [choice], **fields}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def tokens(*texts: str) -> list[bytes]:
    return [event_of(text) for text in texts]


USAGE = (
    b'data: {"id": "c1", "object": "chat.completion.chunk", "choices": [], '
    b'"usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hello you"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14},
    }
).encode()


@dataclass
class StandIn:
    """Answers `/v1/models` and `/metrics` by itself, everything else by `script`."""

    script: Script = says_hello
    models: list[dict[str, Any]] = field(
        default_factory=lambda: [{"id": "acme/chat-8b", "object": "model", "max_model_len": 32768}]
    )
    metrics: bytes = METRICS
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    is_silent: bool = False  # it does not even answer looks
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, backlog=1024, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line[15:])
                body = await reader.readexactly(length)
                call = Call(head, body, writer, number)
                if call.method == "GET":
                    if not self._look(call):
                        return
                    continue
                self.calls.append(call)
                watch = asyncio.ensure_future(self._watch(call, reader))
                try:
                    await self.script(call)
                    await writer.drain()
                finally:
                    watch.cancel()
                if writer.is_closing():
                    return
        except (EOFError, OSError, asyncio.LimitOverrunError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _look(self, call: Call) -> bool:
        if self.is_silent:
            return False
        if call.target == "/metrics":
            call.whole(self.metrics, kind="text/plain; version=0.0.4")
        else:
            call.whole(json.dumps({"object": "list", "data": self.models}).encode())
        return True

    async def _watch(self, call: Call, reader: asyncio.StreamReader) -> None:
        """Note when the other side has closed the connection."""
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        call.is_closed.set()


@asynccontextmanager
async def standing_in(*engines: StandIn) -> AsyncIterator[None]:
    for engine in engines:
        await engine.start()
    try:
        yield
    finally:
        for engine in engines:
            await engine.stop()
