"""Readiness inside the tick: what takes a replica out, what brings it back, and what never does."""

from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from daemon_fakes import settings as daemon_settings
from fleets import NOON
from hypothesis import given
from hypothesis import strategies as st
from rotation_loop import POLICY, RULES, Loop

from controlplane.daemon.dispatch import stays_out
from controlplane.daemon.steering import level
from controlplane.policy import steer
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.readying import _median_without
from controlplane.policy.settings import PoolPolicy
from controlplane.signals.decision import (
    Hold,
    Mode,
    Orders,
    Override,
)
from controlplane.signals.node import NodeFacts
from controlplane.signals.samples import ReplicaWindow
from controlplane.signals.serving import ANNOTATION, GATE
from controlplane.signals.snapshot import ReplicaSnapshot


def test_a_healthy_pool_decides_nothing() -> None:
    loop = Loop()
    loop(30)
    assert (loop.out, loop.decisions) == ({}, [])


def test_errors_that_a_gateway_sees_take_a_replica_out_and_it_comes_back_later() -> None:
    loop = Loop()
    loop.seen = {name: ReplicaWindow(finished=3, gaps=9) for name in loop.replicas}
    loop(5)
    loop.seen["r1"] = ReplicaWindow(finished=1, failed=4)
    loop(10)
    assert loop.out == {"r1": "errors"}
    loop.seen["r1"] = ReplicaWindow()
    loop(120)
    assert loop.out == {}
    assert loop.changes() == [("r1", "out", "errors"), ("r1", "in", "well")]
    assert loop.decisions[0].evidence[0].name == "running"
    assert loop.decisions[0].sentence == "r1 gets no new requests: too many of its answers are errors"


def test_a_probe_of_the_cluster_that_fails_is_outvoted_by_tokens_that_flow() -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", containers_ready=False, ready=False)
    loop(20)
    assert loop.out == {}
    loop.idle = {"r1"}
    loop(20)
    assert loop.out == {"r1": "unreachable"}
    loop.set_pod("r1", containers_ready=True, ready=True)
    loop(12)
    assert loop.out == {}


def test_a_page_that_is_not_read_changes_nothing() -> None:
    loop = Loop(pods=False)
    loop(5)
    loop.silent = {"r1"}
    loop(300)
    assert loop.decisions == []


def test_work_without_a_token_while_a_gateway_waits_takes_it_out_and_it_stays_out_until_it_moves() -> None:
    loop = Loop()
    loop.seen = {name: ReplicaWindow(in_flight=2, gaps=9) for name in loop.replicas}
    loop(5)
    loop.idle = {"r1"}
    loop.seen["r1"] = ReplicaWindow(in_flight=2)
    loop.replicas["r1"].engine.gauges |= {"running": 2.0}
    loop(40)
    assert loop.out == {"r1": "wedged"}
    loop.seen["r1"] = ReplicaWindow()  # its clients have left
    loop(60)
    assert loop.out == {"r1": "wedged"}
    loop.idle = set()
    loop(12)
    assert loop.out == {}


def test_far_more_work_than_the_peers_takes_it_out_after_a_while_and_no_sooner() -> None:
    loop = Loop()
    for name, replica in loop.replicas.items():
        replica.engine.gauges |= {"running": 4.0, "waiting": 40.0 if name == "r1" else 0.0}
    loop(25)
    assert loop.out == {}
    loop(10)
    assert loop.out == {"r1": "overloaded"}
    loop.replicas["r1"].engine.gauges |= {"waiting": 0.0}
    loop(12)
    assert loop.out == {}


@pytest.mark.parametrize("notice", ["node", "pod"])
def test_a_notice_that_it_is_about_to_go_starts_a_drain(notice: str) -> None:
    loop = Loop()
    loop(3)
    if notice == "node":
        loop.nodes = {"node-r1": NodeFacts("node-r1", leaving="spot-interruption")}
    else:
        loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(1)
    assert loop.out == {"r1": "leaving"}
    assert loop.snapshot is not None
    orders = steer.orders(loop.snapshot, POLICY, {}, {}, {"r1"})
    assert [o.rotation for o in orders] == ["in", "draining", "in", "in"]


def test_C3_a_pod_that_is_deleted_gets_nothing_from_that_moment_in_any_mode() -> None:
    loop = Loop(size=1)
    loop(3)
    loop.set_pod("r0", terminating_since=loop.now)
    loop(1)
    assert loop.out == {"r0": "terminating"}
    assert loop.snapshot is not None
    assert steer.orders(loop.snapshot, POLICY, {}, {})[0].rotation == "draining"


def test_the_budget_of_the_pool_holds_and_is_told_once() -> None:
    loop = Loop()
    loop(3)
    loop.nodes = {f"node-r{i}": NodeFacts(f"node-r{i}", leaving="maintenance") for i in range(4)}
    loop(5)
    assert len(loop.out) == 1  # 0.4 of four
    kinds = [event for event in loop.events if event[0].startswith("readiness-capped")]
    assert kinds == [("readiness-capped", "pool chat: 4 of 4 replicas are at fault; 3 kept in service")]
    loop.nodes = {}
    loop(12)
    assert loop.out == {}
    assert loop.events[-1][0] == "readiness-capped-over"


def test_the_last_replica_is_never_taken_out() -> None:
    loop = Loop(size=1)
    loop(3)
    loop.set_pod("r0", conditions={"DisruptionTarget": "True"})
    loop(5)
    assert loop.out == {}


