"""Cases D1 to D5: GPU health. The pages are the ones given."""

import csv
import sys
from pathlib import Path

import pytest
import yaml

from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.quarantine.observation import Observation, ReplicaEvidence
from controlplane.policy.quarantine.observe import Outcome, observe
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.words import Remedy, Stage
from controlplane.policy.quarantine.xids import XidOverride, meaning
from controlplane.signals.gpu import NodeReport, NodeSample, Pod
from controlplane.sources.dcgm import DcgmReader

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from quarantine_fleet import Card, Fleet, uuid_of

DATA = Path(__file__).parent / "data"
FIRST = "GPU-00000000-aaaa-4000-8000-000000000001"
NODE = "gpu-node-1"


class Watch:
    """One node's pages, read and judged a minute apart."""

    def __init__(self) -> None:
        self.reader = DcgmReader(NODE)
        self.memory = QuarantineMemory()
        self.now = 1_764_000_000.0
        self.outcomes: list[Outcome] = []

    def see(self, page: str | bytes, **serving: bool) -> Outcome:
        body = (DATA / "D1" / page).read_bytes() if isinstance(page, str) else page
        replicas = tuple(
            ReplicaEvidence(f"chat-{n}", "chat", NODE if n == 0 else f"other-{n}", (FIRST,) if n == 0 else ())
            for n in range(3)
        )
        if serving:
            broken = ReplicaEvidence("chat-0", "chat", NODE, (FIRST,), **serving)  # type: ignore[arg-type]
            replicas = (broken, *replicas[1:])
        seen = Observation((self.reader.read(body, self.now),), (NODE, "other-1", "other-2"), None, replicas)
        self.memory, outcome = observe(self.memory, seen, QuarantineSettings(), self.now)
        self.now += 60.0
        self.outcomes.append(outcome)
        return outcome

    def kinds(self) -> list[str]:
        return [event.kind for outcome in self.outcomes for event in outcome.events]

    def quarantined(self) -> list[str]:
        return [d.target for o in self.outcomes for d in o.decisions if d.action == "quarantine-node"]


class TestD1:
    """The XID gauge keeps its last value."""

    def test_D1_one_event_an_edge_and_a_candidate_for_the_fatal_one(self) -> None:
        watch = Watch()
        watch.see("t0.prom")
        first = watch.see("t1.prom")
        assert [e.kind for e in first.events if e.kind.startswith("xid")] == ["xid"]
        assert "XID 31" in first.events[0].sentence
        assert "application" in first.events[0].sentence
        assert not first.verdicts
        assert not [e for e in watch.see("t2.prom").events if e.kind.startswith("xid")]
        fatal = watch.see("t3.prom")
        assert [e.kind for e in fatal.events if e.kind.startswith("xid")] == ["xid"]
        (verdict,) = fatal.verdicts
        assert (verdict.check, verdict.stage, verdict.remedy) == (
            "xid-79",
            Stage.HELD_DOWN,
            Remedy.DRAIN_AND_REBOOT,
        )
        for _ in range(60):
            assert not [e for e in watch.see("t3.prom").events if e.kind.startswith("xid")]
        assert watch.quarantined() == [NODE]  # once, after its hold-down

    def test_D1_seen_first_it_was_there_before_we_watched(self) -> None:
        watch = Watch()
        first = watch.see("t3.prom")
        assert [event.kind for event in first.events] == ["xid-before-us"]
        for _ in range(60):
            watch.see("t3.prom")
        assert watch.quarantined() == []
        assert watch.kinds().count("xid-before-us") == 1

    def test_D1_it_counts_where_the_engine_on_it_fails(self) -> None:
        watch = Watch()
        watch.see("t3.prom")
        for _ in range(5):
            watch.see("t3.prom", failing=True, ready=False)
        assert watch.quarantined() == []  # a crash is over sooner
        for _ in range(8):
            watch.see("t3.prom", failing=True, ready=False)
        assert watch.quarantined() == [NODE]

    def test_D1_it_counts_where_the_gpu_leaves_the_page(self) -> None:
        watch = Watch()
        watch.see("t3.prom")
        other = b"\n".join(
            line for line in (DATA / "D1" / "t3.prom").read_bytes().split(b"\n") if FIRST.encode() not in line
        )
        for _ in range(4):
            watch.see(other)
        assert watch.quarantined() == [NODE]

    def test_D1_it_counts_where_the_windowed_counter_rises(self) -> None:
        page = (DATA / "D1" / "t3.prom").read_bytes()
        counts = 'DCGM_EXP_XID_ERRORS_COUNT{{gpu="0",UUID="{}",window_size_in_ms="300000",xid="79"}} {}\n'
        watch = Watch()
        watch.see(page + counts.format(FIRST, 1).encode())
        for _ in range(3):
            watch.see(page + counts.format(FIRST, 2).encode())
        assert watch.quarantined() == [NODE]

    def test_D1_zero_after_an_exporter_restart_lifts_nothing(self) -> None:
        watch = Watch()
        for page in ("t0.prom", "t3.prom", "t3.prom", "t3.prom"):
            watch.see(page)
        assert watch.quarantined() == [NODE]
        for _ in range(60):
            watch.see("t0.prom")
        assert not [d for o in watch.outcomes for d in o.decisions if d.action == "release-node"]

    def test_D1_a_page_without_it_between_is_no_edge(self) -> None:
        watch = Watch()
        watch.see("t3.prom")
        watch.see(b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="' + FIRST.encode() + b'"} 40\n')
        watch.see("t3.prom")
        assert watch.kinds().count("xid") == 0


