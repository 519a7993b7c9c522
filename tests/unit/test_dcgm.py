"""DCGM pages: names old and new, blanks, MIG rows, pods, and what `inspect` and quarantine make of them."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from dcgm_pages import A, B, page, row

from controlplane.commands.inspect import inspect
from controlplane.policy.quarantine.needs import NEEDS, blind
from controlplane.signals.gpu import GPU_SIGNALS, Gpu, NodeBlind, NodeReport, Pod
from controlplane.signals.reading import Reason
from controlplane.sources.dcgm import DcgmReader
from controlplane.sources.dcgm_fields import fields
from controlplane.sources.dcgm_inspect import gpus

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.parent / "shared" / "reference" / "dcgm"
COUNTERS = ROOT / "deploy" / "dcgm" / "counters.csv"


def read(*rows: str) -> NodeReport:
    report = DcgmReader("n1").read(page(*rows), 10.0)
    assert isinstance(report, NodeReport)
    return report


def only(*rows: str) -> Gpu:
    (gpu,) = read(*rows).gpus.values()
    return gpu


def test_what_labels_tell() -> None:
    report = read(
        row(
            "DCGM_FI_DEV_GPU_TEMP",
            41,
            hostname="exporter-x",
            DCGM_FI_DRIVER_VERSION="580.1",
            pod="p",
            namespace="ns",
        ),
        row("DCGM_FI_DEV_GPU_TEMP", 52, B, 1, Hostname="exporter-x"),
    )
    assert (report.node, report.host, report.driver) == ("n1", "exporter-x", "580.1")
    first, second = report.gpus[A], report.gpus[B]
    assert (first.index, first.model, first.pci_bus_id) == (0, "ACME G100", "00000000:1B:00.0")
    assert (first.pods, second.pods) == ((Pod("ns", "p", ""),), ())
    assert (first.numbers, second.numbers) == ({"temperature_celsius": 41.0}, {"temperature_celsius": 52.0})


@pytest.mark.parametrize("field", fields(), ids=lambda field: field.signal)
def test_every_name_of_every_field_is_read(field) -> None:  # type: ignore[no-untyped-def]
    assert field.signal in GPU_SIGNALS
    for name in field.names:
        gpu = only(row(name, 1))
        assert gpu.numbers == {field.signal: pytest.approx(field.scale)}
    for sentinel in (9223372036854775794, "9.223372036854776e+18"):
        assert only(row(field.names[0], sentinel)).unknown == {field.signal: Reason.UNAVAILABLE}


def test_the_newer_name_counts_where_both_are_there() -> None:
    rows = (row("DCGM_FI_DEV_GPU_TEMP", 60), row("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 41))
    assert only(*rows).numbers == only(*reversed(rows)).numbers == {"temperature_celsius": 41.0}
    blank = (row("DCGM_FI_DEV_GPU_TEMP", 60), row("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 9223372036854775794))
    assert only(*blank).numbers == only(*reversed(blank)).numbers == {"temperature_celsius": 60.0}


@pytest.mark.parametrize(
    ("name", "printed", "value"),
    [
        (
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
            2147483632,
            2147483.632,
        ),  # energy passes int32's blank in hours
        (
            "DCGM_FI_DEV_THERMAL_VIOLATION",
            140737488355328,
            140737.488355328,
        ),  # and this fp64's within 39 hours
        ("DCGM_FI_DEV_GPU_TEMP_LIMIT", -3, -3.0),
    ],
)
def test_a_blank_of_one_field_is_a_value_of_another(name: str, printed: int, value: float) -> None:
    assert list(only(row(name, printed)).numbers.values()) == [pytest.approx(value)]


@pytest.mark.parametrize(
    ("name", "printed", "reason"),
    [
        ("DCGM_FI_DEV_SM_CLOCK", 2147483632, Reason.UNAVAILABLE),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 140737488355328, Reason.UNAVAILABLE),
        ("DCGM_FI_DEV_MEMORY_TEMP", 0, Reason.UNAVAILABLE),
        ("DCGM_FI_DEV_GPU_TEMP", "NaN", Reason.NOT_A_NUMBER),
        ("DCGM_FI_DEV_GPU_TEMP", 5000, Reason.IMPOSSIBLE),
        ("DCGM_FI_DEV_XID_ERRORS", -1, Reason.IMPOSSIBLE),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 7, Reason.IMPOSSIBLE),
    ],
)
def test_what_is_no_measurement(name: str, printed: object, reason: Reason) -> None:
    gpu = only(row(name, printed))
    assert gpu.numbers == {}
    assert list(gpu.unknown.values()) == [reason]


def test_whole_card_values_under_mig_count_once() -> None:
    def slices(name: str, *values: object) -> list[str]:
        return [row(name, value, GPU_I_ID=str(n), GPU_I_PROFILE="1g") for n, value in enumerate(values, 7)]

    gpu = only(
        *slices("DCGM_FI_DEV_POWER_USAGE", 112.2, 106.4),
        *slices("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000, 1000),
        *slices("DCGM_FI_DEV_XID_ERRORS", 0, 0),
        *slices("DCGM_FI_DEV_GPU_TEMP_LIMIT", 12, 9),
        *slices("DCGM_FI_DEV_FB_USED", 100, 200),
        *slices("DCGM_FI_DEV_FB_FREE", 100, 9223372036854775794),
        *slices("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 0.25),
    )
    assert gpu.numbers == {
        "power_watts": 112.2,
        "energy_joules_total": 1.0,
        "xid": 0.0,
        "temperature_margin_celsius": 9.0,
        "memory_used_bytes": 300 * 2**20,
        "activity_ratio": 0.5,
    }
    assert gpu.unknown == {"memory_free_bytes": Reason.UNAVAILABLE}  # half a sum is none
    assert gpu.instances["8"].numbers["activity_ratio"] == 0.25


def test_a_row_for_the_card_counts_before_those_of_its_instances() -> None:
    gpu = only(
        row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.4),
        row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, GPU_I_ID="13", GPU_I_PROFILE="1g"),
    )
    assert gpu.numbers["activity_ratio"] == 0.4


def test_pods_of_a_shared_gpu_and_of_instances() -> None:
    gpu = only(
        row("DCGM_FI_DEV_GPU_TEMP", 41, pod="a", namespace="ns", container="c"),
        row("DCGM_FI_DEV_GPU_TEMP", 41, pod="b", namespace="ns", container="c"),
        row(
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            0.1,
            GPU_I_ID="7",
            exported_pod="d",
            exported_namespace="ns",
            pod="own",
        ),
        row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.1, GPU_I_ID="8", exported_pod="", pod="own"),
    )
    assert [pod.name for pod in gpu.all_pods] == ["a", "b", "d"]


def test_windowed_xid_counts() -> None:
    name = "DCGM_EXP_XID_ERRORS_COUNT"
    gpu = only(row(name, 2, xid="31"), row(name, 1, xid="79"))
    assert gpu.recent_xids == {31: 2.0, 79: 1.0}
    assert only(row("DCGM_FI_DEV_GPU_TEMP", 1)).recent_xids is None
    assert {code: n for code, n in (only(row(name, 0)).recent_xids or {}).items() if code > 0} == {}


def test_links_and_switches_are_not_gpus() -> None:
    report = read(
        row("DCGM_FI_DEV_GPU_TEMP", 41),
        row("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 5, B, nvlink="3"),
        row("DCGM_FI_DEV_GPU_TEMP", 60, B, nvswitch="nvswitch0"),
    )
    assert list(report.gpus) == [A]


def test_series_without_a_uuid_are_left_out_with_a_warning() -> None:
    report = read(row("DCGM_FI_DEV_GPU_TEMP", 41), 'DCGM_FI_DEV_GPU_TEMP{gpu="1"} 50\n')
    assert list(report.gpus) == [A]
    assert len(report.warnings) == 1


@pytest.mark.parametrize(
    "body", [b"up 1\n", b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 4\n', b"DCGM_FI_DEV_GPU_TEMP{ 4\n"]
)
def test_a_page_that_shows_no_gpu_is_blindness_and_not_zero_gpus(body: bytes) -> None:
    assert isinstance(DcgmReader("n1").read(body, 1.0), NodeBlind)


def test_too_many_gpus_are_not_believed() -> None:
    rows = [row("DCGM_FI_DEV_GPU_TEMP", 1, f"GPU-{n}", n) for n in range(100)]
    report = read(*rows)
    assert len(report.gpus) == 64
    assert report.warnings


def test_a_reader_follows_a_page_that_changes() -> None:
    reader = DcgmReader("n1")
    for first, rest in ((41, ()), (42, ()), (43, (row("DCGM_FI_DEV_SM_CLOCK", 1000, B, 1),))):
        report = reader.read(page(row("DCGM_FI_DEV_GPU_TEMP", first), *rest), float(first))
        assert isinstance(report, NodeReport)
        assert report.gpus[A].numbers == {"temperature_celsius": first}
        assert (B in report.gpus) == bool(rest)


# -- the counters file ---------------------------------------------------------------------------------


def counters() -> list[list[str]]:
    lines = [line for line in COUNTERS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [[cell.strip() for cell in row] for row in csv.reader(lines)]


def test_the_counters_file_turns_on_what_every_check_needs() -> None:
    rows = counters()
    assert all(len(row) == 3 and row[1] in ("gauge", "counter", "label") for row in rows)
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))
    known = {name: field.signal for field in fields() for name in field.names}
    shown = {known[name] for name in names if name in known}
    missing = {check: want for check, want in blind(shown, ("dcgm",)).items() if want != ("the node agent",)}
    assert missing == {}
    assert "DCGM_EXP_XID_ERRORS_COUNT" in names


def test_the_exporters_default_leaves_checks_blind_and_they_name_the_signal() -> None:
    shown = {"xid", "temperature_celsius", "memory_temperature_celsius", "power_watts", "row_remap_failure"}
    missing = blind(shown, ("dcgm",))
    assert missing["ecc-uncorrectable"] == ("ecc_uncorrectable_total",)
    assert missing["sram-threshold"] == ("sram_threshold_exceeded",)
    assert set(missing) < set(NEEDS)


# -- inspect -------------------------------------------------------------------------------------------


def test_inspect_prints_json_by_uuid(tmp_path: Path) -> None:
    file = tmp_path / "page.prom"
    file.write_bytes(
        gzip.compress(page(row("DCGM_FI_DEV_GPU_TEMP", 41), row("DCGM_FI_DEV_XID_ERRORS", 0, B, 1)))
    )
    result = CliRunner().invoke(inspect, [str(file), "--json"])
    assert result.exit_code == 0, result.output
    out = json.loads(result.output)
    assert out["gpus"] == {A: {"temperature_celsius": {"value": 41.0}}, B: {"xid": {"value": 0.0}}}
    assert out["blind_checks"][A]["xid"] == ["xid"]
    assert "xid" not in out["blind_checks"][B]


def test_inspect_shows_a_table_and_what_is_blind(tmp_path: Path) -> None:
    file = tmp_path / "page.prom"
    file.write_bytes(page(row("DCGM_FI_DEV_GPU_TEMP", 41), row("DCGM_FI_DEV_MEMORY_TEMP", 0)))
    result = CliRunner().invoke(inspect, [str(file)])
    assert result.exit_code == 0, result.output
    for text in ("1 GPU on", "41", "unknown: unavailable", "blind: recovery-action (needs recovery_action)"):
        assert text in result.output


def test_inspect_with_the_page_before_tells_growth_and_who_left(tmp_path: Path) -> None:
    then, now = tmp_path / "then.prom", tmp_path / "now.prom"
    then.write_bytes(page(row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 10), row("DCGM_FI_DEV_GPU_TEMP", 1, B, 1)))
    now.write_bytes(page(row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 70)))
    result = CliRunner().invoke(inspect, [str(now), "--previous", str(then), "--interval", "30", "--json"])
    out = json.loads(result.output)
    assert out["gpus"][A]["pcie_replays_total"] == {"value": 70.0, "increase": 60.0, "rate": 2.0}
    assert out["warnings"] == [f"{B} was on the page before and is gone"]


def test_inspect_reads_a_raw_http_response(tmp_path: Path) -> None:
    file = tmp_path / "answer.http"
    body = page(row("DCGM_FI_DEV_GPU_TEMP", 41))
    file.write_bytes(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + body)
    result = CliRunner().invoke(inspect, [str(file), "--json"])
    assert json.loads(result.output)["gpus"] == {A: {"temperature_celsius": {"value": 41.0}}}


def test_a_counter_that_began_again_never_falls() -> None:
    before, after = (
        read(row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 500)),
        read(row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 20)),
    )
    assert gpus(after, before, 10.0)["gpus"][A]["pcie_replays_total"]["increase"] == 20.0


# -- pages of real exporters ---------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no sample pages in {SAMPLES}")
class TestSamples:
    def gpu(self, name: str, last: str = "0") -> Gpu:
        report = DcgmReader("n1").read((SAMPLES / f"{name}.prom").read_bytes(), 0.0)
        assert isinstance(report, NodeReport)
        assert report.warnings == ()
        return report.gpus[f"GPU-00000000-0000-4000-8000-00000000000{last}"]

    def test_two_gpus_one_attributed(self) -> None:
        first, second = self.gpu("t4-2gpu-pod-attributed"), self.gpu("t4-2gpu-pod-attributed", "1")
        assert first.all_pods == (Pod("team-a", "workload-0", "server"),)
        assert second.all_pods == ()
        assert (first.numbers["power_watts"], second.numbers["power_watts"]) == (28.722, 17.035)
        assert (first.numbers["memory_used_bytes"], second.numbers["memory_used_bytes"]) == (
            128 * 2**20,
            5 * 2**20,
        )
        assert first.numbers["activity_ratio"] == 0.000039

    def test_four_instances_of_one_card(self) -> None:
        gpu = self.gpu("a100-mig-4-instances")
        assert {key: one.profile for key, one in gpu.instances.items()} == {
            "7": "1g.5gb",
            "8": "1g.5gb",
            "9": "1g.5gb",
            "5": "2g.10gb",
        }
        assert gpu.numbers["energy_joules_total"] == pytest.approx(6890.956)
        assert gpu.numbers["temperature_celsius"] == 35.0
        assert gpu.instances["8"].numbers["activity_ratio"] == 0.408493
        assert gpu.instances["8"].numbers["memory_used_bytes"] == 4384 * 2**20
        assert "utilization_ratio" not in gpu.numbers

    def test_a_card_with_a_row_for_an_instance(self) -> None:
        gpu = self.gpu("a100-whole-gpu-plus-mig-rows")
        assert gpu.numbers["activity_ratio"] == 0.995630
        assert gpu.instances["13"].numbers["activity_ratio"] == 0.995687
        assert gpu.numbers["power_watts"] == 409.692

    def test_no_xid_family(self) -> None:
        gpu = self.gpu("l4-no-xid-family")
        assert "xid" not in gpu.numbers
        assert "xid" not in gpu.unknown
        assert gpu.numbers["row_remap_failure"] == 0.0
        assert gpu.unknown == {"memory_temperature_celsius": Reason.UNAVAILABLE}
        assert gpu.pci_bus_id == "00000000:31:00.0"

    def test_a_guest_sees_little_and_most_checks_are_blind(self) -> None:
        gpu = self.gpu("vgpu-a100-8c-partial-families")
        assert "temperature_celsius" not in gpu.numbers
        assert gpu.numbers["vgpu_license_status"] == 1.0
        assert gpu.numbers["memory_free_bytes"] == 37739 * 2**20
        assert len(blind({*gpu.numbers, *gpu.unknown}, ("dcgm",))) > 10

    @pytest.mark.parametrize(
        "name", ["t4-2gpu-pod-attributed", "l4-no-xid-family", "vgpu-a100-8c-partial-families"]
    )
    def test_every_value_that_is_printed_is_read(self, name: str) -> None:
        """But for the memory temperature of 0, which means that there is no sensor."""
        text = (SAMPLES / f"{name}.prom").read_text()
        report = DcgmReader("n1").read(text.encode(), 0.0)
        assert isinstance(report, NodeReport)
        printed = [line for line in text.splitlines() if line and not line.startswith("#")]
        silent = sum(line.startswith("DCGM_FI_DEV_MEMORY_TEMP") and line.endswith(" 0") for line in printed)
        assert sum(len(gpu.numbers) for gpu in report.gpus.values()) == len(printed) - silent
