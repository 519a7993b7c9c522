"""What is known of the GPUs of one node: the vocabulary of DCGM pages, of the node agent and of policy.

A GPU is named by its UUID, never by its index: indices move when a GPU is lost. A node is named as the
configuration or the cluster names it, never as a label on a page does. Cumulative values stay cumulative
here; only policy, which remembers the report before, turns them into growth.
"""

from enum import IntFlag, StrEnum
from typing import Literal, TypeAlias

import msgspec

from controlplane.signals.reading import Reason

Over: TypeAlias = Literal["sum", "max", "min"]


class GpuSignal(msgspec.Struct, frozen=True):
    """One signal of a GPU. `over` makes one figure of MIG instances where no row is for the whole card."""

    name: str
    help: str
    over: Over = "max"
    counts: bool = False  # cumulative: only its growth says something


def _table(*signals: GpuSignal) -> dict[str, GpuSignal]:
    return {signal.name: signal for signal in signals}


GPU_SIGNALS: dict[str, GpuSignal] = _table(
    GpuSignal("xid", "code of the last XID since the source's start, 0 before the first"),
    GpuSignal("recovery_action", "what the driver says the GPU needs, as NVML numbers it"),
    GpuSignal("temperature_celsius", "temperature of the GPU"),
    GpuSignal("memory_temperature_celsius", "temperature of its memory"),
    GpuSignal("temperature_margin_celsius", "degrees below the point of slowdown", over="min"),
    GpuSignal("slowdown_temperature_celsius", "where the hardware slows down", over="min"),
    GpuSignal("power_watts", "power drawn by the board"),
    GpuSignal("power_limit_watts", "power limit that is enforced"),
    GpuSignal("energy_joules_total", "energy since the driver was loaded", counts=True),
    GpuSignal("sm_clock_hertz", "clock of the multiprocessors"),
    GpuSignal("memory_clock_hertz", "clock of the memory"),
    GpuSignal("throttle_reasons", "why clocks are low, as NVIDIA's bits"),
    GpuSignal("throttled_thermal_seconds_total", "time slowed down by heat", counts=True),
    GpuSignal("throttled_power_seconds_total", "time slowed down by the power limit", counts=True),
    GpuSignal("throttled_sw_thermal_seconds_total", "time slowed down by heat, by the driver", counts=True),
    GpuSignal("throttled_hw_thermal_seconds_total", "time slowed down by heat, by the hardware", counts=True),
    GpuSignal("throttled_power_brake_seconds_total", "time slowed down by the power brake", counts=True),
    GpuSignal("ecc_correctable_total", "corrected memory errors since driver load", counts=True),
    GpuSignal("ecc_uncorrectable_total", "uncorrectable memory errors since driver load", counts=True),
    GpuSignal("ecc_lifetime_correctable_total", "corrected memory errors of the card's life", counts=True),
    GpuSignal(
        "ecc_lifetime_uncorrectable_total", "uncorrectable memory errors of the card's life", counts=True
    ),
    GpuSignal("sram_threshold_exceeded", "1 where SRAM errors meet the test for return"),
    GpuSignal("remapped_rows_correctable_total", "rows remapped for corrected errors", counts=True),
    GpuSignal("remapped_rows_uncorrectable_total", "rows remapped for uncorrectable errors", counts=True),
    GpuSignal("row_remap_pending", "1 where a remap waits for a reset"),
    GpuSignal("row_remap_failure", "1 where a remap has failed: the test for return"),
    GpuSignal("banks_without_spare_rows", "memory banks that have no spare row left"),
    GpuSignal("retired_pages_correctable_total", "pages retired for corrected errors", counts=True),
    GpuSignal("retired_pages_uncorrectable_total", "pages retired for uncorrectable errors", counts=True),
    GpuSignal("retired_pages_pending", "pages that wait for a reset to be retired"),
    GpuSignal("pcie_replays_total", "PCIe retries", counts=True),
    GpuSignal("pcie_link_generation", "generation of the PCIe link now"),
    GpuSignal("pcie_link_generation_max", "generation that the PCIe link can have"),
    GpuSignal("pcie_link_width", "lanes of the PCIe link now", over="min"),
    GpuSignal("pcie_link_width_max", "lanes that the PCIe link can have"),
    GpuSignal("nvlink_flit_crc_errors_total", "NVLink flow-control CRC errors", counts=True),
    GpuSignal("nvlink_data_crc_errors_total", "NVLink data CRC errors", counts=True),
    GpuSignal("nvlink_replays_total", "NVLink retries", counts=True),
    GpuSignal("nvlink_recoveries_total", "NVLink links recovered", counts=True),
    GpuSignal("nvlinks_up", "NVLink links that are up", over="min"),
    GpuSignal("fabric_manager_status", "state of the fabric manager, as DCGM numbers it"),
    GpuSignal("fabric_health_mask", "fabric health, as NVML's mask of two-bit fields"),
    GpuSignal("utilization_ratio", "share of time that some kernel ran"),
    GpuSignal("activity_ratio", "share of time that the compute engine was busy"),
    GpuSignal("tensor_activity_ratio", "share of cycles of the tensor pipes"),
    GpuSignal("memory_activity_ratio", "share of cycles of the memory interface"),
    GpuSignal("memory_copy_ratio", "share of time that memory was read or written"),
    GpuSignal("encoder_ratio", "share of time that the video encoder was busy"),
    GpuSignal("decoder_ratio", "share of time that the video decoder was busy"),
    GpuSignal("pcie_sent_bytes_per_second", "data sent over PCIe"),
    GpuSignal("pcie_received_bytes_per_second", "data received over PCIe"),
    GpuSignal("nvlink_throughput", "data over all NVLink links, in DCGM's own unit"),
    GpuSignal("vgpu_license_status", "1 where a vGPU is licensed"),
    GpuSignal("memory_used_bytes", "memory in use", over="sum"),
    GpuSignal("memory_free_bytes", "memory free", over="sum"),
    GpuSignal("memory_reserved_bytes", "memory that the driver keeps"),
    GpuSignal("mig_enabled", "1 where the GPU is cut into MIG instances"),
)
"""By name. Sources give some of these and no others."""


