"""GPUs in scenarios: broken ones leave the fleet and come back, and nothing else is touched."""

from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from controlplane.gateway.admission.replica import Rotation
from controlplane.signals.decision import QUARANTINE_NODE, Decision
from controlplane.signals.gpu import Answer, NodeBlind, NodeReport
from controlplane.simulator.scenario.gpu_account import GpuFaultTold, GpuHealth
from controlplane.simulator.scenario.gpus import Gpus, GpuWatching
from controlplane.simulator.scenario.reading import load_scenario, parse_scenario
from controlplane.simulator.scenario.result import Result, result_of
from controlplane.simulator.scenario.run import Run
from controlplane.terminal.run_table import run_table
from controlplane.yaml_model import SettingsError
from tests.simulator.scenarios import scenario

HOLD_DOWN = 60.0
CLEAR_AFTER = 300.0


@cache
def built_in(name: str) -> Result:
    run = Run(load_scenario(name))
    run.go()
    return result_of(run, name)


def health(result: Result) -> GpuHealth:
    """What was done about GPUs; wrong is never anything."""
    assert result.gpus is not None
    assert result.gpus.nodes_taken_wrongly == ()
    assert result.gpus.replicas_out_wrongly == ()
    return result.gpus


def fault(gpus: GpuHealth, kind: str) -> GpuFaultTold:
    (found,) = (one for one in gpus.faults if one.kind == kind)
    return found


def taken_and_back(one: GpuFaultTold, tick: float, source: float) -> None:
    """Out at the next look, the node taken after its hold-down, back on proof after a look at it."""
    assert one.no_request_after_seconds is not None
    assert one.no_request_after_seconds <= tick + source
    assert one.node_taken_after_seconds is not None
    assert HOLD_DOWN <= one.node_taken_after_seconds <= HOLD_DOWN + 2 * (source + tick)
    assert one.node_back_after_seconds is not None
    assert CLEAR_AFTER <= one.node_back_after_seconds <= CLEAR_AFTER + 2 * (source + tick)


def test_a_gpu_that_falls_off_the_bus_costs_its_node_and_no_neighbour_whatever_the_numbers() -> None:
    gpus = health(built_in("gpu-off-the-bus"))
    assert gpus.nodes_taken == 2
    taken_and_back(fault(gpus, "XID 79"), tick=5.0, source=10.0)
    taken_and_back(fault(gpus, "gpu-lost"), tick=5.0, source=10.0)
    out = {one.target for one in built_in("gpu-off-the-bus").told if "gets no new requests" in one.sentence}
    assert out == {"h100-8b-1", "h100-8b-5"}
    assert gpus.nodes_still_out == ()


def test_memory_errors_cost_a_node_where_they_are_not_contained() -> None:
    gpus = health(built_in("gpu-memory"))
    assert gpus.nodes_taken == 2
    for kind in ("XID 48", "XID 95"):
        taken_and_back(fault(gpus, kind), tick=1.0, source=10.0)
        assert (fault(gpus, kind).no_request_after_seconds or 0.0) <= 1.0  # the agent tells at once
    for kind in ("XID 63", "XID 94"):
        assert fault(gpus, kind).node_taken_after_seconds is None
        assert fault(gpus, kind).no_request_after_seconds is None
    assert gpus.workloads_to_restart == ("h100-8b-2",)
    assert gpus.goodput_lost_ratio is not None
    assert gpus.goodput_lost_ratio < 0.03


def test_with_an_old_driver_the_table_decides_and_only_a_repair_is_proof() -> None:
    gpus = health(built_in("gpu-firmware"))
    taken_and_back(fault(gpus, "XID 64"), tick=2.0, source=10.0)
    hung = fault(gpus, "XID 119")
    assert hung.node_taken_after_seconds is not None
    assert hung.node_back_after_seconds is None
    assert gpus.nodes_still_out == ("h100-8b-node-1",)


def test_the_sibling_of_a_hung_firmware_s_code_is_the_same_fault() -> None:
    given = load_scenario("gpu-firmware")
    others = [one.model_copy(update={"code": 120}) for one in given.faults if getattr(one, "code", 0) == 119]
    run = Run(given.model_copy(update={"faults": tuple(others), "duration": 240.0}))
    run.go()
    hung = fault(health(result_of(run, "gpu-firmware")), "XID 120")
    assert hung.node_taken_after_seconds is not None
    assert hung.node_back_after_seconds is None


