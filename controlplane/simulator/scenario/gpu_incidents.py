"""What the faults of GPUs do: to the GPUs, to what can be seen of them, and to the engines on them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeAlias

from controlplane.signals.gpu import Throttle
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
from controlplane.simulator.scenario.gpus import Card, Gpus, Node
from controlplane.simulator.scenario.replica import Replica
from controlplane.simulator.scenario.xid_effects import EFFECTS, Effect

Incident: TypeAlias = tuple[float, Callable[[float], None]]

_BITS = {"heat": Throttle.HW_THERMAL, "power-brake": Throttle.HW_POWER_BRAKE}
_NEW_DRIVER = "590.48.01"
_NARROW, _REPLAYS_PER_SECOND = 0.25, 20.0
_LOSS_SEEN_SECONDS = 30.0  # after the XID that goes before it
_GONE = Effect("gone", True, repair="reboot")


class Plant(Protocol):
    """The processes on the GPUs."""

    def start(self, replica: Replica, now: float) -> None: ...

    def kill(self, replica: Replica, now: float) -> None: ...

    def wedge(self, replica: Replica, now: float) -> None: ...


class GpuIncidents:
    """Works out everything that a fault brings about, in no order: `of` it."""

    def __init__(self, gpus: Gpus, replicas: Mapping[str, Replica], plant: Plant) -> None:
        self._gpus, self._replicas, self._plant = gpus, replicas, plant

    def of(self, fault: GpuFault) -> Iterator[Incident]:
        gpus = self._gpus
        match fault:
            case Xid():
                node = gpus.nodes[fault.node] if fault.node else gpus.node_of(fault.replica or "")
                hit = (fault.replica,) if fault.replica else tuple(node.replicas)
                effect, card = EFFECTS[fault.code], gpus.card_of(hit[0])
                yield fault.at, partial(gpus.raise_xid, node, card, fault.code)
                yield from self._breaks(fault, node, card, effect, hit)
            case GpuLost():
                card = gpus.card_of(fault.replica)
                yield fault.at, partial(_vanish, card)
                yield from self._breaks(fault, gpus.node_of(fault.replica), card, _GONE, (fault.replica,))
            case XidBefore():
                yield fault.at, partial(_show_old, gpus.card_of(fault.replica), fault.code)
            case Throttled():
                yield from self._throttled(fault)
            case LinkFlaky():
                yield from self._slow(fault, fault.replica, fault.to)
                card = gpus.card_of(fault.replica)
                yield fault.at, partial(_narrow, card)
                if fault.lasts is not None:
                    yield fault.at + fault.lasts, gpus.node_of(fault.replica).boot
                    yield from self._reboot(gpus.node_of(fault.replica), fault.at + fault.lasts, ())
            case ExporterRestarted():
                for node in [gpus.nodes[fault.node]] if fault.node else gpus.nodes.values():
                    yield fault.at, partial(node.go_blind, "connection refused")
                    yield fault.at + fault.duration, partial(node.see, anew=True)
            case DriverHangs():
                node = gpus.nodes[fault.node]
                yield fault.at, partial(node.go_blind, "the driver has not answered for 15 s")
                if fault.lasts is not None:
                    yield fault.at + fault.lasts, partial(node.see, anew=False)
            case DriverUpgraded():
                for i, node in enumerate(gpus.nodes.values()):
                    yield from self._upgraded(node, fault.at + i * fault.every, fault.each)

    def _breaks(
        self, fault: Xid | GpuLost, node: Node, card: Card, effect: Effect, hit: tuple[str, ...]
    ) -> Iterator[Incident]:
        until = None if fault.lasts is None else fault.at + fault.lasts
        yield fault.at, partial(_show, card, effect)
        if effect.lost and (until is None or fault.at + _LOSS_SEEN_SECONDS < until):
            yield fault.at + _LOSS_SEEN_SECONDS, partial(_lose, card)
        for replica in (self._replicas[name] for name in hit):
            match effect.engine:
                case "goes on":
                    continue
                case "crashes":
                    yield fault.at, partial(self._plant.kill, replica)
                    yield fault.at + replica.cold_start_seconds, partial(self._plant.start, replica)
                    continue
                case "gone":
                    yield fault.at, partial(self._plant.kill, replica)
                case "hangs":
                    yield fault.at, partial(self._plant.wedge, replica)
            if until is not None:
                yield until, partial(self._plant.kill, replica)
                yield until, partial(self._plant.start, replica)
        if until is None or not effect.breaks:
            return
        if effect.repair == "reset":
            yield until, lambda now: card.reset()
        else:
            yield until, partial(node.exchange, card) if effect.repair == "exchange" else node.boot
            yield from self._reboot(node, until, hit if effect.engine != "goes on" else ())

    def _reboot(self, node: Node, at: float, but: tuple[str, ...]) -> Iterator[Incident]:
        """What a boot of the node costs the engines on it: they begin anew."""
        for replica in (self._replicas[name] for name in node.replicas if name not in but):
            yield at, partial(self._plant.kill, replica)
            yield at + replica.cold_start_seconds, partial(self._plant.start, replica)

    def _throttled(self, fault: Throttled) -> Iterator[Incident]:
        nodes = self._gpus.racks[fault.rack] if fault.rack else (self._gpus.node_of(fault.replica or ""),)
        by = _BITS[fault.by]
        for card in (card for node in nodes for card in node.cards):
            if fault.replica not in (None, card.replica):
                continue
            yield fault.at, partial(card.throttle, by)
            if fault.lasts is not None:
                yield fault.at + fault.lasts, partial(card.cool, by)
        for name in (fault.replica,) if fault.replica else [n for node in nodes for n in node.replicas]:
            yield from self._slow(fault, name, fault.to)

    def _slow(self, fault: Throttled | LinkFlaky, name: str, to: float) -> Iterator[Incident]:
        replica = self._replicas[name]
        yield fault.at, lambda now: replica.slow(to)
        if fault.lasts is not None:
            yield fault.at + fault.lasts, lambda now: replica.end_slow(to)

    def _upgraded(self, node: Node, at: float, seconds: float) -> Iterator[Incident]:
        yield at, partial(node.go_blind, "the driver is being exchanged")
        yield at + seconds, partial(_boot_with, node, _NEW_DRIVER)
        for replica in (self._replicas[name] for name in node.replicas):
            yield at, partial(self._plant.kill, replica)
            yield at + seconds + replica.cold_start_seconds, partial(self._plant.start, replica)


def _show_old(card: Card, code: int, now: float) -> None:
    card.xid = code


def _show(card: Card, effect: Effect, now: float) -> None:
    card.asks = effect.asks
    for name, more in effect.shows.items():
        card.shows[name] += more


def _lose(card: Card, now: float) -> None:
    card.lost = True


def _vanish(card: Card, now: float) -> None:
    card.missing = True


def _narrow(card: Card, now: float) -> None:
    card.follow(now)
    card.shows["pcie_link_width"] *= _NARROW
    card.replays_per_second = _REPLAYS_PER_SECOND


def _boot_with(node: Node, driver: str, now: float) -> None:
    node.driver = driver
    node.boot(now)
