"""What speaks against one GPU now. Each check is a few lines that end in a finding or nothing.

A check that lacks its signal finds nothing: it is blind (`needs.py`), and blindness is never a finding.
"""

from collections.abc import Callable, Iterator, Sequence

from controlplane.policy.quarantine.memory import GpuMemory, Look
from controlplane.policy.quarantine.over_time import growth, share_of_looks, share_of_time
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.sight import NVML, View
from controlplane.policy.quarantine.words import FaultClass, Finding, Remedy
from controlplane.signals.decision import Evidence
from controlplane.signals.gpu import Answer, Throttle

NO_ACTION = 0
RECOVERY: dict[int, tuple[str, FaultClass, Remedy]] = {
    1: ("a reset of the GPU", FaultClass.HARDWARE_FATAL, Remedy.DRAIN_AND_RESET),
    2: ("a reboot of the node", FaultClass.HARDWARE_FATAL, Remedy.DRAIN_AND_REBOOT),
    3: ("that peer-to-peer traffic is drained", FaultClass.LINK, Remedy.RESTART_WORKLOAD),
    4: ("a reset of the GPU once it is drained", FaultClass.HARDWARE_FATAL, Remedy.DRAIN_AND_RESET),
    5: ("that its IMEX domain is recovered", FaultClass.LINK, Remedy.NOTE),
    6: ("a reset of its bus", FaultClass.HARDWARE_FATAL, Remedy.DRAIN_AND_RESET),
    7: ("a reboot of the system", FaultClass.HARDWARE_FATAL, Remedy.DRAIN_AND_REBOOT),
}
"""What the driver's recovery action asks for, whose fault it is, what helps. 0 is: nothing."""

