"""What a DCGM exporter would say of the GPUs under simulated engines.

Activity follows from the step law: the share of the time that some step ran, that weights and KV cache were
read, and that tokens were computed. Power follows from these, the temperature follows the power, slowly. A
GPU too hot (`Faults.thermal_factor`) runs at a lower clock and says so in its throttle reasons, as NVIDIA's
bits.
"""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import exp
from typing import NamedTuple
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from controlplane.simulator.counters import EngineCounters
from controlplane.simulator.http.faults import Faults
from controlplane.simulator.step import StepLaw

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DRIVER = "580.105.08"
_MEMORY_SHARE = 0.92
_ROOM_CELSIUS = 30.0
_RISE_CELSIUS = 38.0  # of a GPU at its power limit
_HOT_CELSIUS = 90.0
_SETTLES_SECONDS = 20.0
_IDLE_MHZ = 345
_IDLE_BIT, _SW_THERMAL_BIT, _HW_THERMAL_BIT = 0x1, 0x20, 0x40


class GpuFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The GPUs of one engine: how many, and what each is."""

    gpus: int
    model_name: str
    memory_mib: int
    idle_watts: float
    limit_watts: float
    sm_clock_mhz: int
    memory_clock_mhz: int


@cache
def gpu_facts() -> dict[str, GpuFacts]:
    """By name of the engine."""
    text = files(__package__).joinpath("gpus.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, GpuFacts])


class _Work(NamedTuple):
    """What an engine had done by some time; seconds since its start and sums since then."""

    busy_seconds: float
    steps: int
    tokens: int


class Gpus:
    """The GPUs under one replica, numbered from `first` on its node. They outlive its restarts."""

    def __init__(self, facts: GpuFacts, law: StepLaw, first: int, now: float) -> None:
        self.facts = facts
        self.numbers = range(first, first + facts.gpus)
        self._law = law
        self._at = now
        self._work = _Work(0.0, 0, 0)
        self.busy = self.tensor = self.memory = 0.0
        self.celsius = _ROOM_CELSIUS
        self.watts = facts.idle_watts
        self.millijoules = 0.0
        self.throttled_ns = 0.0
        self.faults = Faults()

    @property
    def is_hot(self) -> bool:
        return self.faults.thermal_factor > 1.0

    @property
    def sm_clock_mhz(self) -> float:
        if self.busy == 0.0:
            return _IDLE_MHZ
        return round(self.facts.sm_clock_mhz / self.faults.thermal_factor)

    @property
    def throttle_bits(self) -> int:
        if self.is_hot:
            return _SW_THERMAL_BIT | _HW_THERMAL_BIT
        return _IDLE_BIT if self.busy == 0.0 else 0

    def follow(self, counters: EngineCounters | None, now: float) -> None:
        """What has become of them by `now`; `counters` are None while no engine is up.

        To be called also before `faults` change.
        """
        seconds = now - self._at
        if seconds > 0.0:
            self._compute(counters, seconds)
            self._at = now

    def _compute(self, counters: EngineCounters | None, seconds: float) -> None:
        work = _Work(0.0, 0, 0)
        if counters is not None:
            tokens = counters.prompt_tokens - counters.cached_tokens + counters.generation_tokens
            work = _Work(counters.busy_seconds, counters.steps, tokens)
        # An engine that started anew counts from zero.
        last = self._work if work.steps >= self._work.steps else _Work(0.0, 0, 0)
        self._work = work
        law = self._law
        self.busy = min((work.busy_seconds - last.busy_seconds) / seconds, 1.0)
        self.tensor = min((work.tokens - last.tokens) * law.token / seconds, self.busy)
        reading = (work.steps - last.steps) * law.weights / seconds
        self.memory = min(max(reading, 0.6 * self.busy), self.busy)
        facts = self.facts
        swing = facts.limit_watts - facts.idle_watts
        wanted = facts.idle_watts + swing * min(0.45 * self.memory + 0.55 * self.tensor + 0.1 * self.busy, 1)
        self.watts = wanted / self.faults.thermal_factor
        steady = _ROOM_CELSIUS + _RISE_CELSIUS * self.watts / facts.limit_watts
        if self.is_hot:
            steady = _HOT_CELSIUS
        self.celsius += (steady - self.celsius) * (1.0 - exp(-seconds / _SETTLES_SECONDS))
        self.millijoules += self.watts * seconds * 1e3
        if self.is_hot:
            self.throttled_ns += seconds * 1e9


class _Family(NamedTuple):
    name: str
    kind: str
    help: str


_FAMILIES = {
    "sm_clock": _Family("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz)."),
    "mem_clock": _Family("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock (in MHz)."),
    "gpu_temp": _Family("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    "memory_temp": _Family("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    "power": _Family("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    "energy": _Family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ)."),
    "gpu_util": _Family("DCGM_FI_DEV_GPU_UTIL", "gauge", "Share of time some kernel ran (in %)."),
    "mem_util": _Family("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    "fb_used": _Family("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    "fb_free": _Family("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    "reasons": _Family("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Why clocks are low (bits)."),
    "thermal": _Family("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Time throttled by heat (in ns)."),
    "replays": _Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries."),
    "xid": _Family("DCGM_FI_DEV_XID_ERRORS", "gauge", "The last XID; its code is also a label."),
    "ecc": _Family("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit errors since the driver loaded."),
    "remap": _Family("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed."),
    "gr_active": _Family("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Share of time the GPU computed."),
    "tensor": _Family("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of cycles of the tensor pipes."),
    "dram": _Family("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of cycles of the memory interface."),
}


def page(replicas: Iterable[Gpus], host: str) -> bytes:
    """The exporter's page of a node with the GPUs of these replicas, as of when they were last followed.

    As DCGM's exporter prints it: counters have no `_total`, which prometheus_client would not let them lack.
    """
    gpus = [(one, number, _values(one, number)) for one in replicas for number in one.numbers]
    lines: list[str] = []
    for key, (name, kind, text) in _FAMILIES.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for one, number, values in gpus:
            labels = _labels(one, number, host)
            if key == "xid":
                code = round(values[key])
                labels |= {"err_code": str(code), "err_msg": f"XID {code}" if code else "No Error"}
            printed = ",".join(f'{label}="{value}"' for label, value in labels.items())
            lines.append(f"{name}{{{printed}}} {values[key]:.12g}")
    return "\n".join([*lines, ""]).encode()


def _labels(gpus: Gpus, number: int, host: str) -> dict[str, str]:
    return {
        "gpu": str(number),
        "UUID": f"GPU-{uuid5(NAMESPACE_DNS, f'gpu-{number}.{host}')}",
        "pci_bus_id": f"00000000:{0x1B + 0x10 * number:02X}:00.0",
        "device": f"nvidia{number}",
        "modelName": gpus.facts.model_name,
        "Hostname": host,
        "DCGM_FI_DRIVER_VERSION": _DRIVER,
    }


def _values(gpus: Gpus, number: int) -> dict[str, float]:
    used = round(gpus.facts.memory_mib * _MEMORY_SHARE)
    return {
        "sm_clock": gpus.sm_clock_mhz,
        "mem_clock": gpus.facts.memory_clock_mhz,
        "gpu_temp": round(gpus.celsius),
        "memory_temp": round(gpus.celsius + 6.0),
        "power": round(gpus.watts, 3),
        "energy": round(gpus.millijoules),
        "gpu_util": round(100.0 * gpus.busy),
        "mem_util": round(100.0 * gpus.memory),
        "fb_used": used,
        "fb_free": gpus.facts.memory_mib - used,
        "reasons": gpus.throttle_bits,
        "thermal": round(gpus.throttled_ns),
        "replays": 0.0,
        "xid": gpus.faults.xid.get(str(number), 0),
        "ecc": 0.0,
        "remap": 0.0,
        "gr_active": round(gpus.busy, 6),
        "tensor": round(gpus.tensor, 6),
        "dram": round(gpus.memory, 6),
    }