def test_where_nothing_answers_the_fault_is_here() -> None:
    loop = Loop()
    loop(3)
    loop.silent = set(loop.replicas)
    loop.idle = set(loop.replicas)
    for name in loop.replicas:
        loop.set_pod(name, containers_ready=False, ready=False)
    loop(60)
    assert loop.out == {}
    assert "readiness-blind" in {kind for kind, _ in loop.events}


def test_a_hold_or_a_word_keeps_everything_as_it_is() -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(1)
    loop.orders = Orders(Hold(loop.now, "ann", "racks"))
    loop.set_pod("r1", conditions={})
    loop.set_pod("r2", conditions={"DisruptionTarget": "True"})
    loop(30)
    assert loop.out == {"r1": "leaving"}
    loop.orders = Orders(None, (Override("replica", "r2", "mode", Mode.OBSERVE, "ann", "mine", loop.now),))
    loop(30)
    assert loop.out == {}
    loop.orders = Orders()
    loop(1)
    assert loop.out == {"r2": "leaving"}


@pytest.mark.parametrize(
    "marks",
    [
        {"annotations": {ANNOTATION: "wedged 2026-09-21T14:13:20Z"}},
        {"gates": (GATE,), "conditions": {GATE: "False"}},
    ],
)
def test_what_another_leader_took_out_is_let_in_again(marks: dict[str, Any]) -> None:
    loop = Loop()
    loop.set_pod("r1", **marks)
    loop(1)
    assert list(loop.out) == ["r1"]
    loop(15)
    assert loop.changes() == [("r1", "in", "well")]


def test_a_clock_that_was_set_back_brings_nobody_in() -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(2)
    loop.now -= 3600.0
    loop.memory = rewind(loop.memory, loop.now)
    loop(5)
    assert loop.out == {"r1": "leaving"}
    assert len(loop.decisions) == 1


def test_the_memory_survives_the_journal() -> None:
    loop = Loop()
    loop.seen = {name: ReplicaWindow(finished=1, failed=3) for name in loop.replicas}
    loop(10)
    raw = msgspec.msgpack.encode(loop.memory)
    assert msgspec.msgpack.decode(raw, type=Memory) == loop.memory


def word(mode: Mode) -> Orders:
    return Orders(None, (Override("pool", "chat", "mode", mode, "ann", "mine", NOON),))


@pytest.mark.parametrize(
    ("modes", "orders", "expected"),
    [
        ({}, Orders(), False),
        ({"pod": {"*": Mode.ENFORCE}}, Orders(), True),
        ({"pod": {"*": Mode.ENFORCE}}, Orders(Hold(NOON, "ann", "x")), True),
        ({}, Orders(Hold(NOON, "ann", "x")), False),
        ({"pod": {"*": Mode.ENFORCE}}, word(Mode.OBSERVE), True),
        ({}, word(Mode.ENFORCE), True),
    ],
)  # fmt: skip
def test_who_is_out_stays_out_while_people_keep_things(
    tmp_path: Path, modes: Any, orders: Orders, expected: bool
) -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(1)
    assert loop.snapshot is not None
    seen = msgspec.structs.replace(loop.snapshot, orders=orders)
    given = daemon_settings(tmp_path / "j", modes=modes)
    assert stays_out("r1", "pod", seen, given) is expected
    assert stays_out("r0", "pod", seen, given) is False


def test_gateways_are_told_where_they_may_be(tmp_path: Path) -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", containers_ready=False)
    loop.idle = {"r1"}
    loop(20)
    assert loop.snapshot is not None
    rotations = {}
    for mode in Mode:
        given = daemon_settings(tmp_path / "j", modes={"gateway": {"*": mode}})
        told = level(loop.snapshot, loop.memory, POLICY, given, {})
        rotations[mode] = [order.rotation for order in told.orders]
    assert rotations == {
        Mode.OBSERVE: ["in"] * 4,
        Mode.ENFORCE: ["in", "unready", "in", "in"],
    }


def test_a_replica_that_is_out_is_named_in_its_snapshot() -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(1)
    at = loop.now - 1.0
    loop(5)
    assert loop.snapshot is not None
    seen: ReplicaSnapshot = loop.snapshot.replicas["r1"]
    assert seen.out is not None
    assert (seen.out.since, seen.out.detail) == (at, "its node or pod is about to go")


@pytest.mark.parametrize(("running", "after"), [(0.0, 15.0), (3.0, 40.0)])
def test_a_pod_that_is_drained_is_ended_where_that_is_asked_for(running: float, after: float) -> None:
    loop = Loop()
    rules = RULES.model_copy(update={"end_after": 40.0})
    loop.settings = POLICY.model_copy(update={"pools": {"chat": PoolPolicy(readiness=rules)}})
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop.replicas["r1"].engine.gauges |= {"running": running}
    since = loop.now
    loop(130)
    assert [(name, at - since) for name, at in loop.ended] == [("r1", after), ("r1", after + 60.0)]


def test_no_pod_is_ended_by_default() -> None:
    loop = Loop()
    loop(3)
    loop.set_pod("r1", conditions={"DisruptionTarget": "True"})
    loop(200)
    assert loop.ended == []


@given(st.lists(st.floats(0.0, 1e6), min_size=3, max_size=9), st.data())
def test_the_peers_of_a_replica_are_all_but_itself(works: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(works) - 1))
    others = [work for i, work in enumerate(works) if i != place]
    assert _median_without(sorted(works), works[place]) == pytest.approx(median(others))
