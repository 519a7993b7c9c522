"""Pods are taken out of their Service and let in again on a test API server, over real HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cluster_bench import Clock
from kube_api import KubeApi
from kube_api.objects import pod

from controlplane.actuators.call import CallFailedError
from controlplane.actuators.limit import RefusedError
from controlplane.actuators.pod import PodActuator
from controlplane.commands.actuators import cluster_sender
from controlplane.signals.decision import SET_ROTATION, Decision, Mode
from controlplane.signals.pod import PodFacts
from controlplane.signals.serving import ANNOTATION, GATE, LABEL
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings

AT = 1_790_000_000.0
SENTENCE = "chat-0 has work and makes no token"


def decision(new: str, target: str = "10.0.0.1:8000", id_: str = "7-1") -> Decision:
    return Decision(id_, AT, SET_ROTATION, target, "", new, "wedged", SENTENCE, (), Mode.ENFORCE)


class Bench:
    def __init__(self, api: KubeApi, path: Path) -> None:
        self.api = api
        self.cluster = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(path)))
        self.told: list[str] = []
        self.pods = {
            "serving/a": PodFacts(namespace="serving", name="a", pool="chat"),
            "serving/g": PodFacts(namespace="serving", name="g", pool="chat", gates=(GATE,)),
        }
        places = {"10.0.0.1:8000": "serving/a", "10.0.0.2:8000": "serving/g", "bare:8000": ""}
        replicas = {name: SimpleNamespace(pod=key) for name, key in places.items()}
        self.seen = cast(FleetSnapshot, SimpleNamespace(replicas=replicas, pods=self.pods))
        self.clock = Clock()
        self.actuator = PodActuator(
            cluster_sender(self.cluster),
            lambda: self.seen,
            self._gateways_first,
            steady=self.clock,
            luck=lambda: 0.0,
        )

    async def _gateways_first(self, decision: Decision) -> None:
        self.told.append(f"{decision.new} while the label is {self.label}")

    def pod(self, name: str = "a") -> dict[str, Any]:
        return self.api.get("pods", name)

    @property
    def label(self) -> str | None:
        return self.pod()["metadata"]["labels"].get(LABEL)

    @property
    def annotation(self) -> str | None:
        return self.pod()["metadata"].get("annotations", {}).get(ANNOTATION)

    @property
    def gate(self) -> dict[str, Any]:
        found = [one for one in self.pod("g")["status"]["conditions"] if one["type"] == GATE]
        return found[0] if found else {}

    def by_person(self, label: str | None) -> None:
        self.api.patch("pods", "a", {"metadata": {"labels": {LABEL: label}}}, manager="kubectl")

    @property
    def writes(self) -> int:
        return self.api.counts["patch", "pods"] + self.api.counts["patch", "pods/status"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api:
        api.create(pod("a", labels={"app": "vllm", LABEL: "true"}), pod("g", gates=(GATE,)))
        made = Bench(api, tmp_path / "kubeconfig")
        yield made
        await made.cluster.close()


async def test_a_pod_goes_out_and_in_by_its_label_after_the_gateways_know(bench: Bench) -> None:
    await bench.actuator.apply(decision("out"))
    assert (bench.label, bench.annotation) == ("false", "wedged 2026-09-21T14:13:20Z")
    await bench.actuator.apply(decision("out"))
    assert bench.writes == 1
    await bench.actuator.apply(decision("in", id_="9-1"))
    assert (bench.label, bench.annotation) == ("true", None)
    await bench.actuator.apply(decision("in", id_="9-1"))
    assert bench.writes == 2
    assert bench.told[0] == "out while the label is true"
    assert bench.told[2] == "in while the label is false"


async def test_a_pod_that_a_person_took_out_is_not_let_in(bench: Bench) -> None:
    bench.by_person("false")
    await bench.actuator.apply(decision("out"))
    await bench.actuator.apply(decision("in", id_="9-1"))
    assert (bench.label, bench.writes) == ("false", 0)


async def test_a_pod_that_a_person_let_in_is_not_taken_out_for_the_same_thing(bench: Bench) -> None:
    await bench.actuator.apply(decision("out"))
    bench.by_person("true")
    with pytest.raises(RefusedError, match="pod serving/a: somebody has let it in again"):
        await bench.actuator.apply(decision("out"))
    await bench.actuator.apply(decision("in", id_="9-1"))
    assert (bench.label, bench.annotation) == ("true", None)


@pytest.mark.parametrize("new", ["out", "in"])
async def test_another_pod_of_the_same_name_is_not_touched(bench: Bench, new: str) -> None:
    await bench.actuator.apply(decision("out"))
    for key in ("serving/a", "serving/g"):
        bench.pods[key] = msgspec.structs.replace(bench.pods[key], uid="the one before")
    before = bench.writes
    for target in ("10.0.0.1:8000", "10.0.0.2:8000"):
        with pytest.raises(RefusedError, match="another one has its name by now"):
            await bench.actuator.apply(decision(new, target, "9-1"))
    await bench.actuator.admit_new(bench.seen)
    assert bench.writes == before
    for name in ("a", "g"):
        uid = bench.pod(name)["metadata"]["uid"]
        bench.pods[f"serving/{name}"] = msgspec.structs.replace(bench.pods[f"serving/{name}"], uid=uid)
    await bench.actuator.apply(decision("in", id_="9-1"))
    await bench.actuator.admit_new(bench.seen)
    assert (bench.label, bench.gate["status"]) == ("true", "True")


OUT = {ANNOTATION: "wedged 2026-09-21T14:13:20Z"}


@pytest.mark.parametrize(
    ("new", "label", "annotations", "undone"),
    [
        ("out", "false", OUT, False),
        ("out", "false", {}, False),  # a person's, which is as good
        ("out", "true", {}, True),
        ("out", "true", OUT, True),  # a person's, which only asking can tell for sure
        ("in", "true", {}, False),
        ("in", "false", {}, False),
        ("in", "false", OUT, True),
    ],
)
async def test_what_the_cluster_tells_of_a_pod_is_what_was_done_or_not(
    bench: Bench, new: str, label: str, annotations: dict[str, str], undone: bool
) -> None:
    bench.pods["serving/a"] = msgspec.structs.replace(
        bench.pods["serving/a"], labels={LABEL: label}, annotations=annotations
    )
    assert bench.actuator.is_undone(decision(new)) is undone
    del bench.pods["serving/a"]
    assert not bench.actuator.is_undone(decision(new)), "it is not there"


@pytest.mark.parametrize(
    ("new", "status", "undone"),
    [("out", "False", False), ("out", "True", True), ("out", "", True), ("in", "False", True)],
)
async def test_so_does_the_condition_of_one_with_a_gate(
    bench: Bench, new: str, status: str, undone: bool
) -> None:
    bench.pods["serving/g"] = msgspec.structs.replace(
        bench.pods["serving/g"], conditions={GATE: status} if status else {}
    )
    assert bench.actuator.is_undone(decision(new, "10.0.0.2:8000")) is undone


async def test_a_label_that_the_template_does_not_set_is_named(bench: Bench) -> None:
    bench.by_person(None)
    with pytest.raises(RefusedError, match=r'its template sets no label controlplane.llm/serving: "true"'):
        await bench.actuator.apply(decision("out"))


async def test_a_pod_with_a_gate_goes_out_and_in_by_its_condition(bench: Bench) -> None:
    target = "10.0.0.2:8000"
    others = [one for one in bench.pod("g")["status"]["conditions"] if one["type"] != GATE]
    await bench.actuator.apply(decision("out", target))
    assert (bench.gate["status"], bench.gate["reason"]) == ("False", "TakenOut")
    assert bench.gate["message"] == f"wedged: {SENTENCE}"
    assert [one for one in bench.pod("g")["status"]["conditions"] if one["type"] != GATE] == others
    await bench.actuator.apply(decision("in", target, "9-1"))
    assert (bench.gate["status"], bench.gate["reason"]) == ("True", "Admitted")


@pytest.mark.parametrize(
    ("new", "theirs"),
    [
        ("in", {"type": GATE, "status": "False", "reason": "Maintenance"}),
        ("out", {"type": GATE, "status": "True", "reason": "TakenOut"}),  # a person turned it
        ("in", {"type": GATE, "status": "False", "reason": "Admitted"}),
    ],
)
async def test_a_condition_that_is_somebody_elses_stays(
    bench: Bench, new: str, theirs: dict[str, str]
) -> None:
    kept = bench.pod("g")["status"]["conditions"]
    body = {"status": {"conditions": [*kept, theirs]}}
    bench.api.patch("pods", "g", body, subresource="status", manager="kubectl")
    with pytest.raises(RefusedError, match=f"somebody else's \\({theirs['reason']}\\)"):
        await bench.actuator.apply(decision(new, "10.0.0.2:8000"))
    await bench.actuator.admit_new(bench.seen)
    assert bench.gate == theirs


async def test_every_new_pod_with_a_gate_is_let_in(bench: Bench) -> None:
    bench.pods["serving/gone"] = PodFacts(namespace="serving", name="gone", pool="chat", gates=(GATE,))
    await bench.actuator.admit_new(bench.seen)
    assert (bench.gate["status"], bench.label) == ("True", "true")
    await bench.actuator.admit_new(bench.seen)
    assert bench.writes == 1


async def test_a_server_that_fails_is_told_of_and_keeps_nobody_else_out(bench: Bench) -> None:
    bench.api.create(pod("x", gates=(GATE,)))
    bench.pods["serving/x"] = msgspec.structs.replace(bench.pods["serving/g"], name="x")
    bench.api.fail("patch", "pods/status", name="x", status=500, times=1)
    with pytest.raises(CallFailedError, match="500"):
        await bench.actuator.admit_new(bench.seen)
    assert bench.gate["status"] == "True"


@pytest.mark.parametrize(
    ("how", "seconds"), [({"status": 429, "retry_after": 7}, 7.0), ({"status": 403}, 60.0)]
)
async def test_a_pod_that_cannot_be_let_in_is_tried_again_when_it_is_time(
    bench: Bench, how: dict[str, int], seconds: float
) -> None:
    fault = bench.api.fail("patch", "pods/status", **how)
    for _ in range(3):
        with pytest.raises(CallFailedError, match=str(how["status"])):
            await bench.actuator.admit_new(bench.seen)
    assert fault.met == 1
    fault.end()
    bench.clock.now += seconds
    await bench.actuator.admit_new(bench.seen)
    assert bench.gate["status"] == "True"
    await bench.actuator.admit_new(bench.seen)


@pytest.mark.parametrize("status", [400, 401, 403, 422])
async def test_what_is_forbidden_may_be_allowed_later(bench: Bench, status: int) -> None:
    bench.api.fail("patch", "pods", status=status, times=1)
    with pytest.raises(CallFailedError, match=f"refuses it .{status}.") as caught:
        await bench.actuator.apply(decision("out"))
    assert caught.value.asked_seconds == 60.0
    await bench.actuator.apply(decision("out"))
    assert bench.label == "false"


async def test_what_somebody_else_wrote_in_between_is_not_lost(bench: Bench) -> None:
    there = {"metadata": {"annotations": {"team": "x"}}}
    bench.api.fail("patch", "pods", meddle=lambda: bench.api.patch("pods", "a", there), times=1)
    await bench.actuator.apply(decision("out"))
    assert bench.pod()["metadata"]["annotations"]["team"] == "x"
    assert bench.label == "false"


async def test_only_replicas_with_a_pod_and_their_pools_are_taken(bench: Bench) -> None:
    takes = bench.actuator.takes
    assert [takes("10.0.0.1:8000", "chat"), takes("bare:8000", "chat")] == [True, False]
    assert [takes("chat", "chat"), takes("other", "other")] == [True, False]
    with pytest.raises(RefusedError, match="its pod is not known"):
        await bench.actuator.apply(decision("out", "bare:8000"))


async def test_a_direction_that_there_is_not_is_refused(bench: Bench) -> None:
    with pytest.raises(RefusedError, match="goes in or out"):
        await bench.actuator.apply(decision("sideways"))
