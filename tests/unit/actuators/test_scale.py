"""Replica counts are set on a test API server: victims are chosen, and other writers are not fought (B5)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_bench import Clock, sender_to
from fleet_fakes import fleet, load, replica
from kube_api import KubeApi
from kube_api.objects import deployment, pod

from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.contention import Contention
from controlplane.actuators.limit import RefusedError
from controlplane.actuators.objects import path, plural
from controlplane.actuators.scale import OUR_COST, ScaleActuator
from controlplane.actuators.settings import ScaleSection
from controlplane.signals.decision import SCALE, Decision, Mode
from controlplane.signals.pod import DELETION_COST, PodFacts
from controlplane.signals.snapshot import ReplicaSnapshot

DATA = Path(__file__).parents[2] / "cases" / "data"
SETTINGS = ScaleSection.model_validate(
    {"workloads": [{"pool": "chat", "namespace": "serving", "name": "vllm"}]}
)
HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "keda-hpa-vllm", "namespace": "serving"},
    "spec": {
        "maxReplicas": 5,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"},
    },
}


def decision(new: object, id_: str = "7-1") -> Decision:
    return Decision(id_, 1_790_000_000.0, SCALE, "chat", "", str(new), "load", "why", (), Mode.ENFORCE)


def facts(name: str, **changes: Any) -> PodFacts:
    base: dict[str, Any] = {
        "namespace": "serving",
        "name": name,
        "pool": "chat",
        "owner": "Deployment/vllm",
        "ready": True,
        "loading": False,
        "created_at": 100.0,
    }
    return PodFacts(**base | changes)


def serving(name: str, running: float) -> ReplicaSnapshot:
    return replica(f"{name}:8000", pod=f"serving/{name}", load=load(running=running, waiting=0.0))


class Bench:
    def __init__(self, api: KubeApi, send: Send) -> None:
        self.api, self.clock = api, Clock()
        self.pods: dict[str, PodFacts] = {}
        self.replicas = [serving("a", 9.0), serving("b", 2.0), serving("c", 5.0)]
        self.send = send
        self.contentions: dict[str, Contention] = {}
        self.actuator = self.another()

    def another(self) -> ScaleActuator:
        """What each leader scales with: of the last one it knows the contentions."""
        return ScaleActuator(SETTINGS, self.send, self._seen, steady=self.clock, contentions=self.contentions)

    def _seen(self) -> Any:
        return fleet(*self.replicas, pods=self.pods)

    def have(self, *pods: PodFacts) -> None:
        for one in pods:
            self.pods[one.key] = one
            self.api.create(pod(one.name, annotations=one.annotations or None))

    @property
    def count(self) -> int:
        found: int = self.api.get("deployments", "vllm")["spec"]["replicas"]
        return found

    def cost(self, name: str) -> str | None:
        found: dict[str, str] = self.api.get("pods", name)["metadata"].get("annotations", {})
        return found.get(DELETION_COST)

    def by_other(self, count: int) -> None:
        self.api.patch("deployments", "vllm", {"spec": {"replicas": count}}, manager="argocd")

    @property
    def writes(self) -> int:
        return self.api.counts["patch", "deployments/scale"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api, sender_to(api, tmp_path / "kubeconfig") as send:
        api.create(deployment("vllm", 3))
        yield Bench(api, send)


async def test_a_pool_grows_by_its_scale_subresource_alone(bench: Bench) -> None:
    await bench.actuator.apply(decision(5))
    await bench.actuator.apply(decision(5))
    assert (bench.count, bench.writes, bench.api.counts["patch", "deployments"]) == (5, 1, 0)


async def test_pods_with_the_least_work_are_to_go_first(bench: Bench) -> None:
    bench.have(facts("a"), facts("b"), facts("c"))
    await bench.actuator.apply(decision(2))
    assert [bench.cost(name) for name in "abc"] == [None, OUR_COST, None]
    assert bench.count == 2


async def test_pods_that_serve_nobody_go_before_those_with_little_work(bench: Bench) -> None:
    loads = facts("new", loading=True, ready=False, created_at=900.0)
    bench.have(facts("a"), facts("b"), facts("c"), loads, facts("gone", terminating_since=5.0))
    await bench.actuator.apply(decision(1))
    costs = {name: bench.cost(name) for name in ("a", "b", "c", "new", "gone")}
    assert costs == {"a": None, "b": OUR_COST, "c": None, "new": OUR_COST, "gone": None}


async def test_the_cost_that_somebody_else_gave_stays_and_ours_is_taken_back(bench: Bench) -> None:
    ours, theirs = {DELETION_COST: OUR_COST}, {DELETION_COST: "7"}
    bench.have(facts("a", annotations=ours), facts("b", annotations=theirs), facts("c"))
    await bench.actuator.apply(decision(1))
    assert [bench.cost(name) for name in "abc"] == [None, "7", OUR_COST]


async def test_B5_another_writer_is_reported_with_its_name_and_not_fought(bench: Bench) -> None:
    rows = yaml.safe_load((DATA / "B5" / "trace.yaml").read_text())["rows"]
    bench.by_other(rows[0]["observed"])
    start = bench.clock.now
    for row in rows:
        bench.clock.now = start + row["t"]
        if bench.count != row["observed"]:
            bench.by_other(row["observed"])
        before, said = bench.writes, ""
        try:
            await bench.actuator.apply(decision(row["wanted_by_load"]))
        except CallFailedError as error:
            said = str(error)
        assert bench.writes - before == (row["write"] != "none"), row
        assert row.get("must_report", "") in said
        if row["t"] >= 90:
            assert said == (
                "Deployment serving/vllm: another writer changes replicas (3 times in 90 s): "
                "the field manager 'argocd'; nothing is written until the count is left alone"
            )
    with pytest.raises(CallFailedError, match="the field manager 'argocd'; nothing is written"):
        await bench.another().apply(decision(6))
    bench.clock.now += 1801.0
    await bench.actuator.apply(decision(6))
    assert bench.count == 6


async def test_B5_a_workload_of_an_autoscaler_is_left_to_it(bench: Bench) -> None:
    bench.api.create(HPA)
    with pytest.raises(CallFailedError, match="belongs to the HorizontalPodAutoscaler keda-hpa-vllm"):
        await bench.actuator.apply(decision(5))
    bench.api.delete("horizontalpodautoscalers", "keda-hpa-vllm")
    await bench.actuator.apply(decision(5))
    assert bench.count == 5


async def test_an_answer_that_is_lost_is_no_other_writer(bench: Bench) -> None:
    await bench.actuator.apply(decision(4, "7-1"))
    bench.api.fail("patch", "deployments/scale", lose="answer", times=1)
    with pytest.raises(CallFailedError):
        await bench.actuator.apply(decision(6, "8-1"))
    for n in range(5):
        await bench.actuator.apply(decision(6, f"9-{n}"))
    assert (bench.count, bench.writes) == (6, 2)


async def test_a_write_that_fails_is_no_reset(bench: Bench) -> None:
    bench.api.fail("patch", "deployments/scale", status=500, times=5)
    for _ in range(5):
        with pytest.raises(CallFailedError, match="500"):
            await bench.actuator.apply(decision(6))
    await bench.actuator.apply(decision(6))
    assert bench.count == 6


async def test_a_pod_that_took_the_name_of_one_that_should_go_keeps_its_cost(bench: Bench) -> None:
    bench.have(facts("a"), facts("b", uid="the one before"), facts("c", uid="is gone"))
    bench.api.finish("pods", "c")
    await bench.actuator.apply(decision(1))
    assert [bench.cost(name) for name in "ab"] == [None, None]
    assert bench.count == 1


async def test_a_workload_that_cannot_be_scaled_is_told_from_one_that_is_not_there(bench: Bench) -> None:
    bench.api.fail("patch", "deployments/scale", status=404)
    with pytest.raises(RefusedError, match=r"/deployments/vllm: it has no /scale"):
        await bench.actuator.apply(decision(6))


async def test_who_is_faster_than_us_is_not_written_over(bench: Bench) -> None:
    bench.api.fail("patch", "deployments/scale", meddle=lambda: bench.by_other(9), times=1)
    with pytest.raises(CallFailedError, match="somebody changed the replicas from 3 to 9"):
        await bench.actuator.apply(decision(6))
    assert bench.count == 9


async def test_what_is_no_count_or_no_workload_is_refused(bench: Bench) -> None:
    with pytest.raises(RefusedError, match="whole number"):
        await bench.actuator.apply(decision("-1"))
    bench.api.finish("deployments", "vllm")
    with pytest.raises(RefusedError, match="there is no such object"):
        await bench.actuator.apply(decision(4))
    assert [bench.actuator.takes(pool, pool) for pool in ("chat", "batch")] == [True, False]


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("Deployment", "deployments"),
        ("LeaderWorkerSet", "leaderworkersets"),
        ("BackendTrafficPolicy", "backendtrafficpolicies"),
        ("Gateway", "gateways"),
        ("Ingress", "ingresses"),
    ],
)
def test_the_resource_of_a_kind(kind: str, resource: str) -> None:
    assert plural(kind) == resource


def test_the_path_of_an_object() -> None:
    assert path("v1", "Service", "ns", "a") == "/api/v1/namespaces/ns/services/a"
    assert path("apps/v1", "StatefulSet", "ns", "a") == "/apis/apps/v1/namespaces/ns/statefulsets/a"
