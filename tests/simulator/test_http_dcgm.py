"""The GPUs' page: families of a real exporter, values that follow the engine and its faults."""

from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.simulator.constants import engine_model, engine_models
from controlplane.simulator.engine import Engine
from controlplane.simulator.http import dcgm
from controlplane.simulator.http.dcgm import Gpus, gpu_facts
from controlplane.simulator.http.faults import Faults
from controlplane.simulator.request import Request

from .http_fleet import FAST, Samples, fleet

MODEL = engine_model("h100-8b")
REAL = Path(__file__).parents[3] / "shared" / "reference" / "dcgm" / "l4-no-xid-family.prom"


def page(*replicas: Gpus) -> Samples:
    return Samples(dcgm.page(replicas, "node-1").decode())


def test_every_engine_stands_on_gpus() -> None:
    assert gpu_facts().keys() == engine_models().keys()


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here: no real exporter's page to compare with")
def test_names_types_and_labels_are_those_of_a_real_exporter() -> None:
    """But for the XID family, which that one has not, and what NVIDIA's default list leaves out."""
    real = {family.name: family for family in text_string_to_metric_families(REAL.read_text())}
    mine = text_string_to_metric_families(dcgm.page([_gpus()], "n").decode())
    shared = [family for family in mine if family.name in real]
    assert len(shared) >= 12
    for family in shared:
        assert family.samples[0].labels.keys() == real[family.name].samples[0].labels.keys()
        assert family.type == real[family.name].type, family.name


def test_names_and_labels() -> None:
    """The sibling of the test above that always runs."""
    found = page(_gpus())
    assert found("DCGM_FI_DEV_XID_ERRORS", err_code="0", gpu="0", device="nvidia0") == 0
    labels = next(s.labels for s in found.found if s.name == "DCGM_FI_DEV_GPU_TEMP")
    assert labels.keys() == {
        *("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION")
    }
    assert labels["UUID"].startswith("GPU-")
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in found.page
    assert "_total" not in found.page


def _gpus(first: int = 0, engine: str = "h100-8b") -> Gpus:
    return Gpus(gpu_facts()[engine], MODEL.law, first, 0.0)


def _busy_engine(seconds: float) -> Engine:
    engine = Engine(MODEL.law, MODEL.settings)
    for i in range(200):
        engine.submit(Request(f"r{i}", 500, 20_000), 0.0)
    engine.advance(seconds)
    return engine


def test_an_idle_gpu_is_cool_and_a_busy_one_is_not() -> None:
    idle, busy = _gpus(), _gpus()
    idle.follow(Engine(MODEL.law, MODEL.settings).counters, 120.0)
    busy.follow(_busy_engine(120.0).counters, 120.0)
    cold, hot = page(idle), page(busy)
    assert cold("DCGM_FI_DEV_GPU_UTIL") == 0
    assert cold("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") == 1  # idle, which is no fault
    assert hot("DCGM_FI_DEV_GPU_UTIL") == 100
    assert hot("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") == 0
    assert hot("DCGM_FI_DEV_SM_CLOCK") == 1980 > cold("DCGM_FI_DEV_SM_CLOCK")
    assert 115 == cold("DCGM_FI_DEV_POWER_USAGE") < 300 < hot("DCGM_FI_DEV_POWER_USAGE") <= 700
    assert 30 <= cold("DCGM_FI_DEV_GPU_TEMP") < 45 < hot("DCGM_FI_DEV_GPU_TEMP") < 75
    assert 0 < hot("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") < hot("DCGM_FI_PROF_GR_ENGINE_ACTIVE") <= 1
    energy = hot("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total")  # the parser adds the word
    assert energy == pytest.approx(hot("DCGM_FI_DEV_POWER_USAGE") * 120e3)
    used, free = hot("DCGM_FI_DEV_FB_USED"), hot("DCGM_FI_DEV_FB_FREE")
    assert used + free == 81559


def test_a_gpu_too_hot_says_so_and_counts_the_time() -> None:
    gpus, engine = _gpus(), _busy_engine(60.0)
    gpus.follow(engine.counters, 60.0)
    gpus.faults = Faults(thermal_factor=2.0)
    engine.advance(160.0)
    gpus.follow(engine.counters, 160.0)
    found = page(gpus)
    assert int(found("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")) & (0x40 | 0x20) == 0x60
    assert found("DCGM_FI_DEV_SM_CLOCK") == 990
    assert found("DCGM_FI_DEV_GPU_TEMP") >= 88
    assert found("DCGM_FI_DEV_THERMAL_VIOLATION_total") == 100e9
    gpus.faults = Faults()
    gpus.follow(engine.counters, 300.0)
    assert page(gpus)("DCGM_FI_DEV_THERMAL_VIOLATION_total") == 100e9
    assert page(gpus)("DCGM_FI_DEV_GPU_TEMP") < 50


def test_an_engine_that_started_anew_does_not_turn_the_gpu_back() -> None:
    gpus = _gpus()
    gpus.follow(_busy_engine(60.0).counters, 60.0)
    energy = gpus.millijoules
    gpus.follow(None, 90.0)
    assert gpus.busy == 0.0
    gpus.follow(_busy_engine(10.0).counters, 100.0)
    assert gpus.busy == pytest.approx(1.0, abs=0.05)
    assert gpus.millijoules > energy


def test_an_xid_stands_in_value_and_label_of_its_gpu_alone() -> None:
    gpus = _gpus(2, "2xh100-70b-fp8")
    gpus.faults = Faults(xid={"3": 79})
    found = page(_gpus(), gpus)
    xids = {
        s.labels["gpu"]: (s.value, s.labels["err_code"])
        for s in found.found
        if s.name == "DCGM_FI_DEV_XID_ERRORS"
    }
    assert xids == {"0": (0, "0"), "2": (0, "0"), "3": (79, "79")}
    uuids = {s.labels["UUID"] for s in found.found}
    assert len(uuids) == 3


async def test_the_nodes_page_has_all_gpus_and_outlives_an_engine() -> None:
    settings = msgspec.structs.replace(FAST, replicas=2, dcgm_port=0)
    async with fleet(settings) as client:
        port = client.fleet._exporter.addresses[0][1]
        mine = await client.samples("/dcgm/metrics")
        assert {s.labels["gpu"] for s in mine.found} == {"0"}
        await client.break_as(xid={"0": 48}, restart_seconds=60.0)
        async with client.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            node = Samples(await answer.text())
    assert {s.labels["gpu"] for s in node.found} == {"0", "1"}
    assert node("DCGM_FI_DEV_XID_ERRORS", gpu="0") == 48
    assert node("DCGM_FI_DEV_XID_ERRORS", gpu="1") == 0
