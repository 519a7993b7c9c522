"""What a cluster tells of the fleet: the pods of each pool, and the nodes, kept up to date by watches."""

import asyncio
from collections.abc import Mapping
from functools import partial

import msgspec

from controlplane.signals.node import NodeFacts
from controlplane.signals.pod import PodFacts, PodNews
from controlplane.sources import kubernetes_nodes, kubernetes_pods
from controlplane.sources.gpu_settings import GpuNodeSettings, GpuSettings
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_mirror import Mirror
from controlplane.sources.kubernetes_nodes import Node
from controlplane.sources.kubernetes_pods import Place, Pod
from controlplane.sources.last_good import Found, Trouble
from controlplane.sources.settings import KubernetesTargets, ScrapeSettings, TargetSettings
from controlplane.sources.urls import engine_url

FIRST_LOOK_SECONDS = 8.0
"""How long the first look waits for the server; after that the pods are taken as they come."""


class Cluster:
    """The pods and nodes of one cluster. `open` it in the event loop; it asks in tasks of its own."""

    def __init__(
        self,
        api: KubernetesApi,
        pools: Mapping[str, TargetSettings],
        scrape: ScrapeSettings,
        *,
        gpus: GpuSettings | None = None,
        nodes: bool = True,
        rack_label: str | None = None,
    ) -> None:
        """Of `pools` those whose targets are in the cluster, and of `gpus` the pods that tell of GPUs.

        `nodes` says whether they are watched too.
        """
        self._pools = {
            name: _Pool(api, name, pool, scrape) for name, pool in pools.items() if pool.kubernetes
        }
        self._nodes = Mirror(api, _nodes_path, partial(_node, rack_label)) if nodes else None
        told_by = {} if gpus is None else {"dcgm": gpus.dcgm_pods, "agent": gpus.agent_pods}
        self._tellers = {
            kind: _pods_mirror(api, targets, Place(kind, "http", targets.port))
            for kind, targets in told_by.items()
            if targets is not None
        }
        self._gpu_nodes: set[str] = set()  # that have had a pod that tells of them
        self._tasks: list[asyncio.Task[None]] = []
        self._pods: dict[str, PodFacts] = {}
        self._told: dict[str, int] | None = None  # the revision of each pool whose pods were taken
        self._told_nodes = -1

    @property
    def pods(self) -> Mapping[str, PodFacts]:
        """All pods as last taken, by "namespace/name"."""
        return self._pods

    @property
    def lists(self) -> int:
        """How often anything has been listed."""
        of_nodes = 0 if self._nodes is None else self._nodes.lists
        pods = (*(pool.mirror for pool in self._pools.values()), *self._tellers.values())
        return of_nodes + sum(mirror.lists for mirror in pods)

    @property
    def unknown(self) -> frozenset[str]:
        """The pools that have not been listed yet: nothing is known of their pods."""
        return frozenset(name for name, pool in self._pools.items() if not pool.mirror.synced.is_set())

    @property
    def troubles(self) -> dict[str, str]:
        """Why "nodes", "dcgm pods", "agent pods" cannot be asked for now, by that; of pools `found` tells."""
        mirrors = {f"{kind} pods": mirror for kind, mirror in self._tellers.items()}
        found = {what: mirror.trouble for what, mirror in mirrors.items()}
        if self._nodes is not None:
            found["nodes"] = self._nodes.trouble
        return {what: trouble for what, trouble in found.items() if trouble}

    def open(self) -> None:
        for name, pool in self._pools.items():
            self._tasks.append(asyncio.create_task(pool.mirror.run(), name=f"pods of {name}"))
        for kind, mirror in self._tellers.items():
            self._tasks.append(asyncio.create_task(mirror.run(), name=f"{kind} pods"))
        if self._nodes is not None:
            self._tasks.append(asyncio.create_task(self._nodes.run(), name="nodes"))

    async def first_look(self) -> None:
        """Return once everything has been listed or has failed to be, and in any case after a while."""
        mirrors = [*(pool.mirror for pool in self._pools.values()), *self._tellers.values()]
        waits = [asyncio.create_task(mirror.tried.wait()) for mirror in mirrors]
        if self._nodes is not None:
            waits.append(asyncio.create_task(self._nodes.tried.wait()))
        if waits:
            _, late = await asyncio.wait(waits, timeout=FIRST_LOOK_SECONDS)
            for wait in late:
                wait.cancel()

    def place(self, pool: str) -> str:
        """Where the targets of a pool come from, in words."""
        return self._pools[pool].words

    def found(self, pool: str) -> tuple[tuple[Found, ...] | Trouble, bool]:
        """The targets of a pool now, or why they are not known; and whether that may be believed if empty."""
        return self._pools[pool].found()

    def take_pods(self) -> PodNews | None:
        """What became of the pods since the last call; None where nothing did, or nothing is known yet.

        A pool that cannot be listed holds up no other one.
        """
        unknown = self.unknown
        told = {name: pool.mirror.revision for name, pool in self._pools.items() if name not in unknown}
        if told == self._told or (unknown and not told):
            return None
        is_first, self._told = self._told is None or told.keys() != self._told.keys(), told
        before, self._pods = self._pods, {}
        for pool in self._pools.values():
            for key, pod in pool.mirror.items.items():
                self._pods.setdefault(key, pod)  # in two pools it counts in the first
        if is_first:  # of a pool: those of before the start that are there no more are gone
            return PodNews(self._pods, whole=True, untold=unknown)
        changed = {key: pod for key, pod in self._pods.items() if before.get(key) != pod}
        return PodNews(changed, frozenset(before.keys() - self._pods.keys()))

    def take_nodes(self) -> dict[str, NodeFacts] | None:
        """All nodes, where any of them has changed since the last call."""
        nodes = self._nodes
        if nodes is None or not nodes.synced.is_set() or nodes.revision == self._told_nodes:
            return None
        self._told_nodes = nodes.revision
        return {facts.name: facts for facts in nodes.items.values()}

    def gpu_nodes(self) -> dict[str, GpuNodeSettings | None] | None:
        """The nodes of whose GPUs pods tell, None for one whose pods are away; None before any is known.

        A node stays until the cluster has it no longer: it has GPUs also while nobody tells of them. Pods of
        one kind that cannot be listed hide none of the other.
        """
        known = {kind: mirror for kind, mirror in self._tellers.items() if mirror.synced.is_set()}
        waits = any(not mirror.tried.is_set() for mirror in self._tellers.values())
        if waits or (self._tellers and not known):
            return None
        found: dict[str, dict[str, str]] = {}
        for kind, mirror in known.items():
            for pod in mirror.items.values():
                if pod.node and pod.url and not pod.is_over:
                    found.setdefault(pod.node, {})[kind] = pod.url
        self._gpu_nodes |= found.keys()
        if self._nodes is None or not self._nodes.synced.is_set():
            self._gpu_nodes = set(found)  # which nodes there are is not known
        elif not self._nodes.trouble:
            self._gpu_nodes &= {facts.name for facts in self._nodes.items.values()}
        return {
            name: GpuNodeSettings.model_validate(found[name]) if name in found else None
            for name in sorted(self._gpu_nodes)
        }

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Pool:
    """The pods of one pool."""

    def __init__(
        self, api: KubernetesApi, name: str, settings: TargetSettings, scrape: ScrapeSettings
    ) -> None:
        targets = settings.kubernetes
        assert targets is not None
        self._scheme, self._path = settings.scheme, settings.path(scrape)
        place = Place(name, settings.scheme, targets.port)
        self.words = f"pods {targets.selector}" + (f" in {targets.namespace}" if targets.namespace else "")
        self.mirror = _pods_mirror(api, targets, place)
        self._found: tuple[Found, ...] = ()
        self._found_at = -1  # the revision that it was made of

    def found(self) -> tuple[tuple[Found, ...] | Trouble, bool]:
        mirror = self.mirror
        if mirror.trouble or not mirror.synced.is_set():
            return Trouble(f"cannot be asked for ({mirror.trouble or 'no answer yet'})"), False
        if self._found_at != mirror.revision:
            self._found_at = mirror.revision
            self._found = tuple(
                Found(engine_url(pod.url, self._scheme, self._path), pod=key)
                for key, pod in sorted(mirror.items.items())
                if pod.url and not pod.is_over
            )
        return self._found, not mirror.doubtful


def _pods_mirror(api: KubernetesApi, targets: KubernetesTargets, place: Place) -> Mirror[PodFacts]:
    async def path() -> str:
        return f"/api/v1/namespaces/{targets.namespace or await api.namespace()}/pods"

    return Mirror(api, path, partial(_pod, place), selector=targets.selector)


async def _nodes_path() -> str:
    return "/api/v1/nodes"


_pods = msgspec.json.Decoder(Pod)
_node_reader = msgspec.json.Decoder(Node)


def _pod(place: Place, raw: bytes | msgspec.Raw) -> PodFacts:
    return kubernetes_pods.facts(_pods.decode(raw), place)


def _node(rack_label: str | None, raw: bytes | msgspec.Raw) -> NodeFacts:
    return kubernetes_nodes.facts(_node_reader.decode(raw), rack_label)
