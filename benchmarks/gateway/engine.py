"""A stand-in for an engine that costs next to nothing: it answers chat completions with a paced stream.

    python engine.py PORT

The body may say `max_tokens` and `tokens_per_second` (0: all chunks at once). A request that is not to be
streamed gets one JSON answer. All streams share one clock, so each token is one write and one chunk.
"""

import asyncio
import heapq
import json
import sys
import time
from typing import cast

import uvloop

HEAD_OF_CHUNK = b'data: {"id":"c1","object":"chat.completion.chunk","created":1,"model":"acme/chat-8b",'
CHUNK = HEAD_OF_CHUNK + (
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST = HEAD_OF_CHUNK + (b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n')
USAGE = HEAD_OF_CHUNK + (
    b'"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "word " * 150}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 150, "total_tokens": 162},
    }
).encode()
MODELS = b'{"object":"list","data":[{"id":"acme/chat-8b","object":"model","max_model_len":32768}]}'
METRICS = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="acme/chat-8b"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="acme/chat-8b"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000000"} 1.0
"""
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FRAMED = framed(CHUNK)


class Clock:
    """One timer for all streams."""

    def __init__(self) -> None:
        self.due: list[tuple[float, int, Connection]] = []
        self.count = 0

    def add(self, at: float, connection: "Connection") -> None:
        self.count += 1
        heapq.heappush(self.due, (at, self.count, connection))

    async def run(self) -> None:
        while True:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                at, _, connection = heapq.heappop(self.due)
                connection.step(at)
            await asyncio.sleep(0.001)


class Connection(asyncio.Protocol):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.buffer = b""
        self.left = 0
        self.tokens = 0
        self.gap = 0.0
        self.usage = False
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            text = METRICS if b"/metrics" in head else MODELS
            kind = b"text/plain; version=0.0.4" if b"/metrics" in head else b"application/json"
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (kind, len(text), text)
            )
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(ANSWER), ANSWER)
            )
            return
        self.left = self.tokens = int(asked.get("max_tokens", 16))
        self.usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        rate = float(asked.get("tokens_per_second", 0))
        self.gap = 1 / rate if rate else 0.0
        self.transport.write(HEAD + FRAMED)
        self.left -= 1
        if self.gap:
            self.clock.add(time.monotonic() + self.gap, self)
        else:
            while self.left > 0:
                self.transport.write(FRAMED)
                self.left -= 1
            self.end()

    def step(self, at: float) -> None:
        if not self.open:
            return
        if self.left > 0:
            self.transport.write(FRAMED)
            self.left -= 1
            self.clock.add(at + self.gap, self)
        else:
            self.end()

    def end(self) -> None:
        usage = framed(USAGE % (self.tokens, self.tokens + 12)) if self.usage else b""
        self.transport.write(framed(LAST) + usage + framed(DONE) + b"0\r\n\r\n")


async def main(port: int) -> None:
    clock = Clock()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(clock), "127.0.0.1", port, backlog=4096
    )
    async with server:
        await clock.run()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
