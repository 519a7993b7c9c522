"""Rolling updates of the Deployments that we ship while no daemon runs, by label and by readiness gate."""

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from kube_api import KubeApi
from kube_api.objects import pod

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import shipped
from fleets import FakeReplica
from test_out_of_service import Bench, running_on, until

from controlplane.signals.decision import Mode
from controlplane.signals.node import NodeFacts
from controlplane.signals.serving import GATE, LABEL

ENGINES = [
    one for one in shipped.of_kind("Deployment") if LABEL in one["spec"]["template"]["metadata"]["labels"]
]
LEAVING = {"node-old-1": NodeFacts("node-old-1", leaving="spot-interruption")}


class Rollout:
    """What a cluster does of itself: kubelets tell who is ready, the Deployment's controller makes new pods
    and ends old ones, within its strategy, and the Service has those that are ready and fit its selector."""

    def __init__(self, api: KubeApi, deployment: dict[str, Any], gates: tuple[str, ...] = ()) -> None:
        name, spec = deployment["metadata"]["name"], deployment["spec"]
        (service,) = (one for one in shipped.of_kind("Service") if one["metadata"]["name"] == name)
        self.api, self._gates = api, gates
        self._labels, self._service = spec["template"]["metadata"]["labels"], service["spec"]["selector"]
        assert not spec["selector"]["matchLabels"].items() - self._labels.items()
        assert LABEL not in spec["selector"]["matchLabels"], "a pod that is out would be replaced"
        self._strategy, self._size = spec["strategy"]["rollingUpdate"], 3
        self._numbers = itertools.count(1)
        for _ in range(self._size):
            self._make("old")

    def names(self, revision: str = "") -> list[str]:
        return sorted(
            one["metadata"]["name"]
            for one in self.api.objects("pods")
            if one["metadata"]["name"].startswith(revision)
        )

    def endpoints(self) -> list[str]:
        selected = {
            one["metadata"]["name"]
            for one in self.api.objects("pods")
            if self._service.items() <= one["metadata"]["labels"].items()
        }
        return sorted(selected.difference(self.unready()))

    def unready(self) -> list[str]:
        self._look()
        return [name for name in self.names() if not self._is_ready(name)]

    def step(self) -> None:
        """One round of the controller."""
        least = self._size - self._strategy["maxUnavailable"]
        while (
            len(self.names()) < self._size + self._strategy["maxSurge"]
            and len(self.names("new")) < self._size
        ):
            self._make("new")
        unready = self.unready()
        room = len(self.names()) - least - len(set(unready).intersection(self.names("new")))
        for name in sorted(self.names("old"), key=lambda name: name not in unready)[: max(0, room)]:
            self.api.finish("pods", name)

    def _look(self) -> None:
        """The kubelets: a pod is ready once its containers are, at once here, and its gates are open."""
        for name in self.names():
            conditions = self.api.get("pods", name)["status"]["conditions"]
            open_ = {one["type"] for one in conditions if one["status"] == "True"}
            ready = {"type": "Ready", "status": str(open_.issuperset(self._gates))}
            others = [one for one in conditions if one["type"] != "Ready"]
            status = {"status": {"conditions": [*others, ready]}}
            self.api.patch("pods", name, status, subresource="status", manager="kubelet")

    def _is_ready(self, name: str) -> bool:
        conditions = self.api.get("pods", name)["status"]["conditions"]
        return {"type": "Ready", "status": "True"} in conditions

    def _make(self, revision: str) -> None:
        name = f"{revision}-{next(self._numbers)}"
        self.api.create(pod(name, node=f"node-{name}", labels=self._labels, gates=self._gates))


async def tick(bench: Bench, nodes: dict[str, NodeFacts] | None = None) -> None:
    """One that knows of all pods there are."""
    pods = bench.pods()
    bench.replicas = [FakeReplica(one.name) for one in pods.values()]
    await bench.tick(pods, nodes)


@pytest.mark.parametrize("deployment", ENGINES, ids=lambda one: one["metadata"]["name"])
async def test_by_the_label_it_completes_also_where_one_of_the_old_pods_is_out(
    tmp_path: Path, deployment: dict[str, Any]
) -> None:
    async with KubeApi() as api:
        rollout = Rollout(api, deployment)
        async with running_on(api, tmp_path, pod=Mode.ENFORCE) as bench:
            await tick(bench)
            await bench.daemon.start()
            await tick(bench, LEAVING)
            await until(lambda: rollout.endpoints() == ["old-2", "old-3"])
        for _ in range(2 * len(rollout.names())):  # no daemon runs any more
            rollout.step()
        assert len(rollout.endpoints()) == 3
        assert rollout.endpoints() == rollout.names() == rollout.names("new")
        async with running_on(api, tmp_path, pod=Mode.ENFORCE) as bench:
            await tick(bench)
            await bench.daemon.start()
            await tick(bench)
            assert bench.daemon.status().out == frozenset()
        assert rollout.endpoints() == rollout.names("new")


async def test_by_the_gate_new_pods_wait_for_the_daemon_and_old_ones_serve_meanwhile(tmp_path: Path) -> None:
    async with KubeApi() as api:
        rollout = Rollout(api, ENGINES[0], (GATE,))
        assert rollout.endpoints() == [], "nobody has let them in"
        async with running_on(api, tmp_path) as bench:
            await tick(bench)
            await bench.daemon.start()
            await until(lambda: not rollout.unready())
        for _ in range(10):  # no daemon runs any more
            rollout.step()
        (waits,) = rollout.names("new")
        assert rollout.unready() == [waits]
        assert rollout.endpoints() == rollout.names("old") == ["old-2", "old-3"]
        async with running_on(api, tmp_path) as bench:
            await tick(bench)
            await bench.daemon.start()
            for _ in range(10):
                await until(lambda: not rollout.unready())
                rollout.step()
                await tick(bench)
        assert rollout.endpoints() == rollout.names() == rollout.names("new")
