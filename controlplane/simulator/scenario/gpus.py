"""The GPUs under a run's engines, and what those who watch them tell the daemon: reports as the sources make
them, with what the sources cannot see left out.

    agent    a report each interval, and with each XID; events since its start
    dcgm     a page each interval; of XIDs the last one only, which stays until the exporter starts anew
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import Field

from controlplane.signals import marks
from controlplane.signals.decision import QUARANTINE_NODE, RELEASE_NODE, Decision
from controlplane.signals.gpu import Answer, Gpu, GpuEvent, NodeBlind, NodeReport, NodeSample, Pod, Throttle
from controlplane.signals.node import Mark, NodeFacts, Placement
from controlplane.signals.reading import Reason
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.strict import Interval, Strict

T = TypeVar("T")

_ROUNDING = 1e-6
_LANES = 16.0
_WELL = {
    "temperature_celsius": 62.0,
    "ecc_uncorrectable_total": 0.0,
    "row_remap_failure": 0.0,
    "row_remap_pending": 0.0,
    "pcie_link_width": _LANES,
    "pcie_link_width_max": _LANES,
    "pcie_link_generation_max": 5.0,
}
_THROTTLED = {
    Throttle.HW_THERMAL: "throttled_hw_thermal_seconds_total",
    Throttle.HW_POWER_BRAKE: "throttled_power_brake_seconds_total",
}


class GpuWatching(Strict):
    """Who watches the GPUs, `per_replica` of them under each engine. Every `nodes_per_rack` nodes share a
    rack. A driver before R565 tells no `recovery_action`.
    """

    source: Literal["agent", "dcgm"] = "agent"
    interval: Interval = 10.0
    per_replica: int = Field(1, ge=1, le=8)
    nodes_per_rack: int | None = Field(None, ge=1, le=1000)
    recovery_action: bool = True


class Card:
    """One GPU. `shows` are its signals, `xid` is the last code. `lost`: it has fallen off the bus, which
    only the driver says; `missing`: not even the driver knows it."""

    def __init__(self, uuid: str, replica: str) -> None:
        self.uuid, self.replica = uuid, replica
        self.shows = dict(_WELL)
        self.asks = 0.0
        self.xid = 0
        self.lost = self.missing = False
        self.replays_per_second = 0.0
        self._throttled: list[Throttle] = []
        self._sums = dict.fromkeys((*_THROTTLED.values(), "pcie_replays_total"), 0.0)
        self._at = 0.0

    def throttle(self, by: Throttle, now: float) -> None:
        self.follow(now)
        self._throttled.append(by)

    def cool(self, by: Throttle, now: float) -> None:
        self.follow(now)
        self._throttled.remove(by)

    def follow(self, now: float) -> None:
        """Count what has gone on since the last call. To be called also before what goes on changes."""
        seconds, self._at = now - self._at, now
        for by in set(self._throttled):
            self._sums[_THROTTLED[by]] += seconds
        self._sums["pcie_replays_total"] += seconds * self.replays_per_second

    def numbers(self, now: float) -> dict[str, float]:
        self.follow(now)
        bits = 0
        for by in self._throttled:
            bits |= by | Throttle.HW_SLOWDOWN
        return {**self.shows, **self._sums, "throttle_reasons": float(bits)}

    def reset(self) -> None:
        """It begins anew: errors that were counted are forgotten, rows that waited are remapped."""
        self.shows = dict(_WELL)
        self.asks, self.xid, self.lost, self.missing = 0.0, 0, False, False
        self.replays_per_second = 0.0


class Node:
    """A machine with GPUs. Nobody has seen them since `blind_since` (Unix seconds), for the reason `why`.

    `mark` is what the daemon has put on it.
    """

    def __init__(self, name: str, rack: str, cards: Sequence[Card]) -> None:
        self.name, self.rack = name, rack
        self.cards = list(cards)
        self.boots = 1
        self.driver = "580.105.08"
        self.source_starts = 1
        self.events: list[GpuEvent] = []
        self.blind_since: float | None = None
        self.why = ""
        self.mark: Mark | None = None
        self.report_at = 0.0

    def go_blind(self, why: str, now: float) -> None:
        self.blind_since, self.why = UNIX_START + now, why

    def see(self, now: float, *, anew: bool) -> None:
        """Its source sees the GPUs; `anew`: it has started, and knows nothing of before."""
        self.blind_since, self.report_at = None, now
        if anew:
            self.source_starts += 1
            self.events.clear()
            for card in self.cards:
                card.xid = 0

    def boot(self, now: float) -> None:
        self.boots += 1
        for card in self.cards:
            card.reset()
        self.see(now, anew=True)

    def exchange(self, card: Card, now: float) -> None:
        """Another card is put in, and the node boots."""
        card.uuid = f"{card.uuid}-new{self.boots}"
        self.boot(now)

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(card.replica for card in self.cards))


class Gpus:
    """All GPU nodes of a run."""

    def __init__(self, watching: GpuWatching, nodes: dict[str, tuple[str, ...]]) -> None:
        self._watching = watching
        self.nodes: dict[str, Node] = {}
        for i, (name, replicas) in enumerate(nodes.items()):
            racks = watching.nodes_per_rack
            cards = [
                Card(f"GPU-{name}-{replica}-{n}", replica)
                for replica in replicas
                for n in range(watching.per_replica)
            ]
            self.nodes[name] = Node(name, "" if racks is None else f"rack-{i // racks + 1}", cards)
        self._told: dict[str, object] = {}

    @property
    def racks(self) -> dict[str, tuple[Node, ...]]:
        found: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes.values():
            if node.rack:
                found[node.rack] = (*found.get(node.rack, ()), node)
        return found

    def node_of(self, replica: str) -> Node:
        return next(n for n in self.nodes.values() if any(card.replica == replica for card in n.cards))

    def card_of(self, replica: str) -> Card:
        """The replica's first."""
        return next(card for card in self.node_of(replica).cards if card.replica == replica)

    def raise_xid(self, node: Node, card: Card, code: int, now: float) -> None:
        card.xid = code
        event = GpuEvent(len(node.events) + 1, UNIX_START + now, "xid", code, card.uuid)
        node.events.append(event)
        if self._watching.source == "agent":
            node.report_at = now  # it is told at once

    def is_taken(self, replica: str) -> bool:
        """Whether nothing may be started where the replica is to run."""
        return self.node_of(replica).mark is not None

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        """Put marks on nodes and take them off, as the daemon has decided."""
        for decision in decisions:
            node = self.nodes.get(decision.target)
            if node is None:
                continue
            if decision.action == QUARANTINE_NODE:
                node.mark = marks.read(decision.new)
            elif decision.action == RELEASE_NODE and node.mark == marks.read(decision.old):
                node.mark = None

    # -- what the daemon hears -------------------------------------------------------------------------

    def reports(self, now: float) -> tuple[NodeSample, ...]:
        """Of the nodes whose turn it is."""
        due = [node for node in self.nodes.values() if node.report_at <= now + _ROUNDING]
        for node in due:
            node.report_at = now + self._watching.interval
        return tuple(self._report(node, now) for node in due)

    def placements(self) -> tuple[Placement, ...] | None:
        """Where replicas run; None where that is as it was when last asked for."""
        found: dict[str, Placement] = {}
        for node in self.nodes.values():
            for card in node.cards:
                old = found.get(card.replica)
                gpus = (card.uuid,) if old is None else (*old.gpus, card.uuid)
                pod = f"default/{card.replica}"
                found[card.replica] = Placement(card.replica, node.name, gpus, pod, owner="engines")
        return self._changed("placements", tuple(found.values()))

    def facts(self) -> dict[str, NodeFacts] | None:
        """What the cluster says of the nodes; None where that is as before."""
        facts = {
            name: NodeFacts(
                name,
                ready=True,
                unschedulable=node.mark is not None and node.mark.kind != "taint",
                tainted=node.mark is not None and node.mark.kind != "cordon",
                mark=node.mark,
                boot_id=node.boot_id,
                rack=node.rack,
            )
            for name, node in self.nodes.items()
        }
        return self._changed("facts", facts)

    def _changed(self, what: str, value: T) -> T | None:
        if self._told.get(what) == value:
            return None
        self._told[what] = value
        return value

    def _report(self, node: Node, now: float) -> NodeSample:
        is_agent = self._watching.source == "agent"
        source, at = "nvml" if is_agent else "dcgm", UNIX_START + now
        if node.blind_since is not None:
            return NodeBlind(node.name, source, at, Reason.UNAVAILABLE, node.why, node.blind_since)
        seen = [card for card in node.cards if not card.missing and (is_agent or not card.lost)]
        if not seen:
            return NodeBlind(node.name, source, at, Reason.UNAVAILABLE, "there is no GPU to be seen")
        return NodeReport(
            node.name,
            source,
            at,
            {card.uuid: self._gpu(card, i, now) for i, card in enumerate(seen)},
            tuple(node.events) if is_agent else (),
            node.driver,
            node.boot_id if is_agent else "",
            f"{node.name}-{node.source_starts}",
        )

    def _gpu(self, card: Card, index: int, now: float) -> Gpu:
        numbers = card.numbers(now)
        if self._watching.recovery_action:
            numbers["recovery_action"] = card.asks
        if self._watching.source == "agent":
            if card.lost:
                return Gpu(card.uuid, index, "simulated", answer=Answer.LOST)
            return Gpu(card.uuid, index, "simulated", numbers=numbers)
        numbers["xid"] = float(card.xid)
        return Gpu(card.uuid, index, "simulated", numbers=numbers, pods=(Pod("default", card.replica),))
