"""What the faults of a scenario do to replicas and scrapes, and when."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeAlias

from controlplane.simulator.scenario.faults import (
    DaemonAway,
    Lost,
    OtherFault,
    Restarted,
    ScrapeFault,
    Slowed,
    Started,
    Wedged,
)
from controlplane.simulator.scenario.gpu_faults import GpuFault
from controlplane.simulator.scenario.gpu_incidents import GpuIncidents
from controlplane.simulator.scenario.gpus import Gpus
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.replica import Replica

Incident: TypeAlias = tuple[float, Callable[[float], None]]
"""When what is to be done; it is called with the time."""


class Plant(Protocol):
    """What faults act on."""

    def start(self, replica: Replica, now: float) -> None:
        """A process of the replica begins to answer, unless one does already."""

    def kill(self, replica: Replica, now: float) -> None:
        """The replica's process is gone, if there is one."""

    def wedge(self, replica: Replica, now: float) -> None:
        """The replica's engine stands still."""

    def unwedge(self, replica: Replica, now: float) -> None:
        """The replica's engine goes on."""

    def begin_scrape_fault(self, fault: ScrapeFault, now: float) -> None: ...

    def end_scrape_fault(self, fault: ScrapeFault, now: float) -> None: ...

    def lose_daemon(self, now: float) -> None: ...

    def regain_daemon(self, now: float) -> None: ...


def incidents(
    scenario: Scenario, replicas: Mapping[str, Replica], plant: Plant, gpus: Gpus
) -> Iterator[Incident]:
    """Everything that happens to the fleet, in no order; at second 0 what is there from the start."""
    late = {fault.replica for fault in scenario.faults if isinstance(fault, Started)}
    late.update(name for group in scenario.fleet for name in group.absent_names)
    for replica in replicas.values():
        if replica.name not in late:
            yield 0.0, partial(plant.start, replica)
        else:
            replica.discovered = False
    of_gpus = GpuIncidents(gpus, replicas, plant)
    for fault in scenario.faults:
        yield from of_gpus.of(fault) if isinstance(fault, GpuFault) else _of(fault, replicas, plant)


def _of(fault: OtherFault, replicas: Mapping[str, Replica], plant: Plant) -> Iterator[Incident]:
    until = None if fault.lasts is None else fault.at + fault.lasts
    match fault:
        case Started() | Restarted():
            replica = replicas[fault.replica]
            begin = (
                partial(_discover, replica) if isinstance(fault, Started) else partial(plant.kill, replica)
            )
            yield fault.at, begin
            yield fault.at + replica.cold_start_seconds, partial(plant.start, replica)
        case Lost():
            yield fault.at, partial(plant.kill, replicas[fault.replica])
            if until is not None:
                yield until, partial(plant.start, replicas[fault.replica])
        case Wedged():
            yield fault.at, partial(plant.wedge, replicas[fault.replica])
            if until is not None:
                yield until, partial(plant.unwedge, replicas[fault.replica])
        case Slowed():
            yield fault.at, partial(_slow, replicas[fault.replica], fault.to)
            if until is not None:
                yield until, partial(_end_slow, replicas[fault.replica], fault.to)
        case DaemonAway():
            yield fault.at, plant.lose_daemon
            if until is not None:
                yield until, plant.regain_daemon
        case _:
            yield fault.at, partial(plant.begin_scrape_fault, fault)
            if until is not None:
                yield until, partial(plant.end_scrape_fault, fault)


def _discover(replica: Replica, now: float) -> None:
    replica.discovered = True


def _slow(replica: Replica, to: float, now: float) -> None:
    replica.slow(to)


def _end_slow(replica: Replica, to: float, now: float) -> None:
    replica.end_slow(to)
