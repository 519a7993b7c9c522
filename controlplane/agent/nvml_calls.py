"""Which NVML call or field gives which signal, as tables.

Each call may be answered by each of NVML's errors, on each GPU apart: `answer_to` says what an error means.
A call that a library or a GPU does not have makes its signals blind, not unknown: blind is told once and for
all.
"""

from collections.abc import Callable
from ctypes import byref
from enum import Enum, auto
from typing import Any

import pynvml as nvml

Handle = Any
Figures = dict[str, float]


class Meaning(Enum):
    """What an error says."""

    BLIND = auto()  # this GPU, or this library, does not have it
    LOST = auto()
    RESET = auto()
    TRY_AGAIN = auto()
    NONE_NOW = auto()
    OURS = auto()  # the library cannot be used any more


_MEANINGS = {
    nvml.NVML_ERROR_NOT_SUPPORTED: Meaning.BLIND,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: Meaning.BLIND,
    nvml.NVML_ERROR_NO_PERMISSION: Meaning.BLIND,
    nvml.NVML_ERROR_INVALID_ARGUMENT: Meaning.BLIND,
    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Meaning.BLIND,
    nvml.NVML_ERROR_DEPRECATED: Meaning.BLIND,
    nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: Meaning.BLIND,
    nvml.NVML_ERROR_GPU_IS_LOST: Meaning.LOST,
    nvml.NVML_ERROR_RESET_REQUIRED: Meaning.RESET,
    nvml.NVML_ERROR_UNKNOWN: Meaning.TRY_AGAIN,
    nvml.NVML_ERROR_TIMEOUT: Meaning.TRY_AGAIN,
    nvml.NVML_ERROR_UNINITIALIZED: Meaning.OURS,
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: Meaning.OURS,
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: Meaning.OURS,
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Meaning.OURS,
}
_WORDS = {
    nvml.NVML_ERROR_NOT_SUPPORTED: "not supported",
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the library does not have the call",
    nvml.NVML_ERROR_NO_PERMISSION: "no permission",
}


def answer_to(error: int) -> Meaning:
    """What an NVML error code means; those not named (no data, interrupts, InfoROM) mean: nothing now."""
    return _MEANINGS.get(error, Meaning.NONE_NOW)


def words_for(error: int) -> str:
    """Why a signal is blind, for people."""
    return _WORDS.get(error, f"NVML answers error {error}")


def _ecc(kind: int, counter: int) -> Callable[[Handle], float]:
    return lambda handle: float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


_CORRECTED, _UNCORRECTED = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _LIFETIME = nvml.NVML_VOLATILE_ECC, nvml.NVML_AGGREGATE_ECC


