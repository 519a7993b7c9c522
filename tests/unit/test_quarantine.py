"""Quarantine: what takes a node, what does not, who may stop it, and how a node comes back."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from quarantine_fleet import Fleet, uuid_of

from controlplane.policy.quarantine import blame, budget
from controlplane.policy.quarantine.checks import RECOVERY
from controlplane.policy.quarantine.memory import Look, ProgramXid, QuarantineMemory
from controlplane.policy.quarantine.needs import NEEDS, blind
from controlplane.policy.quarantine.observation import ReplicaEvidence
from controlplane.policy.quarantine.over_time import growth, share_of_looks, share_of_time
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.words import Remedy, Stage
from controlplane.policy.quarantine.xids import table
from controlplane.signals import marks
from controlplane.signals.gpu import GPU_SIGNALS, Answer, Pod, Throttle
from controlplane.signals.marks import Undo
from controlplane.signals.node import Mark, NodeFacts
from controlplane.signals.reading import Reason


def started(**kwargs: object) -> Fleet:
    fleet = Fleet(cluster=True, **kwargs)  # type: ignore[arg-type]
    fleet.tick(times=3)
    return fleet


# -- the way of a fault --------------------------------------------------------------------------------


def test_first_the_replica_then_the_node() -> None:
    fleet = started(source="nvml")
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    outcome = fleet.tick(1.0)
    assert [d.action for d in outcome.decisions if d.action != "assess"] == ["eject-replica"]
    assert outcome.ejected == {f"chat-{name}": fleet.now}
    assert fleet.tick(1.0, times=58).verdicts[0].stage is Stage.HELD_DOWN
    assert fleet.did("quarantine-node") == []
    assert fleet.tick(1.0).verdicts[0].stage is Stage.WANTED
    assert fleet.did("quarantine-node") == [name]
    assert fleet.tick(1.0).verdicts[0].stage is Stage.PLACED


def test_a_decision_says_what_it_rests_on() -> None:
    fleet = started(source="nvml")
    fleet.show(fleet.names[0], recovery_action=2.0)
    fleet.tick(times=4)
    (decision,) = [d for d in fleet.decisions if d.action == "quarantine-node"]
    assert decision.reason == "recovery-action"
    assert "a reboot of the node" in decision.sentence
    assert ("recovery_action", 2.0) in [(e.name, e.value) for e in decision.evidence]
    mark = marks.read(decision.new)
    assert mark is not None
    assert (mark.remedy, mark.uuid, mark.boot_id) == (
        "drain-and-reboot",
        fleet.uuid(fleet.names[0]),
        "boot-1",
    )


@pytest.mark.parametrize("value", [1, 2, 4, 6, 7])
def test_the_drivers_recovery_action_is_followed(value: int) -> None:
    fleet = started()
    fleet.show(fleet.names[1], recovery_action=float(value))
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == [fleet.names[1]]
    assert marks.read(fleet.decisions[-1].new or fleet.decisions[-2].new) is not None or RECOVERY[value]


@pytest.mark.parametrize("value", [3, 5, 99])
def test_other_recovery_actions_take_no_node(value: int) -> None:
    fleet = started()
    fleet.show(fleet.names[1], recovery_action=float(value))
    fleet.tick(times=20)
    assert fleet.did("quarantine-node") == []
    assert [d.reason for d in fleet.decisions] == ["recovery-action"]


def test_the_drivers_none_outweighs_the_table() -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.show(name, recovery_action=0.0)
    fleet.tick()
    fleet.raise_xid(name, 109)
    fleet.tick()
    assert fleet.did("eject-replica") == [f"chat-{name}"]
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == []
    assert fleet.did("return-replica") == [f"chat-{name}"]


def test_a_state_must_last_and_its_clock_bears_flapping() -> None:
    fleet = started(hold_down="2m")
    name = fleet.names[0]
    for _ in range(2):  # every second page lacks it
        fleet.show(name, row_remap_failure=1.0)
        fleet.tick()
        fleet.show(name, row_remap_failure=0.0)
        fleet.tick()
    assert fleet.did("quarantine-node") == []
    fleet.show(name, row_remap_failure=1.0)
    fleet.tick()
    assert fleet.did("quarantine-node") == [name]


def test_one_page_of_nonsense_is_not_even_told() -> None:
    fleet = started()
    fleet.show(fleet.names[0], row_remap_failure=1.0)
    fleet.tick()
    fleet.show(fleet.names[0], row_remap_failure=0.0)
    fleet.tick(times=5)
    assert fleet.decisions == []


def test_a_gpu_that_is_gone_is_missed_by_uuid_whatever_the_indices_say() -> None:
    fleet = started(gpus=4)
    name = fleet.names[2]
    lost = fleet.uuid(name, 1)
    fleet.cards[name][lost].numbers = None
    fleet.tick(times=8)
    (decision,) = [d for d in fleet.decisions if d.action == "quarantine-node"]
    assert lost in decision.sentence
    assert decision.reason == "gpu-missing"


def test_an_exchanged_card_is_not_missed() -> None:
    fleet = started()
    name = fleet.names[0]
    cards = list(fleet.cards[name].items())
    fleet.cards[name] = {uuid_of("another", 7): cards[0][1], **dict(cards[1:])}
    fleet.tick(times=20)
    assert fleet.did("quarantine-node") == []
    assert set(fleet.memory.nodes[name].gpus) == set(fleet.cards[name])


@pytest.mark.parametrize(
    ("answer", "check"), [(Answer.LOST, "gpu-lost"), (Answer.RESET_REQUIRED, "reset-required")]
)
def test_the_drivers_answers_are_findings(answer: Answer, check: str) -> None:
    fleet = started(source="nvml")
    fleet.card(fleet.names[0]).answer = answer
    fleet.tick(times=5)
    assert [d.reason for d in fleet.decisions if d.action == "quarantine-node"] == [check]


def test_an_unknown_error_is_tried_again_first() -> None:
    fleet = started(source="nvml")
    fleet.card(fleet.names[0]).answer = Answer.UNKNOWN_ERROR
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == []
    fleet.tick(times=4)
    assert fleet.did("quarantine-node") == [fleet.names[0]]


def test_a_contained_error_restarts_one_pod_and_no_more() -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.card(name).pods = (Pod("serving", f"chat-{name}"),)
    fleet.raise_xid(name, 94)
    fleet.tick(times=20)
    assert fleet.did("restart-workload") == [f"serving/chat-{name}"]
    assert fleet.did("quarantine-node") == []


def test_a_shared_gpu_restarts_nobody() -> None:
    fleet = started()
    fleet.card(fleet.names[0]).pods = (Pod("serving", "a"), Pod("serving", "b"))
    fleet.raise_xid(fleet.names[0], 31)
    fleet.tick(times=3)
    assert fleet.did("restart-workload") == []


def test_the_same_fault_again_asks_for_replacement() -> None:
    fleet = started(source="nvml")
    name = fleet.names[0]
    for expected in (Remedy.DRAIN_AND_REBOOT, Remedy.CORDON_AND_REPLACE):
        fleet.raise_xid(name, 79)
        fleet.tick(times=4)
        fact = fleet.facts[name]
        assert fact.mark is not None
        assert fact.mark.remedy == expected
        fleet.boots[name] = f"boot-{fleet.now}"
        fleet.xid_events[name].clear()
        fleet.tick(times=200)  # over an hour: the hourly limit has passed
    assert fleet.facts[name].mark is not None  # a new boot does not exchange a GPU


# -- cannot see ----------------------------------------------------------------------------------------


def test_cannot_see_is_told_once_and_is_no_verdict() -> None:
    fleet = started()
    fleet.silent.update(fleet.names[:2])
    outcome = fleet.tick(times=40)
    assert outcome.verdicts == ()
    assert sorted(outcome.blind) == fleet.names[:2]
    assert len(fleet.told("gpus-not-seen")) == 2
    assert "no answer" in fleet.told("gpus-not-seen")[0]
    fleet.silent.clear()
    assert fleet.tick().blind == {}
    assert len(fleet.told("gpus-seen-again")) == 2
    assert fleet.decisions == []


def test_a_state_that_nobody_sees_any_more_takes_no_node() -> None:
    fleet = started(hold_down="3m")
    name = fleet.names[0]
    fleet.show(name, row_remap_failure=1.0)
    fleet.tick(times=2)
    fleet.silent.add(name)
    fleet.tick(times=40)
    assert fleet.did("quarantine-node") == []
    fleet.silent.clear()
    fleet.tick()
    assert fleet.did("quarantine-node") == [name]


def test_an_event_that_was_seen_counts_though_its_source_dies() -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.raise_xid(name, 119)
    fleet.tick()
    fleet.silent.add(name)
    fleet.tick(times=3)
    assert fleet.did("quarantine-node") == [name]


def test_a_quarantined_node_that_nobody_sees_stays() -> None:
    fleet = started(source="nvml")
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=4)
    fleet.boots[name] = "boot-2"
    fleet.silent.add(name)
    fleet.tick(times=100)
    assert fleet.did("release-node") == []


def test_which_checks_are_blind_and_for_want_of_what() -> None:
    default_csv = {"xid", "temperature_celsius", "power_watts", "row_remap_failure", "pcie_replays_total"}
    missing = blind(default_csv, ("dcgm",))
    assert missing["recovery-action"] == ("recovery_action",)
    assert missing["gpu-lost"] == ("the node agent",)
    assert "throttle_reasons" in missing["hw-thermal"]
    assert "xid" not in missing
    assert not blind(set(GPU_SIGNALS), ("nvml",))
    assert {name for need in NEEDS.values() for group in need.signals for name in group} <= set(GPU_SIGNALS)


# -- storms, budgets, people ---------------------------------------------------------------------------


def test_a_rack_that_brakes_is_one_event() -> None:
    fleet = started(nodes=8)
    for name in fleet.names[:3]:
        fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], rack="r1")
    for name, reason in zip(fleet.names[:3], (0x80, 0x80, 0x40), strict=True):
        fleet.show(name, throttle_reasons=float(reason))
    fleet.tick(times=60)
    assert fleet.did("quarantine-node") == []
    assert any("rack r1" in sentence for sentence in fleet.told("gpu-fault-storm"))


def test_after_a_storm_what_still_holds_is_judged_again() -> None:
    fleet = started(nodes=8)
    bad = fleet.names[:3]
    for name in bad:
        fleet.show(name, row_remap_failure=1.0)
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == []
    for name in bad[1:]:
        fleet.show(name, row_remap_failure=0.0)
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == [bad[0]]
    assert fleet.told("gpu-fault-storm-over")


def test_a_breaker_closes_and_drops_what_nothing_agrees_with() -> None:
    fleet = started(nodes=4, breaker_rest="5m")
    for name in fleet.names:
        fleet.raise_xid(name, 79)
    outcome = fleet.tick(times=3)
    assert outcome.tripped is not None
    for name in fleet.names[1:]:
        fleet.boots[name] = "boot-2"
        fleet.show(name, xid=0.0)
    outcome = fleet.tick(times=30)
    assert outcome.tripped is None
    assert fleet.did("quarantine-node") == []
    assert "nothing agrees now" in outcome.verdicts[0].why


def test_nodes_out_for_any_reason_count() -> None:
    fleet = started(nodes=10)
    for name, changes in ((fleet.names[8], {"ready": False}), (fleet.names[9], {"unschedulable": True})):
        fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], **changes)
    fleet.raise_xid(fleet.names[0], 79)
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == []
    assert "2 of 10 nodes of the fleet are out already (cap 2)" in fleet.told("quarantine-withheld")[0]
    assert len(fleet.told("quarantine-withheld")) == 1


def test_the_last_ready_replica_keeps_its_node() -> None:
    fleet = started(nodes=4)
    name = fleet.names[0]
    for other in fleet.names[1:]:
        fleet.serve(other, ready=False)
    fleet.raise_xid(name, 79)
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == []
    assert fleet.did("eject-replica") == []
    assert "last ready replica of pool chat" in fleet.told("quarantine-withheld")[0]
    for other in fleet.names[1:]:
        fleet.serve(other, ready=True)
    fleet.tick(times=2)
    assert fleet.did("quarantine-node") == [name]


def test_a_replica_kept_from_requests_comes_back_where_it_is_the_last() -> None:
    fleet = started(nodes=2)
    fleet.raise_xid(fleet.names[0], 48)
    assert list(fleet.tick().ejected) == ["chat-gpu-node-1"]
    fleet.serve(fleet.names[1], ready=False)
    assert fleet.tick().ejected == {}
    (back,) = [d for d in fleet.decisions if d.action == "return-replica"]
    assert "last ready replica" in back.sentence


def test_a_node_of_replicas_that_are_down_anyway_may_go() -> None:
    fleet = started(nodes=4)
    for name in fleet.names:
        fleet.serve(name, ready=False, failing=True)
    fleet.raise_xid(fleet.names[0], 79)
    fleet.tick(times=10)
    assert fleet.did("quarantine-node") == [fleet.names[0]]


def test_a_persons_release_wins_at_once_and_holds() -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.show(name, row_remap_failure=1.0)
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == [name]
    fleet.person(name, "release")
    fleet.tick(times=30)
    assert fleet.did("release-node") == [name]
    assert fleet.did("quarantine-node") == [name]
    assert fleet.facts[name] == msgspec.structs.replace(NodeFacts(name, True, False, False))


def test_a_mark_that_a_person_took_off_stays_off() -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=5)
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], mark=None, tainted=False)
    fleet.tick(times=3)
    assert fleet.told("quarantine-overruled")
    fleet.raise_xid(name, 48)
    fleet.tick(times=200)
    assert fleet.did("quarantine-node") == [name]
    fleet.person(name, "allow")
    fleet.raise_xid(name, 95)
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == [name, name]


@pytest.mark.parametrize(
    ("mark", "theirs"),
    [
        ("taint", {"tainted": False}),
        ("cordon", {"unschedulable": False}),
        ("both", {"tainted": False}),
        ("both", {"unschedulable": False}),
    ],
)
def test_who_uncordons_and_leaves_our_annotation_has_the_node_all_the_same(
    mark: str, theirs: dict[str, bool]
) -> None:
    fleet = started(mark=mark, evict=True)
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=8)
    asked = len(fleet.did("evict-pods"))
    assert asked
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], **theirs)
    fleet.tick()
    assert fleet.told("quarantine-overruled")
    fleet.raise_xid(name, 48)
    fleet.tick(times=30)
    fact = fleet.facts[name]
    assert (fact.mark, fact.tainted, fact.unschedulable) == (None, False, False)
    assert (fleet.did("quarantine-node"), fleet.did("release-node")) == ([name], [name])
    assert len(fleet.did("evict-pods")) == asked
    fleet.person(name, "allow")
    fleet.raise_xid(name, 95)
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == [name, name]


def test_a_mark_that_somebody_changed_is_theirs() -> None:
    fleet = started(source="nvml")
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=8)
    mark = fleet.facts[name].mark
    assert mark is not None
    fleet.facts[name] = msgspec.structs.replace(
        fleet.facts[name], mark=msgspec.structs.replace(mark, reason="mine now")
    )
    fleet.boots[name] = "boot-2"
    fleet.tick(times=60)
    assert fleet.did("release-node") == []
    assert fleet.told("quarantine-overruled")


@pytest.mark.parametrize("how", ["annotation", "word"])
def test_hands_off_is_obeyed(how: str) -> None:
    fleet = started()
    name = fleet.names[0]
    if how == "annotation":
        fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], hands_off=True)
    else:
        fleet.person(name, "never")
    fleet.raise_xid(name, 79)
    fleet.tick(times=20)
    assert fleet.did("quarantine-node") == []


@pytest.mark.parametrize("left", ["nothing", "annotation"])
def test_a_new_leader_finds_a_mark_taken_off_before_it_knows_who_watches_the_node(left: str) -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=8)
    mark = fleet.facts[name].mark if left == "annotation" else None
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], mark=mark, tainted=False)
    fleet.memory = msgspec.structs.replace(fleet.memory, nodes={})
    watched, fleet.names = fleet.names, []
    fleet.observe(())
    fleet.names = watched
    assert fleet.told("quarantine-overruled")
    fleet.tick(times=3)
    fleet.raise_xid(name, 48)
    fleet.tick(times=20)
    assert fleet.did("quarantine-node") == [name]


@pytest.mark.parametrize("how", ["annotation", "word"])
def test_hands_off_ends_evictions_too_and_leaves_the_rest_as_it_is(how: str) -> None:
    fleet = started(mark="cordon", evict=True)
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=8)
    asked = len(fleet.did("evict-pods"))
    assert asked
    if how == "annotation":
        fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], hands_off=True)
    else:
        fleet.person(name, "never")
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], unschedulable=False)
    fleet.tick(times=40)
    assert len(fleet.did("evict-pods")) == asked
    assert fleet.did("release-node") == []


def test_a_cordon_that_was_there_before_stays_after_the_release() -> None:
    fleet = started(source="nvml", mark="both", max_share=0.5)
    name = fleet.names[0]
    fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], unschedulable=True)
    fleet.raise_xid(name, 79)
    fleet.tick(times=5)
    fleet.boots[name] = "boot-2"
    fleet.tick(times=30)
    assert fleet.did("release-node") == [name]
    assert fleet.facts[name].unschedulable
    assert not fleet.facts[name].tainted


def test_without_a_journal_the_mark_on_the_node_is_enough_to_release_it() -> None:
    fleet = started(source="nvml")
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(times=5)
    fleet.restart_daemon(keep=False)
    fleet.tick(times=5)
    assert fleet.did("release-node") == []
    fleet.boots[name] = "boot-2"
    fleet.xid_events[name].clear()
    fleet.tick(times=30)
    assert fleet.did("release-node") == [name]


@pytest.mark.parametrize("proof", ["recovery", "reset", "probe"])
def test_other_proofs(proof: str) -> None:
    fleet = started()
    name = fleet.names[0]
    fleet.show(name, ecc_uncorrectable_total=4.0)
    fleet.tick()
    fleet.raise_xid(name, 48)
    fleet.tick(times=6)
    assert fleet.did("quarantine-node") == [name]
    if proof == "recovery":
        fleet.show(name, recovery_action=0.0)
    elif proof == "reset":
        fleet.show(name, ecc_uncorrectable_total=0.0)
    else:
        mark = fleet.facts[name].mark
        assert mark is not None
        fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], probe_passed=mark.fault)
    fleet.tick(times=9)
    assert fleet.did("release-node") == []
    fleet.tick(times=4)
    assert fleet.did("release-node") == [name]


def test_nodes_without_a_cluster_are_judged_all_the_same() -> None:
    fleet = Fleet(cluster=False)
    fleet.tick(times=3)
    fleet.show(fleet.names[0], recovery_action=1.0)
    fleet.tick(times=5)
    assert fleet.did("quarantine-node") == [fleet.names[0]]
    assert fleet.outcome is not None
    assert fleet.outcome.ejected
    fleet.show(fleet.names[0], recovery_action=0.0)
    fleet.tick(times=20)
    assert fleet.did("release-node") == [fleet.names[0]]
    assert fleet.outcome.ejected == {}


def test_engines_on_a_node_that_was_taken_are_asked_to_leave_where_that_is_wanted() -> None:
    fleet = started(source="nvml", evict=True)
    name = fleet.names[0]
    fleet.raise_xid(name, 79)
    fleet.tick(1.0, times=60)
    assert fleet.did("quarantine-node") == [name]
    assert fleet.did("evict-pods") == []  # not before the mark is seen: a new pod could come back
    fleet.tick(1.0)
    (asked,) = [d for d in fleet.decisions if d.action == "evict-pods"]
    assert asked.new == f"serving/chat-{name}"
    fleet.tick(1.0, times=70)
    assert fleet.did("evict-pods") == [name, name]  # its budget may have opened since
    del fleet.replicas[f"chat-{name}"]
    fleet.tick(1.0, times=200)
    assert fleet.did("evict-pods") == [name, name]


def test_nobody_is_evicted_unless_that_is_wanted() -> None:
    fleet = started(source="nvml")
    fleet.raise_xid(fleet.names[0], 79)
    fleet.tick(1.0, times=100)
    assert fleet.did("quarantine-node") == [fleet.names[0]]
    assert fleet.did("evict-pods") == []


# -- parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("serving/chat-7d9f8b6c5-x2k9z", "serving/chat"),
        ("serving/chat-0", "serving/chat"),
        ("kube/exporter-x2k9z", "kube/exporter"),
        ("serving/llama-serve-large", "serving/llama-serve-large"),
        ("serving/chat", "serving/chat"),
    ],
)
def test_the_owner_of_a_pod_by_its_name(pod: str, owner: str) -> None:
    assert blame.owner_of(pod) == owner


def test_one_workload_on_two_nodes_is_blamed_unless_one_gpu_stands_out() -> None:
    limits = QuarantineSettings()

    def xid(n: int, node: str, pod: str) -> ProgramXid:
        return ProgramXid(float(n), 13, node, f"gpu-{node}", f"ns/{pod}", "ns/train")

    spread = [xid(0, "a", "t-0"), xid(1, "b", "t-1")]
    assert blame.judge(spread, limits, 10.0).owners == {"ns/train": ("a", "b")}
    here = [*(xid(n, "a", f"t-{n}") for n in range(4)), xid(5, "b", "t-9")]
    judged = blame.judge(here, limits, 10.0)
    assert judged.owners == {}
    assert list(judged.gpus) == ["gpu-a"]
    assert not judged.gpus["gpu-a"].proves


def test_undo_takes_off_only_what_is_ours() -> None:
    ours = Mark("f", "xid-79", "u", "drain-and-reboot", "why", 1.0, kind="both")
    there = {"tainted": True, "unschedulable": True}
    assert marks.undo(ours, ours, **there) == (Undo.BOTH, "")
    assert marks.undo(ours, ours, tainted=False, unschedulable=True) == (Undo.CORDON, "")
    assert marks.undo(ours, None, **there)[0] is Undo.NOTHING
    assert marks.undo(ours, msgspec.structs.replace(ours, since=2.0), **there)[0] is Undo.NOTHING
    cordoned = msgspec.structs.replace(ours, unschedulable_before=True)
    assert marks.undo(cordoned, cordoned, **there)[0] is Undo.TAINT
    assert marks.undo(msgspec.structs.replace(cordoned, kind="cordon"), cordoned, **there)[0] is Undo.NOTHING


@pytest.mark.parametrize("value", ["", "{}", "null", "x" * 5000, '{"fault": 1}'])
def test_another_annotation_is_not_ours(value: str) -> None:
    assert marks.read(value) is None


def test_a_mark_reads_back() -> None:
    mark = Mark(
        "f", "xid-79", "u", "drain-and-reboot", "why “so”", 1.5, unschedulable_before=True, boot_id="b"
    )
    assert marks.read(marks.text(mark)) == mark


@pytest.mark.parametrize(
    ("nodes", "share", "floor", "expected"),
    [(12, 0.2, 1, 2), (3, 0.2, 1, 1), (3, 0.2, 0, 0), (100, 0.2, 1, 20), (5, 0.2, 0, 1), (10, 0.0, 0, 0)],
)
def test_the_cap(nodes: int, share: float, floor: int, expected: int) -> None:
    assert budget.cap(nodes, QuarantineSettings(max_share=share, floor_nodes=floor)) == expected


@pytest.mark.parametrize(("reason", "taken"), [(Throttle.SW_THERMAL, False), (Throttle.HW_THERMAL, True)])
def test_the_counter_of_all_heat_alone_takes_no_node(reason: Throttle, taken: bool) -> None:
    """Older DCGMs have no other: a T4 or an L4 in summer, slowed down by its driver, shows it all day."""
    fleet = started()
    name = fleet.names[0]
    for minute in range(40):
        fleet.show(name, throttled_thermal_seconds_total=60.0 * minute, throttle_reasons=float(reason))
        fleet.tick(60.0)
    assert fleet.did("quarantine-node") == ([name] if taken else [])


def test_shares_over_time_bear_restarts_and_want_enough() -> None:
    name = "throttled_hw_thermal_seconds_total"
    values = [500.0, 515.0, 530.0, 0.0, 15.0, 30.0]
    looks = [Look.of(30.0 * n, {name: value, "throttle_reasons": 64.0}) for n, value in enumerate(values)]
    assert growth(looks, name) is not None
    assert growth(looks, name).by == 60.0  # type: ignore[union-attr]
    assert share_of_time(looks, name, 150.0) == pytest.approx(0.4)
    assert share_of_time(looks, name, 600.0) is None
    assert share_of_looks(looks, Throttle.HW_THERMAL, 150.0) == 1.0
    assert share_of_looks(looks[:3], Throttle.HW_THERMAL, 60.0) is None


def test_all_codes_of_the_table_have_a_reason_and_a_source() -> None:
    assert len(table()) == 172
    for code, xid in table().items():
        assert code == xid.code
        assert xid.reason
        assert xid.source
    assert not table()[45].remedy.takes_node


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="storm_window"):
        QuarantineSettings.model_validate({"hold_down": "10m", "storm_window": "1m"})
    with pytest.raises(ValidationError, match="no check 'fan'"):
        QuarantineSettings.model_validate({"disabled_checks": ["fan"]})
    with pytest.raises(ValidationError, match="got 0"):
        QuarantineSettings.model_validate({"xids": {"0": {}}})


def test_a_disabled_check_finds_nothing() -> None:
    fleet = started(disabled_checks=("row-remap-failure", "xid"))
    fleet.show(fleet.names[0], row_remap_failure=1.0)
    fleet.raise_xid(fleet.names[1], 79)
    fleet.tick(times=20)
    assert fleet.decisions == []


# -- properties ----------------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "xid",
                "flag",
                "recovery",
                "lose",
                "silent",
                "speak",
                "boot",
                "ready",
                "unready",
                "cordon",
                "heal",
            )
        ),
        st.integers(0, 5),
        st.sampled_from((13, 31, 48, 79, 94, 95, 119)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, source=st.sampled_from(("dcgm", "nvml")), nodes=st.integers(2, 6))
def test_whatever_happens_the_rules_hold(steps: list[tuple[str, int, int]], source: str, nodes: int) -> None:
    fleet = started(source=source, nodes=nodes)
    for what, number, code in steps:
        name = fleet.names[number % nodes]
        card = fleet.card(name)
        if what == "xid" and card.numbers is not None:
            fleet.raise_xid(name, code)
        elif what == "flag" and card.numbers is not None:
            fleet.show(name, row_remap_failure=1.0)
        elif what == "recovery" and card.numbers is not None:
            fleet.show(name, recovery_action=2.0)
        elif what == "lose":
            card.numbers = None
        elif what == "heal":
            card.numbers = {"xid": 0.0}
        elif what == "silent":
            fleet.silent.add(name)
        elif what == "speak":
            fleet.silent.discard(name)
        elif what == "boot":
            fleet.boots[name] = f"boot-{fleet.now}"
            fleet.xid_events[name].clear()
        elif what in ("ready", "unready"):
            fleet.serve(name, ready=what == "ready")
        elif what == "cordon":
            fleet.facts[name] = msgspec.structs.replace(fleet.facts[name], unschedulable=True)
        before = {n: f for n, f in fleet.facts.items() if f.tainted or f.unschedulable}
        ready = [one for one in fleet.replicas.values() if one.ready]
        outcome = fleet.tick(times=1)
        taken = [d.target for d in outcome.decisions if d.action == "quarantine-node" and not d.old]
        allowed = budget.cap(nodes, fleet.settings)
        for target in taken:
            assert len(before.keys() | set(taken)) <= max(allowed, len(before))
            here = [one for one in ready if one.node == target]
            elsewhere = [one for one in ready if one.node != target and one.node not in before]
            assert not here or elsewhere
        serving = [one for one in ready if one.replica not in outcome.ejected]
        assert serving or not ready
        for node, fact in fleet.facts.items():
            if fact.mark is not None:
                assert fact.mark.fault.rpartition("-")[0].startswith((fact.mark.check,))
                assert node in fleet.names
    _everything_can_be_released(fleet)


def _everything_can_be_released(fleet: Fleet) -> None:
    """A person's word brings every node of ours back, whatever the breaker says."""
    fleet.silent.clear()
    fleet.tick(times=3)
    fleet.now += 1.0
    for name in fleet.names:
        fleet.person(name, "release")
    fleet.tick(times=2)
    assert [name for name, fact in fleet.facts.items() if fact.mark is not None or fact.tainted] == []


