"""What HTTP/2 costs the gateway beside HTTP/1.1, both in TLS, in one run.

    .venv/bin/python benchmarks/bench_gateway_http2.py [--streams 64 256] [--seconds 5]

The engine gives each stream 20 tokens a second. They come to the client as so many HTTP/1.1 connections, or
as streams of HTTP/2 connections of 64 each. CPU time is that of the gateway, from /proc.
"""

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import trustme
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

sys.path.insert(0, str(Path(__file__).parent))
from bench_gateway import HERE, RATE, cpu_seconds, free_port, running
from gateway.load import Client, request

A_CONNECTION = 64
_WINDOW = 1 << 30


class Http2Client(asyncio.Protocol):
    """Keeps `count` streams open; its windows never shut."""

    def __init__(self, count: int) -> None:
        self.chunks = 0
        self._count = count
        self._h2 = H2Connection(H2Configuration(client_side=True))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        for _ in range(self._count):
            self._ask()
        self.transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            match event:
                case DataReceived():
                    self.chunks += (event.data or b"").count(b"data: ")
                case StreamEnded():
                    self._ask()
        self.transport.write(self._h2.data_to_send())

    def _ask(self) -> None:
        stream = self._h2.get_next_available_stream_id()
        body = request(True, 400, RATE).partition(b"\r\n\r\n")[2]
        path = "/v1/chat/completions"
        head = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "localhost")]
        self._h2.send_headers(stream, [*head, ("content-type", "application/json")])
        self._h2.send_data(stream, body, end_stream=True)
        self._h2.increment_flow_control_window(_WINDOW, stream)


async def keep(client: Client) -> None:
    while True:
        await client.ask(request(True, 400, RATE))


async def measure(port: int, ca: Path, session: int, *, streams: int, seconds: float, http2: bool) -> float:
    """Chunks for a second of CPU time."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2" if http2 else "http/1.1"])
    clients: list[Http2Client] = []
    plain: list[Client] = []
    tasks = []
    if http2:
        for _ in range(-(-streams // A_CONNECTION)):
            count = min(A_CONNECTION, streams)
            _, one = await loop.create_connection(
                lambda count=count: Http2Client(count),  # type: ignore[misc]
                "localhost",
                port,
                ssl=context,
            )
            clients.append(one)
    else:
        for _ in range(streams):
            _, old = await loop.create_connection(Client, "localhost", port, ssl=context)
            plain.append(old)
            tasks.append(asyncio.create_task(keep(old)))

    def chunks() -> int:
        return sum(each.chunks for each in clients) + sum(each.sent.chunks for each in plain)

    await asyncio.sleep(2.0)
    before, cpu = chunks(), cpu_seconds(session)
    await asyncio.sleep(seconds)
    per_cpu_second = (chunks() - before) / max(cpu_seconds(session) - cpu, 1e-9)
    for task in tasks:
        task.cancel()
    for each in (*clients, *plain):
        each.transport.abort()
    await asyncio.sleep(0.5)
    return per_cpu_second


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--keep", action="store_true", help="write the figures to benchmarks/results")
    args = parser.parse_args()
    rows = []
    print(f"{'streams':>8}{'HTTP/1.1 chunks/CPU s':>24}{'HTTP/2 chunks/CPU s':>22}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        issued = authority.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        upstream, port = free_port(), free_port()
        engine = [sys.executable, str(HERE / "engine.py"), str(upstream)]
        serve = [sys.executable, str(HERE / "serve.py"), str(port), str(upstream), str(folder)]
        with running(engine, upstream), running(serve, port) as process:
            time.sleep(3.0)  # until it knows its engine
            for streams in args.streams:
                old, new = (
                    uvloop.run(
                        measure(
                            port,
                            folder / "ca.pem",
                            process.pid,
                            streams=streams,
                            seconds=args.seconds,
                            http2=http2,
                        )
                    )
                    for http2 in (False, True)
                )
                print(f"{streams:>8}{old:>24.0f}{new:>22.0f}{new / old:>8.2f}", flush=True)
                rows.append({"streams": streams, "http1": old, "http2": new})
    if args.keep:
        path = Path(__file__).parent / "results" / "gateway_http2.json"
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
