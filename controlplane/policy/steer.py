"""What the gateways are to be told, whole: it follows from the snapshot and from what may be done, and from
no event that could be lost. So a gateway or a daemon that comes back is up to date with the next message.

    enforce    the limit (of a replica), the boundary (of two pools) that the law came to
    held       the one that was told last, whatever the law says now
    observe    none: the gateway goes by its own

A replica gets requests from its first good page on, until the tick says that it should get none (`readying`).
A page that fails says nothing about whether it can serve. One whose pod is being deleted gets nothing new
in any mode: that is a fact, and no decision.
"""

from collections.abc import Collection, Mapping

from controlplane.policy.limits.law import UNLIMITED
from controlplane.policy.readiness import Fault
from controlplane.policy.readying import ENDING
from controlplane.policy.settings import PolicySettings
from controlplane.signals.control import ReplicaOrder
from controlplane.signals.decision import Standing
from controlplane.signals.reading import Known, known
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot


def orders(
    snapshot: FleetSnapshot,
    settings: PolicySettings,
    standings: Mapping[str, Standing],
    told: Mapping[str, float],
    out: Collection[str] = (),
) -> tuple[ReplicaOrder, ...]:
    """An order for each replica. `standings` say what may be done to it, by name (observe where there is
    none); `told` are the limits of the message before. Of the replicas that should get nothing, those `out`
    are kept from it."""
    return tuple(
        _order(replica, settings, standings.get(name, Standing.OBSERVE), told.get(name), name in out)
        for name, replica in snapshot.replicas.items()
    )


def boundary_tokens(snapshot: FleetSnapshot, standing: Standing, told: int | None) -> int | None:
    """The boundary between the two pools, None where nothing is said of it. `standing` says what may be done
    to it, and `told` is the one of the message before."""
    boundary = snapshot.boundary
    if boundary is None or standing is Standing.OBSERVE:
        return None
    return boundary.tokens if standing is Standing.ENFORCE else told or boundary.in_force


def limit_of(replica: ReplicaSnapshot) -> float:
    """Sequences that a gateway may have on the replica at once."""
    return UNLIMITED if replica.limit is None else float(replica.limit.slots)


def overcommit_of(replica: ReplicaSnapshot, settings: PolicySettings) -> float:
    """The part of the replica's KV cache that gateways may reserve; over 1 where it may be promised twice."""
    most, limit = settings.pool(replica.pool).kv_overcommit, replica.limit
    if limit is None or limit.tokens is None or not replica.kv_tokens:
        return most
    return min(most, limit.tokens / replica.kv_tokens)


def _order(
    replica: ReplicaSnapshot, settings: PolicySettings, standing: Standing, told: float | None, is_out: bool
) -> ReplicaOrder:
    load, reads = replica.load, isinstance(replica.load.running, Known)
    enforces = standing is Standing.ENFORCE
    return ReplicaOrder(
        name=replica.name,
        pool=replica.pool,
        url=replica.url,
        rotation=_rotation(replica, standing, is_out),
        limit=limit_of(replica) if enforces else told if standing is Standing.HELD else None,
        overcommit=overcommit_of(replica, settings) if enforces else None,
        kv_tokens=None if replica.kv_tokens is None else int(replica.kv_tokens),
        ready_since=replica.ready_since,
        read_at=load.running.at if reads else None,
        running=known(load.running),
        waiting=known(load.waiting) if reads else None,
        kv_usage=known(load.kv_usage) if reads else None,
    )


def _rotation(replica: ReplicaSnapshot, standing: Standing, is_out: bool) -> str:
    if replica.out is not None and replica.out.reason == ENDING:
        return "draining"
    is_kept = replica.out is None and replica.was_ready  # too few others of its pool serve
    if replica.quarantined_since is not None and standing is Standing.ENFORCE and not is_kept:
        return "quarantined"
    if replica.out is not None and is_out:
        return "draining" if replica.out.reason == Fault.LEAVING else "unready"
    return "in" if replica.was_ready else "starting"
