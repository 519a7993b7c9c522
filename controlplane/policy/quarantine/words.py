"""The words of quarantine: classes of faults, remedies, findings, faults, verdicts."""

from enum import StrEnum

import msgspec

from controlplane.signals.decision import Evidence


class FaultClass(StrEnum):
    """Whose fault it is."""

    INFO = "info"
    APPLICATION = "application"
    DRIVER = "driver"
    HARDWARE_DEGRADED = "hardware-degraded"
    HARDWARE_FATAL = "hardware-fatal"
    THERMAL = "thermal"  # heat or power
    LINK = "link"  # PCIe or NVLink
    UNKNOWN = "unknown"


class Remedy(StrEnum):
    """What helps, from the lightest to the heaviest; see `weight`."""

    NOTE = "note"
    RESTART_WORKLOAD = "restart-workload"
    DRAIN_AND_RESET = "drain-and-reset"
    DRAIN_AND_REBOOT = "drain-and-reboot"
    CORDON_AND_REPLACE = "cordon-and-replace"

    @property
    def weight(self) -> int:
        return list(Remedy).index(self)

    @property
    def takes_node(self) -> bool:
        """Whether the node must leave the fleet for it."""
        return self.weight >= Remedy.DRAIN_AND_RESET.weight


class Finding(msgspec.Struct, frozen=True):
    """What one check says of one GPU now.

    `at` is the time of the event, or of the report that shows the state.

    `proves`: enough alone; else it is a hint that something else must agree with. `stays`: an event, which
    does not un-happen; else a state, which ends when the check no longer finds it. `hold_down` is for how
    long (seconds) it must hold before a node is taken.
    """

    check: str
    fault_class: FaultClass
    remedy: Remedy
    sentence: str
    hold_down: float
    proves: bool = True
    stays: bool = False
    at: float | None = None
    evidence: tuple[Evidence, ...] = ()


class Fault(msgspec.Struct, frozen=True):
    """A finding with a history: since when, and when it was last told of (Unix seconds).

    `clear_since` is when its check first found nothing again. `agreed_since` is since when something else
    agrees, and `agrees` says what. `excused` says why it is no ground for taking the node, "" where it is
    one.
    """

    finding: Finding
    uuid: str
    since: float
    seen: float
    clear_since: float | None = None
    agreed_since: float | None = None
    agrees: str = ""
    excused: str = ""

    @property
    def id(self) -> str:
        """Stable over restarts: the check, the end of the GPU's UUID, the second it began."""
        return f"{self.finding.check}-{self.uuid[-8:]}-{int(self.since)}"

    @property
    def convicts(self) -> bool:
        """Whether its node may be taken for it, once it has lasted."""
        strong = self.finding.proves or self.agreed_since is not None
        return strong and self.finding.remedy.takes_node and not self.excused and self.clear_since is None

    @property
    def is_certain(self) -> bool:
        """Whether it is more than one look at a state: that may be a slip of the telemetry."""
        return self.finding.stays or self.seen > self.since

    def due_at(self, agreed_hold_down: float) -> float | None:
        """From when on its node may be taken (Unix seconds); None where nothing supports it enough.

        What is proven and agreed on need not last longer than `agreed_hold_down`.
        """
        if not self.convicts:
            return None
        hold_down = self.finding.hold_down
        if self.finding.proves:
            agreed = self.agreed_since is not None
            return self.since + (min(hold_down, agreed_hold_down) if agreed else hold_down)
        assert self.agreed_since is not None
        return max(self.since, self.agreed_since) + hold_down


class Stage(StrEnum):
    """How far a verdict has come."""

    NOTED = "noted"  # told, nothing to be done to a node
    SUSPECTED = "suspected"  # a hint that nothing agrees with yet
    HELD_DOWN = "held-down"  # convicted, waiting whether it lasts
    WITHHELD = "withheld"  # convicted, but a budget, a storm or a person stands against it
    WANTED = "wanted"  # the node should be taken: decided, not seen on the node yet
    PLACED = "placed"  # seen on the node


class Verdict(msgspec.Struct, frozen=True):
    """What is held against one GPU, its worst fault. `why` says what stands against acting on it."""

    node: str
    uuid: str
    fault_id: str
    check: str
    fault_class: FaultClass
    remedy: Remedy
    stage: Stage
    since: float
    sentence: str
    why: str = ""
    evidence: tuple[Evidence, ...] = ()
