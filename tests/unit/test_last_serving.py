"""What does not serve, for whatever reason, counts as out; and the last replica that serves stays in."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from daemon_fakes import settings as daemon_settings
from fleets import NOON
from hypothesis import given
from hypothesis import strategies as st
from rotation_loop import POLICY, Loop

from controlplane.daemon.steering import level
from controlplane.policy.readiness import Fault, Look, ReadinessSettings, Standing, look
from controlplane.signals.decision import Mode, Orders, Override
from controlplane.signals.node import NodeFacts
from controlplane.signals.probe import ProbeResult
from controlplane.signals.samples import ReplicaWindow
from controlplane.signals.serving import ANNOTATION, GATE, LABEL
from controlplane.signals.snapshot import FleetSnapshot

RELOADS = {"loading": True, "containers_ready": False, "ready": False}
LEAVES = {"conditions": {"DisruptionTarget": "True"}}
AWAY: dict[str, dict[str, Any]] = {
    "reloads": RELOADS,
    "not-ready": {"containers_ready": False, "ready": False},
    "node-lost": {"ready": False},
    "label-of-a-person": {"labels": {LABEL: "false"}},
    "over": {"phase": "Failed", "ready": False},
    "terminating": {"terminating_since": 1.0},
}


@pytest.mark.parametrize("how", AWAY)
def test_the_last_one_that_serves_stays_in_until_another_serves_again(how: str) -> None:
    loop = Loop(size=3)
    loop(3)
    loop.idle = {"r0", "r1"}
    for name in ("r0", "r1"):
        loop.set_pod(name, **AWAY[how])
    loop(6)
    loop.set_pod("r2", **LEAVES)
    loop(10)
    assert "r2" not in loop.out
    sentences = [sentence for kind, sentence in loop.events if kind == "readiness-capped"]
    assert sentences[-1].endswith("kept in service: r2 is the last that serves and stays until it is gone")
    for name in ("r0", "r1"):
        well = {"phase": "Running", "terminating_since": None, "labels": {LABEL: "true"}}
        loop.set_pod(name, loading=False, containers_ready=True, ready=True, **well)
    loop(20)
    assert loop.out == {"r2": "leaving"}


def test_errors_do_not_take_the_last_one_either() -> None:
    loop = Loop(size=3)
    loop(3)
    for name in ("r0", "r1"):
        loop.set_pod(name, **RELOADS)
    loop.idle = loop.silent = {"r0", "r1"}
    loop(5)
    loop.seen = {"r2": ReplicaWindow(in_flight=1, finished=1, failed=5, gaps=5)}
    loop(10)
    assert "r2" not in loop.out
    assert (
        "readiness-capped",
        "pool chat: 1 of 3 replicas are at fault; 1 kept in service: r2 is the last that serves",
    ) in loop.events


def test_those_that_load_count_as_out() -> None:
    """Five of ten: two may be out of five, but of ten four, and five are out already."""
    loop = Loop(size=10)
    for name in list(loop.replicas)[5:]:
        loop.set_pod(name, **RELOADS)
        loop.silent.add(name)
    loop.idle = set(loop.silent)
    loop(3)
    loop.set_pod("r1", **LEAVES)
    loop(5)
    assert loop.out == {}
    for name in ("r5", "r6"):
        loop.set_pod(name, loading=False, containers_ready=True, ready=True)
    loop.idle -= {"r5", "r6"}
    loop.silent -= {"r5", "r6"}
    loop(5)
    assert loop.out == {"r1": "leaving"}


def test_the_last_one_comes_back_where_the_others_stop_serving_and_no_other_does() -> None:
    loop = Loop(size=5)
    loop(3)
    loop.set_pod("r3", **LEAVES)
    loop.seen = {"r4": ReplicaWindow(in_flight=1, finished=1, failed=5, gaps=5)}
    loop(6)
    assert loop.out == {"r3": "leaving", "r4": "errors"}
    for name in ("r0", "r1"):
        loop.set_pod(name, **RELOADS)
    loop.idle = loop.silent = {"r0", "r1"}
    loop(5)
    assert loop.out == {"r3": "leaving", "r4": "errors"}  # r2 serves
    loop.set_pod("r2", **RELOADS)
    loop.idle = loop.silent = {"r0", "r1", "r2"}
    loop(1)
    assert loop.out == {"r3": "leaving"}
    why = "r4 gets requests in spite of errors: too few others of its pool serve"
    assert loop.decisions[-1].sentence == why
    loop(5)
    assert loop.out == {"r3": "leaving"}


@pytest.mark.parametrize(
    "marks",
    [
        {"labels": {LABEL: "false"}, "annotations": {ANNOTATION: "leaving 2026-09-21T14:13:20Z"}},
        {"gates": (GATE,), "conditions": {GATE: "False"}, "ready": False},
    ],
    ids=["label", "gate"],
)
def test_what_we_did_to_a_pod_does_not_keep_it_from_serving(marks: dict[str, Any]) -> None:
    """Else the last one could not come back, or would be taken out again before the cluster has let it in."""
    loop = Loop(size=2)
    loop.idle = {"r1"}
    loop(3)
    loop.nodes = {"node-r1": NodeFacts("node-r1", leaving="maintenance")}
    loop(1)
    assert loop.out == {"r1": "leaving"}
    loop.set_pod("r1", **marks)
    loop.set_pod("r0", **RELOADS)
    loop(10)
    assert loop.out == {}
    assert loop.changes() == [("r1", "out", "leaving"), ("r1", "in", "capped")]


def test_tokens_that_a_gateway_gets_outvote_a_pod_that_is_not_ready() -> None:
    loop = Loop(size=2)
    loop(3)
    loop.set_pod("r0", containers_ready=False, ready=False)
    loop.set_pod("r1", **LEAVES)
    loop(2)
    assert loop.out == {}  # its page tells of tokens, but that may be of old streams
    loop.seen = {"r0": ReplicaWindow(in_flight=1, gaps=9)}
    loop(1)
    assert loop.out == {"r1": "leaving"}
    loop.seen = {}
    loop(5)
    assert loop.out == {}


def test_who_answers_no_probe_counts_as_out_and_does_not_come_back_for_a_suspect() -> None:
    """A broken GPU is worse than a replica that is gone, but it still answers."""
    settings = ReadinessSettings()
    standings = {f"r{i}": Standing(NOON, started=True, ready=True) for i in range(3)}
    gone = {name: Look(probe=ProbeResult.REFUSED) for name in ("r0", "r1")}
    for i in range(6):
        faults = frozenset({Fault.GPU}) if i > 3 else frozenset[Fault]()
        seen = gone | {"r2": Look(probe=ProbeResult.OK, faults=faults)}
        pool = look(standings, seen, NOON + i, settings)
        standings = dict(pool.standings)
    assert are_out(standings) == {"r0"}
    assert pool.reports[-1][1].endswith("2 kept in service: r2 is the last that serves")


def test_broken_gpus_go_out_beyond_the_ratio_and_leave_less_room_for_others() -> None:
    """How many may be is bounded by the budget of nodes."""
    standings = {f"r{i}": Standing(NOON, started=True, ready=True) for i in range(4)}
    faults = {"r0": Fault.GPU, "r1": Fault.GPU, "r2": Fault.ERRORS}
    seen = {
        name: Look(probe=ProbeResult.OK, faults=frozenset({faults[name]} if name in faults else ()))
        for name in standings
    }
    pool = look(standings, seen, NOON, ReadinessSettings(max_unready_ratio=0.5))
    assert are_out(dict(pool.standings)) == {"r0", "r1"}


def test_a_pod_that_is_deleted_counts_as_out() -> None:
    loop = Loop(size=5)
    loop(3)
    loop.set_pod("r0", terminating_since=loop.now)
    loop.set_pod("r2", **LEAVES)
    loop(1)
    assert loop.out == {"r0": "terminating", "r2": "leaving"}  # 0.4 of five
    loop.set_pod("r1", **LEAVES)
    loop(5)
    assert loop.out == {"r0": "terminating", "r2": "leaving"}


def test_who_is_kept_as_it_is_counts_as_it_is() -> None:
    loop = Loop(size=3)
    loop(3)
    loop.set_pod("r0", **LEAVES)
    loop(1)
    loop.orders = kept("r0", loop.now)
    loop.set_pod("r1", **LEAVES)
    loop(5)
    assert loop.out == {"r0": "leaving"}  # which is 0.4 of three
    loop.orders = kept("r2", loop.now)
    loop.set_pod("r1", **RELOADS)
    loop(5)
    assert loop.out == {"r0": "leaving"}  # r2 serves
    loop.set_pod("r2", **RELOADS)
    loop(1)
    assert loop.out == {"r1": "leaving"}  # it loads anyhow; r0 is the last that serves


def test_gateways_are_told_the_same(tmp_path: Path) -> None:
    loop = Loop(size=3)
    loop(3)
    for name in ("r0", "r1"):
        loop.set_pod(name, **RELOADS)
    loop.idle = {"r0", "r1"}
    loop.set_pod("r2", **LEAVES)
    loop(5)
    assert loop.snapshot is not None
    given = daemon_settings(tmp_path / "j", modes={"gateway": {"*": Mode.ENFORCE}})
    for seen in (loop.snapshot, with_broken_gpu(loop.snapshot, "r2")):
        told = level(seen, loop.memory, POLICY, given, {})
        assert {one.name: one.rotation for one in told.orders}["r2"] == "in"


def kept(name: str, at: float) -> Orders:
    return Orders(None, (Override("replica", name, "mode", Mode.OBSERVE, "ann", "mine", at),))


def with_broken_gpu(snapshot: FleetSnapshot, name: str) -> FleetSnapshot:
    broken = msgspec.structs.replace(snapshot.replicas[name], quarantined_since=snapshot.at)
    return msgspec.structs.replace(snapshot, replicas=snapshot.replicas | {name: broken})


looks = st.builds(
    Look,
    probe=st.sampled_from([None, ProbeResult.OK, ProbeResult.TIMEOUT, ProbeResult.ERROR]),
    answered=st.booleans(),
    unproven=st.booleans(),
    flowing=st.booleans(),
    serves=st.booleans(),
    faults=st.frozensets(st.sampled_from(Fault), max_size=2),
    badness=st.floats(0, 1),
)


def are_away(standings: dict[str, Standing], seen: dict[str, Look]) -> set[str]:
    """Those that nobody gets an answer of, in or out."""
    silent = (Fault.WEDGED, Fault.UNREACHABLE)
    return {
        name
        for name, one in standings.items()
        if not one.started or not seen[name].serves or one.fault in silent
    }


def are_out(standings: dict[str, Standing]) -> set[str]:
    return {name for name, one in standings.items() if one.out_since is not None}


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=3), st.floats(0, 1), st.data())
def test_of_those_that_serve_one_is_in_and_the_result_is_bounded(
    size: int, others: list[bool], ratio: float, data: st.DataObject
) -> None:
    settings = ReadinessSettings(max_unready_ratio=ratio, hold_down="1m")
    names, total = [f"r{i}" for i in range(size)], size + len(others)
    most = max(1, math.floor(ratio * total + 1e-9)) if total > 1 and ratio > 0 else 0
    standings: dict[str, Standing] = {}
    for i in range(data.draw(st.integers(1, 20))):
        seen = {name: data.draw(looks) for name in names}
        answers = data.draw(st.sampled_from([True, False]))
        before = are_out(standings)
        pool = look(standings, seen, 5.0 * i, settings, others=others, backend_answers=answers)
        standings = dict(pool.standings)
        out, away = are_out(standings), are_away(standings, seen)
        serving = {name for name in names if standings[name].started and seen[name].serves}
        assert not serving or any(others) or serving - out
        assert not serving - away or any(others) or serving - away - out
        gone = others.count(False)
        broken = {name for name in names if standings[name].fault is Fault.GPU}
        assert len(out | away) + gone <= max(most, len(before | broken | away) + gone)
        assert any(others) or len(out) <= max(0, sum(one.started for one in standings.values()) - 1)
        assert answers is False or len(broken - out) <= 1, "its budget is that of nodes"
        same = {name: msgspec.structs.replace(one, probe=None) for name, one in seen.items()}
        once = look(standings, same, 5.0 * i, settings, others=others, backend_answers=answers).standings
        twice = look(once, same, 5.0 * i, settings, others=others, backend_answers=answers).standings
        assert are_out(dict(twice)) == are_out(dict(once))