ROWS = tuple(csv.DictReader((DATA / "D2" / "xid_classes.csv").open()))


class TestD2:
    """Some XIDs are the program's fault."""

    @pytest.mark.parametrize("row", ROWS, ids=[row["xid"] for row in ROWS])
    def test_D2_class_and_action(self, row: dict[str, str]) -> None:
        xid = meaning(int(row["xid"]), {})
        assert xid.fault_class.value == row["class"]
        assert xid.remedy.takes_node == (row["single_event_action"] == "cordon candidate")
        if "restart" in row["single_event_action"]:
            assert xid.remedy is Remedy.RESTART_WORKLOAD
        if row["single_event_action"] == "alert only":
            assert xid.remedy is Remedy.NOTE
        assert xid.reason
        assert xid.source

    def test_D2_the_table_is_open_to_configuration(self) -> None:
        ours = XidOverride.model_validate(
            {"class": "hardware-fatal", "action": "drain-and-reboot", "reason": "our supplier asks for it"}
        )
        xid = meaning(43, {43: ours})
        assert (xid.remedy, xid.reason, xid.source) == (
            Remedy.DRAIN_AND_REBOOT,
            "our supplier asks for it",
            "configuration",
        )
        settings = QuarantineSettings.model_validate({"xids": {"63": {"action": "note"}}})
        assert meaning(63, settings.xids).remedy is Remedy.NOTE

    def test_D2_a_pod_that_fails_on_three_nodes_is_to_blame(self) -> None:
        fleet = Fleet(nodes=6)
        fleet.tick(times=2)
        for n, name in enumerate(fleet.names[:3]):
            fleet.card(name, 1).pods = (Pod("batch", f"train-7d9f8-abc{n}x"),)
            fleet.raise_xid(name, 31, 1)
            fleet.tick(times=4)
            fleet.card(name, 1).pods = ()
        fleet.tick(times=60)
        assert fleet.did("quarantine-node") == []
        assert fleet.did("eject-replica") == []
        (sentence,) = [s for s in fleet.told("workload-to-blame") if "3 nodes" in s] or fleet.told(
            "workload-to-blame"
        )
        assert "batch/train" in sentence
        assert "common factor" in sentence

    def test_D2_three_pods_on_one_gpu_make_it_suspect(self) -> None:
        fleet = Fleet(nodes=6)
        fleet.tick(times=2)
        name = fleet.names[0]
        for owner in ("red", "green", "blue"):
            fleet.card(name, 1).pods = (Pod("batch", f"{owner}-0"),)
            fleet.raise_xid(name, 13, 1)
            fleet.tick(times=10)
            fleet.show(name, 1, xid=0.0)  # the exporter restarted in between
            fleet.tick(times=10)
        (verdict,) = [v for v in fleet.tick().verdicts if v.check == "xid-repeats"]
        assert verdict.uuid == fleet.uuid(name, 1)
        assert verdict.stage is Stage.SUSPECTED
        assert "3 pods" in verdict.sentence
        assert fleet.did("quarantine-node") == []

    def test_D2_an_unknown_code_alerts_and_no_more(self) -> None:
        fleet = Fleet()
        fleet.tick(times=2)
        fleet.raise_xid(fleet.names[0], 999)
        fleet.tick(times=30)
        (sentence,) = fleet.told("xid")
        assert "XID 999" in sentence
        assert "not in the table" in sentence
        assert [d for d in fleet.decisions if d.action != "assess"] == []


