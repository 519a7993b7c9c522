"""Which signals each check needs, and which checks are blind on a GPU for want of them.

A check needs one signal of every group. DCGM's exporter leaves most of these off by default; the counters
file in `deploy/dcgm/` turns them on.
"""

from collections.abc import Collection

import msgspec


class Need(msgspec.Struct, frozen=True):
    """What one check looks at. `signals`: groups, of each of which one is enough."""

    what: str
    signals: tuple[tuple[str, ...], ...] = ()


NEEDS: dict[str, Need] = {
    "recovery-action": Need("what the driver itself says the GPU needs", (("recovery_action",),)),
    "xid": Need("XIDs, judged by the table", (("xid",),)),
    "xid-repeats": Need("XIDs of programs: several pods on one GPU", (("xid",),)),
    "gpu-lost": Need("the driver's answer that a GPU is lost"),
    "reset-required": Need("the driver's answer that a GPU must be reset"),
    "driver-error": Need("a driver that answers with an unknown error again and again"),
    "gpu-missing": Need("a GPU that was there and is gone while others of its node are seen"),
    "row-remap-failure": Need("memory that cannot be repaired any more", (("row_remap_failure",),)),
    "row-remap-pending": Need("a repair that waits for a reset", (("row_remap_pending",),)),
    "spare-rows": Need("memory banks without spare rows", (("banks_without_spare_rows",),)),
    "sram-threshold": Need("too many SRAM errors", (("sram_threshold_exceeded",),)),
    "ecc-uncorrectable": Need("uncorrectable memory errors that rise", (("ecc_uncorrectable_total",),)),
    "hw-thermal": Need(
        "slowdown by heat, by the hardware, for long",
        (("throttled_hw_thermal_seconds_total", "throttle_reasons"),),
    ),
    "sw-thermal": Need(
        "slowdown by heat, by the driver or by who knows whom, for long",
        (("throttled_sw_thermal_seconds_total", "throttled_thermal_seconds_total", "throttle_reasons"),),
    ),
    "power-brake": Need(
        "slowdown by the power brake for long",
        (("throttled_power_brake_seconds_total", "throttle_reasons"),),
    ),
    "pcie-replays": Need("a noisy PCIe link", (("pcie_replays_total",),)),
    "pcie-width": Need("a PCIe link with lanes missing", (("pcie_link_width",), ("pcie_link_width_max",))),
    "nvlink-errors": Need("NVLink errors that rise", (("nvlink_replays_total", "nvlink_recoveries_total"),)),
}
"""By name of the check; `quarantine.disabled_checks` takes these names."""


def blind(signals: Collection[str], sources: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The checks that cannot be made on a GPU with these signals, and the missing signals of each.

    `signals` are those with a value or with a reason of the moment, `sources` who reports of the GPU: the
    node agent ("nvml") hears XIDs as they come, and it alone hears the driver's answers.
    """
    known = {*signals, "xid"} if "nvml" in sources else set(signals)
    missing: dict[str, tuple[str, ...]] = {}
    for name, need in NEEDS.items():
        lacking = [group for group in need.signals if known.isdisjoint(group)]
        if lacking:
            missing[name] = tuple(signal for group in lacking for signal in group)
        elif name in _OF_THE_AGENT and "nvml" not in sources:
            missing[name] = ("the node agent",)
    return missing


_OF_THE_AGENT = {"gpu-lost", "reset-required", "driver-error"}
