"""Nodes are taken and given back on a test API server, over real HTTP with the rights that we ship."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fleet_fakes import fleet
from kube_api import KubeApi
from kube_api.objects import node

from controlplane.actuators.call import CallFailedError
from controlplane.actuators.limit import RefusedError
from controlplane.actuators.node import NodeActuator
from controlplane.commands.actuators import cluster_sender
from controlplane.signals import marks
from controlplane.signals.decision import QUARANTINE_NODE, RELEASE_NODE, Decision, Mode
from controlplane.signals.marks import ANNOTATION, TAINT_KEY
from controlplane.signals.node import Mark, NodeFacts
from controlplane.sources.kubernetes_api import KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings

MARK = Mark("f-1", "xid", "GPU-5f3c", "drain-and-reset", "XID 79 on GPU-5f3c", 1_790_000_000.0)
OTHER = {"key": "maintenance", "effect": "NoExecute"}


def mark(**changes: Any) -> Mark:
    return Mark(**{name: getattr(MARK, name) for name in Mark.__struct_fields__} | changes)


def decision(action: str, old: Mark | None = None, new: Mark | None = None, id_: str = "7-1") -> Decision:
    texts = ["" if one is None else marks.text(one) for one in (old, new)]
    return Decision(id_, 1_790_000_000.0, action, "n1", *texts, "xid", "why", (), Mode.ENFORCE)


def take(new: Mark = MARK, old: Mark | None = None, id_: str = "7-1") -> Decision:
    return decision(QUARANTINE_NODE, old, new, id_)


def give_back(ours: Mark = MARK, id_: str = "9-1") -> Decision:
    return decision(RELEASE_NODE, ours, None, id_)


class Bench:
    def __init__(self, api: KubeApi, path: Path) -> None:
        self.api = api
        self.cluster = KubernetesApi(KubernetesSettings(kubeconfig=api.kubeconfig(path)))
        self.seen = fleet(node_facts={})
        self.actuator = NodeActuator(cluster_sender(self.cluster), lambda: self.seen)

    def node(self) -> dict[str, Any]:
        return self.api.get("nodes", "n1")

    @property
    def taints(self) -> list[dict[str, Any]]:
        return list(self.node()["spec"].get("taints", []))

    @property
    def annotation(self) -> str | None:
        return self.node()["metadata"].get("annotations", {}).get(ANNOTATION)

    @property
    def is_cordoned(self) -> bool:
        return bool(self.node()["spec"].get("unschedulable"))

    def by_person(self, **spec: Any) -> None:
        self.api.patch("nodes", "n1", {"spec": spec}, manager="kubectl")

    @property
    def writes(self) -> int:
        return self.api.counts["patch", "nodes"]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api:
        api.create(node("n1"))
        made = Bench(api, tmp_path / "kubeconfig")
        yield made
        await made.cluster.close()


async def test_a_node_is_tainted_beside_what_others_put_there(bench: Bench) -> None:
    bench.by_person(taints=[OTHER])
    await bench.actuator.apply(take())
    assert [taint["key"] for taint in bench.taints] == ["maintenance", TAINT_KEY]
    assert bench.annotation == marks.text(MARK)
    assert not bench.is_cordoned


async def test_the_same_decision_again_writes_nothing(bench: Bench) -> None:
    await bench.actuator.apply(take())
    await bench.actuator.apply(take())
    assert bench.writes == 1


async def test_a_release_takes_off_only_what_is_ours(bench: Bench) -> None:
    await bench.actuator.apply(take(mark(kind="both")))
    bench.by_person(taints=[*bench.taints, OTHER])
    await bench.actuator.apply(give_back(mark(kind="both")))
    assert [taint["key"] for taint in bench.taints] == ["maintenance"]
    assert bench.annotation is None
    assert not bench.is_cordoned
    await bench.actuator.apply(give_back(mark(kind="both")))  # once more changes nothing
    assert bench.writes == 2


async def test_a_cordon_that_was_there_before_stays(bench: Bench) -> None:
    bench.by_person(unschedulable=True)
    ours = mark(kind="both", unschedulable_before=True)
    await bench.actuator.apply(take(ours))
    await bench.actuator.apply(give_back(ours))
    assert bench.is_cordoned
    assert bench.taints == []


@pytest.mark.parametrize("cordoned_before", [False, True])
async def test_who_cordons_or_uncordons_in_between_wins(bench: Bench, cordoned_before: bool) -> None:
    bench.by_person(unschedulable=not cordoned_before)
    with pytest.raises(RefusedError, match=r"node n1 was (un)?cordoned by somebody since the decision"):
        await bench.actuator.apply(take(mark(kind="cordon", unschedulable_before=cordoned_before)))
    assert bench.annotation is None


async def test_a_person_uncordons_what_is_ours_and_it_stays_so(bench: Bench) -> None:
    ours = mark(kind="cordon")
    await bench.actuator.apply(take(ours))
    bench.by_person(unschedulable=False)
    worse = mark(kind="cordon", check="gpu-missing")
    with pytest.raises(RefusedError, match="uncordoned by somebody while it is ours"):
        await bench.actuator.apply(take(worse, ours, "8-1"))
    await bench.actuator.apply(give_back(ours))
    assert not bench.is_cordoned
    assert bench.annotation is None


async def test_a_person_takes_off_our_taint_and_it_stays_off(bench: Bench) -> None:
    await bench.actuator.apply(take())
    bench.by_person(taints=[OTHER])
    worse = mark(check="gpu-missing")
    with pytest.raises(RefusedError, match="its taint was taken off by somebody while it is ours"):
        await bench.actuator.apply(take(worse, MARK, "8-1"))
    await bench.actuator.apply(give_back(id_="9-1"))
    assert bench.taints == [OTHER]
    assert bench.annotation is None


async def test_a_heavier_fault_takes_the_place_of_the_lighter(bench: Bench) -> None:
    await bench.actuator.apply(take())
    worse = mark(fault="f-2", check="gpu-missing", remedy="cordon-and-replace")
    await bench.actuator.apply(take(worse, MARK, "8-1"))
    assert bench.annotation == marks.text(worse)
    assert len(bench.taints) == 1


@pytest.mark.parametrize("text", ["not ours", marks.text(mark(fault="f-9"))])
async def test_what_somebody_else_wrote_is_neither_replaced_nor_taken_off(bench: Bench, text: str) -> None:
    bench.api.patch("nodes", "n1", {"metadata": {"annotations": {ANNOTATION: text}}}, manager="kubectl")
    for one in (take(), give_back()):
        with pytest.raises(RefusedError, match="n1"):
            await bench.actuator.apply(one)
    assert bench.annotation == text
    assert bench.writes == 0


async def test_a_race_is_run_again_with_what_is_there_now(bench: Bench) -> None:
    fault = bench.api.fail("patch", "nodes", times=1, meddle=lambda: bench.by_person(taints=[OTHER]))
    await bench.actuator.apply(take())
    assert fault.met == 1
    assert [taint["key"] for taint in bench.taints] == ["maintenance", TAINT_KEY]


async def test_an_answer_that_is_lost_is_found_done(bench: Bench) -> None:
    bench.api.fail("patch", "nodes", lose="answer", times=1)
    with pytest.raises(CallFailedError):
        await bench.actuator.apply(take())
    await bench.actuator.apply(take())
    assert bench.annotation == marks.text(MARK)
    assert bench.writes == 1 or len(bench.taints) == 1


async def test_the_server_asks_to_be_left_alone(bench: Bench) -> None:
    bench.api.fail("patch", "nodes", status=429, retry_after=7, times=1)
    with pytest.raises(CallFailedError, match="429") as caught:
        await bench.actuator.apply(take())
    assert caught.value.asked_seconds == 7


async def test_without_the_right_it_is_said_and_left_alone_for_a_while(tmp_path: Path, bench: Bench) -> None:
    token = bench.api.service_account("serving", "controlplane")
    path = bench.api.kubeconfig(tmp_path / "weak", token)
    cluster = KubernetesApi(KubernetesSettings(kubeconfig=path))
    with pytest.raises(CallFailedError, match="403") as caught:
        await NodeActuator(cluster_sender(cluster), lambda: None).apply(take())
    assert caught.value.asked_seconds == 60.0
    await cluster.close()


@pytest.mark.parametrize("asked", [take(), give_back()], ids=["take", "give-back"])
async def test_another_machine_of_the_same_name_is_not_touched(bench: Bench, asked: Decision) -> None:
    bench.seen = fleet(node_facts={"n1": NodeFacts("n1", uid="the one before")})
    with pytest.raises(RefusedError, match="another one has its name by now"):
        await bench.actuator.apply(asked)
    assert bench.writes == 0
    bench.seen = fleet(node_facts={"n1": NodeFacts("n1", uid=bench.node()["metadata"]["uid"])})
    await bench.actuator.apply(asked)


async def test_a_node_that_is_gone(bench: Bench) -> None:
    bench.api.delete("nodes", "n1")
    with pytest.raises(RefusedError, match="there is no such object"):
        await bench.actuator.apply(take())


async def test_a_decision_that_is_older_than_the_last_one(bench: Bench) -> None:
    await bench.actuator.apply(take(id_="8-1"))
    with pytest.raises(RefusedError, match="superseded"):
        await bench.actuator.apply(give_back(id_="7-2"))


async def test_a_decision_without_a_mark(bench: Bench) -> None:
    with pytest.raises(RefusedError, match="names no mark of ours"):
        await bench.actuator.apply(decision(QUARANTINE_NODE))