def _reasons(handle: Handle) -> float:
    try:
        return float(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:  # a driver before 535
        return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _sram(handle: Handle) -> float:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nvml.nvmlEccSramErrorStatus_v1
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return float(status.bThresholdExceeded)


def _links_up(handle: Handle) -> float:
    """How many links are up; the number of links is where NVML says that there is none of that index."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            up += nvml.nvmlDeviceGetNvLinkState(handle, link)
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            if link == 0:
                raise
            break
    return float(up)


def _memory(handle: Handle) -> Figures:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": float(memory.used), "memory_free_bytes": float(memory.free)}


def _rows(handle: Handle) -> Figures:
    corrected, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows_correctable_total": float(corrected),
        "remapped_rows_uncorrectable_total": float(uncorrected),
        "row_remap_pending": float(pending),
        "row_remap_failure": float(failure),
    }


def _utilization(handle: Handle) -> Figures:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100, "memory_copy_ratio": rates.memory / 100}


CALLS: dict[str, Callable[[Handle], float]] = {
    "temperature_celsius": lambda h: float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
    "temperature_margin_celsius": lambda h: float(nvml.nvmlDeviceGetMarginTemperature(h)),
    "power_watts": lambda h: nvml.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_watts": lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "throttle_reasons": _reasons,
    "ecc_correctable_total": _ecc(_CORRECTED, _VOLATILE),
    "ecc_uncorrectable_total": _ecc(_UNCORRECTED, _VOLATILE),
    "ecc_lifetime_correctable_total": _ecc(_CORRECTED, _LIFETIME),
    "ecc_lifetime_uncorrectable_total": _ecc(_UNCORRECTED, _LIFETIME),
    "sram_threshold_exceeded": _sram,
    "banks_without_spare_rows": lambda h: float(nvml.nvmlDeviceGetRowRemapperHistogram(h).none),
    "retired_pages_pending": lambda h: float(nvml.nvmlDeviceGetRetiredPagesPendingStatus(h)),
    "pcie_replays_total": lambda h: float(nvml.nvmlDeviceGetPcieReplayCounter(h)),
    "pcie_link_generation": lambda h: float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    "pcie_link_generation_max": lambda h: float(nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    "pcie_link_width": lambda h: float(nvml.nvmlDeviceGetCurrPcieLinkWidth(h)),
    "pcie_link_width_max": lambda h: float(nvml.nvmlDeviceGetMaxPcieLinkWidth(h)),
    "nvlinks_up": _links_up,
    "mig_enabled": lambda h: float(nvml.nvmlDeviceGetMigMode(h)[0]),
}
"""By signal: one call, one figure."""

GROUPS: dict[tuple[str, ...], Callable[[Handle], Figures]] = {
    ("memory_used_bytes", "memory_free_bytes"): _memory,
    (
        "remapped_rows_correctable_total",
        "remapped_rows_uncorrectable_total",
        "row_remap_pending",
        "row_remap_failure",
    ): _rows,
    ("utilization_ratio", "memory_copy_ratio"): _utilization,
}
"""By signals: one call, several figures."""

_NANO = 1e-9
FIELDS: dict[str, tuple[int, float]] = {
    "recovery_action": (nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1.0),
    "memory_temperature_celsius": (nvml.NVML_FI_DEV_MEMORY_TEMP, 1.0),
    "throttled_power_seconds_total": (nvml.NVML_FI_DEV_PERF_POLICY_POWER, _NANO),
    "throttled_thermal_seconds_total": (nvml.NVML_FI_DEV_PERF_POLICY_THERMAL, _NANO),
    "throttled_sw_thermal_seconds_total": (nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, _NANO),
    "throttled_hw_thermal_seconds_total": (nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, _NANO),
    "throttled_power_brake_seconds_total": (
        nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        _NANO,
    ),
    "nvlink_flit_crc_errors_total": (nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 1.0),
    "nvlink_data_crc_errors_total": (nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 1.0),
    "nvlink_replays_total": (nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 1.0),
    "nvlink_recoveries_total": (nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 1.0),
}
"""By signal: the field's number and the scale of its unit. All are asked for in one call."""

_UNION_MEMBER = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def field_value(value: Any) -> float:
    """The number of a field's answer, by the type that it says it has."""
    kind = value.valueType
    member = _UNION_MEMBER[kind] if kind < len(_UNION_MEMBER) else "ullVal"
    return float(getattr(value.value, member))


LEVELS = {
    nvml.NVML_TOPOLOGY_INTERNAL: "board",
    nvml.NVML_TOPOLOGY_SINGLE: "pcie-switch",
    nvml.NVML_TOPOLOGY_MULTIPLE: "pcie-switches",
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: "host-bridge",
    nvml.NVML_TOPOLOGY_NODE: "numa-node",
    nvml.NVML_TOPOLOGY_SYSTEM: "system",
}
"""What two GPUs have in common, by NVML's level."""

EVENTS = {
    nvml.nvmlEventTypeXidCriticalError: "xid",
    nvml.nvmlEventTypeGpuUnavailableError: "gpu-unavailable",
    nvml.nvmlEventTypeGpuRecoveryAction: "recovery-action",
}
"""The driver's events that are listened for, and our kind of them."""
