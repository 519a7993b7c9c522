"""A client of HTTP/2 that does what a test says, frame by frame; and TLS for the gateway."""

import asyncio
import json
import ssl
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trustme
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes


class Tls:
    """A certificate for loopback: `settings` for a gateway, `context` for its clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        self.ca_file = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca_file)
        self.settings = {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}

    def context(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if protocols:
            context.set_alpn_protocols(protocols)
        return context


class H2Client:
    """`windows`: whether it opens its windows as it reads. What came is kept by stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, windows: bool) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.writer = writer
        self._reader = reader
        self._windows = windows
        self.heads: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaway: ConnectionTerminated | None = None
        self.is_closed = False
        self._news = asyncio.Event()
        self.h2.initiate_connection()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, port: int, tls: Tls, *, windows: bool = True, window: int | None = None
    ) -> "H2Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls.context("h2"))
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        client = cls(reader, writer, windows)
        if window is not None:
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
            client.h2.increment_flow_control_window(1 << 28)
        client.flush()
        return client

    def ask(
        self,
        body: Mapping[str, Any] | bytes | None,
        path: str = "/v1/chat/completions",
        *more: tuple[str, str],
        method: str = "POST",
        end: bool = True,
    ) -> int:
        """Begin a request; returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":path", path), (":authority", "localhost")]
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.h2.send_headers(stream, [*head, *more], end_stream=raw is None and end)
        if raw is not None:
            self.h2.send_data(stream, raw, end_stream=end)
        self.flush()
        return stream

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def reset(self, stream: int) -> None:
        self.h2.reset_stream(stream, 8)
        self.flush()

    def status(self, stream: int) -> int:
        return int(self.heads[stream][":status"])

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def answer(self, stream: int) -> bytes:
        """The whole body of a stream that ends well."""
        await self.until(lambda: stream in self.ended or stream in self.resets or self.is_closed)
        assert stream in self.ended, (self.resets, self.goaway)
        return bytes(self.bodies[stream])

    async def close(self) -> None:
        self.writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                for event in self.h2.receive_data(data):
                    self._note(event)
                self.flush()
                self._news.set()
        except OSError:
            pass
        finally:
            self.is_closed = True
            self._news.set()

    def _note(self, event: Any) -> None:
        match event:
            case ResponseReceived():
                self.heads[event.stream_id] = dict(event.headers)
            case DataReceived():
                self.bodies[event.stream_id] += event.data
                if self._windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                self.resets[event.stream_id] = int(event.error_code)
            case ConnectionTerminated():
                self.goaway = event
