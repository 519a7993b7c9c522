"""The test API server by the real `kubernetes` client: that it refuses and keeps what a real one would."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kube_api import KubeApi, selectors
from kube_api.errors import ApiError
from kube_api.objects import budget, deployment, node, pod
from kubernetes.aio import client, config, watch
from kubernetes.aio.client import ApiException

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
TAINTS = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with KubeApi() as api:
        api.create(node("node-0"), pod("a"), pod("b"), deployment("vllm", 2))
        yield api


class Client:
    """The client's own classes, as somebody with that token."""

    def __init__(self, connection: client.ApiClient) -> None:
        self.connection = connection
        self.core = client.CoreV1Api(connection)
        self.apps = client.AppsV1Api(connection)
        self.leases = client.CoordinationV1Api(connection)
        self.custom = client.CustomObjectsApi(connection)

    async def patch(self, path: str, body: Any, kind: str = MERGE) -> Any:
        """Any patch, as the connection sends it; raises ApiException."""
        method, url, headers, body, _ = await self.connection.param_serialize(
            "PATCH",
            path,
            header_params={"Content-Type": kind, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self.connection.call_api(method, url, headers, body)
        await answer.read()
        return self.connection.response_deserialize(answer, {"200": "object", "201": "object"}).data


async def connect(api: KubeApi, path: Path, token: str = "admin-token") -> Client:
    settings = client.Configuration()
    await config.load_kube_config(
        str(api.kubeconfig(path / f"{token}.yaml", token)), client_configuration=settings
    )
    return Client(client.ApiClient(settings))


@pytest.fixture
async def admin(api: KubeApi, tmp_path: Path) -> AsyncIterator[Client]:
    made = await connect(api, tmp_path)
    yield made
    await made.connection.close()


async def refused(awaited: Any) -> tuple[int, str]:
    with pytest.raises(ApiException) as caught:
        await awaited
    return caught.value.status, str(caught.value.body)


# -- writes --------------------------------------------------------------------------------------------


async def test_a_write_to_an_older_version_is_a_conflict(api: KubeApi, admin: Client) -> None:
    there = await admin.core.read_namespaced_pod("a", "serving")
    api.patch("pods", "a", {"metadata": {"labels": {"x": "1"}}})
    assert (await refused(admin.core.replace_namespaced_pod("a", "serving", there)))[0] == 409
    old = {"metadata": {"resourceVersion": there.metadata.resource_version, "labels": {"x": "2"}}}
    assert (await refused(admin.patch("/api/v1/namespaces/serving/pods/a", old)))[0] == 409
    await admin.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"x": "2"}}})


async def test_nothing_changed_is_no_new_version(api: KubeApi, admin: Client) -> None:
    before = api.store.version
    await admin.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"app": "vllm"}}})
    assert api.store.version == before


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
async def test_taints_are_replaced_whole(api: KubeApi, admin: Client, kind: str) -> None:
    api.patch("nodes", "node-0", {"spec": {"taints": TAINTS}})
    await admin.patch("/api/v1/nodes/node-0", {"spec": {"taints": [TAINTS[1]]}}, kind)
    assert api.get("nodes", "node-0")["spec"]["taints"] == [TAINTS[1]]


async def test_conditions_merge_by_type_only_strategically(api: KubeApi, admin: Client) -> None:
    path = "/api/v1/namespaces/serving/pods/a/status"
    ours = {"status": {"conditions": [{"type": "controlplane.llm/admit", "status": "True"}]}}
    await admin.patch(path, ours, STRATEGIC)
    assert len(api.get("pods", "a")["status"]["conditions"]) == 4
    await admin.patch(path, ours, MERGE)
    assert len(api.get("pods", "a")["status"]["conditions"]) == 1


async def test_a_status_is_written_through_status_only(api: KubeApi, admin: Client) -> None:
    before = api.get("pods", "a")["status"]
    path = "/api/v1/namespaces/serving/pods/a"
    await admin.patch(path, {"status": {"phase": "Failed"}, "metadata": {"labels": {"x": "1"}}})
    assert api.get("pods", "a")["status"] == before
    await admin.patch(f"{path}/status", {"status": {"phase": "Failed"}, "spec": {"nodeName": "other"}})
    there = api.get("pods", "a")
    assert (there["status"]["phase"], there["spec"]["nodeName"]) == ("Failed", "node-0")
    await admin.patch(
        "/apis/apps/v1/namespaces/serving/deployments/vllm/status",
        {"status": {"replicas": 7}, "metadata": {"labels": {"x": "1"}}},
    )
    assert "labels" not in api.get("deployments", "vllm")["metadata"]


