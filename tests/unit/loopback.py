"""HTTP servers on loopback that misbehave on purpose, in raw asyncio: each answer is bytes, or a script."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Script = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    client_certificate: bool


@dataclass
class Loopback:
    """`answers` by path (without query); a missing one closes the connection without an answer."""

    answers: dict[str, bytes | Script]
    scheme: str = "http"
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                path = first.split()[1]
                certificate = bool(writer.get_extra_info("peercert"))
                self.requests.append(Request(path, headers, certificate))
                answer = self.answers.get(path.partition("?")[0], b"")
                if callable(answer):
                    await answer(writer)
                else:
                    writer.write(answer)
                    await writer.drain()
                if callable(answer) or not _goes_on(answer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


def _goes_on(answer: bytes) -> bool:
    head = answer.partition(b"\r\n\r\n")[0].lower()
    return b"content-length" in head and b"connection: close" not in head


@asynccontextmanager
async def serving(
    answers: dict[str, bytes | Script], *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Loopback]:
    loopback = Loopback(answers, "https" if tls else "http")
    server = await asyncio.start_server(loopback._serve, "127.0.0.1", port, ssl=tls)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()


def ok(body: bytes, *headers: str, kind: str = "text/plain; version=0.0.4") -> bytes:
    """A proper answer."""
    return answer(body, f"Content-Length: {len(body)}", *headers, kind=kind)


def answer(
    body: bytes, *headers: str, status: str = "200 OK", kind: str = "text/plain; version=0.0.4"
) -> bytes:
    """An answer with just these headers, so without a length unless told."""
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
