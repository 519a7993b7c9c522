"""How many replicas an autoscaler is told that a pool should have, and as which number.

An HPA whose metric has the target AverageValue 1 goes to ceil(value), but stays where it is as long as
|value / current - 1| is within its tolerance (0.1 by default, a cluster's setting; since Kubernetes 1.33 each
HPA may have its own: `behavior.scaleUp.tolerance`). With value = desired, 10 -> 11 is just 10 % and nothing
happens. What can be done about it:

    tolerance 0       the value is the desired count: every step of one replica is taken
    up, within it     no value reaches the desired count, so the next one above it that does move is told:
                      floor(current x 1.1) + 1, for 10 -> 11 it is 12; too many by a tenth, never too few
    too many, by less than a tenth
                      the count stays as it is. A step up may have led here, and whoever took the surplus away
                      would create a replica in order to remove it; nothing that outlives a change of leader
                      tells that surplus from one that a lower wish has left
    too many, by a tenth or more
                      every value in (desired - 1, desired] leads to the desired count. Where the desired
                      count is itself within the tolerance, the lowest is told: 8.01 for 10 -> 9. From 110 on
                      that may be within it too, and the count stays until a ninth is too many

So where there are ten replicas or fewer the HPA always ends at the desired count, and above that there with
less than a tenth too many.

In observe, held, with unknown data, or long after the last tick, it is the count that is there. Whoever can
say neither says nothing: an autoscaler without an answer leaves the count alone.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

from controlplane.api.health import stuck
from controlplane.api.state import State
from controlplane.signals.decision import Standing
from controlplane.signals.reading import Known
from controlplane.signals.snapshot import FleetSnapshot, PoolSnapshot
from controlplane.signals.status import Status

ACTUATOR = "autoscaler"
HPA_TOLERANCE = Fraction(1, 10)
_LEAST_ABOVE = 0.01
"""Of a replica: so far above a whole number a value is above it still after two roundings to thousandths."""


class Advice(NamedTuple):
    """What an autoscaler is told: `value` is for its arithmetic, at target 1; `desired` and `current` are
    whole replicas; `why` is a clause for people."""

    active: bool
    value: float
    desired: int
    current: int
    why: str


class CannotSayError(Exception):
    """Nobody can tell a count now; the text is a sentence. `unknown_pool`: there is no such pool."""

    def __init__(self, sentence: str, *, unknown_pool: bool = False) -> None:
        super().__init__(sentence)
        self.unknown_pool = unknown_pool


def advice(state: State, pool: str, tolerance: Fraction = HPA_TOLERANCE) -> Advice:
    """What an autoscaler of `pool` is told now. Raises CannotSayError."""
    return advice_at(state.snapshot(), state.status(), state.now(), pool, tolerance)


def advice_at(
    seen: FleetSnapshot | None, status: Status, now: float, pool: str, tolerance: Fraction = HPA_TOLERANCE
) -> Advice:
    """The same at Unix time `now`."""
    if not status.leads:
        raise CannotSayError(f"this daemon follows {status.follows or 'another one'}: ask the leader")
    if seen is None:
        raise CannotSayError("the first tick has not run yet")
    found = seen.pools.get(pool)
    if found is None:
        raise CannotSayError(f"there is no pool {pool[:100]!r}", unknown_pool=True)
    current = _current(seen, found)
    kept = stuck(status, now) or _kept(found, status.pool_standings.get(pool, {}).get(ACTUATOR))
    if kept or found.scale is None:
        if current == 0:
            # It may be none, or none that we see: to say 0 would end those that we do not see.
            raise CannotSayError(f"pool {pool}: no replica is seen, and nothing may be said ({kept})")
        return Advice(True, float(current), current, current, kept)
    desired = found.scale.replicas
    return Advice(
        desired > 0, moving_value(desired, current, tolerance), desired, current, found.scale.detail
    )


def moving_value(desired: int, current: int, tolerance: Fraction) -> float:
    """The value that brings an HPA with target 1 from `current` to `desired` replicas, or as near above it
    as it goes. See the head of this file."""
    lowest, highest = current * (1 - tolerance), current * (1 + tolerance)
    if desired > current:
        return float(max(desired, math.floor(highest) + 1))
    if desired == current or current < desired * (1 + tolerance):
        return float(current)
    if desired < lowest:
        return float(desired)
    least = desired - 1 + _LEAST_ABOVE
    return least if least < lowest else float(current)


def tolerance_of(text: str) -> Fraction:
    """The tolerance in a trigger's metadata or a query. Raises ValueError."""
    if not re.fullmatch(r"0(\.[0-9]{1,6})?", text):  # without exponents, whose numbers may fill the memory
        raise ValueError(f"tolerance is a share from 0 to 1, like 0.1 (got {text[:50]!r})")
    return Fraction(text)


def _kept(pool: PoolSnapshot, standing: Standing | None) -> str:
    """Why the count is to stay as it is; empty where it is not."""
    if pool.scale is None:
        return "the pool is not scaled, or was not looked at yet"
    if not isinstance(pool.scale.need, Known):
        return f"what it needs is not known ({pool.scale.need.reason})"
    if standing is Standing.HELD:
        return "people hold it"
    return "" if standing is Standing.ENFORCE else f"the mode of {ACTUATOR} is observe"


def _current(seen: FleetSnapshot, pool: PoolSnapshot) -> int:
    """Replicas as an HPA counts them: all pods that are not about to go, whether they serve or not."""
    pods = [pod for pod in seen.pods.values() if pod.pool == pool.name]
    if pods:
        return sum(pod.terminating_since is None and not pod.is_over for pod in pods)
    if pool.scale is not None:
        return max(pool.scale.ready + pool.scale.loading, pool.replicas_up)
    return pool.replicas_up
