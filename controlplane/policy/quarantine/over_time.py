"""Growth and shares over the looks of a GPU: what one sample cannot tell."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from controlplane.policy.quarantine.memory import Look
from controlplane.signals.counter import increase
from controlplane.signals.gpu import Throttle

_WHOLE = 0.8  # of the time asked for must be covered
_FEWEST = 5  # looks that a share of looks needs


class Growth(msgspec.Struct, frozen=True):
    """What a counter grew by over some seconds; `steps` are the looks in which it grew."""

    by: float
    seconds: float
    steps: int


def growth(looks: Sequence[Look], name: str) -> Growth | None:
    """Growth of a counter over all looks that have it; None where fewer than two do. Restarts are borne."""
    seen = [(look.at, value) for look in looks if (value := look.get(name)) is not None]
    if len(seen) < 2:
        return None
    steps = [increase(a, b) for (_, a), (_, b) in pairwise(seen)]
    return Growth(sum(steps), seen[-1][0] - seen[0][0], sum(step > 0 for step in steps))


def share_of_time(looks: Sequence[Look], name: str, over: float) -> float | None:
    """Share of the last `over` seconds that a counter of seconds counted; None where they are not covered."""
    grown = growth(looks, name)
    if grown is None or grown.seconds < _WHOLE * over:
        return None
    return min(1.0, grown.by / grown.seconds)


def share_of_looks(looks: Sequence[Look], bits: Throttle, over: float) -> float | None:
    """Share of the looks in which one of these throttle bits was set; None where they are too few."""
    seen = [(look.at, value) for look in looks if (value := look.get("throttle_reasons")) is not None]
    if len(seen) < _FEWEST or seen[-1][0] - seen[0][0] < _WHOLE * over:
        return None
    mask = int(bits)  # a plain number: enums take ten times as long
    return sum(bool(int(value) & mask) for _, value in seen) / len(seen)