def test_programs_old_codes_and_blindness_cost_nothing() -> None:
    gpus = health(built_in("gpu-false-alarms"))
    assert gpus.nodes_taken == 0
    assert all(one.no_request_after_seconds is None for one in gpus.faults)
    kinds = {one.kind for one in built_in("gpu-false-alarms").told}
    assert {"xid-before-us", "workload-to-blame", "gpus-not-seen", "gpus-seen-again"} <= kinds


def test_heat_that_lasts_costs_a_node_and_heat_that_passes_does_not() -> None:
    gpus = health(built_in("gpu-heat"))
    lasting, passing = gpus.faults
    assert gpus.nodes_still_out == ("h100-8b-node-1",)
    assert 540.0 <= (lasting.node_taken_after_seconds or 0.0) <= 900.0
    assert passing.no_request_after_seconds is None
    assert passing.node_taken_after_seconds is None


@pytest.mark.parametrize(("name", "kind"), [("rack-power-brake", "gpu-fault-storm"), ("driver-upgrade", "")])
def test_what_befalls_many_nodes_at_once_costs_none(name: str, kind: str) -> None:
    gpus = health(built_in(name))
    assert gpus.nodes_taken == 0
    assert not kind or kind in {one.kind for one in built_in(name).told}


def test_a_narrow_link_costs_its_node_once_the_engine_is_slow() -> None:
    gpus = health(built_in("gpu-link"))
    (one,) = gpus.faults
    assert one.no_request_after_seconds is not None
    assert one.no_request_after_seconds < 60.0
    assert 300.0 <= (one.node_taken_after_seconds or 0.0) <= 360.0


SHORT: dict[str, Any] = {"replicas": 3, "rate": 3, "duration": "4m", "times": 0.5}
XID_79 = "gpus: {}\nfaults:\n  - {kind: xid, at: 61500ms, replica: h100-8b-2, code: 79}\n"


@pytest.mark.parametrize("policy", ["{interval: 5s, enforce: false}", "none"])
def test_who_only_observes_touches_nothing(policy: str) -> None:
    run = Run(scenario(XID_79, policy=policy, **SHORT))
    run.go()
    gpus = health(result_of(run, "test"))
    assert {one.rotation for one in run.gateway.admission.status(240.0).replicas.values()} == {Rotation.IN}
    assert gpus.nodes_taken == 0
    assert "quarantine-node" in {decision.action for decision in run.watch.decisions}
    assert all(node.mark is None for node in run.gpus.nodes.values())


def test_what_is_out_while_nothing_is_broken_is_told_as_wrong() -> None:
    run = Run(scenario("gpus: {}\n", policy="{interval: 5s}", duration="40s", warmup="10s", replicas=2))
    run.go()
    snapshot = run.watch.snapshot
    assert snapshot is not None
    replicas = dict(snapshot.replicas)
    replicas["h100-8b-2"] = msgspec.structs.replace(replicas["h100-8b-2"], quarantined_since=1.0)
    taken = Decision("1", 1.0, QUARANTINE_NODE, "h100-8b-node-1", "", "{}", "xid-79", "it must leave")
    run.gpu_account.look(msgspec.structs.replace(snapshot, replicas=replicas), [taken], 39.0)
    gpus = result_of(run, "test").gpus
    assert gpus is not None
    assert gpus.nodes_taken == 1
    assert gpus.nodes_taken_wrongly == ("h100-8b-node-1",)
    assert gpus.replicas_out_wrongly == ("h100-8b-2",)


def test_without_a_section_gpus_nobody_watches_them() -> None:
    run = Run(scenario(XID_79.removeprefix("gpus: {}\n"), policy="{interval: 5s}", **SHORT))
    run.go()
    assert result_of(run, "test").gpus is None
    assert not {one.kind for one in run.watch.events} & {"xid", "gpu-fault"}
    assert run.replicas[1].engine is None