async def test_json_patches_and_their_tests(api: KubeApi, admin: Client) -> None:
    path, kind = "/api/v1/nodes/node-0", "application/json-patch+json"
    add = {"op": "add", "path": "/spec/taints", "value": TAINTS[:1]}
    await admin.patch(path, [add, {"op": "add", "path": "/spec/taints/-", "value": TAINTS[1]}], kind)
    is_cordoned = {"op": "test", "path": "/spec/unschedulable", "value": True}
    take_off = {"op": "remove", "path": "/spec/taints/0"}
    assert (await refused(admin.patch(path, [is_cordoned, take_off], kind)))[0] == 422
    first_is_a = {"op": "test", "path": "/spec/taints/0/key", "value": "a"}
    await admin.patch(path, [first_is_a, take_off], kind)
    assert api.get("nodes", "node-0")["spec"]["taints"] == [TAINTS[1]]


async def test_scale(api: KubeApi, admin: Client) -> None:
    scale = await admin.apps.read_namespaced_deployment_scale("vllm", "serving")
    assert (scale.spec.replicas, scale.status.selector) == (2, "app=vllm")
    await admin.patch("/apis/apps/v1/namespaces/serving/deployments/vllm/scale", {"spec": {"replicas": 3}})
    stale = admin.apps.replace_namespaced_deployment_scale("vllm", "serving", scale)
    assert (await refused(stale))[0] == 409
    below = admin.patch("/apis/apps/v1/namespaces/serving/deployments/vllm/scale", {"spec": {"replicas": -1}})
    assert (await refused(below))[0] == 422
    assert api.get("deployments", "vllm")["spec"]["replicas"] == 3


async def test_managed_fields_name_who_changed_the_replicas(api: KubeApi, admin: Client) -> None:
    path = "/apis/apps/v1/namespaces/serving/deployments/vllm/scale"
    await admin.patch(path, {"spec": {"replicas": 3}})
    api.patch("deployments", "vllm", {"spec": {"replicas": 2}}, manager="argocd")
    fields = api.get("deployments", "vllm")["metadata"]["managedFields"]
    of = {entry["manager"] for entry in fields if "f:replicas" in entry["fieldsV1"].get("f:spec", {})}
    assert of == {"argocd"}


@pytest.mark.parametrize(
    ("plural", "name", "patch", "code"),
    [
        ("pods", "a", {"metadata": {"labels": {"x": "not a value!"}}}, 422),
        ("pods", "a", {"metadata": {"annotations": {"x": "y" * 300_000}}}, 422),
        ("pods", "a", {"metadata": {"labels": {"x": 1}}}, 400),
        ("pods", "a", {"spec": {"nodeName": "other"}}, 422),
        ("nodes", "node-0", {"spec": {"taints": [{"key": "a", "effect": "Whatever"}]}}, 422),
        ("nodes", "node-0", {"spec": {"taints": TAINTS[:1] * 2}}, 422),
        ("deployments", "vllm", {"spec": {"replicas": "3"}}, 400),
        ("pods", "nobody", {}, 404),
    ],
)
def test_what_cannot_be_is_refused(plural: str, name: str, patch: Any, code: int) -> None:
    there = KubeApi()
    there.create(node("node-0"), pod("a"), deployment("vllm", 2))
    before = there.store.version
    with pytest.raises(ApiError) as caught:
        there.patch(plural, name, patch)
    assert caught.value.code == code
    assert there.store.version == before


@pytest.mark.parametrize(
    "renewed",
    [
        "2026-01-01T00:00:00Z",  # no microseconds
        "2026-01-01T00:00:00.000001",  # no zone
        "2026-01-01T00:00:00.001Z",
        "2026-01-01 00:00:00.000001Z",
    ],
)
def test_times_that_a_lease_cannot_have(renewed: str) -> None:
    there = KubeApi()
    lease: Any = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "l"}}
    with pytest.raises(ApiError, match="parsing time"):
        there.create({**lease, "spec": {"renewTime": renewed}})
    there.create({**lease, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})


