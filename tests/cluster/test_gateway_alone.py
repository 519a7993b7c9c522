"""A gateway that nobody steers finds the pods itself, and loses none while the API server is away."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kube_api import KubeApi
from kube_api.objects import pod, reader

from controlplane.gateway.own_discovery import OwnDiscovery
from controlplane.signals.samples import Target
from controlplane.sources.kubernetes_settings import KubernetesSettings
from controlplane.sources.settings import ScrapeSettings, TargetSettings

POOLS = {
    "chat": TargetSettings.model_validate({"kubernetes": {"selector": "app=vllm", "namespace": "serving"}}),
    "code": TargetSettings(static=("http://10.1.0.1:8000",)),
}
KNOWN = (Target("10.0.0.9:8000", "chat", "http://10.0.0.9:8000/metrics"),)


@pytest.fixture
async def api() -> AsyncIterator[KubeApi]:
    async with KubeApi() as api:
        api.create(pod("a", ip="10.0.0.1"))
        yield api


async def test_pods_are_found_and_not_watched_while_somebody_steers(api: KubeApi, tmp_path: Path) -> None:
    settings = KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig"))
    own = OwnDiscovery(POOLS, ScrapeSettings(), settings)
    targets, _ = await own.look()
    assert [target.name for target in targets or ()] == ["10.0.0.1:8000", "10.1.0.1:8000"]
    await own.rest()
    await own.rest()
    api.create(pod("b", ip="10.0.0.2"))
    assert [request.verb for request in api.requests].count("list") == 1
    targets, _ = await own.look(KNOWN)
    assert len(targets or ()) == 3
    await own.rest()


async def test_what_was_told_stands_until_the_cluster_has_answered(api: KubeApi, tmp_path: Path) -> None:
    settings = KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig"))
    own = OwnDiscovery(POOLS, ScrapeSettings(), settings)
    await api.stop()
    targets, events = await own.look(KNOWN)
    assert targets is None
    assert [event.kind for event in events] == ["discovery-failing"]
    targets, _ = await own.look()
    assert [target.pool for target in targets or ()] == ["code"]
    await own.rest()


async def test_a_pool_that_may_not_be_listed_keeps_its_replicas_and_hides_no_other(
    api: KubeApi, tmp_path: Path
) -> None:
    token = api.service_account("serving", "controlplane", *reader("serving"))
    settings = KubernetesSettings(kubeconfig=api.kubeconfig(tmp_path / "kubeconfig", token))
    elsewhere = TargetSettings.model_validate({"kubernetes": {"selector": "app=vllm", "namespace": "batch"}})
    own = OwnDiscovery({**POOLS, "batch": elsewhere}, ScrapeSettings(), settings)
    targets, _ = await own.look((*KNOWN, Target("10.2.0.1:8000", "batch", "http://10.2.0.1:8000/metrics")))
    assert {target.name: target.pool for target in targets or ()} == {
        "10.0.0.1:8000": "chat",  # 10.0.0.9, which was known, is there no more
        "10.1.0.1:8000": "code",
        "10.2.0.1:8000": "batch",
    }
    await own.rest()
