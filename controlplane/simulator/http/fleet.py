"""Several simulated vLLM servers on consecutive ports of one process, and the exporter of their node."""

import asyncio
from math import inf

import msgspec
from aiohttp import web

from controlplane.simulator.constants import engine_model
from controlplane.simulator.http import dcgm
from controlplane.simulator.http.dcgm import gpu_facts
from controlplane.simulator.http.listener import Listener
from controlplane.simulator.http.replica import Replica, Spec


class FleetSettings(msgspec.Struct, frozen=True):
    """What is served: `replicas` engines of one kind. None means the engine model's own value.

    At a `speed` of 2 an engine takes half as long for everything. `kv_tokens` is how many tokens its KV
    cache holds. With a `dcgm_port` the exporter's page of all GPUs stands there, restarts or not.
    """

    engine: str
    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    speed: float = 1.0
    model: str | None = None
    max_model_len: int | None = None
    kv_tokens: int | None = None
    max_num_seqs: int | None = None
    dcgm_port: int | None = None
    seed: int = 0


def spec(settings: FleetSettings) -> Spec:
    """What its replicas are. Raises ValueError for an unknown engine, or options that vLLM would refuse."""
    model = engine_model(settings.engine)
    if not 0.0 < settings.speed < inf:
        raise ValueError(f"speed must be over 0 (got {settings.speed})")
    options: dict[str, int] = {}
    if settings.max_model_len is not None:
        options["max_model_len"] = settings.max_model_len
    if settings.max_num_seqs is not None:
        options["max_num_seqs"] = settings.max_num_seqs
        options["max_num_batched_tokens"] = max(model.max_num_batched_tokens, settings.max_num_seqs)
    if settings.kv_tokens is not None:
        block = model.settings.block_size
        options["num_gpu_blocks"] = -(-settings.kv_tokens // block) + 1  # one is never handed out
    return Spec(
        model=settings.model or settings.engine,
        law=model.law.slowed(1.0 / settings.speed),
        settings=msgspec.structs.replace(model.settings, **options),
        gpus=gpu_facts()[settings.engine],
        seed=settings.seed,
        node=f"simulated-{settings.port}",  # so that no two fleets here have the same GPUs
    )


class Fleet:
    """The servers; `async with` it from start to stop. Raises OSError where a port cannot be opened."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self.spec = spec(settings)
        self.listeners: list[Listener] = []
        self._exporter: web.AppRunner | None = None

    @property
    def urls(self) -> list[str]:
        return [listener.url for listener in self.listeners]

    async def __aenter__(self) -> "Fleet":
        settings = self._settings
        try:
            for index in range(settings.replicas):
                port = settings.port + index if settings.port else 0
                listener = Listener(Replica(self.spec, index), settings.host, port)
                self.listeners.append(listener)
                await listener.start()
            if settings.dcgm_port is not None:
                await self._start_exporter(settings.dcgm_port)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End all servers."""
        await asyncio.gather(*(listener.stop() for listener in self.listeners))
        if self._exporter is not None:
            await self._exporter.cleanup()

    async def _start_exporter(self, port: int) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._dcgm)
        self._exporter = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._exporter.setup()
        await web.TCPSite(self._exporter, self._settings.host, port).start()

    async def _dcgm(self, _: web.Request) -> web.StreamResponse:
        gpus = [listener.replica.gpus() for listener in self.listeners]
        page = dcgm.page(gpus, self.spec.node)
        return web.Response(body=page, headers={"Content-Type": dcgm.CONTENT_TYPE})