@settings(max_examples=40, deadline=None)
@given(
    blank=st.lists(st.sampled_from(sorted(GPU_SIGNALS)), min_size=1, max_size=60),
    reason=st.sampled_from(list(Reason)),
)
def test_what_is_unknown_is_never_held_against_a_gpu(blank: list[str], reason: Reason) -> None:
    fleet = started()
    for name in fleet.names:
        for card in fleet.cards[name].values():
            assert card.numbers is not None
            card.numbers = {key: value for key, value in card.numbers.items() if key not in blank}
    samples = []
    for _ in range(30):
        fleet.now += 30.0
        samples = [
            msgspec.structs.replace(
                sample,
                gpus={
                    uuid: msgspec.structs.replace(gpu, unknown=dict.fromkeys(blank, reason))
                    for uuid, gpu in sample.gpus.items()  # type: ignore[union-attr]
                },
            )
            for sample in map(fleet.sample, fleet.names)
        ]
        outcome = fleet.observe(tuple(samples))
    assert outcome.verdicts == ()
    assert fleet.decisions == []


def test_memory_survives_the_journal() -> None:
    fleet = started(source="nvml")
    fleet.raise_xid(fleet.names[0], 79)
    fleet.tick(times=5)
    again = msgspec.json.decode(msgspec.json.encode(fleet.memory), type=QuarantineMemory)
    assert again == fleet.memory


