"""A gateway in this event loop, in front of stand-ins, and a client that sees every byte."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standin import StandIn, standing_in

from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.gateway.worker import Setup, Worker
from controlplane.signals.samples import OutcomeWindow
from controlplane.sources.settings import ScrapeSettings, TargetSettings

TOKEN = "let-me-steer"
PATIENT = {"interactive": {"ttft": "10m", "tpot": "1m"}}
"""For admission: nothing is late, and nobody in the queue is given up, on a machine that stands still."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is true; TimeoutError where it never is."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (it looks from outside)
            await asyncio.sleep(0.01)


@dataclass
class Response:
    """What came back. `pieces` are body bytes with the time of their arrival; `cut`: the body has no end."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    cut: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error


class Connection:
    """One connection of a client. Requests go one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, **options: Any) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24, **options))

    def send(
        self,
        body: bytes | Mapping[str, Any] | None,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> None:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: gateway"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(raw)}"]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    async def head(self) -> Response:
        """The head of the next answer."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Response(int(first.split(" ")[1]), headers)

    async def piece(self, response: Response) -> bytes:
        """The next chunk; empty at the end."""
        line = await self.reader.readline()
        size = int(line, 16)
        data = (await self.reader.readexactly(size + 2))[:-2]
        if size:
            response.pieces.append((asyncio.get_running_loop().time(), data))
        return data

    async def answer(self, *, no_body: bool = False) -> Response:
        """The next answer, whole or as much of it as comes."""
        response = await self.head()
        if no_body:
            return response
        try:
            if response.headers.get("transfer-encoding") == "chunked":
                while await self.piece(response):
                    pass
            else:
                length = int(response.headers["content-length"])
                data = await self.reader.readexactly(length)
                response.pieces.append((asyncio.get_running_loop().time(), data))
        except (EOFError, OSError, ValueError):
            response.cut = True
        return response

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Rig:
    """A running gateway."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        public, control = worker.addresses
        self.port = public[1]
        self.control_port = control[1]

    async def ask(
        self,
        body: bytes | Mapping[str, Any] | None,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        *,
        control: bool = False,
    ) -> Response:
        """One request on a connection of its own."""
        connection = await Connection.open(self.control_port if control else self.port)
        try:
            connection.send(body, path, {"connection": "close", **(headers or {})}, method)
            return await asyncio.wait_for(connection.answer(no_body=method == "HEAD"), 60)
        finally:
            connection.close()

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        return await self.ask(None, path, headers, "GET")

    async def control(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Response:
        return await self.ask(body, path, {"authorization": f"Bearer {TOKEN}"}, method, control=True)

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        page = (await self.ask(None, "/metrics", None, "GET", control=True)).body.decode()
        total = 0.0
        for line in page.splitlines():
            is_it = line.startswith(f"controlplane_gateway_{name}") and line[21 + len(name)] in " {"
            if is_it and all(f'{label}="{value}"' in line for label, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    @property
    def replicas(self) -> dict[str, Any]:
        return dict(self.worker.admission.status(self.worker.around.door.now()).replicas)

    def windows(self) -> list[OutcomeWindow]:
        """All of them, the running one included; it is over with this."""
        running = self.worker.admission.windows(self.worker.around.door.now() + 2)
        return [*self.worker._windows.after(0.0), *running]

    async def until_idle(self) -> None:
        await until(lambda: not self.worker.around.exchanges)


def chat(stream: bool = True, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "acme/chat-8b", "stream": stream, "messages": messages, **fields}


@asynccontextmanager
async def gateway(
    *engines: StandIn,
    pools: Mapping[str, Sequence[str]] | None = None,
    wait_ready: bool = True,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A gateway before these engines, or before those that `pools` names by their URLs.

    Engines are in pool `chat` unless `pools` says otherwise.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        token = Path(folder, "token")
        token.write_text(TOKEN)  # noqa: ASYNC240
        control = {
            "listen": "127.0.0.1:0",
            "token": {"file": str(token)},
            "state_file": str(Path(folder, "state.json")),
            **settings.pop("control", {}),
        }
        base = {
            "name": "gw",
            "listen": "127.0.0.1:0",
            "control": control,
            "drain": {"settle": 0, "deadline": "1s"},
            # Longer than a machine stands still: what they do when they are over has tests of its own.
            "hold_headers": "60s",
            "upstream": {"idle": "60s"},
        }
        made = GatewayProcessSettings.model_validate(base | settings)
        async with standing_in(*engines):
            targets = pools or {"chat": [engine.url for engine in engines]}
            found = {name: TargetSettings(static=tuple(urls)) for name, urls in targets.items() if urls}
            scrape = ScrapeSettings.model_validate({"interval": "1s", "timeout": "900ms"})
            worker = Worker(Setup(made, found, scrape, {}))
            await worker.start()
            stack.callback(worker.stop)
            rig = Rig(worker)
            try:
                if wait_ready:
                    await until(
                        lambda: (
                            len(rig.replicas) == sum(map(len, targets.values()))
                            and all(replica.rotation == "in" for replica in rig.replicas.values())
                        )
                    )
                yield rig
            finally:
                worker.stop()
                await asyncio.wait_for(worker.is_stopped.wait(), 60)