class TestD3:
    """Blank numbers from DCGM."""

    @pytest.mark.parametrize(
        "shown", ["9223372036854775794", "9.223372036854775794e+18", "9223372036854776000"]
    )
    def test_D3_blanks_are_unknown(self, shown: str) -> None:
        page = (DATA / "D3" / "blanks.prom").read_text().replace("9223372036854775794", shown)
        report = DcgmReader(NODE).read(page.encode(), 0.0)
        assert isinstance(report, NodeReport)
        gpu = report.gpus[FIRST]
        assert gpu.numbers == {"temperature_celsius": 41.0, "power_watts": 69.437}
        assert set(gpu.unknown) == {
            "memory_temperature_celsius",
            "utilization_ratio",
            "activity_ratio",
            "ecc_uncorrectable_total",
            "sm_clock_hertz",
            "xid",
        }

    def test_D3_no_event_and_no_alarm_follow(self) -> None:
        watch = Watch()
        watch.see("t0.prom")
        page = (DATA / "D3" / "blanks.prom").read_bytes()
        quiet = [watch.see(page) for _ in range(10)]
        assert not [v for o in quiet for v in o.verdicts if v.uuid == FIRST]
        assert not [e for o in quiet for e in o.events if e.kind.startswith("xid")]


class TestD4:
    """Every node looks bad."""

    CASE = yaml.safe_load((DATA / "D4" / "fleet.yaml").read_text())

    def fleet(self) -> Fleet:
        config, given = self.CASE["config"], self.CASE["given"]
        fleet = Fleet(
            nodes=given["gpu_nodes"],
            cluster=True,
            max_share=config["max_cordoned_fraction"],
            max_per_hour=config["max_cordons_per_hour"],
        )
        for name in fleet.names[: given["already_cordoned_by_others"]]:
            fleet.facts[name] = fleet.facts[name].__class__(name, True, True, False)
        fleet.tick(times=3)
        return fleet

    @pytest.mark.parametrize("apart", [0.0, 5.0])
    def test_D4_all_at_once_is_the_telemetry(self, apart: float) -> None:
        fleet = self.fleet()
        for name in fleet.names:
            fleet.raise_xid(name, 79)
            if apart:
                fleet.tick(apart)
        fleet.tick(times=30)
        assert len(fleet.did("quarantine-node")) <= self.CASE["want"]["cordons_by_us_at_most"]
        assert any(self.CASE["want"]["must_report"] in s for s in fleet.told("gpu-fault-storm"))
        assert fleet.outcome is not None
        assert fleet.outcome.tripped is not None

    def test_D4_the_cap_counts_everybody_and_survives_a_restart(self) -> None:
        fleet = self.fleet()
        fleet.raise_xid(fleet.names[3], 79)
        fleet.tick(times=10)
        assert fleet.did("quarantine-node") == [fleet.names[3]]
        fleet.tick(times=20)
        fleet.raise_xid(fleet.names[5], 48)  # another cause, later: no storm
        fleet.tick(times=10)
        assert len(fleet.did("quarantine-node")) == 1
        assert "2 of 12 nodes" in fleet.told("quarantine-withheld")[0]
        fleet.restart_daemon(keep=False)
        fleet.tick(times=3)
        fleet.raise_xid(fleet.names[7], 95)
        fleet.tick(times=10)
        assert len(fleet.did("quarantine-node")) == 1
        assert fleet.memory.taken  # known again from the mark on the node

    def test_D4_while_tripped_what_is_ours_can_be_lifted(self) -> None:
        fleet = self.fleet()
        first = fleet.names[3]
        fleet.raise_xid(first, 79)
        fleet.tick(times=10)
        assert fleet.did("quarantine-node") == [first]
        for name in fleet.names:
            fleet.raise_xid(name, 48)
        fleet.tick(times=3)
        assert fleet.outcome is not None
        assert fleet.outcome.tripped is not None
        fleet.person(first, "release")
        fleet.tick(times=3)
        assert fleet.did("release-node") == [first]
        assert fleet.facts[first].mark is None
        assert not fleet.facts[first].tainted

    def test_D4_a_pool_under_one_node_by_share(self) -> None:
        """By default the cap is max(1, share); with `floor_nodes: 0` it says that it is below one node."""
        for floor, cordons in ((1, 1), (0, 0)):
            fleet = Fleet(nodes=2, floor_nodes=floor)
            fleet.tick(times=3)
            fleet.raise_xid(fleet.names[0], 79)
            fleet.tick(times=10)
            assert len(fleet.did("quarantine-node")) == cordons
        assert "cap of the fleet is below one node" in fleet.told("quarantine-withheld")[0]


