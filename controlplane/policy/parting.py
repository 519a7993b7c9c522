"""The boundary between a short and a long pool: what one tick brings for its law, and what comes of it.

* A window ends with each tick that brings something new from a gateway. Where none has spoken for a while the
  law is told so, once.
* The law judges from the boundary that the gateways go by, because what it sees is that one's doing. What it
  comes to stands until they follow; where nobody makes them (we observe), until another one is better, and it
  is taken back where it is no better any more once the law's `rest` is over.
* The first window brings the boundary to begin with: who has lost its memory goes on from the one in force.
* Other pools, or another boundary in the configuration, are a person's word: all begins anew from there.
* While a hold or an override keeps either pool as it is the law looks away, and goes on from there later.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from controlplane.policy.boundary.law import MOVES, BoundaryReason, BoundaryState
from controlplane.policy.boundary.pair import PoolPair
from controlplane.policy.boundary.seen import PairWindow, PoolSeen, Room, pool_seen
from controlplane.policy.limiting import HEARD_SECONDS, evidence_of
from controlplane.policy.limits.law import UNLIMITED
from controlplane.policy.memory import BoundaryMemory, ReplicaMemory
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.signals.decision import Evidence, Orders
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import Load, PoolBoundary


class Side(NamedTuple):
    """What one tick brings of one of the pools: the gateways' new windows, whether any gateway has spoken of
    it lately, its replicas that nothing keeps out of rotation, and the load of their engines."""

    told: tuple[OutcomeWindow, ...]
    is_heard: bool
    replicas: Sequence[ReplicaMemory]
    load: Load | None


class Change(NamedTuple):
    """The boundary after a tick, and the window that its law was told of, None where none ended."""

    boundary: BoundaryMemory
    window: PairWindow | None = None


def look(
    memory: BoundaryMemory | None,
    short: Side,
    long: Side,
    *,
    settings: PolicySettings,
    orders: Orders,
    now: float,
) -> Change | None:
    """The boundary of `settings.pair` after this tick; None where no gateway has told of it yet."""
    pair, law = settings.pair, settings.boundary
    assert pair is not None
    told = (*short.told, *long.told)
    in_force, longest = _reported(short.told)
    if memory is None:
        return Change(_begun(pair, in_force or pair.boundary, None, now)) if told else None
    if (memory.short, memory.long, memory.configured) != (pair.short, pair.long, pair.boundary):
        return Change(_begun(pair, pair.boundary, now, now))
    memory = replace(
        memory, in_force=in_force or memory.in_force, longest_tokens=longest or memory.longest_tokens
    )
    if orders.keep(("pool", pair.short), ("pool", pair.long)):
        return Change(replace(memory, end=now))
    is_heard = bool(told) or short.is_heard or long.is_heard
    if now <= memory.end or (not told and (is_heard or memory.state.reason is BoundaryReason.NO_NEWS)):
        return Change(memory)
    window = PairWindow(
        _start(told, memory.end, now),
        now,
        _seen(short, settings.pool(pair.short), memory.longest_tokens, now),
        _seen(long, settings.pool(pair.long), None, now),
    )
    state = replace(memory.state, tokens=memory.in_force or memory.tokens)
    if window.start - memory.end > HEARD_SECONDS:
        state = replace(state, wish_up=None)  # nobody knows whether it was better all the time
    state = law.observe(state, window)
    end = now if told else memory.end
    return Change(_moved(replace(memory, end=end), state, law.rest, now), window)


def shown(memory: BoundaryMemory) -> PoolBoundary:
    """The boundary as the snapshot has it."""
    state = memory.state
    return PoolBoundary(
        memory.short,
        memory.long,
        tokens=memory.tokens,
        reason=state.reason,
        detail=state.detail,
        since=memory.since,
        in_force=memory.in_force,
    )


def evidence(change: Change) -> tuple[Evidence, ...]:
    """The readings that the law was told, and the replicas that it works out from them."""
    window, here = change.window, change.boundary.state.here
    if window is None:
        return ()
    needs = (None, None) if here is None else (here.short_replicas, here.long_replicas)
    found: list[Evidence] = []
    for name, seen, needed in zip(("short", "long"), (window.short, window.long), needs, strict=True):
        if needed is not None:
            found.append(Evidence(f"{name}_replicas_needed", needed, 0.0))
        counts = {"replicas": float(seen.replicas), "in_flight": seen.in_flight, "queued": seen.queued}
        found += [Evidence(f"{name}_{what}", value, 0.0) for what, value in counts.items()]
        for what in ("waiting", "kv_usage", "preemptions_per_second"):
            found.append(evidence_of(f"{name}_{what}", getattr(seen, what), window.end))
    return tuple(found)


def _begun(pair: PoolPair, tokens: int, moved_at: float | None, now: float) -> BoundaryMemory:
    state = BoundaryState(tokens, moved_at=moved_at)
    return BoundaryMemory(pair.short, pair.long, pair.boundary, tokens, state, now, now)


def _moved(memory: BoundaryMemory, state: BoundaryState, rest: float, now: float) -> BoundaryMemory:
    """With what the law came to. While it rests gateways may not have followed its last move yet."""
    rests = state.moved_at is not None and now - state.moved_at < rest
    speaks = state.reason in MOVES or (state.reason is BoundaryReason.SETTLED and not rests)
    if not speaks or state.tokens == memory.tokens:
        return replace(memory, state=state)
    return replace(memory, state=state, tokens=state.tokens, since=now)


def _start(told: Sequence[OutcomeWindow], last_end: float, now: float) -> float:
    """When the law's window starts. Windows of a gateway may come late, or with a clock that is ahead."""
    if not told:
        return last_end
    first = min(window.start for window in told)
    lasted = max(window.end for window in told) - first
    return max(last_end, min(first, now - lasted))


def _seen(side: Side, policy: PoolPolicy, longest_tokens: int | None, now: float) -> PoolSeen:
    rooms = [_room(replica, policy, longest_tokens) for replica in side.replicas]
    return pool_seen(side.told, rooms, side.load, now)


def _room(replica: ReplicaMemory, policy: PoolPolicy, longest_tokens: int | None) -> Room:
    bounds = [policy.max_num_seqs, None if replica.limit is None else replica.limit.slots]
    slots = min((float(bound) for bound in bounds if bound is not None), default=UNLIMITED)
    kv_tokens = None if replica.view is None else replica.view.kv_tokens
    return Room(
        slots=slots if slots < UNLIMITED else None,
        kv_tokens=None if kv_tokens is None else kv_tokens * policy.kv_overcommit,
        longest_tokens=longest_tokens,
    )


def _reported(told: Sequence[OutcomeWindow]) -> tuple[int | None, int | None]:
    """The boundary that the gateways go by where they agree, and the longest sequence for the short pool."""
    newest = {window.gateway: window for window in told}.values()
    boundaries = {window.boundary_tokens for window in newest}
    longest = [window.longest_tokens for window in newest if window.longest_tokens is not None]
    return boundaries.pop() if len(boundaries) == 1 else None, max(longest, default=None)