def test_nothing_is_started_on_a_node_that_is_out() -> None:
    run = Run(scenario(XID_79, policy="{interval: 5s}", **SHORT))
    run.go()
    assert run.gpus.is_taken("h100-8b-2")
    assert not run.gpus.is_taken("h100-8b-1")
    taken, well = run.replicas[1], run.replicas[0]
    for replica in (taken, well):
        replica.discovered, replica.engine = False, None
    run.elastic.ask("default", 3, 240.0)
    assert well.discovered
    assert not taken.discovered


def test_the_table_says_what_was_done() -> None:
    console = Console(width=200, record=True, highlight=False, file=StringIO())
    console.print(run_table(msgspec.to_builtins(built_in("gpu-memory")), "a title"))
    text = console.export_text()
    assert "2 nodes taken; wrongly out: none; goodput lost since the first fault:" in text
    assert "XID 95" in text


# -- what the sources show -----------------------------------------------------------------------------


def made(**watching: Any) -> Gpus:
    return Gpus(GpuWatching(**watching), {"n1": ("r1", "r2"), "n2": ("r3",)})


def report(gpus: Gpus, node: str, now: float) -> NodeReport:
    (sample,) = (one for one in gpus.reports(now) if one.node == node)
    assert isinstance(sample, NodeReport)
    return sample


def test_an_exporter_keeps_the_last_code_until_it_starts_anew_and_tells_no_events() -> None:
    gpus = made(source="dcgm")
    node, card = gpus.nodes["n1"], gpus.card_of("r1")
    gpus.raise_xid(node, card, 31, 5.0)
    first, later = report(gpus, "n1", 10.0), report(gpus, "n1", 500.0)
    assert (first.events, first.gpus[card.uuid].numbers["xid"]) == ((), 31.0)
    assert later.gpus[card.uuid].numbers["xid"] == 31.0
    node.go_blind("away", 501.0)
    assert isinstance(gpus.reports(510.0)[0], NodeBlind)
    node.see(520.0, anew=True)
    anew = report(gpus, "n1", 520.0)
    assert anew.gpus[card.uuid].numbers["xid"] == 0.0
    assert anew.epoch != first.epoch


def test_an_agent_tells_events_at_once_and_says_of_a_lost_gpu_that_it_is_lost() -> None:
    gpus = made()
    node, card = gpus.nodes["n1"], gpus.card_of("r1")
    assert len(gpus.reports(0.0)) == 2
    assert gpus.reports(1.0) == ()
    gpus.raise_xid(node, card, 79, 1.5)
    told = report(gpus, "n1", 2.0)
    assert [(event.code, event.uuid) for event in told.events] == [(79, card.uuid)]
    assert "xid" not in told.gpus[card.uuid].numbers
    card.lost = True
    assert report(gpus, "n1", 12.0).gpus[card.uuid].answer is Answer.LOST


def test_a_missing_gpu_moves_the_numbers_of_those_behind_it_and_not_their_names() -> None:
    gpus = made(source="dcgm")
    behind = gpus.card_of("r2").uuid
    assert report(gpus, "n1", 0.0).gpus[behind].index == 1
    gpus.card_of("r1").missing = True
    after = report(gpus, "n1", 10.0).gpus
    assert set(after) == {behind}
    assert after[behind].index == 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{kind: xid, at: 1m, code: 79}", "an XID is of a node or of a replica"),
        ("{kind: xid, at: 1m, replica: h100-8b-1, code: 78}", "it is not known what XID 78 does"),
        ("{kind: xid, at: 1m, node: n, code: 79}", "there is no node 'n'"),
        ("{kind: throttled, at: 1m, to: 50%}", "throttled are the GPUs of a replica or of a rack"),
        ("{kind: throttled, at: 1m, to: 50%, rack: rack-1}", "gpus.nodes_per_rack makes them"),
        ("{kind: gpu-lost, at: 1m, replica: x}", "there is no replica 'x'"),
    ],
)
def test_faults_that_cannot_be_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse_scenario(
            "title: t\nduration: 2m\nwarmup: 0\nfleet: [{engine: h100-8b}]\n"
            "workload: {sources: [{name: chat, mix: m-small, rate: 1}]}\n"
            f"faults: [{line}]\n",
            "s.yaml",
            Path(),
        )
