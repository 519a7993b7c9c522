"""How much throughput the next sequence brings: the elasticity of throughput in what is in flight.

    gap     = fixed + slope * n      a step reads the weights once, however many share it
    slot    = n * seconds / tokens   the same with the time until first tokens, in which a slot brings none
    X       = n / slot               tokens a second
    dX / X  = (fixed / slot) * dn / n

1 where the fixed part is all (one more sequence brings all its tokens), 0 where the engine is full (it only
makes the others slower). `fixed` is taken from the lightest load so far:

    fixed   = shortest gap * (1 - 0.5 * fewest in flight / in flight lately)

nearly all of that gap if the engine has ever had little to do, against now; else half of it, since it lies
between nothing and all.
"""

import math

import msgspec
from msgspec.structs import replace

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.sight import news

_MEMORY_SECONDS = 30.0
_FEWEST_TOKENS = 20.0  # in a window; of fewer a gap may be chance
_NOT_FIXED = 0.5  # of a gap under a load like that of now


class Elasticity(msgspec.Struct, frozen=True):
    """`seconds`, `sequence_seconds` and `tokens` are decayed sums over windows in which the limit was in use,
    `shortest_gap` and `fewest_in_flight` of all windows so far (None before the first)."""

    seconds: float = 0.0
    sequence_seconds: float = 0.0
    tokens: float = 0.0
    shortest_gap: float | None = None
    fewest_in_flight: float | None = None

    def at(self, gap_seconds: float) -> float | None:
        """The elasticity, from 0 to 1, under a limit with which tokens of a stream come so far apart; None
        while nothing is known."""
        if not self.tokens or self.shortest_gap is None or self.fewest_in_flight is None:
            return None
        slot, in_flight = self.sequence_seconds / self.tokens, self.sequence_seconds / self.seconds
        fixed = self.shortest_gap * (1 - _NOT_FIXED * min(1.0, self.fewest_in_flight / in_flight))
        return min(1.0, fixed / max(slot, gap_seconds))

    def after(self, window: Window, *, in_use: bool) -> "Elasticity":
        """After one more window; `in_use` says that the limit was."""
        in_flight, tokens, gap = window.mean_in_flight, window.tokens, news(window.step_gap, window)
        if not in_flight or tokens is None or tokens < _FEWEST_TOKENS or gap is None or gap <= 0:
            return self
        seen = replace(
            self,
            shortest_gap=_least(self.shortest_gap, gap),
            fewest_in_flight=_least(self.fewest_in_flight, in_flight),
        )
        if not in_use:
            return seen
        keep = math.exp(-window.seconds / _MEMORY_SECONDS)
        return replace(
            seen,
            seconds=keep * self.seconds + window.seconds,
            sequence_seconds=keep * self.sequence_seconds + in_flight * window.seconds,
            tokens=keep * self.tokens + tokens,
        )


def _least(before: float | None, value: float) -> float:
    return value if before is None else min(before, value)