class Throttle(IntFlag):
    """The bits of `throttle_reasons`; DCGM and NVML agree on them."""

    IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


class Pod(msgspec.Struct, frozen=True):
    """The Kubernetes pod that uses a GPU or a MIG instance, as the source attributes it."""

    namespace: str
    name: str
    container: str = ""


class Instance(msgspec.Struct, frozen=True):
    """One MIG instance; `id` is that of the GPU instance."""

    id: str
    profile: str
    numbers: dict[str, float] = {}
    unknown: dict[str, Reason] = {}
    pod: Pod | None = None


class Answer(StrEnum):
    """How the driver answered about a GPU as a whole."""

    VALUES = "values"
    LOST = "lost"  # it has fallen off the bus
    RESET_REQUIRED = "reset-required"
    UNKNOWN_ERROR = "unknown-error"


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of a report. `recent_xids` counts the XIDs by code over the source's own window.

    `numbers` and `unknown` are by signal name. `blind` says of signals why this GPU cannot have them ("not
    supported", "no permission"). `pods` are those attributed to the whole GPU.
    """

    uuid: str
    index: int | None = None
    model: str = ""
    pci_bus_id: str = ""
    answer: Answer = Answer.VALUES
    numbers: dict[str, float] = {}
    unknown: dict[str, Reason] = {}
    blind: dict[str, str] = {}
    recent_xids: dict[int, float] | None = None
    instances: dict[str, Instance] = {}
    pods: tuple[Pod, ...] = ()

    @property
    def all_pods(self) -> tuple[Pod, ...]:
        """Every pod on it, also on its instances; each once, by name."""
        found = {(pod.namespace, pod.name): pod for pod in self.pods}
        for instance in self.instances.values():
            if instance.pod is not None:
                found[instance.pod.namespace, instance.pod.name] = instance.pod
        return tuple(found[key] for key in sorted(found))


class GpuEvent(msgspec.Struct, frozen=True):
    """Something that the driver told at Unix time `at`, once. `number` grows by one an event of a source.

    `kind` is "xid" (`code` is the XID), "recovery-action" (`code` is the new one), "gpu-unavailable", "bind"
    or "unbind". `uuid` is empty where the driver did not say which GPU.
    """

    number: int
    at: float
    kind: str
    code: int
    uuid: str = ""
    instance: str = ""


class NodeReport(msgspec.Struct, frozen=True, tag_field="is", tag="node-report"):
    """What one source ("dcgm" or "nvml") said of one node at Unix time `at`.

    `events` are those since the source's start that it still remembers; `epoch` tells one run of the source
    from the next where the source says so, and event numbers begin again with it. `host` is what the source
    calls its machine, for people only. `topology` says what each pair of GPUs has in common.
    """

    node: str
    source: str
    at: float
    gpus: dict[str, Gpu]
    events: tuple[GpuEvent, ...] = ()
    driver: str = ""
    boot_id: str = ""
    epoch: str = ""
    host: str = ""
    topology: dict[str, dict[str, str]] = {}
    warnings: tuple[str, ...] = ()


class NodeBlind(msgspec.Struct, frozen=True, tag_field="is", tag="node-blind"):
    """A source that could not say anything of a node; `detail` is a sentence that names why."""

    node: str
    source: str
    at: float
    reason: Reason
    detail: str
    since: float | None = None


NodeSample: TypeAlias = NodeReport | NodeBlind
