"""Decisions become Events on a test API server: few, short, and of what was done."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster_bench import sender_to
from fleet_fakes import AT, fleet, replica
from kube_api import KubeApi
from kube_api.objects import pod

from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.cluster_events import ClusterEvents
from controlplane.actuators.settings import Workload
from controlplane.signals.decision import (
    QUARANTINE_NODE,
    SCALE,
    SET_LIMIT,
    SET_ROTATION,
    Decision,
    Mode,
)
from controlplane.signals.pod import PodFacts

WORKLOAD = Workload(pool="chat", namespace="serving", name="vllm")
SENTENCE = "a:1 gets no new requests: it has work and makes no token"


def decision(action: str = SET_ROTATION, target: str = "a:1", new: str = "out", **changes: Any) -> Decision:
    base = Decision("7-1", AT, action, target, "", new, "wedged", SENTENCE, (), Mode.ENFORCE, "done")
    return Decision(**{name: getattr(base, name) for name in Decision.__struct_fields__} | changes)


class Bench:
    def __init__(self, api: KubeApi, send: Send) -> None:
        self.api, self.now = api, AT
        self.events = ClusterEvents(send, (WORKLOAD,), "daemon-0", now=lambda: self.now)
        facts = PodFacts(namespace="serving", name="a", pool="chat", uid="uid-a")
        self.seen = fleet(replica("a:1", pod="serving/a"), replica("bare:1"), pods={facts.key: facts})

    async def say(self, *decisions: Decision) -> list[dict[str, Any]]:
        for one in decisions:
            self.events.take(one, self.seen)
        await self.events.write()
        return self.written

    @property
    def written(self) -> list[dict[str, Any]]:
        return self.api.objects("events.events.k8s.io")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with KubeApi() as api, sender_to(api, tmp_path / "kubeconfig") as send:
        api.create(pod("a"))
        api.have_namespace("default")
        yield Bench(api, send)


async def test_an_event_says_what_was_decided_about_which_object(bench: Bench) -> None:
    (event,) = await bench.say(decision())
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "a",
        "namespace": "serving",
        "uid": "uid-a",
    }
    said = [event[name] for name in ("reason", "action", "type", "note", "reportingController")]
    assert said == ["SetRotation", "SetRotation", "Normal", SENTENCE, "controlplane"]
    assert event["reportingInstance"] == "daemon-0"
    assert event["eventTime"] == "2025-11-24T16:00:00.000000Z"


async def test_nodes_and_workloads_have_events_too_and_failures_are_warnings(bench: Bench) -> None:
    await bench.say(decision(QUARANTINE_NODE, "n1", "mark"))
    await bench.say(decision(SCALE, "chat", "5", outcome="failed: no right to"))
    told = {one["regarding"]["kind"]: one for one in bench.written}
    assert set(told) == {"Node", "Deployment"}
    assert told["Node"]["metadata"]["namespace"] == "default"
    assert told["Deployment"]["type"] == "Warning"
    assert told["Deployment"]["note"].endswith("; failed: no right to")


@pytest.mark.parametrize(
    "one",
    [
        decision(outcome="observed"),
        decision(outcome="held"),
        decision(outcome="pending"),
        decision(SET_LIMIT, new="58"),
        decision(target="bare:1"),
        decision(target="nobody"),
    ],
)
async def test_what_was_not_done_or_moves_all_the_time_has_none(bench: Bench, one: Decision) -> None:
    assert await bench.say(one) == []


async def test_the_same_is_said_once_a_minute_and_a_storm_is_cut_off(bench: Bench) -> None:
    assert len(await bench.say(decision(), decision(), decision(new="in"))) == 2
    bench.now += 60.0
    assert len(await bench.say(decision())) == 3
    await bench.say(*(decision(QUARANTINE_NODE, f"n{i}") for i in range(100)))
    assert len(bench.written) == 22  # a burst of twenty, one of which was used
    bench.now += 10.0
    await bench.say(*(decision(QUARANTINE_NODE, f"m{i}") for i in range(100)))
    assert len(bench.written) == 24  # one in five seconds
    assert bench.events.dropped == 1 + 81 + 98


async def test_a_long_sentence_is_cut_to_what_the_server_takes(bench: Bench) -> None:
    (event,) = await bench.say(decision(sentence="ü" * 2000))
    assert 1000 < len(event["note"].encode()) <= 1024


async def test_what_cannot_be_written_is_told_and_not_tried_again(bench: Bench) -> None:
    bench.api.fail("create", "events", status=403, times=1)
    with pytest.raises(CallFailedError, match="an Event was not taken: the API server answers 403"):
        await bench.say(decision(), decision(new="in"))
    assert len(bench.written) == 1
    await bench.events.write()
    assert len(bench.written) == 1


async def test_a_server_that_is_away_is_asked_once(bench: Bench) -> None:
    await bench.api.stop()
    with pytest.raises(CallFailedError):
        await bench.say(*(decision(QUARANTINE_NODE, f"n{i}") for i in range(10)))
    assert bench.events.dropped == 10
