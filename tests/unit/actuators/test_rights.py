"""The rights that we ship: each actuator works with those of its component, and with no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import fleet_fakes as fakes
import pytest
from kube_api import KubeApi
from kube_api.objects import deployment, node, pod
from shipped import rights

from controlplane.actuators.call import Call, CallFailedError, Send
from controlplane.actuators.cluster_events import ClusterEvents
from controlplane.actuators.eviction import EvictionActuator
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.actuators.node import NodeActuator
from controlplane.actuators.object_patch import ObjectPatch
from controlplane.actuators.pod import PodActuator
from controlplane.actuators.scale import ScaleActuator
from controlplane.actuators.settings import ObjectsSettings, ScaleSection, Workload
from controlplane.commands.actuators import cluster_sender
from controlplane.daemon.leader import ByLease
from controlplane.signals import decision as actions
from controlplane.signals import marks
from controlplane.signals.decision import Decision, Mode
from controlplane.signals.node import Mark
from controlplane.signals.pod import PodFacts
from controlplane.signals.serving import GATE, LABEL
from controlplane.signals.snapshot import Limit
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings, LeaseSettings

COMPONENTS = ("rotation", "readiness-gate", "eviction", "quarantine", "scale", "objects", "events")
MARK = marks.text(Mark("f-1", "xid", "GPU-5f3c", "drain-and-reset", "XID 79 on GPU-5f3c", 1_790_000_000.0))
RULE = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "DestinationRule",
    "metadata": {"name": "short", "namespace": "serving"},
    "spec": {"host": "short", "trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 100}}}},
}
FIELD = {
    "replica": "a:1",
    "api_version": "networking.istio.io/v1",
    "kind": "DestinationRule",
    "namespace": "serving",
    "name": "short",
    "path": "spec.trafficPolicy.connectionPool.http.http2MaxRequests",
}
WORKLOAD = Workload(pool="short", namespace="serving", name="engines-short")


class World:
    """A cluster, and the daemon's account in it with the rights of some components."""

    def __init__(self, api: KubeApi, cluster: KubernetesApi) -> None:
        self.api, self.cluster = api, cluster
        self.send: Send = cluster_sender(cluster)
        facts = {
            name: PodFacts(
                namespace="serving",
                name=name,
                pool="short",
                owner="Deployment/engines-short",
                gates=gates,
                ready=True,
                loading=False,
            )
            for name, gates in (("a", ()), ("g", (GATE,)))
        }
        limit = Limit("fixed", 90, "fixed", "", 0.0)
        replicas = [fakes.replica(f"{name}:1", "short", pod=f"serving/{name}", limit=limit) for name in facts]
        self.seen = fakes.fleet(*replicas, pods={one.key: one for one in facts.values()})

    def decide(self, action: str, target: str, new: str) -> Decision:
        return Decision("7-1", fakes.AT, action, target, "", new, "xid", "why", (), Mode.ENFORCE, "done")

    async def rotation(self) -> None:
        await PodActuator(self.send, lambda: self.seen).apply(self.decide(actions.SET_ROTATION, "a:1", "out"))

    async def readiness_gate(self) -> None:
        await PodActuator(self.send, lambda: self.seen).apply(self.decide(actions.SET_ROTATION, "g:1", "out"))

    async def eviction(self) -> None:
        leave = self.decide(actions.EVICT_PODS, "n1", "serving/a")
        await EvictionActuator(self.send, lambda: self.seen).apply(leave)

    async def quarantine(self) -> None:
        await NodeActuator(self.send, lambda: None).apply(self.decide(actions.QUARANTINE_NODE, "n1", MARK))

    async def scale(self) -> None:
        actuator = ScaleActuator(ScaleSection(workloads=(WORKLOAD,)), self.send, lambda: self.seen)
        await actuator.apply(self.decide(actions.SCALE, "short", "1"))

    async def objects(self) -> None:
        actuator = ObjectPatch(
            ObjectsSettings.model_validate({"fields": [FIELD]}), self.send, lambda: self.seen
        )
        with contextlib.suppress(UnfinishedError):  # it goes there in steps
            await actuator.apply(self.decide(actions.SET_LIMIT, "a:1", "90"))

    async def events(self) -> None:
        events = ClusterEvents(self.send, (WORKLOAD,), "daemon-0", now=lambda: fakes.AT)
        events.take(self.decide(actions.SET_ROTATION, "a:1", "out"), self.seen)
        events.take(self.decide(actions.QUARANTINE_NODE, "n1", MARK), self.seen)
        await events.write()

    def act(self, component: str) -> Awaitable[None]:
        method: Callable[[], Awaitable[None]] = getattr(self, component.replace("-", "_"))
        return method()

    async def status(self, method: str, path: str) -> int:
        return (await self.send(Call(method, path, 4.0, 1 << 20))).status


