"""asyncio protocols with httptools on both sides; bytes go from one transport to the other.

python protocols_httptools.py PORT UPSTREAM_PORT
"""

import asyncio
import sys
from typing import Any

import httptools
import uvloop

PORT, UPSTREAM = int(sys.argv[1]), int(sys.argv[2])
idle: list["Upstream"] = []


class Upstream(asyncio.Protocol):
    client: "Server | None" = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self.out: list[bytes] = []
        self.parser.feed_data(data)
        if self.out and self.client:
            self.client.transport.write(b"".join(self.out))
        if self.complete and self.client:
            self.client, self.complete = None, False
            self.parser = httptools.HttpResponseParser(self)
            idle.append(self)

    complete = False
    content_type = length = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self.content_type = value
        elif lower == b"content-length":
            self.length = value

    def on_headers_complete(self) -> None:
        framing = b"content-length: " + self.length if self.length else b"transfer-encoding: chunked"
        self.chunked = not self.length
        self.out.append(
            b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\n%b\r\n\r\n"
            % (self.parser.get_status_code(), self.content_type, framing)
        )
        self.length = b""

    def on_body(self, body: bytes) -> None:
        self.out.append(b"%x\r\n%b\r\n" % (len(body), body) if self.chunked else body)

    def on_message_complete(self) -> None:
        if self.chunked:
            self.out.append(b"0\r\n\r\n")
        self.complete = True


class Server(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        self.body = []
        self.task = asyncio.ensure_future(self.relay(body))

    async def relay(self, body: bytes) -> None:
        if idle:
            upstream = idle.pop()
        else:
            _, upstream = await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", UPSTREAM)
        upstream.client = self
        upstream.transport.write(
            b"POST %b HTTP/1.1\r\nhost: u\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (self.url, len(body), body)
        )


async def main() -> None:
    await asyncio.get_running_loop().create_server(Server, "127.0.0.1", PORT, backlog=4096)
    await asyncio.Event().wait()


uvloop.run(main())
