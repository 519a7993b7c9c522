"""Recording rules over the DCGM exporter's own series, under its old field names and its new ones.

DCGM 4.6 renamed most fields and kept the old names as aliases; what a page says depends on its CSV file. A
GPU is its UUID. MIG instances repeat the card's values, so the largest counts, and nothing is summed over
them. `Hostname` became `hostname`, and is not always the node: both come out as `host`, beside the target's
own labels; where the target has no label `node`, the host is the node. A blank (a huge number that says "no
value") is no sample.
"""

from typing import NamedTuple

from controlplane.render.rule import Group, Recording, by

_BLANK = "1e12"
"""Where "no value" begins for a gauge. A counter that is blank does not grow, so it needs none."""

GPU = ("cluster", "job", "instance", "node", "pool", "gpu", "UUID", "modelName", "host")


class _Field(NamedTuple):
    """What is recorded, its unit and meaning, and the DCGM fields that say it (newer first)."""

    rest: str
    unit: str
    text: str
    names: tuple[str, ...]
    scale: str = ""


_GAUGES = (
    # The field called RATIO says percent, as its older name does.
    _Field(
        "gpu_utilization_percent",
        "percent",
        "Share of time in which some kernel ran",
        ("GPU_UTIL_RATIO", "GPU_UTIL"),
    ),
    _Field("gpu_temperature_celsius", "celsius", "Temperature of the GPU", ("GPU_TEMP_CELSIUS", "GPU_TEMP")),
    _Field(
        "gpu_memory_temperature_celsius",
        "celsius",
        "Temperature of its memory",
        ("MEMORY_TEMP_CELSIUS", "MEMORY_TEMP"),
    ),
    _Field(
        "gpu_temperature_margin_celsius",
        "celsius",
        "Degrees left until it slows itself down",
        ("GPU_TEMP_MARGIN_CELSIUS", "GPU_TEMP_LIMIT"),
    ),
    _Field("gpu_power_watts", "watts", "Power draw", ("BOARD_POWER_WATTS", "POWER_USAGE")),
    _Field(
        "gpu_power_limit_watts",
        "watts",
        "Power limit in force",
        ("BOARD_POWER_LIMIT_ENFORCED_WATTS", "ENFORCED_POWER_LIMIT"),
    ),
    _Field("gpu_sm_clock_mhz", "mhz", "Clock of the processors", ("SM_CLOCK",)),
    _Field("gpu_memory_clock_mhz", "mhz", "Clock of the memory", ("MEM_CLOCK",)),
    _Field("gpu_memory_used_mib", "mib", "Memory used", ("FB_USED",)),
    _Field("gpu_memory_free_mib", "mib", "Memory free", ("FB_FREE",)),
    _Field(
        "gpu_xid",
        "",
        "The last XID error code; it stays until the driver is loaded anew",
        ("XID_ERROR", "XID_ERRORS"),
    ),
    _Field(
        "gpu_row_remap_failed",
        "",
        "1 where remapping a memory row has failed",
        ("ROW_REMAP_FAILED", "ROW_REMAP_FAILURE"),
    ),
    _Field("gpu_row_remap_pending", "", "1 where a remapped row waits for a reset", ("ROW_REMAP_PENDING",)),
    _Field(
        "gpu_remapped_rows",
        "rows",
        "Rows remapped for uncorrectable errors in the card's life",
        ("ROW_REMAP_UNCORRECTABLE_TOTAL", "UNCORRECTABLE_REMAPPED_ROWS"),
    ),
    _Field(
        "gpu_recovery_action",
        "",
        "What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset",
        ("GPU_RECOVERY_ACTION", "GET_GPU_RECOVERY_ACTION"),
    ),
    _Field("gpu_pcie_link_width", "", "Lanes of the PCIe link in use", ("PCIE_LINK_WIDTH",)),
    _Field("gpu_pcie_max_link_width", "", "Lanes that the PCIe link can have", ("PCIE_MAX_LINK_WIDTH",)),
)
_PROFILING = (
    _Field(
        "gpu_active_ratio",
        "ratio",
        "Share of time in which it computed",
        ("GR_ENGINE_UTIL_RATIO", "GR_ENGINE_ACTIVE"),
    ),
    _Field(
        "gpu_tensor_active_ratio",
        "ratio",
        "Share of cycles of the tensor pipes",
        ("TENSOR_UTIL_RATIO", "PIPE_TENSOR_ACTIVE"),
    ),
    _Field(
        "gpu_dram_active_ratio",
        "ratio",
        "Share of cycles of the memory interface",
        ("DRAM_UTIL_RATIO", "DRAM_ACTIVE"),
    ),
)
_COUNTERS = (
    _Field(
        "gpu_throttled_by_heat",
        "ratio",
        "Share of time in which heat held the clock down",
        ("THERMAL_VIOLATION",),
        " / 1e9",
    ),
    _Field(
        "gpu_throttled_by_power",
        "ratio",
        "Share of time in which the power limit held the clock down",
        ("POWER_VIOLATION",),
        " / 1e9",
    ),
    _Field("gpu_pcie_replays", "", "PCIe retries per second", ("PCIE_REPLAY_TOTAL", "PCIE_REPLAY_COUNTER")),
    _Field(
        "gpu_nvlink_replays",
        "",
        "NVLink retries per second",
        ("NVLINK_REPLAY_ERROR_TOTAL", "NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    ),
)
_ECC = _Field("gpu_double_bit_errors", "", "Uncorrectable memory errors in an hour", ("ECC_DBE_VOL_TOTAL",))
_REASONS = ("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS")
_BITS = {
    "gpu_hw_slowdown": (8, "1 while the hardware slows itself down"),
    "gpu_sw_thermal": (32, "1 while the driver holds the clock down for heat"),
    "gpu_hw_thermal": (64, "1 while the hardware holds the clock down for heat"),
    "gpu_power_brake": (128, "1 while the power supply or the chassis holds the clock down"),
}
"""Bits of the clock event reasons that are trouble; idling, power caps and chosen clocks are not."""


def groups(gpu_job: str) -> tuple[Group, ...]:
    """The rules; `gpu_job` is a regex of the exporters' job names."""
    rules = [
        Recording(
            "llm:gpu_exporter_up",
            f'max {by("cluster", "job", "instance", "node", "pool")} (up{{job=~"{gpu_job}"}})',
            "1 while Prometheus reads the GPU exporter's page",
            keeps=("cluster", "job", "instance", "node", "pool"),
        ),
        *(_recording(one, _folded([f"DCGM_FI_DEV_{name}" for name in one.names], _BLANK)) for one in _GAUGES),
        *(
            _recording(one, _folded([f"DCGM_FI_PROF_{name}" for name in one.names], "2"))
            for one in _PROFILING
        ),
    ]
    for one in _COUNTERS:
        rates = [f"rate(DCGM_FI_DEV_{name}[5m])" for name in one.names]
        rules.append(_recording(one, _max_of(rates) + one.scale, ":rate5m"))
    rules.append(_recording(_ECC, _max_of([f"increase(DCGM_FI_DEV_{_ECC.names[0]}[1h])"]), ":increase1h"))
    reasons = _folded([f"DCGM_FI_DEV_{name}" for name in _REASONS], _BLANK)
    for rest, (bit, text) in _BITS.items():
        rules.append(Recording(f"llm:{rest}", f"floor((\n{reasons}\n) / {bit}) % 2", text, keeps=GPU))
    node = ("cluster", "job", "instance", "node")
    rules.append(
        Recording(
            "llm:gpu_count",
            f"count {by(*node)} (llm:gpu_temperature_celsius)",
            "GPUs on the exporter's page",
            "gpus",
            node,
        )
    )
    rules.append(
        Recording(
            "llm:gpu_pod",
            _pods(gpu_job),
            "1 for the pod that a GPU is given to, where the exporter knows pods",
            keeps=("cluster", "UUID", "namespace", "pod"),
        )
    )
    return (Group("llm-gpu", tuple(rules)),)


def _pods(gpu_job: str) -> str:
    """The pods that the exporter names. Where its own pod is a label of the target, as on Kubernetes, theirs
    stand in `exported_pod`, and rows of a GPU that nobody has bear its own."""
    rows = "DCGM_FI_DEV_FB_USED"
    told = f'label_replace({rows}{{exported_pod!=""}}, "pod", "$1", "exported_pod", "(.+)")'
    told = f'label_replace({told}, "namespace", "$1", "exported_namespace", "(.+)")'
    own = f'unless on (cluster, job, instance, pod) up{{job=~"{gpu_job}"}}'
    plain = f'({rows}{{exported_pod="",pod!=""}} {own})'
    return f"max by (cluster, UUID, namespace, pod) (\n  {told}\n  or {plain}\n) * 0 + 1"


def _recording(field: _Field, expr: str, suffix: str = "") -> Recording:
    return Recording(f"llm:{field.rest}{suffix}", expr, field.text, field.unit, GPU)


def _folded(names: list[str], blank: str) -> str:
    return _max_of([f"{name} < {blank}" for name in names])


def _max_of(series: list[str]) -> str:
    """The largest of a card's rows, with the labels `host` and `node` whatever the exporter calls them."""
    told = f'label_replace({" or ".join(series)}, "host", "$1", "Hostname", "(.+)")'
    told = f'label_replace({told}, "host", "$1", "hostname", "(.+)")'
    told = f'label_join({told}, "place", "@", "node", "host", "instance")'
    told = f'label_replace({told}, "node", "$1", "place", "@([^@]+)@.*")'
    told = f'label_replace({told}, "node", "$1", "place", "@@(.+)")'
    return f"max {by(*GPU)} (\n  {told}\n)"
