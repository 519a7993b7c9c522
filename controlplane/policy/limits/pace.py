"""How long a token takes, averaged over the life of a request.

    rate  <- rate + (1 - exp(-dt / H)) * (1 / gap - rate)      tokens a second of one stream
    gap    = 1 / rate
    life   = in flight on average / requests that end a second      (Little's law)

A request's own mean time per token is its time over its tokens. So rates are averaged, not gaps: a second in
which one long prompt held up everybody has few tokens, and weighs as few.

Two such averages are kept. The short one (H = life, from 2 to 4 s) is what the limit is moved by; it is
forgotten when the limit was cut, for it speaks of the old one. The long one (H = life) is never forgotten: it
is what those that end now lived under, whatever the limit was.
"""

import math

import msgspec
from msgspec.structs import replace

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.sight import news

# Under 2 s the noise of single steps is left, and one long prompt that holds up everybody tells too much;
# over 4 s an engine that gets slow is found too late.
_LEAST_SECONDS, _MOST_SECONDS = 2.0, 4.0
_LONGEST_LIFE_SECONDS = 60.0
_LEAST_USE = 0.1  # an engine may be slow for reasons of its own
_LIFE_MEMORY_SECONDS = 30.0


class Average(msgspec.Struct, frozen=True):
    """A mean whose parts decay: `total / weight`; `weight` (0 to 1) tells how much of `H` it is from."""

    total: float = 0.0
    weight: float = 0.0

    def after(self, value: float, seconds: float, memory_seconds: float) -> "Average":
        keep = math.exp(-seconds / memory_seconds)
        return Average(keep * self.total + (1 - keep) * value, keep * self.weight + (1 - keep))

    @property
    def inverse(self) -> float | None:
        """1 / mean; None of nothing."""
        return self.weight / self.total if self.total > 0 else None


class Pace(msgspec.Struct, frozen=True):
    """`lately` and `in_a_life` are the two averages of the rate, the life follows from `sequence_seconds` and
    the requests that `ended`."""

    lately: Average = Average()
    in_a_life: Average = Average()
    sequence_seconds: float = 0.0
    ended: float = 0.0

    @property
    def life_seconds(self) -> float:
        if self.ended <= 0:
            return _LEAST_SECONDS
        return min(max(self.sequence_seconds / self.ended, _LEAST_SECONDS), _LONGEST_LIFE_SECONDS)

    def cut(self) -> "Pace":
        """The limit is another now."""
        return replace(self, lately=Average())

    def after(self, window: Window, limit: int) -> "Pace":
        """The pace after one more window, during which `limit` was in force."""
        pace = self
        if window.mean_in_flight is not None and window.paced is not None:
            keep = math.exp(-window.seconds / _LIFE_MEMORY_SECONDS)
            pace = replace(
                pace,
                sequence_seconds=keep * pace.sequence_seconds + window.mean_in_flight * window.seconds,
                ended=keep * pace.ended + window.paced,
            )
        gap = news(window.step_gap, window)
        if gap is None or gap <= 0:
            return pace
        rate, life = 1 / gap, pace.life_seconds
        return replace(
            pace,
            lately=pace.lately.after(rate, _in_use(window, limit), min(life, _MOST_SECONDS)),
            in_a_life=pace.in_a_life.after(rate, window.seconds, life),
        )


def _in_use(window: Window, limit: int) -> float:
    """Seconds of the window, by how much of the limit was in use: an idle engine is fast at any limit."""
    used = window.mean_in_flight
    return window.seconds * (1.0 if used is None else min(1.0, max(_LEAST_USE, used / limit)))
