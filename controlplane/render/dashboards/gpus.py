"""GPU health: errors, memory, heat, power, clocks, and where each GPU is."""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Column,
    Query,
    Steps,
    lines,
    number,
    row,
    states,
    table,
)
from controlplane.render.dashboards.queries import GPU, NODE

NAME = "{{node}} gpu {{gpu}}"
NO = "no GPU exporter"
WANTED = "not in the exporter's CSV"
NOT_ASKED = "the daemon asks no node, or is away"
HOT = Steps(GREEN, ((80, YELLOW), (90, RED)))


def each(metric: str) -> Query:
    return Query(f"llm:{metric}{{{GPU}}}", NAME)


def dashboard() -> dict[str, Any]:
    return board(
        "gpus",
        "GPU health",
        "Errors, memory, heat, power, clocks, from the GPU exporters' own pages: without the daemon, only "
        "the row on verdicts is empty.",
        ("cluster", "node", "UUID"),
        row(
            "Now",
            number(
                "GPUs",
                "GPUs on the exporters' pages.",
                "short",
                'sum(llm:gpu_count{cluster=~"$cluster",node=~"$node"})',
                PLAIN,
                empty=NO,
            ),
            number(
                "With an XID",
                "GPUs whose last error code is not 0. It stays until the driver is loaded anew.",
                "short",
                f"count(llm:gpu_xid{{{GPU}}} > 0) or vector(0)",
                NONE_IS_GOOD,
            ),
            number(
                "Hottest",
                "Temperature of the hottest GPU.",
                "celsius",
                f"max(llm:gpu_temperature_celsius{{{GPU}}})",
                HOT,
                empty=NO,
            ),
            number(
                "Held down by heat",
                "GPUs whose hardware lowers the clock because of heat.",
                "short",
                f"sum(llm:gpu_hw_thermal{{{GPU}}})",
                NONE_IS_GOOD,
                empty=WANTED,
            ),
            number(
                "To be returned",
                "GPUs on which a memory row could not be remapped.",
                "short",
                f"sum(llm:gpu_row_remap_failed{{{GPU}}})",
                NONE_IS_GOOD,
                empty=WANTED,
            ),
            number(
                "Exporters away",
                "GPU exporters that do not answer: their GPUs cannot be seen.",
                "short",
                'sum(1 - llm:gpu_exporter_up{cluster=~"$cluster",node=~"$node"})',
                NONE_IS_GOOD,
                empty=NO,
            ),
        ),
        row(
            "Verdicts",
            number(
                "Faults held",
                "GPUs against which the daemon holds a fault, whatever has come of it.",
                "short",
                f"count(max by (node, UUID) (controlplane_gpu_fault{{{GPU}}})) or vector(0)",
                NONE_IS_GOOD,
                width=4,
            ),
            number(
                "Nodes taken",
                "Nodes that bear the mark of the daemon, which takes it away on proof.",
                "short",
                f"sum(max by (node) (controlplane_node_quarantined{{{NODE}}}))",
                NONE_IS_GOOD,
                width=4,
                empty=NOT_ASKED,
            ),
            number(
                "Nodes nobody sees",
                "Neither agent nor exporter answers there. That is no verdict on their GPUs.",
                "short",
                f"sum(max by (node) (controlplane_node_blind{{{NODE}}}))",
                NONE_IS_GOOD,
                width=4,
                empty=NOT_ASKED,
            ),
            table(
                "Faults",
                "The worst fault held against each GPU, how far it has come and what would mend it.",
                ("node", "UUID"),
                (
                    Column("Node", label="node"),
                    Column("UUID", label="UUID"),
                    Column("Check", label="check"),
                    Column("Class", label="fault_class"),
                    Column("Remedy", label="remedy"),
                    Column("Stage", label="stage"),
                    Column(
                        "Held",
                        "max by (node, UUID, check, fault_class, remedy, stage) "
                        f"(controlplane_gpu_fault{{{GPU}}})",
                        says={"1": ("yes", RED)},
                    ),
                ),
                width=12,
                height=7,
                empty="no fault is held against any GPU",
            ),
        ),
        row(
            "Errors",
            states(
                "Last XID",
                "The last error code of each GPU; grey is none. 13, 31, 43 and 45 are mostly an "
                "application's.",
                {
                    "0": ("none", GREEN),
                    "13": ("13 application", YELLOW),
                    "31": ("31 application", YELLOW),
                    "43": ("43 application", YELLOW),
                    "45": ("45 clean-up", YELLOW),
                    "48": ("48 double-bit error", RED),
                    "63": ("63 row remapped", ORANGE),
                    "64": ("64 remap failed", RED),
                    "74": ("74 NVLink", ORANGE),
                    "79": ("79 off the bus", RED),
                    "94": ("94 contained", ORANGE),
                    "95": ("95 uncontained", RED),
                    "119": ("119 GSP", RED),
                },
                each("gpu_xid"),
                width=12,
                empty=NO,
            ),
            states(
                "Clock held down",
                "By heat (hardware or driver), by the power supply, by the hardware for another reason.",
                {"0": ("no", GREEN), "1": ("yes", RED)},
                Query(f"llm:gpu_hw_thermal{{{GPU}}}", f"{NAME}: heat"),
                Query(f"llm:gpu_sw_thermal{{{GPU}}} == 1", f"{NAME}: heat, driver"),
                Query(f"llm:gpu_power_brake{{{GPU}}} == 1", f"{NAME}: power supply"),
                Query(f"llm:gpu_hw_slowdown{{{GPU}}} == 1", f"{NAME}: hardware"),
                width=12,
                empty=WANTED,
            ),
            lines(
                "Double-bit errors in an hour",
                "Uncorrectable memory errors.",
                "short",
                each("gpu_double_bit_errors:increase1h"),
                width=6,
                empty=WANTED,
            ),
            lines(
                "Remapped rows",
                "Rows remapped for uncorrectable errors in the card's life: the change counts, not the "
                "value.",
                "short",
                each("gpu_remapped_rows"),
                width=6,
                empty=WANTED,
            ),
            lines(
                "PCIe retries",
                "Per second. Up to 0.5 is in order for 16 lanes of generation 5.",
                "ops",
                each("gpu_pcie_replays:rate5m"),
                width=6,
                empty=WANTED,
            ),
            lines(
                "NVLink retries",
                "Per second; any is a bad link.",
                "ops",
                each("gpu_nvlink_replays:rate5m"),
                width=6,
                empty=WANTED,
            ),
        ),
        row(
            "Heat, power, clocks",
            lines(
                "Temperature",
                "Of the GPU.",
                "celsius",
                each("gpu_temperature_celsius"),
                steps=HOT,
                show_steps=True,
                least=None,
                empty=NO,
            ),
            lines(
                "Memory temperature",
                "Of its memory.",
                "celsius",
                each("gpu_memory_temperature_celsius"),
                least=None,
                empty=WANTED,
            ),
            lines(
                "Throttled by heat",
                "Share of time in which heat held the clock down.",
                "percentunit",
                each("gpu_throttled_by_heat:rate5m"),
                most=1,
                empty=WANTED,
            ),
            lines(
                "Power draw",
                "Near the limit is normal while decoding large batches.",
                "watt",
                each("gpu_power_watts"),
                empty=NO,
            ),
            lines(
                "Processor clock",
                "Of a busy GPU. One that is lower than its neighbours' is held down.",
                "rotmhz",
                each("gpu_sm_clock_mhz"),
                empty=NO,
            ),
            lines("Memory clock", "Constant while busy.", "rotmhz", each("gpu_memory_clock_mhz"), empty=NO),
        ),
        row(
            "Work",
            lines(
                "Computing",
                "Share of time in which the GPU computed. It is a better measure than utilisation, and "
                "works with MIG.",
                "percentunit",
                each("gpu_active_ratio"),
                most=1,
                empty="no profiling fields",
            ),
            lines(
                "Tensor pipes",
                "Share of cycles. High in prefill, low in decode.",
                "percentunit",
                each("gpu_tensor_active_ratio"),
                most=1,
                empty="no profiling fields",
            ),
            lines(
                "Memory interface",
                "Share of cycles. High in decode: weights and KV cache are read.",
                "percentunit",
                each("gpu_dram_active_ratio"),
                most=1,
                empty="no profiling fields",
            ),
            lines(
                "Utilisation",
                "Share of time in which some kernel ran: 100 % does not mean saturated.",
                "percent",
                each("gpu_utilization_percent"),
                most=100,
                width=12,
                empty=NO,
            ),
            lines(
                "Memory used",
                "Engines take nearly all of it at their start: KV usage says how full it is.",
                "mbytes",
                each("gpu_memory_used_mib"),
                width=12,
                empty=NO,
            ),
        ),
        row(
            "Where",
            table(
                "GPUs by node",
                "Which card is where. The UUID is what counts: the index can change after a reset.",
                ("UUID",),
                (
                    Column("Node", label="node"),
                    Column("Host", label="host"),
                    Column("GPU", label="gpu"),
                    Column("Model", label="modelName"),
                    Column("UUID", label="UUID"),
                    Column(
                        "Temperature",
                        f"max by (node, host, gpu, modelName, UUID) (llm:gpu_temperature_celsius{{{GPU}}})",
                        unit="celsius",
                        steps=HOT,
                        decimals=0,
                    ),
                    Column(
                        "Power",
                        f"max by (node, host, gpu, modelName, UUID) (llm:gpu_power_watts{{{GPU}}})",
                        unit="watt",
                        decimals=0,
                    ),
                    Column(
                        "Memory used",
                        f"max by (node, host, gpu, modelName, UUID) (llm:gpu_memory_used_mib{{{GPU}}})",
                        unit="mbytes",
                    ),
                    Column(
                        "Computing",
                        f"max by (node, host, gpu, modelName, UUID) (llm:gpu_active_ratio{{{GPU}}})",
                        unit="percentunit",
                        gauge=True,
                    ),
                    Column(
                        "Last XID",
                        f"max by (node, host, gpu, modelName, UUID) (llm:gpu_xid{{{GPU}}})",
                        unit="none",
                        steps=NONE_IS_GOOD,
                        decimals=0,
                    ),
                ),
                width=24,
                empty=NO,
            ),
            table(
                "GPUs by pod",
                "Which pod a GPU is given to.",
                ("UUID",),
                (
                    Column("UUID", label="UUID"),
                    Column("Namespace", label="namespace"),
                    Column("Pod", label="pod"),
                    Column(
                        "Given",
                        'max by (UUID, namespace, pod) (llm:gpu_pod{cluster=~"$cluster",UUID=~"$UUID"})',
                        says={"1": ("yes", GREEN)},
                    ),
                ),
                width=24,
                height=7,
                empty="the exporter does not know pods",
            ),
        ),
    )