def test_replicas_on_a_gpu() -> None:
    by_gpu = ReplicaEvidence("a", "p", "n", ("g1",))
    by_pod = ReplicaEvidence("b", "p", "n", pod="ns/b")
    by_node = ReplicaEvidence("c", "p", "n")
    mine, others, nobody = frozenset({"ns/b"}), frozenset({"ns/x"}), frozenset[str]()
    assert by_gpu.runs_on("g1", nobody, nobody)
    assert not by_gpu.runs_on("g2", nobody, nobody)
    assert by_pod.runs_on("g", mine, nobody)
    assert by_pod.runs_on("g", mine, mine), "one engine on two GPUs"
    assert not by_pod.runs_on("g", others, mine)
    assert not by_pod.runs_on("g", nobody, mine), "a GPU that nobody has been given"
    assert by_pod.runs_on("g", others, others), "named nowhere: it may share this one"
    assert by_node.runs_on("anything", others, others)


def sharing() -> Fleet:
    """On the first node three pods, of which the exporter names one a GPU; the third GPU is idle."""
    fleet = Fleet(gpus=3, cluster=True)
    name = fleet.names[0]
    del fleet.replicas[f"chat-{name}"]
    for pod in ("named", "other", "hidden"):
        fleet.replicas[pod] = ReplicaEvidence(pod, "chat", name, pod=f"serving/{pod}")
    fleet.card(name, 0).pods = (Pod("serving", "named"),)
    fleet.card(name, 1).pods = (Pod("serving", "other"),)
    fleet.tick(times=3)
    return fleet