async def test_the_client_writes_leases(admin: Client, api: KubeApi) -> None:
    spec = client.V1LeaseSpec(holder_identity="a", renew_time=datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=UTC))
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="l"), spec=spec)
    await admin.leases.create_namespaced_lease("serving", lease)
    assert (await refused(admin.leases.replace_namespaced_lease("l", "serving", lease)))[0] == 422
    spec.renew_time = datetime(2026, 1, 1, tzinfo=UTC)  # isoformat leaves zero microseconds out
    lease.metadata = client.V1ObjectMeta(name="m")
    assert (await refused(admin.leases.create_namespaced_lease("serving", lease)))[0] == 400


async def test_custom_resources(admin: Client, api: KubeApi) -> None:
    rule = {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": "r", "namespace": "serving"},
        "spec": {"trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 10}}}},
    }
    api.create(rule)
    path = "/apis/networking.istio.io/v1/namespaces/serving/destinationrules/r"
    change = {"spec": {"trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 7}}}}}
    assert (await refused(admin.patch(path, change, STRATEGIC)))[0] == 415
    await admin.patch(path, change)
    assert api.get("destinationrules", "r")["spec"] == change["spec"]


# -- leaving -------------------------------------------------------------------------------------------


async def test_a_pod_leaves_when_its_kubelet_says_so(api: KubeApi, admin: Client) -> None:
    await admin.core.delete_namespaced_pod("a", "serving")
    there = api.get("pods", "a")["metadata"]
    assert there["deletionGracePeriodSeconds"] == 30
    api.finish("pods", "a")
    assert (await refused(admin.core.read_namespaced_pod("a", "serving")))[0] == 404
    await admin.core.delete_namespaced_pod("b", "serving", grace_period_seconds=0)
    assert api.objects("pods") == []


async def test_evictions_keep_the_budget(api: KubeApi, admin: Client) -> None:
    api.create(budget("b", {"app": "vllm"}, maxUnavailable=1))

    async def evict(name: str) -> None:
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name))
        await admin.core.create_namespaced_pod_eviction(name, "serving", body)

    await evict("a")
    code, body = await refused(evict("b"))
    assert code == 429
    assert "DisruptionBudget" in body
    assert "deletionTimestamp" not in api.get("pods", "b")["metadata"]


async def test_preconditions_of_a_deletion(api: KubeApi, admin: Client) -> None:
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    assert (await refused(admin.core.delete_namespaced_pod("a", "serving", body=wrong)))[0] == 409


# -- who may -------------------------------------------------------------------------------------------


def bound(rules: list[Any], kind: str = "Role") -> list[Any]:
    api_version, meta = "rbac.authorization.k8s.io/v1", {"name": "r", "namespace": "serving"}
    subject = {"kind": "ServiceAccount", "name": "s", "namespace": "serving"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"}
    return [
        {"apiVersion": api_version, "kind": kind, "metadata": meta, "rules": rules},
        {
            "apiVersion": api_version,
            "kind": f"{kind}Binding",
            "metadata": meta,
            "subjects": [subject],
            "roleRef": reference,
        },
    ]


async def test_only_what_a_role_names_is_allowed(api: KubeApi, tmp_path: Path) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/status"], "resourceNames": ["a"], "verbs": ["patch"]},
    ]
    api.create(pod("a", namespace="other"))
    user = await connect(api, tmp_path, api.service_account("serving", "s", *bound(rules)))
    await user.core.list_namespaced_pod("serving")
    await user.patch("/api/v1/namespaces/serving/pods/a/status", {"status": {"reason": "x"}})
    for not_allowed in (
        user.core.list_namespaced_pod("other"),
        user.core.list_pod_for_all_namespaces(),
        user.core.list_node(),
        user.core.list_namespaced_pod("serving", watch=True),
        user.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"x": "1"}}}),
        user.patch("/api/v1/namespaces/serving/pods/b/status", {"status": {"reason": "x"}}),
    ):
        code, body = await refused(not_allowed)
        assert (code, "is forbidden" in body) == (403, True)
    await user.connection.close()
    stranger = await connect(api, tmp_path, "no-token-of-ours")
    assert (await refused(stranger.core.list_namespaced_pod("serving")))[0] == 401
    await stranger.connection.close()


