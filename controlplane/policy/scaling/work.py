"""The default law of scaling: tokens of work that will come, over what a replica can do of them.

    demand = max(upper end of the forecast at the end of a cold start, in panic the last look and its rise)
             + backlog / cold start
    need   = staffed(demand) / work a second of a replica at its limit
    keep   = max(need / consolidation, in flight / (most use * limit of a replica), while shedding: all)

`need` replicas should be there once those that are asked for now can serve; fewer than `keep` must not be.
All that clients asked for is demand, shed or not: what is let in says how large the pool is, not how large it
should be. GPU utilisation is no input, it is as high in a pool that could take twice the load as in one that
drowns.

Regimes:
1. Learning: what a replica can do is not known. So is the need; where there is no replica at all and work
   comes, it is 1.
2. Steady: what forecast and staffing say. Whoever asks (`prudence`) adds patience.
3. Panic: more came in the last look than the ready replicas can do. No forecast is needed to know that. What
   rises so quickly is taken to go on rising once as much as it did within the last minute; a replica takes
   longer to start.
4. Consolidation: one replica less is enough by the need with some to spare, and what is in flight now would
   fit the limits of the rest. The two know nothing of each other, and both have to agree.
5. Idle: nothing has come for `idle_after`. The need is 0, which scales to zero where `min` is.
"""

import math
from statistics import NormalDist
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from controlplane.policy.scaling import forecast, staffing, supply
from controlplane.policy.scaling.forecast import LOOK_SECONDS, Forecast
from controlplane.policy.scaling.seen import PoolSeen
from controlplane.policy.scaling.staffing import Dispersion
from controlplane.policy.scaling.supply import Supply
from controlplane.signals.units import Duration, Share

_MINUTE = 4  # looks: what the forecast takes for the rate of now
_MOST_USE = 0.9  # of the slots that would be left; what is in flight varies


class WorkState(msgspec.Struct, frozen=True):
    """`recent` are the rates of the last looks. `quiet_since`: nothing has come since then. `per_replica` is
    the supply of one, tokens of work a second."""

    supply: Supply = Supply()
    per_replica: float | None = None
    recent: tuple[float, ...] = ()
    dispersion: Dispersion | None = None
    forecast: Forecast | None = None
    quiet_since: float | None = None


class Need(NamedTuple):
    """Replicas, fractions included: `replicas` should be there, under `keep` none is taken away. `replicas`
    is None where it is not known; `why` is a clause for people."""

    replicas: float | None
    keep: float
    why: str


class Work(BaseModel):
    """The law of tokens of work. How long a token may take at the limit follows from the pool's objective."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    law: Literal["work"] = "work"
    assurance: Share = Field(
        0.9, gt=0, lt=1, description="share of the time for which the forecast's upper end should be enough"
    )
    idle_after: Duration = Field(600.0, gt=0, description="without any work for so long, none is needed")
    # One look in 160 brings more; the queue before the engines takes that.
    staffing: float = Field(2.5, ge=0, le=10)
    # At 1 the count followed every swing down and up again; at 0.9 it cost 4 % of the replicas.
    consolidation: Share = Field(0.97, gt=0)

    def observe(self, state: WorkState, seen: PoolSeen, cold_start: float, longest_step: float) -> WorkState:
        """After one more look. A replica takes `cold_start` seconds to start, a token `longest_step` at most
        where the limit binds."""
        learned = supply.observe(state.supply, seen, longest_step)
        per_replica = learned.capacity(longest_step) or state.per_replica
        state = replace(state, supply=learned, per_replica=per_replica)
        if seen.arrived is None:
            return state
        rate = seen.arrived / seen.seconds
        recent = (*state.recent, rate)[-_MINUTE:]
        quiet = rate <= 0 and seen.backlog <= 0
        since = seen.start if state.quiet_since is None else state.quiet_since
        return replace(
            state,
            recent=recent,
            dispersion=staffing.observe(state.dispersion, rate, seen.seconds),
            forecast=forecast.observe(state.forecast, sum(recent) / len(recent), looks_of(cold_start)),
            quiet_since=since if quiet else None,
        )

    def need(self, state: WorkState, seen: PoolSeen, cold_start: float) -> Need:
        """What the pool needs after `seen`, which the state has observed."""
        ready, per, foreseen = len(seen.replicas), state.per_replica, state.forecast
        if seen.arrived is None or foreseen is None or state.dispersion is None:
            return Need(None, ready, "nobody tells how much work comes")
        if state.quiet_since is not None and seen.end - state.quiet_since >= self.idle_after:
            return Need(0.0, _slots(seen), f"no work has come for {seen.end - state.quiet_since:.0f} s")
        if per is None:
            if ready or state.quiet_since is not None:
                return Need(None, ready, "what a replica can do is not known yet")
            return Need(1.0, 1.0, "work comes, and there is no replica")
        band = NormalDist().inv_cdf(self.assurance) * foreseen.spread
        demand = foreseen.ahead(looks_of(cold_start)) * max(0.0, 1 + band)
        why = f"{demand:,.0f} tokens of work/s are expected at most in {cold_start:.0f} s"
        last = state.recent[-1]
        if last > max(demand, ready * per):
            rise = max(0.0, last - state.recent[0])
            demand = last + rise
            why = f"{last:,.0f} tokens of work/s come, more than {ready} replicas can do"
            if rise > 0:
                why = f"{why}; {rise:,.0f} more than a minute ago, and as many again are expected"
        demand += seen.backlog / cold_start
        replicas = staffing.staffed(demand, state.dispersion.value, LOOK_SECONDS, self.staffing) / per
        keep = max(replicas / self.consolidation, _slots(seen), ready if seen.shed else 0.0)
        return Need(replicas, keep, f"{why}, a replica does {per:,.0f}")


def looks_of(cold_start: float) -> int:
    """How many looks ahead a replica serves that is asked for after this one."""
    return math.ceil(cold_start / LOOK_SECONDS) + 1


def _slots(seen: PoolSeen) -> float:
    """How many replicas have room for what is in flight; 0 where that cannot be told."""
    known = [(r.in_flight, r.limit) for r in seen.replicas if r.in_flight is not None and r.limit]
    limits = sum(limit for _, limit in known)
    return sum(flight for flight, _ in known) * len(known) / (_MOST_USE * limits) if limits else 0.0