@asynccontextmanager
async def world(folder: Path, *components: str) -> AsyncIterator[World]:
    async with KubeApi() as api:
        api.create(node("n1"), deployment("engines-short", 2), RULE)
        labels = {LABEL: "true", "app.kubernetes.io/name": "engines-short"}
        gated = pod("g", labels=labels)
        gated["spec"]["readinessGates"] = [{"conditionType": GATE}]
        api.create(pod("a", labels=labels), gated)
        token = api.service_account("controlplane", "controlplane", *rights(*components))
        path = api.kubeconfig(folder / "kubeconfig", token)
        cluster = KubernetesApi(KubernetesSettings(kubeconfig=path, namespace="controlplane"))
        try:
            yield World(api, cluster)
        finally:
            await cluster.close()


@pytest.mark.parametrize("component", COMPONENTS)
async def test_an_actuator_works_with_the_rights_of_its_component(component: str, tmp_path: Path) -> None:
    async with world(tmp_path, component) as cluster:
        await cluster.act(component)
        assert not [one for one in cluster.api.requests if one.status == 403]


@pytest.mark.parametrize("component", COMPONENTS)
async def test_it_is_forbidden_with_the_rights_of_all_others(component: str, tmp_path: Path) -> None:
    # Whoever scales may mark pods too, so these two are only told apart by the admission policies.
    others = [
        one for one in COMPONENTS if one != component and not (component == "rotation" and one == "scale")
    ]
    async with world(tmp_path, *others) as cluster:
        with pytest.raises((RefusedError, CallFailedError), match=r"403|forbidden"):
            await cluster.act(component)
        assert [one for one in cluster.api.requests if one.status == 403]


async def test_who_observes_may_look_and_lead_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        for path in ("/api/v1/nodes", "/api/v1/namespaces/serving/pods"):
            assert await cluster.status("GET", path) == 200
        leader = ByLease(cluster.cluster, LeaseSettings.model_validate({"duration": "5m"}), "daemon-0")
        leader.open()
        while leader.term is None and not leader.trouble:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert leader.trouble == ""
        await leader.close()
        for component in COMPONENTS:
            with pytest.raises((RefusedError, CallFailedError)):
                await cluster.act(component)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/namespaces/serving/secrets"),
        ("GET", "/api/v1/namespaces/controlplane/secrets/controlplane-token"),
        ("GET", "/api/v1/namespaces/serving/configmaps"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/kube-system/pods"),
        ("DELETE", "/api/v1/namespaces/serving/pods/a"),
        ("DELETE", "/api/v1/nodes/n1"),
        ("PUT", "/api/v1/nodes/n1"),
        ("PATCH", "/api/v1/nodes/n1/status"),
        ("DELETE", "/apis/apps/v1/namespaces/serving/deployments/engines-short"),
        ("PATCH", "/apis/apps/v1/namespaces/serving/deployments/engines-short"),
        ("PATCH", "/apis/apps/v1/namespaces/serving/deployments/other/scale"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/controlplane/leases/other"),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/controlplane/leases/controlplane"),
        ("POST", "/api/v1/namespaces/kube-system/pods/a/eviction"),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ],
)
async def test_what_nobody_needs_is_denied_with_all_components(
    method: str, path: str, tmp_path: Path
) -> None:
    async with world(tmp_path, *COMPONENTS) as cluster:
        assert await cluster.status(method, path) == 403
