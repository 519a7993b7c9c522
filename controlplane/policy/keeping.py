"""What outlives a leader: put together for the next one, and taken over from the last.

Spent is spent: who takes over counts all that the last leader counted, and all that it has itself done. So a
leader that dies between the count and the deed has wasted some of its budget, and none is spent twice.

What a follower wanted meanwhile nobody has done. When it begins to lead it forgets those wishes, and decides
anew on what it sees, under the budget that is left.
"""

import math
from collections.abc import Mapping

from msgspec.structs import replace

from controlplane.policy.memory import Memory, PoolMemory, ReplicaMemory, ScaleMemory
from controlplane.policy.quarantine.budget import HOUR_SECONDS
from controlplane.policy.quarantine.memory import NodeMemory, Past, Quarantine, QuarantineMemory
from controlplane.policy.scaling.prudence import Wish
from controlplane.policy.settings import PolicySettings
from controlplane.signals.kept import Handed, Kept, KeptWish
from controlplane.signals.serving import GATE, out_reason

LIMITS_SECONDS = 600.0
"""For so long a replica that is seen for the first time begins with the limit that the last leader left."""

_MOST_TAKEN, _MOST_PAST, _MOST_NAMES, _MOST_LIMITS = 1_000, 200, 200, 2_000
_MINUTE = 60.0


def left(memory: Memory) -> Kept:
    """What the next leader must know."""
    old, now = memory.quarantine, memory.now
    # Not yet seen on its node: if it never comes there, the node was not taken for that.
    open_ = {(name, one.mark.since) for name, one in old.quarantines.items() if not one.placed}
    past = ((one.node, one.uuid, one.check, one.at) for one in old.past if (one.node, one.at) not in open_)
    overruled = {name: node.overruled for name, node in old.nodes.items() if node.overruled is not None}
    wishes = {
        name: KeptWish(pool.scale.wish.replicas, pool.scale.wish.lowered_at, pool.scale.wish.raised_at)
        for name, pool in memory.pools.items()
        if pool.scale is not None and pool.scale.wish is not None
    }
    limits = {name: one.limit.slots for name, one in memory.replicas.items() if one.limit is not None}
    return Kept(
        taken=tuple(at for at in old.taken if now - at < HOUR_SECONDS)[-_MOST_TAKEN:],
        past=tuple(past)[-_MOST_PAST:],
        overruled=_newest(overruled),
        restarted=_newest(old.restarted),
        tripped=old.tripped,
        # To the minute, because it moves with each look.
        trip_seen=0.0 if old.tripped is None else math.ceil(old.trip_seen / _MINUTE) * _MINUTE,
        trip_why="" if old.tripped is None else old.trip_why,
        wishes=wishes,
        limits=dict(list(limits.items())[:_MOST_LIMITS]),
    )


def adopted(memory: Memory, handed: Handed, settings: PolicySettings, now: float) -> Memory:
    """The memory with what the last leader left, at Unix time `now`."""
    kept, before = handed.kept, memory.quarantine
    if handed.leads:
        before = _without_wishes(before)
    replicas = memory.replicas if not handed.leads else _found_anew(memory)
    return replace(
        memory,
        replicas=replicas,
        quarantine=_with_spent(before, kept, now),
        pools={**memory.pools, **_with_wishes(memory.pools, kept, settings, now)},
        limits_left=kept.limits,
        limits_left_at=now,
    )


def _without_wishes(before: QuarantineMemory) -> QuarantineMemory:
    """Without what was only wanted; what was asked for and is on its way is asked for once more."""
    wanted = {(name, one.mark.since) for name, one in before.quarantines.items() if not one.placed}
    times = {at for _, at in wanted}
    return replace(
        before,
        quarantines={name: _asked_anew(one) for name, one in before.quarantines.items() if one.placed},
        taken=tuple(at for at in before.taken if at not in times),
        past=tuple(one for one in before.past if (one.node, one.at) not in wanted),
    )


def _found_anew(memory: Memory) -> dict[str, ReplicaMemory]:
    """A replica that the last leader took out and we never did is found again as its pod stands."""
    after = dict(memory.replicas)
    for name, replica in memory.replicas.items():
        pod, rotation = memory.pods.get(replica.target.pod), replica.rotation
        if pod is None or rotation is None or rotation.out is not None:
            continue
        if out_reason(pod.annotations) or pod.conditions.get(GATE) == "False":
            after[name] = replace(replica, rotation=None)
    return after


def _asked_anew(one: Quarantine) -> Quarantine:
    return replace(one, evicted_at=0.0, asked_at=0.0 if one.releasing else one.asked_at)


def _with_spent(before: QuarantineMemory, kept: Kept, now: float) -> QuarantineMemory:
    """Times of the future are of a clock that is ahead, and count as they are; an hour ahead is nonsense."""
    taken = {at for at in kept.taken if abs(now - at) < HOUR_SECONDS}
    past = {Past(*one) for one in kept.past}
    nodes = dict(before.nodes)
    for name, at in kept.overruled.items():
        node = nodes.get(name, NodeMemory(now))
        nodes[name] = node if node.overruled is not None else replace(node, overruled=min(at, now))
    times = [at for at in (before.tripped, kept.tripped) if at is not None]
    return replace(
        before,
        nodes=nodes,
        taken=tuple(sorted(taken.union(before.taken))),
        past=tuple(sorted(past.union(before.past), key=lambda one: (one.at, one.node, one.uuid, one.check))),
        restarted=before.restarted
        | {name: max(min(at, now), before.restarted.get(name, at)) for name, at in kept.restarted.items()},
        tripped=min(*times, now) if times else None,
        trip_seen=max(before.trip_seen, min(kept.trip_seen, now)),
        trip_why=before.trip_why or kept.trip_why,
    )


def _with_wishes(
    pools: Mapping[str, PoolMemory], kept: Kept, settings: PolicySettings, now: float
) -> dict[str, PoolMemory]:
    """Each pool that is scaled goes on from what the last leader asked for."""
    after = {}
    for name, wish in kept.wishes.items():
        if name not in settings.pools or settings.pool(name).scale is None:
            continue
        pool = pools.get(name, PoolMemory())
        scale = pool.scale or ScaleMemory(end=now, since=now)
        old = scale.wish or Wish(wish.replicas, "handed-over", "the last leader asked for so many")
        new = replace(
            old,
            replicas=wish.replicas,
            lowered_at=max(old.lowered_at, min(wish.lowered_at, now)),
            raised_at=max(old.raised_at, min(wish.raised_at, now)),
        )
        after[name] = replace(pool, scale=replace(scale, wish=new))
    return after


def _newest(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda one: one[1])[-_MOST_NAMES:])
