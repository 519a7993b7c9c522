"""What a run's daemon did about broken GPUs, against what was broken in truth."""

from collections.abc import Iterable
from math import inf, nan

import msgspec
import numpy as np

from controlplane.signals.decision import QUARANTINE_NODE, RELEASE_NODE, RESTART_WORKLOAD, Decision
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.simulator.scenario.gpu_faults import (
    DriverHangs,
    DriverUpgraded,
    ExporterRestarted,
    GpuFault,
    GpuLost,
    LinkFlaky,
    Throttled,
    Xid,
    XidBefore,
)
from controlplane.simulator.scenario.gpus import Gpus
from controlplane.simulator.scenario.series import Series
from controlplane.simulator.scenario.xid_effects import EFFECTS


class GpuFaultTold(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and what became of it, in seconds; None where it did not come to that.

    `breaks`: the node must go for it. `no_request_after_seconds` is when the last new request went to a
    replica on the GPU, before it was kept from them. `node_back_after_seconds` counts from the repair.
    """

    at: float
    kind: str
    target: str
    breaks: bool
    no_request_after_seconds: float | None
    node_taken_after_seconds: float | None
    node_back_after_seconds: float | None


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about GPUs in the whole run. Wrong is what was taken while nothing there was broken.

    `goodput_lost_ratio`: how much smaller a share of the requests was good from the first fault on than it
    was before; None where nothing was measured before.
    """

    faults: tuple[GpuFaultTold, ...]
    nodes_taken: int
    nodes_taken_wrongly: tuple[str, ...]
    nodes_still_out: tuple[str, ...]
    replicas_out_wrongly: tuple[str, ...]
    workloads_to_restart: tuple[str, ...]
    goodput_lost_ratio: float | None


class _Wound:
    """A fault, where it is, and what was done about it so far."""

    def __init__(self, fault: GpuFault, target: str, replicas: tuple[str, ...], *, breaks: bool) -> None:
        self.fault, self.target, self.replicas, self.breaks = fault, target, replicas, breaks
        self.until = inf if fault.lasts is None else fault.at + fault.lasts
        self.out_at: float | None = None
        self.last_request_at = nan
        self.taken_at: float | None = None
        self.back_at: float | None = None

    def holds(self, now: float) -> bool:
        return self.fault.at <= now <= self.until


class GpuAccount:
    """Tell it of every new request (`sent`) and of every look of the daemon (`look`)."""

    def __init__(self, faults: tuple[GpuFault, ...], gpus: Gpus) -> None:
        self._gpus = gpus
        self._wounds = [_wound(fault, gpus) for fault in faults]
        self._out: dict[str, float] = {}
        self._sent: dict[str, float] = {}
        self._taken: list[str] = []
        self._wrong_nodes: list[str] = []
        self._wrong_replicas: list[str] = []
        self._to_restart: list[str] = []

    def sent(self, replica: str, now: float) -> None:
        """A request went to the replica."""
        self._sent[replica] = now

    def look(self, snapshot: FleetSnapshot, decisions: Iterable[Decision], now: float) -> None:
        """What was decided and carried out at `now`."""
        for name, replica in snapshot.replicas.items():
            if replica.quarantined_since is not None and name not in self._out:
                self._goes_out(name, now)
            elif replica.quarantined_since is None and name in self._out:
                self._comes_back(name)
        for decision in decisions:
            if decision.action == QUARANTINE_NODE and not decision.old:
                self._goes(decision.target, now)
            elif decision.action == RELEASE_NODE:
                for wound in self._of_node(decision.target):
                    if wound.taken_at is not None and wound.back_at is None:
                        wound.back_at = now
            elif decision.action == RESTART_WORKLOAD:
                self._to_restart.append(decision.target)

    def result(self, series: Series, warmup: float) -> GpuHealth:
        """At the end of the run."""
        for name in list(self._out):
            self._comes_back(name)
        return GpuHealth(
            faults=tuple(_told(wound) for wound in self._wounds),
            nodes_taken=len(self._taken),
            nodes_taken_wrongly=tuple(self._wrong_nodes),
            nodes_still_out=tuple(name for name, node in self._gpus.nodes.items() if node.mark is not None),
            replicas_out_wrongly=tuple(self._wrong_replicas),
            workloads_to_restart=tuple(self._to_restart),
            goodput_lost_ratio=self._lost(series, warmup),
        )

    def _goes_out(self, name: str, now: float) -> None:
        self._out[name] = now
        wounds = [w for w in self._wounds if w.breaks and name in w.replicas and w.holds(now)]
        if not wounds:
            self._wrong_replicas.append(name)
        for wound in wounds:
            if wound.out_at is None:
                wound.out_at = now

    def _comes_back(self, name: str) -> None:
        since = self._out.pop(name)
        for wound in self._wounds:
            if wound.out_at == since and name in wound.replicas:
                wound.last_request_at = max(self._sent.get(name, -inf), wound.fault.at)

    def _goes(self, node: str, now: float) -> None:
        self._taken.append(node)
        wounds = [wound for wound in self._of_node(node) if wound.breaks and wound.holds(now)]
        if not wounds:
            self._wrong_nodes.append(node)
        for wound in wounds:
            wound.taken_at = now if wound.taken_at is None else wound.taken_at

    def _of_node(self, node: str) -> list[_Wound]:
        there = set(self._gpus.nodes[node].replicas)
        return [wound for wound in self._wounds if there.intersection(wound.replicas)]

    def _lost(self, series: Series, warmup: float) -> float | None:
        seconds = np.asarray(series.seconds)
        first = min((wound.fault.at for wound in self._wounds), default=inf)
        before, after = (seconds > warmup) & (seconds <= first), seconds > max(first, warmup)
        good, offered = np.asarray(series.request_goodput), np.asarray(series.offered)
        if not (offered[before].sum() and offered[after].sum() and good[before].sum()):
            return None
        # What was offered before can be good after: of a short time more was good than offered.
        shares = [min(1.0, float(good[part].sum() / offered[part].sum())) for part in (before, after)]
        return max(0.0, 1.0 - shares[1] / shares[0])


def _told(wound: _Wound) -> GpuFaultTold:
    at = wound.fault.at
    return GpuFaultTold(
        at=at,
        kind=f"XID {wound.fault.code}" if isinstance(wound.fault, Xid) else wound.fault.kind,
        target=wound.target,
        breaks=wound.breaks,
        no_request_after_seconds=None if wound.out_at is None else wound.last_request_at - at,
        node_taken_after_seconds=None if wound.taken_at is None else wound.taken_at - at,
        node_back_after_seconds=None if wound.back_at is None else wound.back_at - wound.until,
    )


def _wound(fault: GpuFault, gpus: Gpus) -> _Wound:
    """Where a fault is, and whether its node must go for it."""
    match fault:
        case Xid():
            replicas = (fault.replica,) if fault.replica else tuple(gpus.nodes[fault.node or ""].replicas)
            return _Wound(
                fault, fault.replica or fault.node or "", replicas, breaks=EFFECTS[fault.code].breaks
            )
        case GpuLost() | LinkFlaky():
            return _Wound(fault, fault.replica, (fault.replica,), breaks=True)
        case Throttled():
            if fault.replica:
                return _Wound(fault, fault.replica, (fault.replica,), breaks=True)
            nodes = gpus.racks[fault.rack or ""]  # its power is at fault, no GPU is
            return _Wound(fault, fault.rack or "", tuple(r for n in nodes for r in n.replicas), breaks=False)
        case XidBefore():
            return _Wound(fault, fault.replica, (fault.replica,), breaks=False)
        case ExporterRestarted() | DriverHangs():
            nodes = (gpus.nodes[fault.node],) if fault.node else tuple(gpus.nodes.values())
        case DriverUpgraded():
            nodes = tuple(gpus.nodes.values())
    target = getattr(fault, "node", None) or "all nodes"
    return _Wound(fault, target, tuple(r for n in nodes for r in n.replicas), breaks=False)
