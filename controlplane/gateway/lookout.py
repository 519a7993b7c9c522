"""Looks at engines: what they serve, always; and alone also where they are and how loaded they are.

`/v1/models` of each replica is asked every LOOK_SECONDS, of one that has not answered yet more often. While
the daemon steers, discovery is its business, and so are scrapes as long as it tells the limits of all
replicas; when its messages lapse both begin here.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from controlplane.gateway.admission.replica import ReplicaReading
from controlplane.gateway.fleet import Fleet, Where
from controlplane.gateway.model_list import read_cards
from controlplane.gateway.own_discovery import OwnDiscovery
from controlplane.signals.decision import Event, Severity
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources import catalog
from controlplane.sources.fetch import Client, Errand, Failed
from controlplane.sources.kubernetes_settings import KubernetesSettings
from controlplane.sources.pages import Pages
from controlplane.sources.poller import Poller
from controlplane.sources.rounds import CALLS_PER_INTERVAL
from controlplane.sources.secrets import Credentials
from controlplane.sources.settings import ScrapeSettings, TargetSettings, TlsSettings

LOOK_SECONDS = 30.0
_FIRST_LOOK_SECONDS = 2.0
_TIMEOUT_SECONDS = 5.0
_MAX_MODELS_BYTES = 4 << 20
_DISCOVER_SECONDS = 5.0
_AT_ONCE = 64
_MOST_PAGES = 10_000  # that wait for the law, which takes them every second
_log = logging.getLogger(__name__)

Told = Callable[[list[ReplicaReading]], None]


class Lookout:
    """One process's eyes. `changed` is called when replicas or their state may have changed, `told` with new
    readings (times of the loop)."""

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[str, TargetSettings],
        scrape: ScrapeSettings,
        auth: Credentials | None,
        tls: TlsSettings,
        *,
        changed: Callable[[], None],
        told: Told,
        kubernetes: KubernetesSettings | None = None,
    ) -> None:
        self._fleet = fleet
        self._changed = changed
        self._told = told
        self._interval = scrape.interval
        self._client = Client()
        self._errand = Errand("application/json", _TIMEOUT_SECONDS, _MAX_MODELS_BYTES, auth=auth, tls=tls)
        self._poller = Poller(scrape, self._client.get, Pages(catalog.tick(), scrape.max_body).reader_for)
        self._discovery = OwnDiscovery(pools, scrape, kubernetes)
        self._look_at: dict[str, float] = {}
        self._why: dict[str, str] = {}  # a replica has not said what it serves, as it was logged
        self._look_now = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._scraped: tuple[Target, ...] = ()
        self._pages: deque[Scrape | ScrapeFailure] = deque(maxlen=_MOST_PAGES)
        self.is_alone = True
        self.scrapes = True
        self.has_discovered = False  # alone: which replicas there are

    def take_pages(self) -> tuple[Scrape | ScrapeFailure, ...]:
        """What was scraped since the last call, failures included."""
        pages = tuple(self._pages)
        self._pages.clear()
        return pages

    async def run(self) -> None:
        """Look until cancelled."""
        async with self._client:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._discover())
                    tasks.create_task(self._scrape())
                    tasks.create_task(self._look())
            finally:
                await self._poller.close()
                await self._discovery.rest()

    async def _discover(self) -> None:
        while True:
            if self.is_alone:
                targets, events = await self._discovery.look(self._fleet.targets())
                _tell(events)
                if self.is_alone and targets is not None:  # still, after the wait
                    self.has_discovered = True
                    self._fleet.set_targets(targets, self._loop.time())
                    self._changed()
                    self._look_now.set()
            else:
                await self._discovery.rest()
            await asyncio.sleep(_DISCOVER_SECONDS)

    async def _scrape(self) -> None:
        while True:
            if self.scrapes:
                targets = self._fleet.targets()
                if targets != self._scraped:
                    self._scraped = targets
                    self._poller.set_targets(targets, time.monotonic())
                self._poller.poll_due(time.monotonic())
            readings = []
            for result in self._poller.take():
                if self.scrapes:
                    self._pages.append(result)
                if isinstance(result, Scrape):
                    at = result.at - time.time() + self._loop.time()
                    reading = self._fleet.took_scrape(result, at)
                    if reading is not None:
                        readings.append(reading)
            if readings and self.is_alone:
                self._told(readings)
            await asyncio.sleep(self._interval / CALLS_PER_INTERVAL)

    async def _look(self) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        while True:
            now = self._loop.time()
            due = [where for where in self._fleet.to_look_at() if now >= self._look_at.get(where.name, 0.0)]
            if due:
                await asyncio.gather(*(self._ask(where, gate) for where in due))
                self._changed()
            there = {where.name for where in self._fleet.to_look_at()}
            self._look_at = {name: at for name, at in self._look_at.items() if name in there}
            self._why = {name: why for name, why in self._why.items() if name in there}
            self._look_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._look_now.wait()

    async def _ask(self, where: Where, gate: asyncio.Semaphore) -> None:
        parts = urlsplit(where.url)
        async with gate:
            answer = await self._client.get(f"{parts.scheme}://{parts.netloc}/v1/models", self._errand)
        cards = None if isinstance(answer, Failed) else read_cards(answer.body)
        now = self._loop.time()
        if cards:
            self._fleet.took_models(where.name, cards, now)
        known = bool(cards) or self._fleet.has_answered(where.name)
        if not known:
            self._tell_why(where, answer.detail if isinstance(answer, Failed) else "it names no model")
        self._look_at[where.name] = now + (
            LOOK_SECONDS if cards else _FIRST_LOOK_SECONDS * (4 if known else 1)
        )

    def _tell_why(self, where: Where, why: str) -> None:
        """Say once why it gets no request; it may be that it does not take our key."""
        if self._why.get(where.name) != why:
            self._why[where.name] = why
            _log.warning(f"{where.name} gets no requests until it says what it serves: {why}")


def _tell(events: Iterable[Event]) -> None:
    for event in events:
        level = logging.WARNING if event.severity is Severity.WARNING else logging.INFO
        _log.log(level, event.sentence, extra={"fields": {"kind": event.kind, "target": event.target}})
