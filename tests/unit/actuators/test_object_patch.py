"""Limits are set in custom objects on a test API server: in steps, read back, beside what others write."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import Clock, sender_to
from fleet_fakes import fleet, replica
from kube_api import KubeApi

from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.actuators.object_patch import ObjectPatch
from controlplane.actuators.settings import ObjectsSettings
from controlplane.signals.decision import SET_LIMIT, Decision, Mode
from controlplane.signals.snapshot import Limit

RULE = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "DestinationRule",
    "metadata": {"name": "chat", "namespace": "serving"},
    "spec": {
        "host": "chat",
        "trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 100, "maxRetries": 3}}},
    },
}
POLICY = {
    "apiVersion": "gateway.envoyproxy.io/v1alpha1",
    "kind": "BackendTrafficPolicy",
    "metadata": {"name": "solo", "namespace": "serving"},
    "spec": {"targetRefs": []},
}
SETTINGS = ObjectsSettings.model_validate(
    {
        "fields": [
            {
                "pool": "chat",
                "api_version": "networking.istio.io/v1",
                "kind": "DestinationRule",
                "namespace": "serving",
                "name": "chat",
                "path": "spec.trafficPolicy.connectionPool.http.http2MaxRequests",
            },
            {
                "replica": "solo:1",
                "api_version": "gateway.envoyproxy.io/v1alpha1",
                "kind": "BackendTrafficPolicy",
                "namespace": "serving",
                "name": "solo",
                "path": "spec.circuitBreaker.maxParallelRequests",
            },
        ]
    }
)


def decision(new: object, target: str = "a:1", id_: str = "7-1") -> Decision:
    return Decision(id_, 1_790_000_000.0, SET_LIMIT, target, "", str(new), "why", "why", (), Mode.ENFORCE)


def limit(slots: int) -> Limit:
    return Limit("slo-gradient", slots, "tpot-near", "", 0.0)


class Bench:
    def __init__(self, api: KubeApi, send: Send) -> None:
        self.api, self.clock = api, Clock()
        self.slots = {"a": 60, "b": 60}
        self.actuator = ObjectPatch(SETTINGS, send, self._seen, steady=self.clock, luck=lambda: 0.0)

    def _seen(self) -> Any:
        members = [replica(f"{name}:1", "chat", limit=limit(slots)) for name, slots in self.slots.items()]
        return fleet(*members, replica("solo:1", "solo", limit=limit(40)))

    @property
    def http(self) -> dict[str, Any]:
        spec = self.api.get("destinationrules", "chat")["spec"]
        found: dict[str, Any] = spec["trafficPolicy"]["connectionPool"]["http"]
        return found

    async def until_done(self, new: int) -> list[int]:
        """The values on the way."""
        seen = []
        for _ in range(20):
            self.clock.now += 1.0
            try:
                await self.actuator.apply(decision(new))
            except UnfinishedError:
                seen.append(self.http["http2MaxRequests"])
            else:
                return [*seen, self.http["http2MaxRequests"]]
        raise AssertionError(seen)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api, sender_to(api, tmp_path / "kubeconfig") as send:
        api.create(RULE, POLICY)
        yield Bench(api, send)


async def test_a_pool_gets_the_sum_in_steps_beside_what_others_set(bench: Bench) -> None:
    bench.slots = {"a": 200, "b": 200}
    assert await bench.until_done(200) == [150, 225, 337, 400]
    assert bench.http["maxRetries"] == 3


async def test_a_field_that_is_not_there_yet_is_set_at_once(bench: Bench) -> None:
    await bench.actuator.apply(decision(40, "solo:1"))
    spec = bench.api.get("backendtrafficpolicies", "solo")["spec"]
    assert spec == {"targetRefs": [], "circuitBreaker": {"maxParallelRequests": 40}}


async def test_the_same_value_again_writes_nothing(bench: Bench) -> None:
    await bench.actuator.apply(decision(60))
    await bench.actuator.apply(decision(60))
    assert bench.http["http2MaxRequests"] == 120
    assert bench.api.counts["patch", "destinationrules"] == 1


async def test_a_value_that_does_not_stay_is_told(bench: Bench) -> None:
    other = {"spec": {"trafficPolicy": {"connectionPool": {"http": {"http2MaxRequests": 7}}}}}

    def reset() -> None:  # between our write and our look
        if bench.api.counts["patch", "destinationrules"]:
            bench.api.patch("destinationrules", "chat", other, manager="argocd")

    bench.api.fail("get", "destinationrules", meddle=reset)
    with pytest.raises(CallFailedError, match="shows 7 after 120 was taken"):
        await bench.actuator.apply(decision(60))


async def test_a_server_that_fails_is_left_alone_for_a_while(bench: Bench) -> None:
    fault = bench.api.fail("patch", "destinationrules", status=503)
    with pytest.raises(CallFailedError, match="503"):
        await bench.actuator.apply(decision(60))
    with pytest.raises(CallFailedError, match=r"not tried: the next try is in 1\.0 s"):
        await bench.actuator.apply(decision(60))
    fault.end()
    bench.clock.now += 1.0
    await bench.actuator.apply(decision(60))
    assert bench.http["http2MaxRequests"] == 120


@pytest.mark.parametrize(
    ("http", "why"), [({"http2MaxRequests": "many"}, "no whole number"), ("none", "is no map")]
)
async def test_an_object_of_another_shape_is_refused(bench: Bench, http: object, why: str) -> None:
    bench.api.patch(
        "destinationrules", "chat", {"spec": {"trafficPolicy": {"connectionPool": {"http": http}}}}
    )
    with pytest.raises(RefusedError, match=why):
        await bench.actuator.apply(decision(60))


async def test_only_what_has_a_field_is_taken(bench: Bench) -> None:
    takes = bench.actuator.takes
    assert [takes("a:1", "chat"), takes("solo:1", "solo"), takes("x:1", "other")] == [True, True, False]
