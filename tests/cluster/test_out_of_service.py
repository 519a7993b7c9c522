"""The whole way from a notice to a pod that is out of its Service, in a daemon with a test API server."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kube_api import KubeApi
from kube_api.objects import deployment, pod

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from crash_bench import Mortal
from daemon_fakes import FakeInputs, settings
from fleets import FakeReplica
from rotation_loop import pod as facts

from controlplane.actuators.gateway import GatewayActuator
from controlplane.actuators.pod import PodActuator
from controlplane.commands.actuators import in_cluster
from controlplane.config import Config, parse
from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.handover import Handover
from controlplane.daemon.journal import Journal
from controlplane.daemon.journal_file import Matching
from controlplane.daemon.leader import Alone
from controlplane.daemon.orders import OrderBook
from controlplane.daemon.replay import replay
from controlplane.policy.tick import tick
from controlplane.signals.decision import Hold, Mode
from controlplane.signals.node import NodeFacts
from controlplane.signals.pod import PodFacts, PodNews
from controlplane.signals.samples import Samples
from controlplane.signals.serving import ANNOTATION, GATE, LABEL
from controlplane.sources import kubernetes_pods
from controlplane.sources.kubernetes_pods import Place, Pod
from controlplane.sources.kubernetes_settings import KubernetesSettings

CONFIG = """
pools: {chat: {targets: {kubernetes: {selector: app=vllm}}, limits: {law: none}}}
kubernetes: {lease: null}
scale: {workloads: [{pool: chat, namespace: serving, name: vllm}]}
"""
NAMES = ("r0", "r1", "r2")


class Haste:
    """The clock of the machine, and what a test has skipped of it."""

    skipped = 0.0

    def wall(self) -> float:
        return time.time() + self.skipped

    def steady(self) -> float:
        return time.monotonic() + self.skipped


class Bench:
    def __init__(
        self,
        api: KubeApi,
        daemon: Daemon,
        journal: Journal,
        *,
        cluster: Mortal,
        inputs: FakeInputs,
        haste: Haste,
    ) -> None:
        self.api, self.daemon, self.cluster, self.journal = api, daemon, cluster, journal
        self.inputs, self.haste = inputs, haste
        self.replicas = [FakeReplica(name) for name in NAMES]

    def pods(self) -> dict[str, PodFacts]:
        """As the API server has them."""
        given = [msgspec.convert(one, Pod) for one in self.api.objects("pods")]
        return {one.key: one for one in (kubernetes_pods.facts(one, Place("chat", "http")) for one in given)}

    async def tick(self, pods: dict[str, PodFacts], nodes: dict[str, NodeFacts] | None = None) -> None:
        now = self.haste.wall()
        targets = tuple(
            msgspec.structs.replace(r.target, pod=f"serving/{r.target.name}") for r in self.replicas
        )
        self.inputs.next = Samples(
            targets=targets,
            scrapes=tuple(replica.page(now) for replica in self.replicas),
            pods=PodNews(pods, whole=True),
            node_facts=nodes or {},
        )
        await self.daemon.tick()

    async def settle(self) -> None:
        """Until nothing waits to be carried out, and nothing is under way."""
        quiet = 0
        while quiet < 30:
            await asyncio.sleep(0)
            waits = any(queue.qsize() for queue in self.daemon._dispatch._queues.values())
            quiet = 0 if waits or self.cluster.under_way else quiet + 1

    def label(self, name: str) -> str:
        found: str = self.api.get("pods", name)["metadata"]["labels"][LABEL]
        return found

    def gate(self, name: str) -> str:
        conditions = self.api.get("pods", name)["status"]["conditions"]
        return next((one["status"] for one in conditions if one["type"] == GATE), "")


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - the API server of the test has no event for it
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(
    tmp_path: Path,
    pods: dict[str, PodFacts] | None = None,
    nodes: dict[str, NodeFacts] | None = None,
    **modes: Mode,
) -> AsyncIterator[Bench]:
    async with KubeApi() as api:
        api.create(deployment("vllm", 3))
        api.create(*(pod(name, labels={"app": "vllm", LABEL: "true"}) for name in NAMES))
        async with running_on(api, tmp_path, **modes) as bench:
            await bench.tick(pods or {f"serving/{name}": facts(name) for name in NAMES}, nodes)
            await bench.daemon.start()
            yield bench


@asynccontextmanager
async def running_on(api: KubeApi, tmp_path: Path, **modes: Mode) -> AsyncIterator[Bench]:
    """A daemon that is to be started yet."""
    config: Config = parse(CONFIG, tmp_path / "controlplane.yaml")
    cluster = Mortal(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig")))
    given = settings(tmp_path / "journal.db", modes={name: {"*": mode} for name, mode in modes.items()})
    haste = Haste()
    journal, inputs, clock = Journal(given, tick), FakeInputs(), Clock(0.0, haste.wall, haste.steady)
    leader, gateways = Alone(1), GatewayActuator(())
    book = OrderBook(given.hold_path, given.overrides_path)
    handover = Handover(leader, book)
    made: list[Daemon] = []
    acts = in_cluster(
        config,
        cluster,
        lambda: made[0].snapshot() if made else None,
        leader,
        gateways,
        handover=handover,
        now=clock.now,
    )
    daemon = Daemon(
        Running(config.policy, given, inputs),
        journal,
        book,
        clock=clock,
        tick=tick,
        actuators=acts.actuators,
        leader=leader,
        handover=handover,
        upkeep=acts.upkeep,
    )
    made.append(daemon)
    yield Bench(api, daemon, journal, cluster=cluster, inputs=inputs, haste=haste)
    await daemon.stop()
    await cluster.close()


async def test_a_notice_takes_a_pod_out_and_its_end_lets_it_in(tmp_path: Path) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    async with running(tmp_path, pod=Mode.ENFORCE) as bench:
        await bench.tick(pods, leaving)
        await until(lambda: bench.label("r1") == "false")
        assert bench.api.get("pods", "r1")["metadata"]["annotations"][ANNOTATION].startswith("leaving ")
        assert bench.daemon.status().out == {"r1"}
        await bench.tick(pods)
        await until(lambda: bench.label("r1") == "true")
        await until(lambda: len(bench.api.objects("events.events.k8s.io")) == 2)
        assert [bench.label(name) for name in ("r0", "r2")] == ["true", "true"]
    found = replay(tmp_path / "journal.db", tick)
    assert (found.different, found.first_difference) == (0, "")


async def test_by_default_nothing_is_flipped_but_a_new_pod_with_a_gate_is_let_in(tmp_path: Path) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    async with running(tmp_path) as bench:
        await bench.daemon.hold(Hold(bench.haste.wall(), "ann", "racks"))
        bench.api.create(pod("new", gates=(GATE,)))
        pods["serving/new"] = facts("new", gates=(GATE,), ready=False, loading=True)
        await bench.tick(pods, leaving)
        await until(lambda: bench.gate("new") == "True")
        await bench.daemon.release("ann")
        await bench.tick(pods, leaving)
        await until(lambda: "r1" in {r.name for r in bench.daemon.snapshot().replicas.values() if r.out})
        await asyncio.sleep(0.2)
        assert bench.label("r1") == "true"
        assert bench.daemon.status().out == frozenset()


async def test_an_api_server_that_is_away_flips_nothing_and_what_was_wanted_comes_later(
    tmp_path: Path,
) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    async with running(tmp_path, pod=Mode.ENFORCE) as bench:
        await bench.api.stop()
        await bench.tick(pods, leaving)
        await asyncio.sleep(0.3)
        assert bench.label("r1") == "true"
        await bench.api.start()
        bench.haste.skipped += PodActuator.repeat_seconds
        await until(lambda: bench.label("r1") == "false")


@pytest.mark.parametrize(
    ("how", "seconds"), [({"status": 403}, 60.0), ({"status": 429, "retry_after": 3600}, 300.0)], ids=str
)
async def test_who_asks_to_be_left_alone_or_forbids_it_is_asked_again_later(
    tmp_path: Path, how: dict[str, int], seconds: float
) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    async with running(tmp_path, pod=Mode.ENFORCE) as bench:
        fault = bench.api.fail("patch", "pods", **how)
        await bench.tick(pods, leaving)
        await until(lambda: fault.met == 1)
        for _ in range(20):
            await bench.tick(pods, leaving)
            await bench.settle()
        bench.haste.skipped += seconds
        fault.end()
        await bench.tick(pods, leaving)
        await until(lambda: bench.label("r1") == "false")
        assert bench.api.counts["patch", "pods"] == 2


async def test_a_flip_that_the_server_lost_is_made_again_and_a_persons_is_not_undone(tmp_path: Path) -> None:
    leaving = {"node-1": NodeFacts("node-1", leaving="spot-interruption")}
    async with running(tmp_path, pod=Mode.ENFORCE) as bench:
        bench.api.finish("pods", "r1")
        bench.api.create(pod("r1", node="node-1", labels={"app": "vllm", LABEL: "true"}))

        async def later(nodes: dict[str, NodeFacts]) -> None:
            bench.haste.skipped += PodActuator.repeat_seconds
            await bench.tick(bench.pods(), nodes)

        def is_known() -> bool:
            decisions = bench.journal.decisions(Matching(target="r1"))
            return any(
                one.outcome == "failed: pod serving/r1: somebody has let it in again" for one in decisions
            )

        await later(leaving)
        await until(lambda: bench.label("r1") == "false")
        before = {"metadata": {"labels": {LABEL: "true"}, "annotations": {ANNOTATION: None}}}
        bench.api.patch("pods", "r1", before, manager="etcd")
        await later(leaving)
        await until(lambda: bench.label("r1") == "false")
        bench.api.patch("pods", "r1", {"metadata": {"labels": {LABEL: "true"}}}, manager="kubectl")
        await later(leaving)
        await until(is_known)
        for _ in range(3):
            await later(leaving)
            await bench.settle()
        await later({})
        await until(lambda: ANNOTATION not in bench.api.get("pods", "r1")["metadata"]["annotations"])
        assert (bench.label("r1"), bench.api.counts["patch", "pods"]) == ("true", 3)


async def test_who_begins_after_a_crash_finishes_what_was_begun_and_undoes_what_is_over(
    tmp_path: Path,
) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    async with running(tmp_path, pod=Mode.ENFORCE) as bench:
        fault = bench.api.fail("patch", "pods", hang=True)  # as if it were killed before it wrote
        await bench.tick(pods, leaving)
        await until(lambda: fault.met > 0)
    async with running(
        tmp_path, pods, leaving, pod=Mode.ENFORCE
    ) as bench:  # the journal knows that r1 is out
        await bench.tick(pods, leaving)
        await until(lambda: bench.label("r1") == "false")
    # A leader that was killed before it let r2 in; who comes after it has a journal in which r2 is in.
    pods["serving/r2"] = facts("r2", annotations={ANNOTATION: "wedged 2026"})
    async with running(tmp_path, pods, leaving, pod=Mode.ENFORCE) as bench:
        there = {"metadata": {"labels": {LABEL: "false"}, "annotations": {ANNOTATION: "wedged 2026"}}}
        bench.api.patch("pods", "r2", there)
        await bench.tick(pods, leaving)
        await until(lambda: (bench.label("r1"), bench.label("r2")) == ("false", "true"))


@pytest.mark.parametrize("how", ["reload", "person"])
async def test_the_last_pod_of_its_service_stays_until_another_serves(tmp_path: Path, how: str) -> None:
    pods = {f"serving/{name}": facts(name, labels={LABEL: "true"}) for name in NAMES}
    by_hand = {"metadata": {"labels": {LABEL: "false"}}}
    changes: dict[str, Any] = {"ready": False, "containers_ready": False, "loading": True}
    leaving = {"node-r2": NodeFacts("node-r2", leaving="maintenance")}
    async with running(tmp_path, pods, pod=Mode.ENFORCE) as bench:
        if how == "person":
            changes = {"labels": by_hand["metadata"]["labels"]}
            for name in ("r0", "r1"):
                bench.api.patch("pods", name, by_hand, manager="kubectl")
        before = [bench.label(name) for name in NAMES]
        without = pods | {f"serving/{name}": facts(name, **changes) for name in ("r0", "r1")}
        for _ in range(5):
            await bench.tick(without, leaving)
            await bench.settle()
        assert [bench.label(name) for name in NAMES] == before
        assert before[2] == "true"
        assert bench.daemon.status().out == frozenset()
        await bench.tick(pods, leaving)
        await until(lambda: bench.label("r2") == "false")
    found = replay(tmp_path / "journal.db", tick)
    assert (found.different, found.first_difference) == (0, "")


async def test_who_is_out_is_let_in_where_the_others_stop_serving(tmp_path: Path) -> None:
    pods = {f"serving/{name}": facts(name) for name in NAMES}
    leaving = {"node-r2": NodeFacts("node-r2", leaving="maintenance")}
    async with running(tmp_path, pods, pod=Mode.ENFORCE) as bench:
        await bench.tick(pods, leaving)
        await until(lambda: bench.label("r2") == "false")
        ours = bench.pods()["serving/r2"]
        down = {"ready": False, "containers_ready": False, "loading": True}
        without = {f"serving/{name}": facts(name, **down) for name in ("r0", "r1")}
        without["serving/r2"] = facts("r2", labels=ours.labels, annotations=ours.annotations)
        await bench.tick(without, leaving)
        await until(lambda: bench.label("r2") == "true")
        await bench.tick(without, leaving)
        await bench.settle()
        assert (bench.label("r2"), bench.daemon.status().out) == ("true", frozenset())
