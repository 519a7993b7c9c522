"""Everything that brings samples, put together: discovery, the poller, Prometheus, the gateways."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Event
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Target
from controlplane.sources import catalog
from controlplane.sources.fetch import Client
from controlplane.sources.gateways import Gateways
from controlplane.sources.pages import Pages
from controlplane.sources.poller import CALLS_PER_INTERVAL, Poller
from controlplane.sources.prometheus import PrometheusSource
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings
from controlplane.sources.targets import Discovery


class InputCounts(NamedTuple):
    """What the sources did since their start; see `Status`."""

    scrapes: dict[str, int]
    missed_scrapes: int
    dropped_samples: int

    def plus(self, other: "InputCounts") -> "InputCounts":
        return InputCounts(
            dict(Counter(self.scrapes) + Counter(other.scrapes)),
            self.missed_scrapes + other.missed_scrapes,
            self.dropped_samples + other.dropped_samples,
        )


class Inputs(Protocol):
    """What the daemon takes samples from. All methods are called in the event loop."""

    @property
    def poll_seconds(self) -> float:
        """How often `poll` is to be called."""
        ...

    @property
    def counts(self) -> InputCounts: ...

    async def discover(self) -> None:
        """Look which targets there are."""
        ...

    async def poll(self) -> None:
        """Start what is due; waits for none of it."""
        ...

    def take(self) -> tuple[Samples, tuple[Event, ...]]:
        """All samples, and all that is to be told, since the last call. `orders` is not theirs."""
        ...

    async def close(self) -> None: ...


class FleetInputs:
    """The inputs of a real fleet. Open it before use, in the event loop; `now` gives Unix seconds.

    A target that we scrape ourselves and that Prometheus knows too is the same engine: ours counts.
    """

    def __init__(
        self,
        pools: dict[str, TargetSettings],
        scrape: ScrapeSettings,
        prometheus: PrometheusSettings | None,
        gateways: tuple[GatewaySettings, ...],
        *,
        outcomes_after: float,
        now: Callable[[], float],
    ) -> None:
        """`outcomes_after`: gateways' windows that end up to this Unix time are known already."""
        self._now = now
        self._interval = scrape.interval
        self._client = Client()
        self._pages = Pages(catalog.tick(), scrape.max_body)
        self._poller = Poller(scrape, self._client.get, self._pages.reader_for, wall=now)
        self._discovery = Discovery(pools, scrape)
        self._gateways = Gateways(gateways, self._client.get, after=outcomes_after)
        self._prometheus = PrometheusSource(prometheus, catalog.tick(), wall=now) if prometheus else None
        self._asides = [_Aside(self._read_gateways)] if gateways else []
        self._asides += [_Aside(self._ask_prometheus)] if prometheus else []
        self._targets: tuple[Target, ...] | None = None
        self._scrapes: list[Scrape | ScrapeFailure] = []  # those that Prometheus made
        self._outcomes: list[OutcomeWindow] = []
        self._events: list[Event] = []

    async def open(self) -> None:
        await self._client.__aenter__()

    @property
    def poll_seconds(self) -> float:
        return self._interval / CALLS_PER_INTERVAL

    @property
    def counts(self) -> InputCounts:
        counts = self._poller.counts
        results, missed, dropped = Counter(counts.results), counts.missed_turns, self._pages.dropped_samples
        if self._prometheus is not None:
            results.update(self._prometheus.counts.results)
            missed += self._prometheus.counts.skipped
            dropped += self._prometheus.counts.dropped_samples
        return InputCounts(dict(results), missed, dropped)

    async def discover(self) -> None:
        found = await self._discovery.look(time.monotonic(), self._now())
        self._events.extend(found.events)
        if found.targets is not None:
            self._poller.set_targets(found.targets, time.monotonic())
            self._put_targets_together()

    async def poll(self) -> None:
        now = time.monotonic()
        self._poller.poll_due(now)
        for aside in self._asides:
            aside.start_if_due(now, self._interval)

    def take(self) -> tuple[Samples, tuple[Event, ...]]:
        samples = Samples(
            targets=self._targets,
            scrapes=(*self._poller.take(), *self._scrapes),
            outcomes=tuple(self._outcomes),
        )
        events = tuple(self._events)
        self._targets = None
        self._scrapes.clear()
        self._outcomes.clear()
        self._events.clear()
        return samples, events

    async def close(self) -> None:
        for aside in self._asides:
            await aside.stop()
        if self._prometheus is not None:
            self._prometheus.close()
        await self._poller.close()
        await self._client.__aexit__(None, None, None)

    async def _read_gateways(self) -> None:
        windows, events = await self._gateways.read(self._now())
        self._outcomes.extend(windows)
        self._events.extend(events)

    async def _ask_prometheus(self) -> None:
        assert self._prometheus is not None
        round_ = await self._prometheus.poll()
        self._events.extend(round_.events)
        if round_.targets is not None:
            self._put_targets_together()
        ours = {target.name for target in self._discovery.targets}
        self._scrapes.extend(scrape for scrape in round_.scrapes if scrape.target not in ours)

    def _put_targets_together(self) -> None:
        ours = self._discovery.targets
        names = {target.name for target in ours}
        theirs = self._prometheus.targets if self._prometheus is not None else ()
        self._targets = (*ours, *(target for target in theirs if target.name not in names))


class _Aside:
    """Something that is asked once an interval and may take its time, beside the polling."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[None] | None = None
        self._started = float("-inf")

    def start_if_due(self, now: float, interval_seconds: float) -> None:
        """Ask, unless that has been done within the interval or is under way. Raises what went wrong."""
        if self._task is not None and self._task.done():
            ended, self._task = self._task, None
            ended.result()  # what it raised is told like any failure of a job
        if self._task is None and now - self._started >= interval_seconds:
            self._started = now
            self._task = asyncio.create_task(self._ask())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def outcomes_until(memory: Memory, settings: PolicySettings, now: float) -> float:
    """The Unix time up to which `memory`, which keeps the last of them, knows the gateways' windows.

    Never one after `now`: where our clock was wrong, theirs need not have been.
    """
    ends = (window.end for pool in memory.pools.values() for window in pool.outcomes)
    return min(now, max(ends, default=memory.now - settings.window))
