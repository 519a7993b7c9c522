"""The same cause on many nodes at once is one fleet event: one alert, and no node is touched.

A driver upgrade, an exporter's new version or the power of a rack look like many broken GPUs. A storm begins
when faults of one cause begin on enough nodes within the storm window; it lasts while enough nodes still
have it.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

from controlplane.policy.quarantine.memory import NodeMemory, Storm
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.words import Fault


def enough(nodes: int, settings: QuarantineSettings) -> int:
    """How many of so many nodes make a storm: half of a small fleet, but never one alone."""
    return min(settings.storm_nodes, max(2, math.ceil(nodes / 2)))


def causes(node: NodeMemory, fault: Fault) -> tuple[str, ...]:
    """What a fault may have in common with others: its check, and the rack of its node."""
    return (fault.finding.check, *((f"rack {node.rack}",) if node.rack else ()))


def storms(
    before: Iterable[Storm], nodes: Mapping[str, NodeMemory], settings: QuarantineSettings, now: float
) -> tuple[Storm, ...]:
    """The storms at `now`, those that go on with their beginning kept."""
    begun: dict[str, dict[str, list[float]]] = {}
    for name, node in nodes.items():
        for fault in node.faults:
            if fault.convicts and fault.is_certain:
                for cause in causes(node, fault):
                    begun.setdefault(cause, {}).setdefault(name, []).append(fault.since)
    least = enough(len(nodes), settings)
    known = {storm.cause: storm for storm in before}
    found: list[Storm] = []
    for cause, times in sorted(begun.items()):
        old = known.get(cause)
        if len(times) < least:
            continue
        if old is not None:
            found.append(msgspec.structs.replace(old, nodes=tuple(sorted(times))))
        elif _together(times, least, settings.storm_window):
            found.append(Storm(cause, now, tuple(sorted(times))))
    return tuple(found)


def _together(times: Mapping[str, list[float]], least: int, window: float) -> bool:
    """Whether faults on enough nodes began within the window."""
    begins = sorted((at, name) for name, all_at in times.items() for at in all_at)
    for i, (first, _) in enumerate(begins):
        inside = {name for at, name in begins[i:] if at - first <= window}
        if len(inside) >= least:
            return True
    return False
