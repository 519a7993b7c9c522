"""Pods are evicted on a test API server: budgets hold, and a repetition is nothing new."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kube_api import KubeApi
from kube_api.objects import budget, pod

from controlplane.actuators.call import CallFailedError
from controlplane.actuators.eviction import EvictionActuator
from controlplane.actuators.limit import RefusedError
from controlplane.commands.actuators import cluster_sender
from controlplane.signals.decision import EVICT_PODS, RESTART_WORKLOAD, Decision, Mode
from controlplane.signals.pod import PodFacts
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings


def decision(action: str, target: str, new: str = "") -> Decision:
    return Decision("7-1", 1_790_000_000.0, action, target, "", new, "xid", "why", (), Mode.ENFORCE)


class Bench:
    def __init__(self, api: KubeApi, path: Path) -> None:
        self.api = api
        self.cluster = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(path)))
        replicas = {"10.0.0.1:8000": SimpleNamespace(pod="serving/a"), "bare": SimpleNamespace(pod="")}
        self.pods: dict[str, PodFacts] = {}
        seen = cast(FleetSnapshot, SimpleNamespace(replicas=replicas, pods=self.pods))
        self.actuator = EvictionActuator(cluster_sender(self.cluster), lambda: seen)

    def see(self, name: str, owner: str = "Deployment/vllm") -> None:
        uid = self.api.get("pods", name, "serving")["metadata"]["uid"]
        self.pods[f"serving/{name}"] = PodFacts(
            namespace="serving", name=name, pool="chat", uid=uid, owner=owner
        )

    def is_ending(self, name: str) -> bool:
        found: dict[str, Any] = self.api.get("pods", name, "serving")
        return "deletionTimestamp" in found["metadata"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api:
        api.create(pod("a", labels={"app": "vllm"}), pod("b", labels={"app": "vllm"}))
        made = Bench(api, tmp_path / "kubeconfig")
        yield made
        await made.cluster.close()


async def test_pods_leave_and_a_second_try_is_nothing_new(bench: Bench) -> None:
    leave = decision(EVICT_PODS, "n1", "serving/a serving/b")
    await bench.actuator.apply(leave)
    assert bench.is_ending("a")
    assert bench.is_ending("b")
    bench.api.finish("pods", "a", "serving")
    await bench.actuator.apply(leave)


async def test_another_pod_of_the_same_name_stays(bench: Bench) -> None:
    bench.see("a")
    bench.api.delete("pods", "a", "serving")
    bench.api.finish("pods", "a", "serving")
    bench.api.create(pod("a", node="node-1", labels={"app": "vllm"}))
    await bench.actuator.apply(decision(EVICT_PODS, "n1", "serving/a"))
    assert not bench.is_ending("a")
    bench.see("a")
    await bench.actuator.apply(decision(EVICT_PODS, "n1", "serving/a"))
    assert bench.is_ending("a")


async def test_a_pod_that_nobody_would_make_again_stays(bench: Bench) -> None:
    bench.see("a", owner="")
    bench.see("b")
    with pytest.raises(CallFailedError, match="1 of 2 pods stay for now: serving/a: it has no owner"):
        await bench.actuator.apply(decision(EVICT_PODS, "n1", "serving/a serving/b"))
    assert not bench.is_ending("a")
    assert bench.is_ending("b")


async def test_a_disruption_budget_keeps_them_and_says_so(bench: Bench) -> None:
    bench.api.create(budget("one", {"app": "vllm"}, minAvailable=1))
    with pytest.raises(CallFailedError, match=r"1 of 2 pods stay for now: serving/b: its disruption budget"):
        await bench.actuator.apply(decision(EVICT_PODS, "n1", "serving/a serving/b"))
    assert bench.is_ending("a")
    assert not bench.is_ending("b")


@pytest.mark.parametrize("target", ["10.0.0.1:8000", "serving/a"])
async def test_a_workload_is_restarted_by_its_pod(bench: Bench, target: str) -> None:
    await bench.actuator.apply(decision(RESTART_WORKLOAD, target))
    assert bench.is_ending("a")


@pytest.mark.parametrize("target", ["bare", "nobody"])
async def test_a_replica_without_a_pod_cannot_be_restarted(bench: Bench, target: str) -> None:
    with pytest.raises(RefusedError, match="its pod is not known"):
        await bench.actuator.apply(decision(RESTART_WORKLOAD, target))


async def test_a_right_that_is_missing_is_named(tmp_path: Path, bench: Bench) -> None:
    path = bench.api.kubeconfig(tmp_path / "weak", bench.api.service_account("serving", "controlplane"))
    cluster = KubernetesApi(KubernetesSettings(kubeconfig=path))
    weak = EvictionActuator(cluster_sender(cluster), lambda: None)
    with pytest.raises(CallFailedError, match="403"):
        await weak.apply(decision(EVICT_PODS, "n1", "serving/a"))
    await cluster.close()
