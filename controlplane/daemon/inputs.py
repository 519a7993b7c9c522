"""Everything that brings samples, put together: discovery, the poller, Prometheus, the gateways."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Event, Severity
from controlplane.signals.node import Placement
from controlplane.signals.pod import PodNews
from controlplane.signals.probe import ProbeKind, ProbeResult
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Target
from controlplane.sources import catalog
from controlplane.sources.fetch import Client
from controlplane.sources.gateways import Gateways
from controlplane.sources.gpu_settings import GpuSettings
from controlplane.sources.gpu_watch import GpuWatch, LocalWatch
from controlplane.sources.kubernetes_fleet import Cluster
from controlplane.sources.pages import Pages
from controlplane.sources.poller import Poller
from controlplane.sources.prober import Prober
from controlplane.sources.prometheus import PrometheusSource
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.rounds import CALLS_PER_INTERVAL
from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings
from controlplane.sources.targets import Discovery


class InputCounts(NamedTuple):
    """What the sources did since their start; see `Status`."""

    scrapes: dict[str, int]
    missed_scrapes: int
    dropped_samples: int
    probes: Mapping[tuple[ProbeKind, ProbeResult], int] = {}

    def plus(self, other: "InputCounts") -> "InputCounts":
        return InputCounts(
            dict(Counter(self.scrapes) + Counter(other.scrapes)),
            self.missed_scrapes + other.missed_scrapes,
            self.dropped_samples + other.dropped_samples,
            Counter(self.probes) + Counter(other.probes),
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

    async def hear(self) -> None:
        """Read what the gateways have to report."""
        ...

    def doubt(self, models: Mapping[str, str]) -> None:
        """Try these replicas, and no others, with a token of that model, until told otherwise."""
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
        gpus: GpuSettings | None = None,
        local_gpus: Callable[[str], LocalWatch] | None = None,
        cluster: Cluster | None = None,
        known: Sequence[Target] = (),
        placed: Sequence[Placement] = (),
        trial_pools: Collection[str] | None = None,
    ) -> None:
        """`outcomes_after`: gateways' windows that end up to this Unix time are known already.

        `local_gpus` makes what watches the GPUs of this machine, for a node called so. `known` are the
        targets of before, and `placed` says where they ran. `cluster` is opened and closed with the rest.
        Engines of `trial_pools` may be asked for a token (None: of all).
        """
        self._now = now
        self._interval = scrape.interval
        self._client = Client()
        self._pages = Pages(catalog.tick(), scrape.max_body)
        self._poller = Poller(scrape, self._client.get, self._pages.reader_for, wall=now)
        self._prober = Prober(scrape, self._client.send, trial_pools=trial_pools, wall=now)
        self._triable: frozenset[str] | None = frozenset()  # None: as told
        self._cluster = cluster
        self._discovery = Discovery(pools, scrape, cluster=cluster, known=known)
        self._gateways = Gateways(gateways, self._client.get, after=outcomes_after)
        self._prometheus = PrometheusSource(prometheus, catalog.tick(), wall=now) if prometheus else None
        self._asides = [_Aside(self._ask_prometheus)] if prometheus else []
        self._targets: tuple[Target, ...] | None = None
        self._scrapes: list[Scrape | ScrapeFailure] = []  # those that Prometheus made
        self._outcomes: list[OutcomeWindow] = []
        self._events: list[Event] = []
        has_gpus = gpus is not None and (gpus.nodes or gpus.in_cluster)
        self._gpus: GpuWatch | None = None
        if gpus is not None and has_gpus:
            self._gpus = GpuWatch(gpus, self._client.get, local=local_gpus, wall=now)
        self._awaits_gpu_nodes = gpus is not None and gpus.in_cluster
        self._gpu_task: asyncio.Task[None] | None = None
        self._gpu_fleet_told = gpus is None
        self._placements = tuple(placed) or None
        self._unseen: set[str] = set()  # what in the cluster cannot be asked for, as last told
        self._has_looked = False
        # Whoever has left the cluster must not remember its pods.
        self._forget_pods = cluster is None and any(target.pod for target in known)

    async def open(self) -> None:
        await self._client.__aenter__()
        if self._cluster is not None:
            self._cluster.open()
        if self._gpus is not None:
            self._gpu_task = asyncio.create_task(self._gpus.run())

    @property
    def poll_seconds(self) -> float:
        return self._interval / CALLS_PER_INTERVAL

    @property
    def counts(self) -> InputCounts:
        results, missed = Counter(self._poller.counts.results), self._poller.missed_turns
        dropped = self._pages.dropped_samples
        if self._prometheus is not None:
            results.update(self._prometheus.counts.results)
            missed += self._prometheus.counts.skipped
            dropped += self._prometheus.counts.dropped_samples
        return InputCounts(dict(results), missed, dropped, dict(self._prober.counts))

    async def discover(self) -> None:
        if self._cluster is not None and not self._has_looked:
            await self._cluster.first_look()
        self._has_looked = True
        self._look_for_gpu_nodes()
        found = await self._discovery.look(time.monotonic(), self._now())
        self._events.extend(found.events)
        if found.targets is not None:
            self._poller.set_targets(found.targets, time.monotonic())
            self._prober.set_targets(found.targets, time.monotonic())
            self._triable = self._prober.triable
            self._put_targets_together()

    async def poll(self) -> None:
        now = time.monotonic()
        self._poller.poll_due(now)
        self._prober.probe_due(now)
        for aside in self._asides:
            aside.start_if_due(now, self._interval)

    def take(self) -> tuple[Samples, tuple[Event, ...]]:
        cluster = self._cluster
        samples = Samples(
            targets=self._targets,
            scrapes=(*self._poller.take(), *self._scrapes),
            outcomes=tuple(self._outcomes),
            gpus=() if self._gpus is None else self._gpus.take(),
            pods=None if cluster is None else cluster.take_pods(),
            node_facts=None if cluster is None else cluster.take_nodes(),
            probes=self._prober.take(),
            triable=self._triable,
        )
        if self._forget_pods:
            self._forget_pods = False
            samples = msgspec.structs.replace(samples, pods=PodNews(whole=True), node_facts={})
        if not self._gpu_fleet_told and not self._awaits_gpu_nodes:  # also that there are none any more
            self._gpu_fleet_told = True
            samples = msgspec.structs.replace(
                samples, gpu_nodes=() if self._gpus is None else self._gpus.nodes
            )
        if cluster is None or not cluster.unknown or self._discovery.targets:
            places = self._places()
            if places != self._placements:
                self._placements = places
                samples = msgspec.structs.replace(samples, placements=places)
        self._look_at_cluster()
        events = tuple(self._events)
        self._targets = self._triable = None
        self._scrapes.clear()
        self._outcomes.clear()
        self._events.clear()
        return samples, events

    def doubt(self, models: Mapping[str, str]) -> None:
        self._prober.doubt(models)

    def _places(self) -> tuple[Placement, ...]:
        """Where replicas run: as the cluster says, else as the settings do. Those of a pool that it has not
        told of yet run where they did before."""
        known = () if self._gpus is None else self._gpus.placements
        pods = {} if self._cluster is None else self._cluster.pods
        unknown = frozenset() if self._cluster is None else self._cluster.unknown
        before = {place.replica: place for place in self._placements or ()}
        on = ((target.name, pods[target.pod]) for target in self._discovery.targets if target.pod in pods)
        told = {
            name: Placement(name, pod.node, pod=pod.key, owner=pod.owner, image=pod.image)
            for name, pod in on
            if pod.node
        }
        for target in self._discovery.targets:
            if target.pool in unknown and target.name in before:
                told.setdefault(target.name, before[target.name])
        return (*told.values(), *(place for place in known if place.replica not in told))

    def _look_for_gpu_nodes(self) -> None:
        """Ask all GPU nodes that the cluster has; until it has told of them, those of before stand."""
        nodes = None if self._cluster is None or self._gpus is None else self._cluster.gpu_nodes()
        if self._gpus is None or nodes is None:
            return
        if self._gpus.set_nodes(nodes) or self._awaits_gpu_nodes:
            self._gpu_fleet_told = self._awaits_gpu_nodes = False

    def _look_at_cluster(self) -> None:
        """Tell when nodes, or pods that tell of GPUs, cannot be asked for, and when they can again; of the
        pods of pools, discovery tells."""
        troubles = {} if self._cluster is None else self._cluster.troubles
        for what in sorted(self._unseen.symmetric_difference(troubles)):
            trouble, kind = troubles.get(what, ""), "nodes" if what == "nodes" else "gpu-pods"
            kind, severity = (
                (f"{kind}-unseen", Severity.WARNING) if trouble else (f"{kind}-seen", Severity.INFO)
            )
            sentence = f"{what} cannot be asked for: {trouble}" if trouble else f"{what} are seen again"
            self._events.append(Event(self._now(), kind, "cluster", severity, sentence))
        self._unseen = set(troubles)

    async def close(self) -> None:
        for aside in self._asides:
            await aside.stop()
        if self._gpu_task is not None:
            self._gpu_task.cancel()
            await asyncio.gather(self._gpu_task, return_exceptions=True)
        if self._cluster is not None:
            await self._cluster.close()
        if self._prometheus is not None:
            self._prometheus.close()
        await self._poller.close()
        await self._prober.close()
        await self._gateways.close()
        await self._client.__aexit__(None, None, None)

    async def hear(self) -> None:
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
