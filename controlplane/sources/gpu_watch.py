"""Asks every GPU node's sources: exporters once an interval, evenly spread; agents as soon as they have news,
and so the watch on this machine's own GPUs.

Everything happens on the running event loop. What came is taken with `take`; a source that nobody takes from
keeps its newest sample and the one before it, so that a stalled tick costs memory of two and not of many.
"""

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from controlplane.signals.gpu import NodeBlind, NodeSample
from controlplane.signals.node import Placement
from controlplane.signals.reading import Reason
from controlplane.sources.answer import Bad, cut, judge
from controlplane.sources.dcgm import SOURCE, DcgmReader
from controlplane.sources.fetch import METRICS, Errand, Failed, Fetch
from controlplane.sources.gpu_settings import GpuNodeSettings, GpuSettings
from controlplane.sources.node_agent import WAIT_SECONDS, NodeAgent
from controlplane.sources.secrets import Credentials

_MOST_BYTES = 8 * 1024 * 1024
_KEPT = 2
_AT_ONCE = 64  # pages of exporters under way at once
_RETRY_SECONDS = 2.0  # after an agent that could not be asked


class LocalWatch(Protocol):
    """What looks at this machine's GPUs, once `run`; `version` grows with all that there is to say."""

    @property
    def version(self) -> int: ...

    async def run(self) -> None: ...

    async def changed(self, after: int, seconds: float) -> None:
        """Returns when there is something newer than version `after`, at the latest after so many seconds."""

    def sample(self) -> NodeSample: ...


class GpuWatch:
    """All GPU nodes, of the settings and of a cluster. Call `run`; cancel it to stop.

    `local` makes what watches this machine's GPUs, for a node called so.
    """

    def __init__(
        self,
        settings: GpuSettings,
        fetch: Fetch,
        *,
        local: Callable[[str], LocalWatch] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._fetch = fetch
        self._local = local
        self._wall = wall
        self._came: dict[tuple[str, str], list[NodeSample]] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._nodes: dict[str, GpuNodeSettings | None] = dict(settings.nodes)
        self._group: asyncio.TaskGroup | None = None
        self._asked: dict[tuple[str, str, str], asyncio.Task[None]] = {}  # by node, kind and URL

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes that should be there."""
        return tuple(self._nodes)

    def set_nodes(self, told: Mapping[str, GpuNodeSettings | None]) -> bool:
        """The nodes that a cluster tells of, None where their source is away; whether there are others now.

        What the settings say of a node counts more.
        """
        before, self._nodes = self._nodes, {**told, **self._settings.nodes}
        self._ask_these()
        return before.keys() != self._nodes.keys()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Where replicas run, as far as the settings say."""
        return tuple(
            Placement(replica, name, node.gpus.get(replica, ()))
            for name, node in self._settings.nodes.items()
            for replica in node.replicas
        )

    def take(self) -> tuple[NodeSample, ...]:
        """What came since the last call, in order for each source."""
        came, self._came = self._came, {}
        return tuple(sample for samples in came.values() for sample in samples)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            self._ask_these()
            await asyncio.Event().wait()

    def _ask_these(self) -> None:
        """Have a task for each source that there is, and none for those that are gone."""
        if self._group is None:
            return
        wanted = {
            (name, kind, url): ask
            for name, node in self._nodes.items()
            if node is not None
            for kind, url, ask in (
                ("dcgm", node.dcgm, self._poll),
                ("agent", node.agent, self._listen),
                ("local", "" if node.local else None, self._look),
            )
            if url is not None
        }
        for gone in self._asked.keys() - wanted.keys():
            self._asked.pop(gone).cancel()
        for key in wanted.keys() - self._asked.keys():
            name, kind, url = key
            task = self._group.create_task(wanted[key](name, url), name=f"{kind} {name}")
            self._asked[key] = task

    async def _poll(self, name: str, url: str) -> None:
        """One exporter, at its turn of each interval."""
        settings = self._settings
        reader = DcgmReader(name)
        errand = Errand(METRICS, settings.timeout, _MOST_BYTES, "gzip", settings.auth, settings.tls)
        loop = asyncio.get_running_loop()
        phase = zlib.crc32(name.encode()) / 2**32 * settings.interval
        due = loop.time() + (phase if len(self._nodes) > _AT_ONCE else 0.0)
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            async with self._room:
                answer = await self._fetch(url, errand)
            at = self._wall()
            if isinstance(answer, Failed):
                self._put(NodeBlind(name, SOURCE, at, Reason.SCRAPE_FAILED, answer.detail))
            else:
                page = judge(answer.status, answer.headers, answer.body, limit_bytes=_MOST_BYTES)
                if isinstance(page, Bad):
                    self._put(NodeBlind(name, SOURCE, at, page.reason, page.detail))
                elif why := cut(page.body, answer.headers):
                    self._put(NodeBlind(name, SOURCE, at, Reason.SCRAPE_FAILED, why))
                else:
                    self._put(reader.read(page.body, at))
            due = max(due + settings.interval, loop.time())

    async def _listen(self, name: str, url: str) -> None:
        """One agent, again and again: it holds its answer back until there is news."""
        settings = self._settings
        auth = None if settings.agent_token is None else Credentials(bearer=settings.agent_token)
        errand = Errand("application/json", settings.timeout, _MOST_BYTES, auth=auth, tls=settings.tls)
        agent = NodeAgent(name, url, errand, self._fetch, wall=self._wall)
        while True:
            sample = await agent.read()
            self._put(sample)
            if isinstance(sample, NodeBlind):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self, name: str, _: str) -> None:
        """This machine's own GPUs."""
        assert self._local is not None, "whoever makes a watch for a local node gives it the means"
        watch = self._local(name)
        running, version = asyncio.create_task(watch.run()), -1
        try:
            while True:
                await watch.changed(version, WAIT_SECONDS)
                version = watch.version
                self._put(watch.sample())
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _put(self, sample: NodeSample) -> None:
        kept = self._came.setdefault((sample.node, sample.source), [])
        kept.append(sample)
        del kept[:-_KEPT]
