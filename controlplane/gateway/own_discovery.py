"""Where the engines are, found by the gateway itself: only while nobody steers it."""

import time
from collections.abc import Mapping

from controlplane.signals.decision import Event
from controlplane.signals.samples import Target
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_fleet import Cluster
from controlplane.sources.kubernetes_settings import KubernetesSettings
from controlplane.sources.settings import ScrapeSettings, TargetSettings
from controlplane.sources.targets import Discovery


class OwnDiscovery:
    """Looks where the settings say. A cluster is watched from the first look on, until `rest`."""

    def __init__(
        self,
        pools: Mapping[str, TargetSettings],
        scrape: ScrapeSettings,
        kubernetes: KubernetesSettings | None,
    ) -> None:
        """`kubernetes` is needed where any pool is in a cluster."""
        self._pools, self._scrape, self._kubernetes = pools, scrape, kubernetes
        self._in_cluster = {name for name, pool in pools.items() if pool.kubernetes is not None}
        self._discovery = Discovery(pools, scrape)
        self._api: KubernetesApi | None = None
        self._cluster: Cluster | None = None

    async def look(
        self, known: tuple[Target, ...] = ()
    ) -> tuple[tuple[Target, ...] | None, tuple[Event, ...]]:
        """The targets, and what is to be told.

        Of the `known` ones those of pools that the cluster has not told of yet stand, or a daemon and an API
        server that are away together would empty the gateway. None while it has told of none at all.
        """
        if self._cluster is None and self._in_cluster:
            assert self._kubernetes is not None
            self._api = KubernetesApi(self._kubernetes)
            self._cluster = Cluster(self._api, self._pools, self._scrape, nodes=False)
            self._discovery = Discovery(self._pools, self._scrape, cluster=self._cluster)
            self._cluster.open()
            await self._cluster.first_look()
        found = await self._discovery.look(time.monotonic(), time.time())
        unknown = frozenset() if self._cluster is None else self._cluster.unknown
        if known and unknown and unknown == self._in_cluster:
            return None, found.events
        stay = {target.name: target for target in known if target.pool in unknown}
        targets = stay | {target.name: target for target in self._discovery.targets}
        return tuple(targets.values()), found.events

    async def rest(self) -> None:
        """Watch nothing."""
        cluster, api = self._cluster, self._api
        self._cluster = self._api = None
        if cluster is not None:
            await cluster.close()
        if api is not None:
            await api.close()