def test_a_pod_that_shares_a_broken_gpu_goes_too_though_another_is_named() -> None:
    fleet = sharing()
    fleet.raise_xid(fleet.names[0], 48)
    assert fleet.tick(1.0).ejected.keys() == {"named", "hidden"}


def test_an_idle_gpu_that_breaks_takes_no_engine_out_that_is_known_to_be_elsewhere() -> None:
    fleet = sharing()
    del fleet.replicas["hidden"]
    fleet.raise_xid(fleet.names[0], 48, 2)
    assert not fleet.tick(1.0).ejected


def test_engines_on_a_gpu_that_is_gone_are_those_that_were_named_on_it() -> None:
    fleet = sharing()
    del fleet.replicas["hidden"]
    fleet.raise_xid(fleet.names[0], 79)
    fleet.tick(1.0)
    fleet.card(fleet.names[0]).numbers = None
    assert fleet.tick(1.0).ejected.keys() == {"named"}


def test_who_may_share_a_gpu_with_another_is_not_restarted_for_it() -> None:
    fleet = sharing()
    fleet.raise_xid(fleet.names[0], 94)
    fleet.tick(times=3)
    assert fleet.did("restart-workload") == []


def test_the_page_on_gpu_health_names_every_check_and_remedy() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gpu-health.md").read_text()
    assert [name for name in NEEDS if f"`{name}`" not in text] == []
    assert [remedy for remedy in Remedy if f"`{remedy.value}`" not in text] == []
    for name in (
        "max_share",
        "floor_nodes",
        "max_per_hour",
        "max_replica_share",
        "clear_after",
        "disabled_checks",
    ):
        assert name in QuarantineSettings.model_fields
        assert f"`{name}" in text
