"""Who leads: the holder of a lease, which others take once it has not been renewed for its duration.

    follower ── the lease is free, or has stood unchanged for its duration ──> takes it, with a higher term
    leader ── renews it; each renewal lets it act for ACT_RATIO of the duration from when it was sent
    leader ── no renewal in that time, or the lease is another's ──> follower

Only a steady clock is asked, and never what others wrote as the time: a follower counts from when it saw the
lease change, which is later than the leader's own count began. So the leader has stopped, by its own clock,
before anybody may begin, unless the clocks' paces differ by more than the rest of the duration. What a paused
leader still had under way is told apart by its term: whoever is told things refuses lower ones.

Terms go up from leader to leader, and are at least the Unix time, should the lease be deleted. Where that was
not enough, because a clock was behind, whoever refuses our term names its own, and we renew with the next one
above: a change of the lease that we hold, which an ex-leader cannot make, and the next leader goes on from.
"""

from math import inf

import msgspec

ACT_RATIO = 2 / 3
"""The part of a lease's duration in which its holder acts; the rest is for requests under way to end."""

MOST_RAISES = 3
"""How often one lead goes on with a higher term: leaders of two leases that steer the same gateways would
raise their terms over each other for ever."""

_MOST_NAMED = 10**15
"""Terms are Unix seconds and a little more. One beyond this is none, and would leave no room above."""


class Lease(msgspec.Struct, frozen=True):
    """The lease as it stands. `holder` is empty where nobody holds it; `renewed` differs at each renewal.

    `version` is the object's own, `changes` counts its holders. `kept` is what a leader leaves to the next.
    """

    holder: str
    term: int
    duration_seconds: float
    renewed: str
    version: str
    changes: int = 0
    kept: str = ""


class Election(msgspec.Struct, frozen=True):
    """What one candidate knows: the lease as last seen, since when it stands like that, and its own lead.

    `term` is None where it does not hold the lease. Times are seconds of a steady clock.
    """

    lease: Lease | None = None
    seen_at: float = -inf
    term: int | None = None
    acts_until: float = -inf

    def leads(self, now: float) -> bool:
        """Whether it may act."""
        return self.term is not None and now < self.acts_until


def saw(state: Election, lease: Lease | None, me: str, now: float) -> Election:
    """The lease was read, None where there is none. What is another's, or gone, is no longer ours."""
    before = state.lease
    if lease is None:
        gone_at = now if before is not None and before.holder else state.seen_at
        last = None if before is None else msgspec.structs.replace(before, holder="", version="")
        return Election(last, gone_at)
    if lease.holder != me:
        state = msgspec.structs.replace(state, term=None, acts_until=-inf)
    stands = before is not None and (before.holder, before.renewed) == (lease.holder, lease.renewed)
    return msgspec.structs.replace(state, lease=lease, seen_at=state.seen_at if stands else now)


def may_take(state: Election, me: str, now: float) -> bool:
    """Whether the lease is to be had: free, ours from before, or left alone for its duration.

    One that was removed may have a holder who does not know of it yet.
    """
    lease = state.lease
    if lease is None or lease.holder == me:
        return True
    if not lease.holder and lease.version:
        return True
    return now - state.seen_at >= lease.duration_seconds


def next_term(state: Election, wall: float) -> int:
    """A term that is higher than all before it, also than those of a lease that was removed."""
    return max(int(wall), 1 + (state.lease.term if state.lease is not None else 0))


def outranking(term: int, named: int) -> int:
    """The term to go on with where somebody follows `named`: the next one above it, where ours is not."""
    return max(term, named + 1) if named < _MOST_NAMED else term


def holds(lease: Lease, sent_at: float) -> Election:
    """We have written the lease: we lead from now on, or still do."""
    return Election(lease, sent_at, lease.term, sent_at + ACT_RATIO * lease.duration_seconds)
