"""How much work a replica can do at its limit: learned of the pool, under load and where limits bind.

    step(n)   = a + b * n                  seconds between two tokens with n sequences in flight: least
    squares pace      = work / (in flight * seconds / step)            tokens of work of a sequence in a
    step most      = (longest step - a) / b     sequences at which a token takes as long as the objective
    allows capacity  = trust * pace * most / longest step             tokens of work a second

A replica slows down as it fills, so that what it does at half its limit is more than half of what it can do:
the line says how much more. Where limits bind and work is refused for it, what is done is what can be done.
`trust` is the ratio of that to what the line says, so that engines whose KV cache is full before their
steps are long are known, too. Without a line (all looks at the same load) only what was done at the limit
is known, and before both nothing is.

The limits themselves do not tell it: one that was never reached was never tried.
"""

import math

import msgspec
from msgspec.structs import replace

from controlplane.policy.scaling.seen import PoolSeen, ReplicaSeen

_MEMORY_SECONDS = 3600.0  # of the line, in seconds of a replica: a few looks of a large pool, an hour of one
_LEAST_POINTS = 10.0  # of a line
_LEAST_SPREAD = 0.15  # standard deviation of what is in flight, over its mean
_BINDS = 0.9  # of the limit, on average: between two requests a slot is free for a moment
_TRUST_MEMORY_SECONDS = 300.0  # at the limit: long against the noise of one look
_TRUST_AT_FIRST = 0.95  # where limits bind, steps are a little shorter than the objective allows


class Supply(msgspec.Struct, frozen=True):
    """Sums over looks at replicas, each counting for less as new ones come: points, in flight (x), step
    (y), their products, and work and paces of sequences. `at_limit` is the work a second of a replica that
    was seen where limits bind."""

    points: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    work: float = 0.0
    steps: float = 0.0
    trust: float = _TRUST_AT_FIRST
    at_limit: float | None = None

    def capacity(self, longest_step: float) -> float | None:
        """Tokens of work a second that one more replica can be expected to do; None: not known."""
        by_line = self.by_line(longest_step)
        return self.at_limit if by_line is None else self.trust * by_line

    def by_line(self, longest_step: float) -> float | None:
        """The same by the line alone, trusted as it is."""
        if self.points < _LEAST_POINTS or self.steps <= 0:
            return None
        mean_x, mean_y = self.x / self.points, self.y / self.points
        variance = self.xx / self.points - mean_x**2
        if mean_x <= 0 or variance < (_LEAST_SPREAD * mean_x) ** 2:
            return None
        slope = (self.xy / self.points - mean_x * mean_y) / variance
        base = mean_y - slope * mean_x
        if slope <= 0 or base >= longest_step:
            return None
        most = (longest_step - base) / slope
        return self.work / self.steps * most / longest_step


def observe(before: Supply, seen: PoolSeen, longest_step: float) -> Supply:
    """After one more look at the pool."""
    after = before
    for one in seen.replicas:
        after = _with(after, one, seen.seconds)
    if not seen.shed:
        return after
    full = [one.work for one in seen.replicas if one.work and _is_full(one)]
    if not full:
        return after
    done = sum(full) / len(full) / seen.seconds
    weight = -math.expm1(-len(full) * seen.seconds / _TRUST_MEMORY_SECONDS)
    by_line, old = after.by_line(longest_step), after.at_limit
    trust = after.trust if by_line is None else after.trust + weight * (done / by_line - after.trust)
    return replace(after, trust=trust, at_limit=done if old is None else old + weight * (done - old))


def _is_full(one: ReplicaSeen) -> bool:
    return bool(one.limit) and one.in_flight is not None and one.in_flight >= _BINDS * (one.limit or 0.0)


def _with(before: Supply, one: ReplicaSeen, seconds: float) -> Supply:
    """With one look at one replica that worked."""
    if not (one.work and one.in_flight and one.step_seconds):
        return before
    keep = math.exp(-seconds / _MEMORY_SECONDS)
    x, y = one.in_flight, one.step_seconds
    return replace(
        before,
        points=keep * before.points + 1,
        x=keep * before.x + x,
        y=keep * before.y + y,
        xx=keep * before.xx + x * x,
        xy=keep * before.xy + x * y,
        work=keep * before.work + one.work,
        steps=keep * before.steps + x * seconds / y,
    )