# -- lists, watches, faults ----------------------------------------------------------------------------


async def test_lists_in_pages_that_go_stale(api: KubeApi, admin: Client) -> None:
    first = await admin.core.list_namespaced_pod("serving", limit=1)
    assert first.metadata.remaining_item_count == 1
    more = {"limit": 1, "_continue": first.metadata._continue}
    second = await admin.core.list_namespaced_pod("serving", **more)
    assert [one.metadata.name for one in (*first.items, *second.items)] == ["a", "b"]
    api.patch("pods", "a", {"metadata": {"labels": {"x": "1"}}})
    api.compact()
    assert (await refused(admin.core.list_namespaced_pod("serving", **more)))[0] == 410


async def test_a_watch_through_a_selector(api: KubeApi, admin: Client) -> None:
    seen: list[tuple[str, str]] = []
    since = str(api.store.version)
    api.patch("pods", "a", {"metadata": {"labels": {"app": "none"}}})
    api.create(pod("c"))
    api.finish("pods", "b")
    api.create(pod("d", labels={"app": "none"}))
    api.patch("pods", "a", {"metadata": {"labels": {"app": "vllm"}}})
    async with watch.Watch() as following:
        stream = following.stream(
            admin.core.list_namespaced_pod,
            "serving",
            label_selector="app=vllm",
            resource_version=since,
            timeout_seconds=60,
        )
        async for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 4:
                break
    assert seen == [("DELETED", "a"), ("ADDED", "c"), ("DELETED", "b"), ("ADDED", "a")]


async def test_faults(api: KubeApi, admin: Client) -> None:
    busy = api.fail("patch", "pods", status=429, retry_after=7, times=1)
    with pytest.raises(ApiException) as caught:
        await admin.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"x": "1"}}})
    assert (caught.value.status, caught.value.headers["Retry-After"], busy.met) == (429, "7", 1)
    api.fail("patch", "pods", times=1, lose="answer")
    with pytest.raises(Exception, match="disconnect"):
        await admin.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"x": "2"}}})
    assert api.get("pods", "a")["metadata"]["labels"]["x"] == "2"
    api.fail("patch", "pods", times=1, lose="request")
    with pytest.raises(Exception, match="disconnect"):
        await admin.patch("/api/v1/namespaces/serving/pods/a", {"metadata": {"labels": {"x": "3"}}})
    assert api.get("pods", "a")["metadata"]["labels"]["x"] == "2"
    hangs = api.fail("get", "nodes", hang=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await admin.core.read_node("node-0")
    hangs.end()
    await admin.core.read_node("node-0")
    assert api.counts["patch", "pods"] == 3


def test_selectors() -> None:
    labels = {"metadata": {"labels": {"app": "vllm", "tier": "a"}}}
    for text, fits in {
        "": True,
        "app=vllm,tier!=b": True,
        "app==vllm, tier in (a, b)": True,
        "tier notin (a)": False,
        "app,!gone": True,
        "!app": False,
        "gone=": False,
    }.items():
        assert selectors.by_labels(text)(labels) is fits, text
    with pytest.raises(ApiError):
        selectors.by_labels("app=(")
    with pytest.raises(ApiError, match="not supported"):
        selectors.by_fields("spec.replicas=3", "deployments")
    assert selectors.by_fields("spec.nodeName=node-0,metadata.name!=b", "pods")(pod("a"))


def test_for_those_who_block(tmp_path: Path) -> None:
    from kubernetes import client as blocking
    from kubernetes import config as blocking_config

    with KubeApi().in_thread() as there:
        there.call(there.api.create, pod("a"))
        settings = blocking.Configuration()
        path = there.api.kubeconfig(tmp_path / "kubeconfig")
        blocking_config.load_kube_config(str(path), client_configuration=settings)
        with blocking.ApiClient(settings) as connection:
            found = blocking.CoreV1Api(connection).list_namespaced_pod("serving")
        assert [one.metadata.name for one in found.items] == ["a"]
