"""The clients of the gateway benchmark, in raw asyncio so that they cost little.

All functions run on the current event loop and talk HTTP/1.1 to 127.0.0.1.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import cast


@dataclass
class Sent:
    """One request: when it was written, when its first body byte and its last came (monotonic seconds)."""

    at: float = 0.0
    first: float = 0.0
    end: float = 0.0
    chunks: int = 0
    failed: bool = False


class Client(asyncio.Protocol):
    """One keep-alive connection. `ask` sends a request and waits for the end of the answer."""

    def __init__(self) -> None:
        self.sent = Sent()
        self.done: asyncio.Future[None] | None = None
        self.tail = b""
        self.head = b""
        self.length: int | None = None
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.sent.failed = True
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self.length is None:
            self.head += data
            head, found, rest = self.head.partition(b"\r\n\r\n")
            if not found:
                return
            lower = head.lower()
            if not head.startswith(b"HTTP/1.1 200"):
                self.sent.failed = True
            place = lower.find(b"content-length:")
            self.length = int(lower[place + 15 :].split(b"\r\n", 1)[0]) if place >= 0 else 0
            data = rest
            if not data:
                return
        if not self.sent.first:
            self.sent.first = now
        self.sent.chunks += data.count(b"data: ")
        self.received += len(data)
        self.tail = (self.tail + data)[-7:]
        whole = self.received >= self.length if self.length else self.tail.endswith(b"0\r\n\r\n")
        if whole and self.done is not None and not self.done.done():
            self.sent.end = now
            self.done.set_result(None)

    async def ask(self, request: bytes) -> Sent:
        self.sent, self.done = Sent(), asyncio.get_running_loop().create_future()
        self.tail = self.head = b""
        self.length, self.received = None, 0
        self.sent.at = time.monotonic()
        self.transport.write(request)
        await self.done
        return self.sent


async def connect(port: int) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    return client


def request(stream: bool, tokens: int = 16, rate: float = 0.0, prompt: str = "hello") -> bytes:
    """A chat completion as bytes."""
    fields: dict[str, object] = {
        "model": "acme/chat-8b",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
    }
    if stream:
        fields |= {"stream": True, "tokens_per_second": rate}
    body = json.dumps(fields).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\nuser-agent: bench/1\r\n"
        b"authorization: Bearer sk-bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    ) % (len(body), body)


@dataclass
class Streams:
    """Streams that are kept open: each connection asks again as soon as its answer has ended."""

    port: int
    count: int
    rate: float
    tokens: int
    sent: list[Sent] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def start(self) -> None:
        for i in range(self.count):
            client = await connect(self.port)
            self.clients.append(client)
            self.tasks.append(asyncio.create_task(self._keep(client, i)))
            if i % 16 == 15:
                await asyncio.sleep(0.01)

    async def _keep(self, client: Client, i: int) -> None:
        # The first answers have different lengths, so that the streams do not all begin anew at once.
        tokens = 1 + (i * 7919) % self.tokens
        while True:
            sent = await client.ask(request(True, tokens, self.rate))
            self.sent.append(sent)
            tokens = self.tokens
            if sent.failed:
                return

    def chunks(self) -> int:
        """Chunks received so far, running answers included."""
        return sum(sent.chunks for sent in self.sent) + sum(
            client.sent.chunks for client in self.clients if not client.sent.end
        )

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            client.transport.abort()
