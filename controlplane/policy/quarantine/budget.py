"""What may be taken, counted on the result: who is out already, for whatever reason, plus ours."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from controlplane.policy.quarantine.memory import NodeMemory
from controlplane.policy.quarantine.observation import ReplicaEvidence
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.signals.node import NodeFacts

HOUR_SECONDS = 3600.0


class Standing(msgspec.Struct, frozen=True):
    """How the fleet stands: its nodes, those that are out, the nodes of each pool, the replicas."""

    nodes: frozenset[str]
    out: frozenset[str]
    pools: dict[str, frozenset[str]]
    serving: tuple[ReplicaEvidence, ...]
    ejected: frozenset[str]

    def with_out(self, node: str) -> "Standing":
        return msgspec.structs.replace(self, out=self.out | {node})


def standing(
    nodes: Mapping[str, NodeMemory],
    facts: Mapping[str, NodeFacts],
    ours: Collection[str],
    serving: Iterable[ReplicaEvidence],
    ejected: Collection[str],
) -> Standing:
    """Count. A node whose readiness is not known is not counted as out."""
    away = {name for name, fact in facts.items() if fact.unschedulable or fact.ready is False or fact.tainted}
    pools: dict[str, set[str]] = {}
    for name, node in nodes.items():
        for pool in node.pools:
            pools.setdefault(pool, set()).add(name)
    return Standing(
        frozenset(nodes),
        frozenset((away | set(ours)) & set(nodes)),
        {pool: frozenset(names) for pool, names in pools.items()},
        tuple(serving),
        frozenset(ejected),
    )


def cap(nodes: int, settings: QuarantineSettings) -> int:
    """How many of so many nodes may be out: the share rounded down, but the floor at least."""
    return max(settings.floor_nodes, int(settings.max_share * nodes + 1e-9))


def refusal(
    node: str, now_standing: Standing, taken: Iterable[float], settings: QuarantineSettings, now: float
) -> str:
    """Why this node may not be taken now; "" where it may."""
    here = now_standing
    groups = {"the fleet": here.nodes} | {
        f"pool {pool}": names for pool, names in sorted(here.pools.items()) if node in names
    }
    for what, names in groups.items():
        allowed = cap(len(names), settings)
        out = len(here.out & names - {node})
        if allowed == 0:
            return f"the cap of {what} is below one node ({settings.max_share:.0%} of {len(names)})"
        if out + 1 > allowed:
            return f"{out} of {len(names)} nodes of {what} are out already (cap {allowed})"
    recent = sum(now - at < HOUR_SECONDS for at in taken)
    if recent >= settings.max_per_hour:
        return f"{recent} nodes were taken within the hour (limit {settings.max_per_hour})"
    return last_ready(node, here)


def last_ready(node: str, here: Standing) -> str:
    """Names a pool whose last ready replicas run on this node; "" where there is none."""
    for pool in sorted({one.pool for one in here.serving if one.node == node and one.ready}):
        others = [
            one
            for one in here.serving
            if one.pool == pool and one.ready and one.node != node and one.replica not in here.ejected
            if one.node not in here.out
        ]
        if not others:
            return f"it has the last ready replica of pool {pool}"
    return ""


def may_eject(replica: ReplicaEvidence, here: Standing, settings: QuarantineSettings) -> str:
    """Why a replica may not be kept from new requests now; "" where it may."""
    pool = [one for one in here.serving if one.pool == replica.pool]
    others = [one for one in pool if one.replica != replica.replica]
    usable = [one for one in others if one.ready and one.replica not in here.ejected]
    if not usable:
        return f"it is the last ready replica of pool {replica.pool}"
    gone = len(others) - len(usable) + 1
    if gone > max(1, int(settings.max_replica_share * len(pool) + 1e-9)):
        return f"{gone - 1} of {len(pool)} replicas of pool {replica.pool} take nothing already"
    return ""
