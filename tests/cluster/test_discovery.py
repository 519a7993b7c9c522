"""Pods as targets: listed once, then watched, whatever the API server does meanwhile."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from kube_api import KubeApi
from kube_api.objects import node, pod, reader
from loopback import ok, serving

from controlplane.daemon.inputs import FleetInputs
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals import marks
from controlplane.signals.decision import Event
from controlplane.signals.node import Mark, Placement
from controlplane.signals.pod import PodFacts, PodNews
from controlplane.signals.samples import Samples, Target
from controlplane.sources import kubernetes_mirror, kubernetes_nodes
from controlplane.sources.fetch import Errand, Failed
from controlplane.sources.gpu_settings import GpuNodeSettings, GpuSettings
from controlplane.sources.gpu_watch import GpuWatch
from controlplane.sources.kubernetes_api import Ask, KubernetesApi, UnreachableError
from controlplane.sources.kubernetes_fleet import Cluster
from controlplane.sources.kubernetes_pods import Place, Pod, facts
from controlplane.sources.kubernetes_settings import KubernetesSettings
from controlplane.sources.last_good import GRACE_SECONDS, Trouble
from controlplane.sources.settings import ScrapeSettings, TargetSettings
from controlplane.sources.targets import Discovery

NOON = 1_764_000_000.0
CHAT = TargetSettings.model_validate({"kubernetes": {"selector": "app=vllm", "namespace": "serving"}})
READER = reader("serving")


class World:
    """A cluster that is watched, and the discovery that it feeds. `known` are targets from before."""

    def __init__(self, api: KubeApi, path: Path, token: str, known: tuple[Target, ...] = ()) -> None:
        settings = KubernetesSettings(kubeconfig=api.kubeconfig(path / "kubeconfig", token))
        self.connection = KubernetesApi(settings)
        pools = {"chat": CHAT}
        self.cluster = Cluster(self.connection, pools, ScrapeSettings())
        self.discovery = Discovery(pools, ScrapeSettings(), cluster=self.cluster, known=known)
        self.now = 1000.0
        self.events: list[Event] = []

    async def __aenter__(self) -> "World":
        self.cluster.open()
        await self.cluster.first_look()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.close()
        await self.connection.close()

    async def look(self, after: float = 5.0) -> list[str]:
        """The names of all targets."""
        self.now += after
        self.events += (await self.discovery.look(self.now, NOON + self.now)).events
        return [target.name for target in self.discovery.targets]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - what it waits for is told to nobody
                await asyncio.sleep(0.005)

    def pods(self) -> dict[str, PodFacts]:
        self.cluster.take_pods()
        return dict(self.cluster.pods)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_mirror, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(kubernetes_mirror, "_SHORT_SECONDS", 0.01)


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with KubeApi() as api:
        api.create(node("node-0"), pod("a", ip="10.0.0.1"), pod("b", ip="10.0.0.2"))
        yield api


@pytest.fixture
async def world(api: KubeApi, tmp_path: Path) -> AsyncIterator[World]:
    async with World(api, tmp_path, "admin-token") as world:
        yield world


# -- pods come and go ----------------------------------------------------------------------------------


async def test_pods_are_targets(api: KubeApi, world: World) -> None:
    api.create(
        pod("other", ip="10.0.0.9", labels={"app": "web"}), pod("far", namespace="else", ip="10.0.0.8")
    )
    assert await world.look() == ["10.0.0.1:8000", "10.0.0.2:8000"]
    first = world.discovery.targets[0]
    assert first == Target("10.0.0.1:8000", "chat", "http://10.0.0.1:8000/metrics", pod="serving/a")


async def test_a_new_pod_is_loading_before_it_is_a_target(api: KubeApi, world: World) -> None:
    api.create(pod("c", node="", ip="", phase="Pending", ready=False))
    await world.until(lambda: "serving/c" in world.pods())
    assert world.pods()["serving/c"].loading
    assert len(await world.look()) == 2
    address = {"phase": "Running", "podIP": "10.0.0.3"}
    api.patch("pods", "c", {"status": address}, subresource="status")
    await world.until(lambda: world.pods()["serving/c"].url)
    assert await world.look() == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]


async def test_a_terminating_pod_stays_until_it_is_gone(api: KubeApi, world: World) -> None:
    api.delete("pods", "a")
    await world.until(lambda: world.pods()["serving/a"].terminating_since)
    there = world.pods()["serving/a"]
    assert there.gone_by == pytest.approx(there.terminating_since + 30)
    assert len(await world.look()) == 2
    api.finish("pods", "a")
    await world.until(lambda: "serving/a" not in world.pods())
    assert await world.look() == ["10.0.0.2:8000"]


async def test_scaled_to_zero_is_believed_at_once(api: KubeApi, world: World) -> None:
    assert len(await world.look()) == 2
    api.finish("pods", "a")
    api.finish("pods", "b")
    await world.until(lambda: not world.pods())
    assert await world.look() == []


async def test_a_label_that_no_longer_fits_takes_the_pod_out(api: KubeApi, world: World) -> None:
    api.patch("pods", "a", {"metadata": {"labels": {"app": "elsewhere"}}})
    await world.until(lambda: "serving/a" not in world.pods())
    assert await world.look() == ["10.0.0.2:8000"]


async def test_another_pod_at_the_same_address_is_another_replica(api: KubeApi, world: World) -> None:
    await world.look()
    api.finish("pods", "a")
    api.create(pod("z", ip="10.0.0.1"))
    await world.until(lambda: "serving/z" in world.pods())
    await world.look()
    again = {target.name: target.pod for target in world.discovery.targets}
    assert again["10.0.0.1:8000"] == "serving/z"


# -- the server misbehaves -----------------------------------------------------------------------------


async def test_cut_watches_go_on_without_a_list(api: KubeApi, world: World) -> None:
    await world.until(lambda: len(api.watches) == 2)
    assert api.cut_watches() == 2
    api.create(pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())
    assert api.counts["list", "pods"] == 1
    await world.look()
    assert world.events == []


async def test_a_restart_of_the_server_is_survived_and_told_once(api: KubeApi, world: World) -> None:
    assert len(await world.look()) == 2
    await api.stop()
    await world.until(lambda: isinstance(world.cluster.found("chat")[0], Trouble))
    assert len(await world.look()) == 2
    assert len(await world.look(2 * GRACE_SECONDS)) == 2
    api.create(pod("c", ip="10.0.0.3"))
    await api.start()
    await world.until(lambda: "serving/c" in world.pods())
    assert len(await world.look()) == 3
    assert [event.kind for event in world.events] == ["discovery-failing", "discovery-recovered"]
    assert api.counts["list", "pods"] == 1


@pytest.mark.parametrize("as_status", [True, False])
async def test_an_old_version_means_one_more_list(api: KubeApi, world: World, as_status: bool) -> None:
    await world.until(lambda: len(api.watches) == 2)
    api.gone_as_status = as_status
    away = api.fail("watch", "pods", status=503)
    api.cut_watches("pods")
    await world.until(lambda: not [watch for watch in api.watches if watch.resource.plural == "pods"])
    api.finish("pods", "b")
    api.create(pod("c", ip="10.0.0.3"))
    api.compact()
    away.end()
    await world.until(lambda: set(world.pods()) == {"serving/a", "serving/c"})
    assert api.counts["list", "pods"] == 2
    assert await world.look() == ["10.0.0.1:8000", "10.0.0.3:8000"]


async def test_410_in_the_middle_of_a_watch(api: KubeApi, world: World) -> None:
    await world.until(lambda: len(api.watches) == 2)
    api.expire_watches()
    api.create(pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())
    assert api.counts["list", "pods"] == 2


@pytest.mark.parametrize("as_status", [True, False])
async def test_a_server_that_was_put_back_from_a_backup(api: KubeApi, world: World, as_status: bool) -> None:
    await world.until(lambda: len(api.watches) == 2)
    api.gone_as_status = as_status
    world.cluster._pools["chat"].mirror._version = "999999"
    api.cut_watches("pods")
    api.create(pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())
    assert api.counts["list", "pods"] == 2


async def test_a_silent_watch_is_opened_anew(
    api: KubeApi, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.until(lambda: len(api.watches) == 2)
    monkeypatch.setattr(kubernetes_mirror, "SILENT_SECONDS", 0.05)
    api.cut_watches()  # the next ones know of the shorter patience
    await world.until(lambda: api.counts["watch", "pods"] >= 2 and len(api.watches) == 2)
    api.mute_watches()
    api.create(pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())
    assert api.counts["list", "pods"] == 1


async def test_bookmarks_keep_the_version_young(api: KubeApi, tmp_path: Path) -> None:
    api.bookmark_seconds = 0.02
    async with World(api, tmp_path, "admin-token") as world:
        api.create(pod("other", labels={"app": "web"}))  # moves the version on, past our selector
        at = api.store.version
        mirror = world.cluster._pools["chat"].mirror
        await world.until(lambda: mirror._version == str(at))
        api.compact()
        api.cut_watches()
        api.create(pod("c", ip="10.0.0.3"))
        await world.until(lambda: "serving/c" in world.pods())
        assert api.counts["list", "pods"] == 1


async def test_429_is_left_alone_for_as_long_as_it_asks(api: KubeApi, tmp_path: Path) -> None:
    too_many = api.fail("list", "pods", status=429, retry_after=1, times=1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with World(api, tmp_path, "admin-token") as world:
        await world.until(world.pods)
    assert loop.time() - began >= 1.0
    assert too_many.met == 1
    assert api.counts["list", "pods"] == 2


async def test_a_long_list_comes_in_pages(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_mirror, "_PAGE", 3)
    for i in range(10):
        api.create(pod(f"more-{i}", ip=f"10.1.0.{i}"))
    async with World(api, tmp_path, "admin-token") as world:
        assert len(await world.look()) == 12
        assert api.counts["list", "pods"] == 4


async def test_a_pod_that_cannot_be_read_costs_itself_only(api: KubeApi, world: World) -> None:
    strange = pod("strange")
    strange["spec"]["containers"] = "none"
    api.create(strange, pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())
    assert world.cluster._pools["chat"].mirror.unread == 1


async def test_who_may_not_watch_nodes_still_has_pods(api: KubeApi, tmp_path: Path) -> None:
    token = api.service_account("serving", "controlplane", *READER)
    async with World(api, tmp_path, token) as world:
        assert len(await world.look()) == 2
        assert "cannot list resource" in world.cluster.troubles["nodes"]
        assert world.cluster.take_nodes() is None


def batch_of(namespace: str) -> TargetSettings:
    return TargetSettings.model_validate({"kubernetes": {"selector": "app=vllm", "namespace": namespace}})


async def test_a_namespace_that_may_not_be_read_hides_no_other_pool(api: KubeApi, tmp_path: Path) -> None:
    """Also what stands of that pool from before stays, and is settled once it can be read."""
    token = api.service_account("serving", "controlplane", *READER)
    connection = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig", token)))
    pools = {"chat": CHAT, "batch": batch_of("other")}
    cluster = Cluster(connection, pools, ScrapeSettings(), nodes=False)
    before = {
        pod.key: pod
        for pod in (
            PodFacts(namespace="serving", name="left", pool="chat"),
            PodFacts(namespace="other", name="b0", pool="batch"),
        )
    }
    cluster.open()
    await cluster.first_look()
    first = cluster.take_pods()
    assert first is not None
    assert set(first.on(before)) == {"serving/a", "serving/b", "other/b0"}
    assert cluster.unknown == {"batch"}
    api.delete("pods", "a")
    async with asyncio.timeout(60):
        while not cluster.pods["serving/a"].terminating_since:
            cluster.take_pods()
            await asyncio.sleep(0.005)
    rights = reader("other")
    rights[1]["subjects"][0]["namespace"] = "serving"
    api.create(pod("b1", namespace="other", ip="10.0.0.5"), *rights)
    later = None
    async with asyncio.timeout(60):
        while later is None or cluster.unknown:
            later = cluster.take_pods() or later
            await asyncio.sleep(0.005)
    assert set(later.on(before)) == {"serving/a", "serving/b", "other/b1"}
    await cluster.close()
    await connection.close()


async def test_a_token_that_was_renewed_is_read_again(api: KubeApi, tmp_path: Path) -> None:
    async with World(api, tmp_path, "admin-token") as world:
        token = api.service_account("serving", "controlplane", *READER)
        world.connection._loaded_at = float("-inf")
        api.kubeconfig(tmp_path / "kubeconfig", token)
        api.revoke("admin-token")
        api.cut_watches()
        api.create(pod("c", ip="10.0.0.3"))
        await world.until(lambda: "serving/c" in world.pods())


async def test_a_session_that_was_closed_meanwhile_is_no_end(api: KubeApi, world: World) -> None:
    client = await world.connection._ready()
    await client.close()
    api.cut_watches()
    await world.until(lambda: world.cluster._pools["chat"].mirror.trouble)
    assert "closed" in world.cluster._pools["chat"].mirror.trouble
    world.connection._client = None
    api.create(pod("c", ip="10.0.0.3"))
    await world.until(lambda: "serving/c" in world.pods())


@pytest.mark.parametrize("content", ["", "- a list", "clusters: nothing", "{"])
async def test_what_is_no_kubeconfig_is_one_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    connection = KubernetesApi(KubernetesSettings(kubeconfig=path))
    with pytest.raises(UnreachableError, match=f"kubeconfig {path} cannot be used: ") as caught:
        await connection.namespace()
    assert "\n" not in str(caught.value)


async def test_outside_of_a_cluster_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UnreachableError, match=r"the pod's service account .* cannot be used"):
        await KubernetesApi(KubernetesSettings()).namespace()


async def test_with_the_service_account_of_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    async with KubeApi(tls=theirs) as api:
        (tmp_path / "token").write_text(api.service_account("serving", "controlplane", *READER))
        (tmp_path / "namespace").write_text("serving")
        monkeypatch.setattr("controlplane.sources.kubernetes_api._ACCOUNT", tmp_path)
        for name, file in (("SERVICE_TOKEN_FILENAME", "token"), ("SERVICE_CERT_FILENAME", "ca.crt")):
            monkeypatch.setattr(f"kubernetes.aio.config.incluster_config.{name}", str(tmp_path / file))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        connection = KubernetesApi(KubernetesSettings())
        assert await connection.namespace() == "serving"
        answered = await connection.send(Ask(method="GET", path="/api/v1/namespaces/serving/pods"))
        assert answered.status == 200
        await connection.close()


# -- starts --------------------------------------------------------------------------------------------


async def test_who_starts_while_the_server_is_away_keeps_the_replicas(api: KubeApi, tmp_path: Path) -> None:
    known = (Target("10.0.0.1:8000", "chat", "http://10.0.0.1:8000/metrics", pod="serving/a"),)
    path = api.kubeconfig(tmp_path / "kubeconfig")
    await api.stop()
    async with World(api, path.parent, "admin-token", known) as world:
        assert await world.look() == ["10.0.0.1:8000"]
        assert world.cluster.take_pods() is None
        assert [event.kind for event in world.events] == ["discovery-failing"]


async def test_an_empty_first_list_is_not_believed_at_once(tmp_path: Path) -> None:
    known = (Target("10.0.0.1:8000", "chat", "http://10.0.0.1:8000/metrics", pod="serving/a"),)
    async with KubeApi() as api, World(api, tmp_path, "admin-token", known) as world:
        assert await world.look() == ["10.0.0.1:8000"]
        assert await world.look(GRACE_SECONDS) == []


# -- what is read of them ------------------------------------------------------------------------------


def read(manifest: dict[str, Any], port: int | str | None = None) -> PodFacts:
    whole = msgspec.json.decode(msgspec.json.encode(manifest), type=Pod)
    return facts(whole, Place("chat", "http", port))


def test_port_by_number_by_name_or_as_declared() -> None:
    two = pod("a")
    two["spec"]["containers"] = [
        {"name": "sidecar", "image": "s", "ports": [{"name": "admin", "containerPort": 15000}]},
        {"name": "vllm", "image": "v", "ports": [{"name": "api", "containerPort": 9000}]},
    ]
    assert read(two, 7000).url == "http://10.0.0.1:7000"
    assert read(two, "api").url == "http://10.0.0.1:9000"
    assert read(two, "api").image == "v"
    assert read(two).url == "http://10.0.0.1:15000"
    two["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "vllm"}  # as meshes do
    assert (read(two).url, read(two, 7000).image) == ("http://10.0.0.1:9000", "v")
    del two["metadata"]["annotations"]
    assert read(two, "nothing").url == ""
    two["spec"]["containers"][1]["ports"][0]["name"] = "http"
    assert read(two).url == "http://10.0.0.1:9000"
    assert read(pod("a", ip="fd00::1")).url == "http://[fd00::1]:8000"


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--model", "meta/llama"], "meta/llama"),
        (["--model=meta/llama", "--served-model-name", "chat"], "chat"),
        (["vllm", "serve", "meta/llama", "--port", "1"], "meta/llama"),
        (["serve"], ""),
        (["--model"], ""),
        ([], ""),
    ],
)
def test_model_by_command_line(arguments: list[str], model: str) -> None:
    manifest = pod("a")
    manifest["spec"]["containers"][0]["args"] = arguments
    assert read(manifest).model == model


def test_owner_is_the_deployment_behind_the_replica_set() -> None:
    labels = {"app": "vllm", "pod-template-hash": "5d9c"}
    assert read(pod("a", labels=labels, owner=("ReplicaSet", "chat-5d9c"))).owner == "Deployment/chat"
    assert read(pod("a", owner=("StatefulSet", "chat"))).owner == "StatefulSet/chat"
    assert read(pod("a")).owner == ""


@pytest.mark.parametrize(
    ("ready", "turned", "started", "loading"),
    [
        ("True", "10:00", "09:00", False),
        ("False", "09:00", "09:00", True),  # has never been ready
        ("False", "10:00", "09:00", False),  # was ready for an hour
        ("False", "10:00", "10:01", True),  # crashed, and was started again
    ],
)
def test_loading_is_not_failing(ready: str, turned: str, started: str, loading: bool) -> None:
    manifest = pod("a", ready=ready == "True")
    manifest["status"]["conditions"] = [
        {"type": "ContainersReady", "status": ready, "lastTransitionTime": f"2026-01-01T{turned}:00Z"}
    ]
    state = {"running": {"startedAt": f"2026-01-01T{started}:00Z"}}
    manifest["status"]["containerStatuses"][0]["state"] = state
    assert read(manifest).loading is loading
    assert read(pod("a", phase="Pending", ip="")).loading


def test_news_add_up() -> None:
    a, b = (PodFacts(namespace="s", name=name, pool="chat") for name in "ab")
    later = PodNews({"s/b": b}, frozenset({"s/a"}))
    assert PodNews({"s/a": a}, whole=True).then(later) == PodNews({"s/b": b}, frozenset({"s/a"}), True)
    assert later.then(PodNews({"s/a": a})).on({}) == {"s/a": a, "s/b": b}
    assert later.on({"s/a": a}) == {"s/b": b}
    assert later.then(PodNews({}, whole=True)).on({"s/c": a}) == {}


def test_news_of_some_pools_leave_the_others_as_they_were() -> None:
    a, b, c = (PodFacts(namespace="s", name=name, pool=pool) for name, pool in ("ax", "by", "cy"))
    of_x = PodNews({"s/a": a}, whole=True, untold=frozenset("y"))
    assert of_x.on({"s/old": msgspec.structs.replace(a, name="old"), "s/b": b}) == {"s/b": b, "s/a": a}
    assert of_x.then(PodNews({"s/c": c}, frozenset({"s/b"}))).on({"s/b": b}) == {"s/a": a, "s/c": c}
    of_y = PodNews({"s/c": c}, whole=True, untold=frozenset("x"))
    assert of_x.then(of_y) == PodNews({"s/a": a, "s/c": c}, whole=True)
    moved = PodNews({"s/b": msgspec.structs.replace(b, pool="x")})
    assert moved.then(of_x).on({"s/b": b}) == {"s/a": a}


# -- GPUs ----------------------------------------------------------------------------------------------


async def test_pods_tell_which_nodes_have_gpus(api: KubeApi, tmp_path: Path) -> None:
    gpus = GpuSettings.model_validate(
        {
            "dcgm_pods": {"selector": "app=dcgm", "namespace": "gpu"},
            "agent_pods": {"selector": "app=agent", "namespace": "gpu", "port": 9498},
        }
    )
    connection = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig")))
    api.create(node("node-1"), node("node-2"))
    for kind, where in (("dcgm", "node-0"), ("agent", "node-0"), ("dcgm", "node-1")):
        at = {"namespace": "gpu", "node": where, "ip": f"10.9.0.{where[-1]}", "port": 9400}
        api.create(pod(f"{kind}-{where}", labels={"app": kind}, **at))
    cluster = Cluster(connection, {}, ScrapeSettings(), gpus=gpus)
    assert cluster.gpu_nodes() is None
    cluster.open()
    await cluster.first_look()
    assert cluster.gpu_nodes() == {
        "node-0": GpuNodeSettings(dcgm="http://10.9.0.0:9400/metrics", agent="http://10.9.0.0:9498"),
        "node-1": GpuNodeSettings(dcgm="http://10.9.0.1:9400/metrics"),
    }
    api.finish("pods", "dcgm-node-1", "gpu")
    async with asyncio.timeout(60):
        while (cluster.gpu_nodes() or {}).get("node-1") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert list(cluster.gpu_nodes() or ()) == ["node-0", "node-1"], "it has GPUs that nobody sees"
    api.finish("nodes", "node-1")
    async with asyncio.timeout(60):
        while list(cluster.gpu_nodes() or ()) != ["node-0"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await cluster.close()
    await connection.close()


async def test_pods_of_one_kind_that_may_not_be_read_hide_no_gpus_of_the_other(
    api: KubeApi, tmp_path: Path
) -> None:
    gpus = GpuSettings.model_validate(
        {
            "dcgm_pods": {"selector": "app=dcgm", "namespace": "serving"},
            "agent_pods": {"selector": "app=agent", "namespace": "control", "port": 9498},
        }
    )
    token = api.service_account("serving", "controlplane", *READER)
    connection = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig", token)))
    api.create(pod("dcgm-0", labels={"app": "dcgm"}, node="node-0", ip="10.9.0.1", port=9400))
    cluster = Cluster(connection, {}, ScrapeSettings(), gpus=gpus, nodes=False)
    inputs = FleetInputs(
        {}, ScrapeSettings(), None, (), outcomes_after=NOON, now=lambda: NOON, gpus=gpus, cluster=cluster
    )
    await inputs.open()
    await inputs.discover()
    assert cluster.gpu_nodes() == {"node-0": GpuNodeSettings(dcgm="http://10.9.0.1:9400/metrics")}
    samples, events = inputs.take()
    assert samples.gpu_nodes == ("node-0",)
    assert [(event.kind, event.sentence[:30]) for event in events] == [
        ("gpu-pods-unseen", "agent pods cannot be asked for")
    ]
    assert inputs.take()[1] == ()
    rights = reader("control")
    rights[1]["subjects"][0]["namespace"] = "serving"
    api.create(*rights)
    async with asyncio.timeout(60):
        while cluster.troubles:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert [event.sentence for event in inputs.take()[1]] == ["agent pods are seen again"]
    await inputs.close()
    await connection.close()


async def test_gpu_nodes_come_and_go_while_they_are_asked() -> None:
    asked: list[str] = []

    async def fetch(url: str, errand: Errand) -> Failed:
        asked.append(url)
        await asyncio.sleep(3600)
        raise AssertionError

    one, two = (GpuNodeSettings(dcgm=f"http://10.9.0.{i}:9400") for i in (1, 2))
    watch = GpuWatch(GpuSettings(nodes={"fixed": one}), fetch)
    assert watch.set_nodes({"found": two})
    task = asyncio.create_task(watch.run())

    async def until_asked(times: int) -> None:
        async with asyncio.timeout(60):
            while len(asked) < times:  # noqa: ASYNC110 - a matter of turns of the loop
                await asyncio.sleep(0)

    await until_asked(2)
    assert sorted(asked) == ["http://10.9.0.1:9400/metrics", "http://10.9.0.2:9400/metrics"]
    assert not watch.set_nodes({"found": None, "fixed": two})
    await asyncio.sleep(0.01)
    assert len(asked) == 2, "the settings say how the fixed one is asked"
    assert watch.set_nodes({"new": two})
    await until_asked(3)
    assert watch.nodes == ("new", "fixed")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- nodes, and what the tick makes of it --------------------------------------------------------------


async def test_nodes_with_what_stands_on_them(api: KubeApi, world: World) -> None:
    mark = Mark("f1", "xid", "GPU-1", "reset", "broken", NOON)
    api.patch(
        "nodes",
        "node-0",
        {
            "metadata": {"annotations": {marks.ANNOTATION: marks.text(mark), marks.PROBE_PASSED: "f1"}},
            "spec": {
                "unschedulable": True,
                "taints": [
                    {"key": marks.TAINT_KEY, "effect": "NoSchedule"},
                    {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
                ],
            },
        },
    )
    nodes = world.cluster._nodes
    assert nodes is not None
    await world.until(lambda: nodes.items["/node-0"].tainted)
    facts = world.cluster.take_nodes()
    assert facts is not None
    there = facts["node-0"]
    assert (there.ready, there.unschedulable, there.mark) == (True, True, mark)
    assert (there.boot_id, there.probe_passed) == ("boot-1", "f1")
    assert there.leaving == "ToBeDeletedByClusterAutoscaler"
    assert world.cluster.take_nodes() is None


def test_a_node_leaves_when_it_is_deleted_and_not_while_karpenter_starts_another() -> None:
    """Karpenter taints first, waits minutes for the replacement, and takes the taint off if none comes."""
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    node: dict[str, Any] = {"metadata": {"name": "gpu-1"}, "spec": {"taints": [taint]}}
    assert kubernetes_nodes.facts(msgspec.convert(node, kubernetes_nodes.Node), None).leaving == ""
    node["metadata"]["deletionTimestamp"] = "2026-11-30T03:00:00Z"
    assert kubernetes_nodes.facts(msgspec.convert(node, kubernetes_nodes.Node), None).leaving == "deleted"


async def test_pods_are_scraped_and_placed(api: KubeApi, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "data" / "captures" / "vllm-0.27-light.prom").read_bytes()
    gpus = GpuSettings.model_validate(
        {
            "nodes": {
                "node-0": {"dcgm": "http://127.0.0.1:1"},
                "far": {"agent": "http://127.0.0.1:1", "replicas": ["x"]},
            }
        }
    )
    async with serving({"/metrics": ok(text)}) as engine:
        for name in "ab":
            api.finish("pods", name)
        api.create(pod("real", ip="127.0.0.1", port=engine.port, owner=("StatefulSet", "chat")))
        connection = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig")))
        scrape = ScrapeSettings(interval="200ms", timeout="150ms")
        inputs = FleetInputs(
            {"chat": CHAT},
            scrape,
            None,
            (),
            outcomes_after=NOON,
            now=lambda: NOON,
            gpus=gpus,
            cluster=Cluster(connection, {"chat": CHAT}, scrape),
        )
        await inputs.open()
        await inputs.discover()
        came = Samples()
        async with asyncio.timeout(60):
            while not came.scrapes:
                await inputs.poll()
                await asyncio.sleep(0.02)
                came = came.then(inputs.take()[0])
        later = inputs.take()[0]
        await inputs.close()
        await connection.close()
    name = f"127.0.0.1:{engine.port}"
    assert [target.pod for target in came.targets or ()] == ["serving/real"]
    assert came.scrapes[0].target == name
    assert came.pods is not None
    assert set(came.pods.changed) == {"serving/real"}
    assert set(came.node_facts or ()) == {"node-0"}
    there, told = came.placements or ()
    assert (there.replica, there.node, there.pod, there.owner) == (
        name,
        "node-0",
        "serving/real",
        "StatefulSet/chat",
    )
    assert (told.replica, told.node) == ("x", "far")
    assert (later.targets, later.placements, later.pods, later.node_facts) == (None, None, None, None)


async def test_replicas_of_a_pool_that_may_not_be_read_run_where_they_did(
    api: KubeApi, tmp_path: Path
) -> None:
    token = api.service_account("serving", "controlplane", *READER)
    connection = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig", token)))
    pools = {"chat": CHAT, "batch": batch_of("other")}
    gone = Target("10.0.0.9:8000", "chat", "http://10.0.0.9:8000/metrics", pod="serving/gone")
    unread = Target("10.2.0.1:8000", "batch", "http://10.2.0.1:8000/metrics", pod="other/b0")
    inputs = FleetInputs(
        pools,
        ScrapeSettings(),
        None,
        (),
        outcomes_after=NOON,
        now=lambda: NOON,
        cluster=Cluster(connection, pools, ScrapeSettings(), nodes=False),
        known=[gone, unread],
        placed=[Placement(gone.name, "node-9"), Placement(unread.name, "node-2")],
    )
    await inputs.open()
    assert inputs.take()[0].placements is None, "nobody has looked"
    await inputs.discover()
    placements = inputs.take()[0].placements
    await inputs.close()
    await connection.close()
    assert {place.replica: place.node for place in placements or ()} == {
        "10.0.0.1:8000": "node-0",
        "10.0.0.2:8000": "node-0",
        "10.2.0.1:8000": "node-2",
    }


async def test_who_has_left_the_cluster_forgets_its_pods() -> None:
    known = [Target("10.0.0.1:8000", "chat", "http://10.0.0.1:8000/metrics", pod="serving/a")]
    inputs = FleetInputs(
        {}, ScrapeSettings(), None, (), outcomes_after=NOON, now=lambda: NOON, cluster=None, known=known
    )
    first, later = inputs.take()[0], inputs.take()[0]
    assert (first.pods, first.node_facts) == (PodNews(whole=True), {})
    assert (later.pods, later.node_facts) == (None, None)


async def test_the_tick_knows_the_pods(api: KubeApi, world: World) -> None:
    await world.look()
    samples = Samples(
        targets=world.discovery.targets, pods=world.cluster.take_pods(), node_facts=world.cluster.take_nodes()
    )
    settings = PolicySettings()
    snapshot, _, memory = tick(samples, Memory(), settings, NOON)
    assert snapshot.pods[snapshot.replicas["10.0.0.1:8000"].pod].node == "node-0"
    assert list(snapshot.node_facts) == ["node-0"]
    snapshot, _, _ = tick(Samples(), memory, settings, NOON + 1)
    assert set(snapshot.pods) == {"serving/a", "serving/b"}
