"""Replicas on bad GPUs get no new requests: the first and fastest step, long before a node is touched.

It needs no hold-down, because it costs little and is undone at once. It never takes the last ready replica
of a pool, nor more than a share of them, and a storm or an open breaker adds nothing.
"""

import msgspec

from controlplane.policy.quarantine.bench import Bench, where
from controlplane.policy.quarantine.budget import Standing, may_eject
from controlplane.policy.quarantine.memory import Storm
from controlplane.policy.quarantine.storm import causes
from controlplane.policy.quarantine.words import Fault


def eject(
    bench: Bench, storms: tuple[Storm, ...], tripped: float | None, standing: Standing
) -> dict[str, float]:
    """The replicas that get nothing new, and since when."""
    wanted = _wanted(bench, storms)
    there = {one.replica: one for one in bench.observation.serving}
    kept = {name: since for name, since in bench.memory.ejected.items() if name in wanted}
    _keep_one_of_each_pool(bench, wanted, kept)
    for name in bench.memory.ejected:
        if name in there and name not in wanted:
            _return(bench, name, "gpu-well", f"{name} may get requests again")
    for name, (node, fault) in sorted(wanted.items(), key=lambda item: item[1][1].since):
        if name in kept:
            continue
        here = msgspec.structs.replace(standing, ejected=frozenset(kept))
        why = "the breaker is open" if tripped is not None else may_eject(there[name], here, bench.settings)
        if why:
            sentence = f"{name} keeps its requests in spite of {fault.finding.check}: {why}"
            bench.tell_once(f"keeps {name} {fault.id}", "ejection-withheld", name, sentence)
            continue
        kept[name] = bench.now
        bench.decide(
            "eject-replica",
            name,
            fault.finding.check,
            f"{name} gets no new requests: {where(node, fault.uuid)}: {fault.finding.sentence}",
            old="in",
            new="quarantined",
            evidence=bench.evidence(node, fault),
        )
    return kept


def _keep_one_of_each_pool(
    bench: Bench, wanted: dict[str, tuple[str, Fault]], kept: dict[str, float]
) -> None:
    """Where the others of a pool are gone meanwhile, the least bad of those kept from requests comes back."""
    for pool in sorted({one.pool for one in bench.observation.serving}):
        ready = [one.replica for one in bench.observation.serving if one.pool == pool and one.ready]
        if not ready or any(name not in kept for name in ready):
            continue
        best = min(ready, key=lambda name: (wanted[name][1].finding.remedy.weight, -kept[name]))
        del kept[best]
        _return(bench, best, "last-ready", f"{best} is the last ready replica of pool {pool}: it must serve")


def _return(bench: Bench, name: str, reason: str, sentence: str) -> None:
    bench.decide("return-replica", name, reason, sentence, old="quarantined", new="in")


def _wanted(bench: Bench, storms: tuple[Storm, ...]) -> dict[str, tuple[str, Fault]]:
    """Replicas that should get nothing new, with the node and the fault that says so."""
    found: dict[str, tuple[str, Fault]] = {}
    for name, node in bench.nodes.items():
        stormy = {storm.cause for storm in storms if name in storm.nodes}
        for fault in node.faults:
            if not (fault.convicts and fault.is_certain) or stormy.intersection(causes(node, fault)):
                continue
            for one in bench.on(name, fault.uuid):
                found.setdefault(one.replica, (name, fault))
    return found