_AGREED_SECONDS = 300.0  # a hint and slow answers must go together for this long
_HEAT_HOLD_DOWNS = 4  # a rack gets hot, or brakes, node after node: that must be seen first
_ERRORS_SECONDS = 180.0  # of unknown errors from the driver, before they say something
_REPLAYS_PER_MINUTE_AND_LANE = {3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # DCGM's: 10^-12 bit errors by generation
_DEFAULT_GENERATION, _DEFAULT_LANES = 5, 16


def find(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> tuple[Finding, ...]:
    """All findings on a GPU at `now`: on one that nobody sees only that it is missing among others."""
    found: list[Finding] = []
    for check in _CHECKS:
        found += check(view, gpu, settings, now)
    return tuple(one for one in found if one.check not in settings.disabled_checks)


def _recovery(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    value = view.numbers.get("recovery_action")
    if value is None or value == NO_ACTION:
        return
    asks, fault_class, remedy = RECOVERY.get(
        int(value), (f"something new ({value:g})", FaultClass.UNKNOWN, Remedy.NOTE)
    )
    yield Finding(
        "recovery-action",
        fault_class,
        remedy,
        f"the driver asks for {asks}",
        settings.hold_down,
        evidence=_evidence(view, now, "recovery_action", "xid"),
    )


def _answers(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    if view.answer is Answer.LOST:
        yield Finding(
            "gpu-lost",
            FaultClass.HARDWARE_FATAL,
            Remedy.DRAIN_AND_REBOOT,
            "the driver answers that the GPU is lost",
            settings.hold_down,
        )
    elif view.answer is Answer.RESET_REQUIRED:
        yield Finding(
            "reset-required",
            FaultClass.HARDWARE_FATAL,
            Remedy.DRAIN_AND_RESET,
            "the driver answers that the GPU must be reset",
            settings.hold_down,
        )
    elif view.answer is Answer.UNKNOWN_ERROR:
        yield Finding(
            "driver-error",
            FaultClass.DRIVER,
            Remedy.DRAIN_AND_RESET,
            "the driver answers with an unknown error, again and again",
            _ERRORS_SECONDS,
        )


def _missing(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    """Missing for every source that knew it; one of them must have seen the rest of the node lately."""
    if view.is_seen or not gpu.missing_since or set(gpu.latest) - set(gpu.missing_since):
        return
    yield Finding(
        "gpu-missing",
        FaultClass.HARDWARE_FATAL,
        Remedy.DRAIN_AND_REBOOT,
        "the GPU is gone while others of its node are there",
        settings.missing_after,
        evidence=(Evidence("last_seen", None, max(0.0, now - view.at)),),
    )


def _memory(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    numbers = view.numbers
    if numbers.get("row_remap_failure", 0) > 0:
        yield Finding(
            "row-remap-failure",
            FaultClass.HARDWARE_FATAL,
            Remedy.CORDON_AND_REPLACE,
            "memory rows could not be remapped: the GPU meets the test for return",
            settings.hold_down,
            evidence=_evidence(view, now, "row_remap_failure", "remapped_rows_uncorrectable_total"),
        )
    if numbers.get("sram_threshold_exceeded", 0) > 0:
        yield Finding(
            "sram-threshold",
            FaultClass.HARDWARE_FATAL,
            Remedy.CORDON_AND_REPLACE,
            "its SRAM has had more errors than the test for return allows",
            settings.hold_down,
            evidence=_evidence(view, now, "sram_threshold_exceeded"),
        )
    if numbers.get("row_remap_pending", 0) > 0 or numbers.get("retired_pages_pending", 0) > 0:
        yield Finding(
            "row-remap-pending",
            FaultClass.HARDWARE_DEGRADED,
            Remedy.NOTE,
            "a repair of its memory waits for a reset: plan one at a quiet time",
            settings.hold_down,
        )
    if numbers.get("banks_without_spare_rows", 0) > 0:
        yield Finding(
            "spare-rows",
            FaultClass.HARDWARE_DEGRADED,
            Remedy.NOTE,
            f"{numbers['banks_without_spare_rows']:.0f} memory banks have no spare row left",
            settings.hold_down,
        )
    grown = growth(gpu.looks, "ecc_uncorrectable_total")
    if grown is not None and grown.by > 0:
        # Contained errors count here too; where XIDs are seen, they tell which kind it was.
        tells = "xid" in numbers or NVML in view.sources
        helps = Remedy.NOTE if tells else Remedy.DRAIN_AND_RESET
        yield Finding(
            "ecc-uncorrectable",
            FaultClass.HARDWARE_DEGRADED,
            helps,
            f"{grown.by:.0f} uncorrectable memory errors within {grown.seconds:.0f} s",
            _AGREED_SECONDS,
            proves=False,
            evidence=_evidence(view, now, "ecc_uncorrectable_total"),
        )


def _heat(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    looks, over, enough = gpu.looks, settings.throttled_over, settings.throttled_share
    if not view.is_seen or not looks or now - looks[-1].at > settings.stale_after:
        return
    seen = _evidence(view, now, "throttle_reasons", "temperature_celsius", "temperature_margin_celsius")
    hot = _share(looks, over, Throttle.HW_THERMAL, "throttled_hw_thermal_seconds_total")
    if hot >= enough:
        yield Finding(
            "hw-thermal",
            FaultClass.THERMAL,
            Remedy.CORDON_AND_REPLACE,
            f"slowed down by heat for {hot:.0%} of {over / 60:.0f} minutes: look at its cooling",
            _HEAT_HOLD_DOWNS * settings.hold_down,
            evidence=seen,
        )
    # The older counter of all heat does not say who slows it down: many cards live with the driver doing it.
    warm = _share(
        looks,
        over,
        Throttle.SW_THERMAL,
        "throttled_sw_thermal_seconds_total",
        "throttled_thermal_seconds_total",
    )
    if warm >= enough and hot < enough:
        yield Finding(
            "sw-thermal",
            FaultClass.THERMAL,
            Remedy.CORDON_AND_REPLACE,
            f"it is slowed down for heat, {warm:.0%} of {over / 60:.0f} minutes",
            _AGREED_SECONDS,
            proves=False,
            evidence=seen,
        )
    braked = _share(looks, over, Throttle.HW_POWER_BRAKE, "throttled_power_brake_seconds_total")
    if braked >= enough:
        yield Finding(
            "power-brake",
            FaultClass.THERMAL,
            Remedy.CORDON_AND_REPLACE,
            f"its power brake is on for {braked:.0%} of {over / 60:.0f} minutes: look at its power supply",
            _HEAT_HOLD_DOWNS * settings.hold_down,
            evidence=seen,
        )


def _links(view: View, gpu: GpuMemory, settings: QuarantineSettings, now: float) -> Iterator[Finding]:
    numbers = view.numbers
    width, widest = numbers.get("pcie_link_width"), numbers.get("pcie_link_width_max")
    if width is not None and widest is not None and 0 < width < widest:
        yield Finding(
            "pcie-width",
            FaultClass.LINK,
            Remedy.DRAIN_AND_REBOOT,
            f"its PCIe link has {width:.0f} of {widest:.0f} lanes",
            _AGREED_SECONDS,
            proves=False,
            evidence=_evidence(view, now, "pcie_link_width", "pcie_link_width_max"),
        )
    replays = growth(gpu.looks, "pcie_replays_total")
    if replays is not None and replays.seconds >= 60:
        lanes = width or _DEFAULT_LANES
        generation = int(numbers.get("pcie_link_generation_max", _DEFAULT_GENERATION))
        limit = lanes * _REPLAYS_PER_MINUTE_AND_LANE.get(generation, 1.92)
        per_minute = 60 * replays.by / replays.seconds
        if per_minute > limit:
            yield Finding(
                "pcie-replays",
                FaultClass.LINK,
                Remedy.DRAIN_AND_REBOOT,
                f"its PCIe link replays {per_minute:.0f} times a minute (limit {limit:.0f})",
                _AGREED_SECONDS,
                proves=False,
                evidence=_evidence(view, now, "pcie_replays_total"),
            )
    errors = [growth(gpu.looks, name) for name in ("nvlink_replays_total", "nvlink_recoveries_total")]
    if any(one is not None and one.by > 0 for one in errors):
        yield Finding(
            "nvlink-errors",
            FaultClass.LINK,
            Remedy.DRAIN_AND_RESET,
            f"its NVLink had {sum(one.by for one in errors if one):.0f} replays and recoveries lately",
            _AGREED_SECONDS,
            proves=False,
            evidence=_evidence(view, now, "nvlink_replays_total", "nvlink_recoveries_total"),
        )


_CHECKS: tuple[Callable[[View, GpuMemory, QuarantineSettings, float], Iterator[Finding]], ...] = (
    _recovery,
    _answers,
    _missing,
    _memory,
    _heat,
    _links,
)


def _share(looks: Sequence[Look], over: float, bits: Throttle, *counters: str) -> float:
    """Share of the time slowed down for a reason: by the first counter that there is, else by the bits."""
    for counter in counters:
        share = share_of_time(looks, counter, over)
        if share is not None:
            return share
    return share_of_looks(looks, bits, over) or 0.0


def _evidence(view: View, now: float, *names: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(name, view.numbers[name], max(0.0, now - view.times[name]))
        for name in names
        if name in view.numbers
    )