class TestD5:
    """MIG slices and missing pod labels."""

    REPORT = DcgmReader("gpu-node-2").read((DATA / "D5" / "mig_and_labels.prom").read_bytes(), 0.0)
    UUID = "GPU-00000000-bbbb-4000-8000-00000000000"

    def gpu(self, number: int):  # type: ignore[no-untyped-def]
        assert isinstance(self.REPORT, NodeReport)
        return self.REPORT.gpus[f"{self.UUID}{number}"]

    def test_D5_two_slices_of_one_gpu(self) -> None:
        mig = self.gpu(1).instances
        assert {key: one.numbers["activity_ratio"] for key, one in mig.items()} == {"1": 0.71, "2": 0.05}
        used = {key: one.numbers["memory_used_bytes"] / 2**20 for key, one in mig.items()}
        assert used == {"1": 36000, "2": 900}

    def test_D5_utilization_unknown_activity_known(self) -> None:
        gpu = self.gpu(1)
        assert "utilization_ratio" not in gpu.numbers
        assert gpu.numbers["activity_ratio"] == 0.71

    def test_D5_empty_and_absent_pod_labels_are_not_attributed(self) -> None:
        assert self.gpu(1).all_pods == ()

    def test_D5_pods_by_either_spelling(self) -> None:
        assert self.gpu(2).all_pods == (Pod("serving", "chat-7f9c-abcde", "vllm"),)
        assert self.gpu(3).all_pods == (Pod("serving", "chat-7f9c-fghij", ""),)


def test_the_fleet_of_these_tests_shows_nothing_by_itself() -> None:
    """No fault, no verdict: what the cases above find is of their own making."""
    fleet = Fleet(nodes=3)
    outcome = fleet.tick(times=40)
    assert (outcome.verdicts, fleet.decisions, fleet.events) == ((), [], [])
    assert isinstance(fleet.sample(fleet.names[0]), NodeSample.__args__)  # type: ignore[attr-defined]
    assert Card().numbers
    assert uuid_of("gpu-node-1") == fleet.uuid("gpu-node-1")
