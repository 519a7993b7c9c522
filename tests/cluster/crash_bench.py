"""Daemons that die at any request to a test API server, and others that lead after them."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from daemon_fakes import FakeInputs, settings
from gateway_fakes import FakeGateway
from kube_api import KubeApi

from controlplane.actuators.gateway import GatewayActuator, Link
from controlplane.actuators.leading import only_while_leading
from controlplane.commands.actuators import in_cluster
from controlplane.config import Config
from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.handover import Handover
from controlplane.daemon.journal import Journal
from controlplane.daemon.leader import ByLease
from controlplane.daemon.orders import OrderBook
from controlplane.policy.tick import tick
from controlplane.signals.decision import Mode
from controlplane.signals.node import NodeFacts
from controlplane.signals.samples import Samples
from controlplane.sources import kubernetes_nodes
from controlplane.sources.kubernetes_api import Answered, Ask, KubernetesApi, UnreachableError
from controlplane.sources.kubernetes_settings import KubernetesSettings, LeaseSettings

TICK_SECONDS = 30.0
NOON = 1_764_000_000.0


class Mortal(KubernetesApi):
    """A connection whose process dies at one request: number `dies_at[0]` from `arm` on, before it was
    sent or after it was answered. From then on nothing leaves it and nothing comes back."""

    def __init__(self, given: KubernetesSettings) -> None:
        super().__init__(given)
        self.dies_at: tuple[int, str] | None = None
        self.sent = self.under_way = 0
        self.dead = False

    def arm(self, place: tuple[int, str] | None) -> None:
        self.sent, self.dies_at = 0, place

    async def send(self, ask: Ask) -> Answered:
        self.under_way += 1
        self.sent += 1
        number = self.sent
        try:
            await self._die_at(number, "before")
            # However slow the machine: it is by the test's own clock that anything is late.
            answered = await super().send(msgspec.structs.replace(ask, timeout_seconds=60.0))
            await self._die_at(number, "after")
            return answered
        finally:
            self.under_way -= 1

    async def _die_at(self, number: int, when: str) -> None:
        self.dead = self.dead or self.dies_at == (number, when)
        if self.dead:
            await asyncio.Event().wait()


class ByHand(ByLease):
    """A candidate whose steps the test makes, but for one that somebody waits for."""

    async def stands(self) -> None:
        if self.kept != self._keep:
            await self._step()
        await super().stands()

    async def step(self) -> None:
        try:
            await self._step()
            self.trouble = ""
        except UnreachableError as error:
            self.trouble = str(error)


class Site:
    """One cluster, one clock."""

    def __init__(self, api: KubeApi, path: Path, config: Config, modes: dict[str, Mode]) -> None:
        self.api, self.path, self.config, self.modes = api, path, config, modes
        self.now = NOON
        self._numbers = itertools.count()
        api.have_namespace("default")

    def daemon(self) -> "One":
        return One(self, f"d{next(self._numbers)}")

    def node_facts(self) -> dict[str, NodeFacts]:
        nodes = [msgspec.convert(one, kubernetes_nodes.Node) for one in self.api.objects("nodes")]
        return {one.metadata.name: kubernetes_nodes.facts(one, None) for one in nodes}


class One:
    """A daemon with a journal of its own. `samples` are given to its next tick."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        path = site.path / name
        path.mkdir()
        self.cluster = Mortal(KubernetesSettings(kubeconfig=site.api.kubeconfig(path / "kubeconfig")))
        self.leader = ByHand(
            self.cluster,
            LeaseSettings.model_validate({"duration": "5m"}),
            name,
            wall=lambda: site.now,
            steady=lambda: site.now,
        )
        given = settings(path / "journal.db", modes={key: {"*": mode} for key, mode in site.modes.items()})
        self._journal, self._inputs = Journal(given, tick), FakeInputs()
        clock = Clock(0.0, lambda: site.now, lambda: site.now)
        self.gateway = FakeGateway("gw", lambda: site.now)
        link = Link(
            self.gateway.url,
            only_while_leading(self.gateway.send, self.leader.seconds_left),
            lambda: {"Authorization": "Bearer secret"},
        )
        self.gateways = gateways = GatewayActuator([link], None, None, now=clock.now)
        book = OrderBook(given.hold_path, given.overrides_path)
        self.handover = handover = Handover(self.leader, book)
        acts = in_cluster(
            site.config, self.cluster, self._snapshot, self.leader, gateways, handover=handover, now=clock.now
        )
        self.daemon: Daemon | None = None
        self.daemon = Daemon(
            Running(site.config.policy, given, self._inputs),
            self._journal,
            book,
            clock=clock,
            tick=tick,
            actuators=acts.actuators,
            gateways=gateways,
            leader=self.leader,
            handover=handover,
        )

    def _snapshot(self) -> Any:
        return None if self.daemon is None else self.daemon.snapshot()

    async def tick(self, samples: Samples) -> None:
        assert self.daemon is not None
        self._inputs.next = samples
        await self.daemon.tick()

    async def settle(self) -> None:
        """Until nothing is under way, or it is dead."""
        quiet = 0
        while quiet < 30 and not self.cluster.dead:
            await asyncio.sleep(0)
            quiet = 0 if self.cluster.under_way else quiet + 1

    def limits(self) -> dict[str, int | None]:
        """What the gateway was told last."""
        return {one.name: one.limit for one in self.gateway.taken[-1].replicas}

    def acts(self) -> bool:
        """Whether a decision of the last tick waits to be carried out."""
        assert self.daemon is not None
        return any(queue.qsize() for queue in self.daemon._dispatch._queues.values())

    async def end(self) -> None:
        """What the kernel does to a process that was killed: its requests and files are no more."""
        assert self.daemon is not None
        self.cluster.dead = True
        await self.daemon._dispatch.close()
        await self.gateways.close()
        self._journal.close()
        await self.cluster.close()


Samplers = Callable[[], Samples]


async def rounds(site: Site, daemons: list[One], samples: Samplers, times: int) -> None:
    """So many times half a minute passes, and everybody ticks once."""
    for _ in range(times):
        site.now += TICK_SECONDS
        for one in daemons:
            await one.leader.step()
            await one.tick(samples())
            await one.settle()


async def lead_until_killed(
    site: Site, leader: One, followers: list[One], samples: Samplers, place: tuple[int, str]
) -> None:
    """Ticks until the leader acts; it dies at that place of the action. Number 0: decided, nothing sent yet.

    Raises AssertionError where it does not come to that place.
    """
    for _ in range(40):
        site.now += TICK_SECONDS
        leader.cluster.arm(None)
        await leader.leader.step()
        leader.cluster.arm(place)
        await leader.tick(samples())
        if place[0] == 0 and leader.acts():
            leader.cluster.dead = True
        await leader.settle()
        if leader.cluster.dead:
            await leader.end()
            return
        for one in followers:
            await one.leader.step()
            await one.tick(samples())
            await one.settle()
    raise AssertionError(f"the leader never came to {place}")
