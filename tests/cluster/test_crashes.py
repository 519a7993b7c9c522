"""A leader is killed at each place of an action; another one, with an empty journal, goes on from there."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kube_api import KubeApi
from kube_api.objects import deployment, node, pod

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from crash_bench import One, Site, lead_until_killed, rounds
from fleets import FakeReplica
from quarantine_fleet import Fleet

from controlplane.actuators.call import CallFailedError
from controlplane.actuators.contention import ContentionSettings
from controlplane.actuators.leading import only_while_leading
from controlplane.actuators.scale import ScaleActuator
from controlplane.actuators.settings import ScaleSection, Workload
from controlplane.commands.actuators import cluster_sender
from controlplane.config import parse
from controlplane.policy.memory import Memory
from controlplane.signals import marks
from controlplane.signals.decision import SCALE, Decision, Mode, Orders, Override
from controlplane.signals.node import Placement
from controlplane.signals.pod import PodNews
from controlplane.signals.samples import Samples
from controlplane.signals.serving import ANNOTATION, LABEL
from controlplane.sources import kubernetes_pods
from controlplane.sources.kubernetes_pods import Place, Pod

GPUS = """
pools: {{chat: {{targets: {{kubernetes: {{selector: app=vllm}}}}}}}}
kubernetes: {{nodes: true}}
policy: {{quarantine: {{{}, hold_down: 60s, clear_after: 60s}}}}
"""
LEAVING = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
DECIDED = (0, "decided")
PLACES = [DECIDED, *((number, when) for number in range(1, 4) for when in ("before", "after"))]


def places(number: int) -> list[Any]:
    """So many of them; one is tried always, the others in campaigns."""
    return [
        pytest.param(place, marks=() if place == (1, "after") else pytest.mark.campaign)
        for place in PLACES[:number]
    ]


def named(place: tuple[int, str]) -> str:
    return f"{place[1]}-{place[0]}" if place[0] else place[1]


class Gpus:
    """Eight nodes with GPUs, four of them with an engine, and what a daemon is told of them."""

    def __init__(self, site: Site) -> None:
        self.site, self.fleet = site, Fleet(8, 1, replicas=False)
        self.engines = {f"r{n}": (FakeReplica(f"r{n}"), self.fleet.names[n]) for n in range(4)}
        labels = {"app": "vllm", LABEL: "true"}
        site.api.create(*(node(name) for name in self.fleet.names))
        owner = "ReplicaSet", "vllm-7d9f8b6c5"
        pods = (pod(name, node=on, labels=labels, owner=owner) for name, (_, on) in self.engines.items())
        site.api.create(*pods)

    def samples(self) -> Samples:
        self.fleet.now = self.site.now
        names = self.fleet.names
        pods = [msgspec.convert(one, Pod) for one in self.site.api.objects("pods")]
        facts = [kubernetes_pods.facts(one, Place("chat", "http", None)) for one in pods]
        return Samples(
            targets=tuple(
                msgspec.structs.replace(one.target, pod=f"serving/{name}")
                for name, (one, _) in self.engines.items()
            ),
            scrapes=tuple(one.page(self.site.now) for one, _ in self.engines.values()),
            pods=PodNews({one.key: one for one in facts}, whole=True),
            gpus=tuple(self.fleet.sample(name) for name in names),
            gpu_nodes=tuple(names),
            placements=tuple(
                Placement(name, on, pod=f"serving/{name}") for name, (_, on) in self.engines.items()
            ),
            node_facts=self.site.node_facts(),
        )

    def marked(self) -> list[str]:
        return [
            one["metadata"]["name"]
            for one in self.site.api.objects("nodes")
            if marks.ANNOTATION in (one["metadata"].get("annotations") or {})
        ]

    def label(self, name: str) -> str:
        found: str = self.site.api.get("pods", name)["metadata"]["labels"][LABEL]
        return found

    def writes(self) -> list[str]:
        """Changes of nodes that were carried out."""
        return [
            one.name
            for one in self.site.api.requests
            if (one.verb, one.resource) == ("patch", "nodes") and one.status == 200
        ]


@asynccontextmanager
async def gpus(tmp_path: Path, rules: str) -> AsyncIterator[Gpus]:
    async with KubeApi() as api:
        config = parse(GPUS.format(rules), tmp_path / "controlplane.yaml")
        modes = dict.fromkeys(("gateway", "node", "eviction", "pod"), Mode.ENFORCE)
        yield Gpus(Site(api, tmp_path, config, modes))


@asynccontextmanager
async def alive(*daemons: One) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for one in daemons:
            await one.end()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("place", places(7), ids=named)
async def test_a_node_is_taken_once_and_no_more_than_the_cap(
    tmp_path: Path, place: tuple[int, str], warm: bool
) -> None:
    """Two nodes are broken and one may be out: one is, whoever dies when."""
    async with gpus(tmp_path, "max_per_hour: 8") as bench:
        site = bench.site
        a = site.daemon()
        await rounds(site, [a], bench.samples, 2)
        followers = [site.daemon()] if warm else []
        bench.fleet.show(bench.fleet.names[6], row_remap_failure=1.0)
        bench.fleet.show(bench.fleet.names[7], row_remap_failure=1.0)
        await lead_until_killed(site, a, followers, bench.samples, place)
        b = followers[0] if warm else site.daemon()
        async with alive(b):
            await rounds(site, [b], bench.samples, 30)
            assert b.leader.term is not None
            assert len(bench.marked()) == 1
            assert bench.writes() == bench.marked()
            memory = b.daemon.memory.quarantine
            assert [one.placed for one in memory.quarantines.values()] == [True]
            assert memory.taken


async def test_what_a_follower_wanted_is_not_done_beside_what_the_leader_did(tmp_path: Path) -> None:
    """Each sees another node broken, and one may be out."""
    async with gpus(tmp_path, "max_per_hour: 8") as bench:
        site, one, other = bench.site, bench.fleet.names[6], bench.fleet.names[7]
        a, b = site.daemon(), site.daemon()
        async with alive(b):
            await rounds(site, [a, b], bench.samples, 2)
            bench.fleet.show(other, row_remap_failure=1.0)
            for _ in range(6):
                await rounds(site, [b], bench.samples, 1)
                await a.leader.step()
            bench.fleet.show(other, row_remap_failure=0.0)
            assert list(b.daemon.memory.quarantine.quarantines) == [other]
            bench.fleet.show(one, row_remap_failure=1.0)
            await lead_until_killed(site, a, [b], bench.samples, (3, "after"))
            bench.fleet.show(other, row_remap_failure=1.0)
            await rounds(site, [b], bench.samples, 40)
            assert b.leader.term is not None
            assert (bench.marked(), bench.writes()) == ([one], [one])


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("place", places(7), ids=named)
async def test_the_hourly_budget_outlives_the_leader(
    tmp_path: Path, place: tuple[int, str], warm: bool
) -> None:
    async with gpus(tmp_path, "max_per_hour: 1, max_share: 0.9") as bench:
        site = bench.site
        a = site.daemon()
        await rounds(site, [a], bench.samples, 2)
        followers = [site.daemon()] if warm else []
        bench.fleet.show(bench.fleet.names[6], row_remap_failure=1.0)
        await lead_until_killed(site, a, followers, bench.samples, place)
        bench.fleet.show(bench.fleet.names[7], row_remap_failure=1.0)
        b = followers[0] if warm else site.daemon()
        async with alive(b):
            await rounds(site, [b], bench.samples, 30)
            assert len(bench.writes()) <= 1
            counted = place not in (DECIDED, (1, "before"))
            if not counted or place == (3, "after"):
                assert len(bench.marked()) == 1
            assert len(b.daemon.memory.quarantine.taken) == 1


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("place", places(5), ids=named)
async def test_a_node_is_given_back_once(tmp_path: Path, place: tuple[int, str], warm: bool) -> None:
    async with gpus(tmp_path, "max_per_hour: 8") as bench:
        site, name = bench.site, bench.fleet.names[6]
        a = site.daemon()
        await rounds(site, [a], bench.samples, 2)
        bench.fleet.show(name, row_remap_failure=1.0)
        await rounds(site, [a], bench.samples, 8)
        assert bench.marked() == [name]
        followers = [site.daemon()] if warm else []
        bench.fleet.show(name, row_remap_failure=0.0)
        await a.daemon.override(Override("node", name, "quarantine", "release", "ann", "mended", site.now))
        await lead_until_killed(site, a, followers, bench.samples, place)
        b = followers[0] if warm else site.daemon()
        async with alive(b):
            await rounds(site, [b], bench.samples, 40)
            assert bench.marked() == []
            assert bench.writes() == [name, name], "taken once, given back once"
            assert not site.api.get("nodes", name)["spec"].get("taints")


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("place", places(3), ids=named)
async def test_engines_on_a_broken_node_are_asked_to_leave(
    tmp_path: Path, place: tuple[int, str], warm: bool
) -> None:
    async with gpus(tmp_path, "max_per_hour: 8, evict: true") as bench:
        site, name = bench.site, bench.fleet.names[0]
        a = site.daemon()
        await rounds(site, [a], bench.samples, 2)
        followers = [site.daemon()] if warm else []
        bench.fleet.show(name, row_remap_failure=1.0)
        while not bench.marked():
            await rounds(site, [a, *followers], bench.samples, 1)
        await lead_until_killed(site, a, followers, bench.samples, place)
        b = followers[0] if warm else site.daemon()
        async with alive(b):
            await rounds(site, [b], bench.samples, 30)
            ending = [
                one["metadata"]["name"]
                for one in site.api.objects("pods")
                if one["metadata"].get("deletionTimestamp")
            ]
            assert ending == ["r0"]
            assert bench.writes() == [name]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("way", ["out", "in"])
@pytest.mark.parametrize("place", places(5), ids=named)
async def test_a_pod_is_flipped_once_each_way(
    tmp_path: Path, place: tuple[int, str], way: str, warm: bool
) -> None:
    """The notice is given, and taken back; the leader dies at the first or at the second of it."""
    async with gpus(tmp_path, "max_per_hour: 8") as bench:
        site, on = bench.site, bench.fleet.names[1]

        def labels() -> list[str]:
            return [bench.label(name) for name in bench.engines]

        a = site.daemon()
        await rounds(site, [a], bench.samples, 3)
        followers = [site.daemon()] if warm else []
        await rounds(site, [a, *followers], bench.samples, 2)
        site.api.patch("nodes", on, {"spec": {"taints": [LEAVING]}}, manager="autoscaler")
        if way == "in":
            await rounds(site, [a, *followers], bench.samples, 2)
            assert labels() == ["true", "false", "true", "true"]
            site.api.patch("nodes", on, {"spec": {"taints": None}}, manager="autoscaler")
        await lead_until_killed(site, a, followers, bench.samples, place)
        b = followers[0] if warm else site.daemon()
        async with alive(b):
            await rounds(site, [b], bench.samples, 30)
            if way == "out":
                assert labels() == ["true", "false", "true", "true"]
                site.api.patch("nodes", on, {"spec": {"taints": None}}, manager="autoscaler")
                await rounds(site, [b], bench.samples, 3)
            assert labels() == ["true"] * 4
            assert ANNOTATION not in (site.api.get("pods", "r1")["metadata"].get("annotations") or {})
            done = [one for one in site.api.requests if (one.verb, one.resource) == ("patch", "pods")]
            assert [one.status for one in done] == [200, 200]


class Scaler:
    """What a leader scales with."""

    def __init__(self, site: Site) -> None:
        self.one = site.daemon()
        self.handover = self.one.handover
        workload = Workload(pool="chat", namespace="serving", name="vllm")
        self.actuator = ScaleActuator(
            ScaleSection(workloads=(workload,), contention=ContentionSettings(window="1h", quiet="2h")),
            only_while_leading(cluster_sender(self.one.cluster), self.one.leader.seconds_left),
            lambda: None,
            steady=lambda: site.now,
            contentions=self.handover.contentions,
            stand=self.handover.stand,
        )

    async def lead(self) -> None:
        """Take over what was left, as a tick does it."""
        await self.one.leader.step()
        self.handover.take_over(begins=True)
        self.handover.leave(Orders(), Memory())


SCALE_PLACES = [
    pytest.param((write, number, when), marks=() if (write, number) == (1, 2) else pytest.mark.campaign)
    for write in range(3)
    for number in range(1, 6 - (write > 0))
    for when in ("before", "after")
]
STOPPED = 5  # a look at the count that finds the fight stopped
SCALE_PLACES += [pytest.param((STOPPED, 1, when)) for when in ("before", "after")]


@pytest.mark.parametrize("dies", SCALE_PLACES, ids=str)
async def test_another_writer_is_not_fought_longer_for_a_change_of_leader(
    tmp_path: Path, dies: tuple[int, int, str]
) -> None:
    """Case B5, and a leader that dies at each request of each of the three writes, or once it has stopped:
    there is no fourth."""
    async with KubeApi() as api:
        api.create(deployment("vllm", 4))
        config = parse(GPUS.format("max_per_hour: 1"), tmp_path / "controlplane.yaml")
        site = Site(api, tmp_path, config, {})
        scaler, died, reports = Scaler(site), False, []
        await scaler.lead()
        for number in range(12):
            site.now += 50.0
            scaler.one.cluster.arm(None)
            scaler.handover.leave(Orders(), Memory())
            await scaler.one.leader.step()
            if number == dies[0] and not died:
                scaler.one.cluster.arm(dies[1:])
            decision = Decision(f"{number}-1", site.now, SCALE, "chat", "4", "6", "need", "so")
            task = asyncio.create_task(scaler.actuator.apply(decision))
            await scaler.one.settle()
            if scaler.one.cluster.dead:
                died = True
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await scaler.one.end()
                scaler = Scaler(site)
                await scaler.one.leader.step()
                site.now += 301.0
                await scaler.lead()
                assert scaler.one.leader.term is not None
            elif isinstance(error := (await asyncio.gather(task, return_exceptions=True))[0], Exception):
                assert isinstance(error, CallFailedError)
                reports.append(str(error))
            if api.get("deployments", "vllm")["spec"]["replicas"] != 4:
                api.patch("deployments", "vllm", {"spec": {"replicas": 4}}, manager="argocd")
        assert died
        done = [one for one in api.requests if (one.verb, one.resource) == ("patch", "deployments/scale")]
        assert 1 <= sum(one.status == 200 for one in done) <= 3
        assert reports
        for report in reports:
            assert "another writer changes replicas" in report
            assert "the field manager 'argocd'; nothing is written until the count is left alone" in report
        await scaler.one.end()


async def test_while_the_api_server_is_away_nothing_is_done_and_everything_goes_on_later(
    tmp_path: Path,
) -> None:
    """Ten minutes without it: nobody leads, gateways hear nothing new, nothing is flipped or taken."""
    async with gpus(tmp_path, "max_per_hour: 8") as bench:
        site, name, on = bench.site, bench.fleet.names[6], bench.fleet.names[1]
        a = site.daemon()
        async with alive(a):
            await rounds(site, [a], bench.samples, 3)
            assert a.leader.term is not None
            limits = a.limits()
            assert len(limits) == 4
            assert all(limits.values())
            await site.api.stop()
            before = len(site.api.requests)
            bench.fleet.show(name, row_remap_failure=1.0)
            site.api.patch("nodes", on, {"spec": {"taints": [LEAVING]}}, manager="autoscaler")
            for number in range(20):
                await rounds(site, [a], bench.samples, 1)
                if number == 9:
                    told = len(a.gateway.taken)
            assert a.leader.term is None
            assert len(a.gateway.taken) == told, "who may not lead says nothing"
            assert a.limits() == limits
            assert len(site.api.requests) == before
            assert (bench.marked(), bench.label("r1")) == ([], "true")
            await site.api.start()
            await rounds(site, [a], bench.samples, 6)
            assert a.leader.term is not None
            assert (bench.marked(), bench.label("r1")) == ([name], "false")
            assert len(a.gateway.taken) > told
