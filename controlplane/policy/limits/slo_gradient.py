"""SLO gradient: the default law for LLM engines.

Each signal that means overload gives one gradient, target over measured, and the smallest of them moves the
limit:

    tpot      margin * objective / step gap, averaged over about a request's life (`pace.py`);
              over 1 also of the latest step gap, down to 1: one slow second holds, it does not cut
    ttft      max(0.5, ttft_share * objective / p90 from sending to first token); under 1 by as much of it as
              those that wait for one are of those in flight
    kv        kv_target / KV usage
    waiting   max(0.5, 1 - W/L)     where W > 1 and W > L/20; W = the fewest that waited in the engine
    preempt   0.85                  where any sequence was preempted in the window

    g = the smallest there is;  L is in use where at least 0.8 of it (or of its tokens) was in flight at once
    g < 1:                 L = U * ((1 - s) + s * max(0.6, g))
                           U = what was in flight (at most L) where L is in use, else L
    else, L in use:        L = L * ((1 - s) + s * min(g, 1.5));   in slow start  L = L * min(g, 1.5)
                           by as much of that as it was in use for of the window
    then clamp to floor .. min(0.94 * max_num_seqs, KV ceiling, max_limit)

The margin is an outer loop's (`margin.py`), and so is the share where it must be less than configured: each
comes to rest where one more request in flight brings as much throughput (`elasticity.py`) as it makes others
late. An engine's `max_num_seqs` that nobody told is learned (`seats.py`). The same limit in tokens goes with
L (`budget.py`), where gateways tell how large requests are.

Why not a round trip against its own minimum: a round trip is mostly the length of the answer, an engine gets
slower with every sequence by design, and a minimum has to be probed for. The objective does not drift.

Regimes:
1. Slow start, from `start_limit` until a first g < 1. Not from a part of the KV ceiling: a cache may hold
   twenty times as many as the objective allows, and the way up costs seconds, the way down bursts.
2. Room: grows while the limit is in use, by 15 % a window at most, and slower the nearer the target is.
3. Over: cuts, by 12 % at most of what is in flight (a limit over that has not done the harm, and cutting
   only it would change nothing), **once a cohort**: after a cut nothing more is done until no more than the
   new limit are in flight (or `cohort` is over), and what was measured before then is forgotten; it speaks of
   the old limit. Nor does the limit grow again before what cut it was measured anew (or one more `cohort` is
   over): pages come each few seconds only, and until then it would grow over what they have just shown.
4. Floor: never under `min_limit` (or `max_num_seqs`, if that is less). Nothing that was learned keeps it
   there: with every gradient at 1 or more and the floor in use it grows again by the rule of regime 2.
5. Partly blind: one of the signals that there were is stale or broken. No growth; cuts go on.
6. Blind: no latency is seen, and a signal is lost. Decays by 2 % a second, for a minute down to the limit
   that was known to be good lately, later down to half of that, or to the start if that is more.
7. Engine restarted: everything is forgotten, regime 1.

A signal that a source does not have at all (absent, unsupported) or that has nothing to say (no traffic) is
left out. Only what was measured in the window moves the limit; what is older, and not too old, still forbids
growth.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, Self

import msgspec
from msgspec.structs import replace
from pydantic import Field, model_validator

from controlplane.policy.limits import first_tokens
from controlplane.policy.limits import margin as margins
from controlplane.policy.limits.budget import budget_tokens
from controlplane.policy.limits.elasticity import Elasticity
from controlplane.policy.limits.law import LimitReason, Parameters, State, Window
from controlplane.policy.limits.margin import Judged
from controlplane.policy.limits.pace import Pace
from controlplane.policy.limits.seats import Seats
from controlplane.policy.limits.sight import fresh, lost, news, news_of_first_tokens
from controlplane.signals.reading import Known
from controlplane.signals.units import Duration, Share

_LEAST_GRADIENT = 0.5  # of TTFT and waiting: one long prompt or one batch of arrivals is not the whole truth
_TRUSTED = 0.3  # of a life's worth of step gaps, before they cut: a single second may be one long prompt's
_WAITING_SHARE = 0.05  # of the limit; a look at the engine nearly always finds somebody who has just come
_NEAR, _FAR_OVER = 0.9, 1.25  # times the target for the step gap
_LATENCIES = (LimitReason.TPOT_OVER, LimitReason.TTFT_OVER)


class SloGradientState(State, frozen=True, tag_field="law", tag="slo-gradient"):
    """`budget_tokens` is what may be reserved of the KV cache, None for all of it. `starting` is slow start,
    `margin` and `ttft_share` are the outer loop's, None before it moved them; `elasticity` and `seats` are
    what was learned of the engine. `settling_since` is the time of a cut that has not taken effect yet; once
    it has, `unproven` is what was over and has not been measured since `unproven_since`. `good_limit` is what
    the limit was lately, on average, while all was seen and nothing was over its target; `blind_since` when
    that sight was lost."""

    starting: bool = True
    budget_tokens: float | None = None
    margin: float | None = None
    ttft_share: float | None = None
    elasticity: Elasticity = Elasticity()
    seats: Seats = Seats()
    pace: Pace = Pace()
    pool: first_tokens.Pool = ()
    settling_since: float | None = None
    unproven: LimitReason | None = None
    unproven_since: float = 0.0
    good_limit: float | None = None
    blind_since: float | None = None


class Bound(msgspec.Struct, frozen=True):
    """One gradient; `new` where it was measured in this window. `over` is its reason for a cut, `near` for
    growth that it slows down."""

    gradient: float
    new: bool
    over: LimitReason
    near: LimitReason
    detail: str


class SloGradient(Parameters):
    """The law with the objectives of its pool. Each default says why it is what it is."""

    law: Literal["slo-gradient"] = "slo-gradient"
    ttft: Duration = Field(2.5, gt=0)
    tpot: Duration = Field(0.05, gt=0)

    # Requests scatter around the mean step gap: at 1 half of them miss. The outer loop begins with this.
    tpot_margin: Share = Field(0.8, gt=margins.LEAST)
    # The rest of the objective is for the queue before the engine. Half is too little for an engine whose
    # prompts take more than half of the objective while nothing waits: it would look overloaded for ever.
    # The outer loop may take less, where first tokens come late all the same; never more.
    ttft_share: Share = Field(0.75, gt=0)
    # Sequences in flight go on growing; where prefixes are shared, a full cache also evicts what is reused.
    kv_target: Share = Field(0.9, gt=0)
    # A preemption repeats a whole prompt: it weighs more than a latency that is a little long.
    preemption_gradient: Share = Field(0.85, gt=0, lt=1)

    # A third of the way to what the gradient asks for: latency is not proportional to the limit.
    smoothing: Share = Field(0.3, gt=0)
    # A measurement so bad that it asks for less is more likely a hiccup; 12 % a cohort is quick enough.
    deepest_cut: Share = Field(0.6, gt=0, lt=1)
    # A request shows what it costs only seconds after it was let in, so growth must be slow against that.
    # Near the target the gradient itself slows it; far from it, 3 % a window (1.1) took a minute to make good
    # one false alarm.
    fastest_growth: float = Field(1.5, gt=1)
    # A first g < 1 comes late where requests live long: doubling would overshoot by as much.
    slow_start_growth: float = Field(1.5, gt=1)
    # A limit that is not reached teaches nothing. Under 1: slots are free for a moment between two requests.
    in_use_ratio: Share = Field(0.8, gt=0)

    # Little for any engine, and six windows of slow start from 150.
    start_limit: int = Field(16, ge=1)
    # With one slot nothing is ever learned of two.
    min_limit: int = Field(2, ge=1)
    max_limit: int | None = Field(None, ge=1)
    # Over max_num_seqs the engine's own queue begins; of a large number a few are slack, for requests that
    # are being ended.
    max_num_seqs_ratio: Share = Field(0.94, gt=0)

    # A p90 needs about 20; of under 5 there is none.
    first_tokens_wanted: int = Field(20, ge=1)
    first_tokens_needed: int = Field(5, ge=1)
    first_tokens_memory: Duration = Field(10.0, gt=0)

    # Requests of others, which never fall under our limit, must not forbid cuts for ever.
    cohort: Duration = Field(10.0, gt=0)
    # Three scrapes of five seconds.
    stale_after: Duration = Field(15.0, gt=0)
    # A second. Blind for a minute costs 70 % at most, and only of what was more than usual.
    blind_decay: Share = Field(0.98, gt=0)
    # How far back "lately" reaches, and how long it is trusted.
    good_memory: Duration = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_limit is not None and self.max_limit < self.min_limit:
            raise ValueError(f"max_limit ({self.max_limit}) is under min_limit ({self.min_limit})")
        return self

    def start(self) -> SloGradientState:
        limit = max(self.min_limit, min(self.start_limit, self.max_limit or self.start_limit))
        return SloGradientState(float(limit), LimitReason.START, "nothing was observed yet")

    def observe(self, state: SloGradientState, window: Window) -> SloGradientState:
        if window.restarted:
            state = replace(self.start(), reason=LimitReason.RESTARTED, detail="the engine was restarted")
            return self._budget(self._clamp(state, window), window)
        state = self._learn(state, window)
        if state.settling_since is not None:
            state = self._settle(state, state.settling_since, window)
        else:
            state = self._move(state, window, tuple(self._bounds(state, window)))
        return self._budget(self._clamp(state, window), window)

    def _start(self, state: SloGradientState, window: Window) -> float:
        return min(float(self.start_limit), self._ceilings(state, window)[0][0])

    def _learn(self, state: SloGradientState, window: Window) -> SloGradientState:
        in_use = self._in_use(state, window)
        state = replace(
            state,
            pace=state.pace.after(window, state.slots),
            elasticity=state.elasticity.after(window, in_use=in_use),
            seats=state.seats.after(window, in_use=in_use),
        )
        if in_use:  # what was slow or not under another load says nothing of the limit
            margin, share = self._trimmed(state, window), self._trimmed_share(state, window)
            state = replace(state, margin=margin, ttft_share=share)
        pool = first_tokens.pooled(state.pool, window, self.first_tokens_wanted, self.first_tokens_memory)
        return replace(state, pool=pool)

    def _trimmed(self, state: SloGradientState, window: Window) -> float:
        margin = self._margin(state)
        target, lived_under = margin * self.tpot, state.pace.in_a_life.inverse
        if lived_under is None or lived_under > max(self.tpot, _FAR_OVER * target):
            return margin  # they were slow because the limit was too high; that is seen to
        judged = Judged(window.paced, window.slow)
        trimmed = margins.trimmed(margin, state.elasticity.at(target), judged, window.mean_in_flight)
        if lived_under < _NEAR * target:
            return min(margin, trimmed)  # that few were slow there does not say that more may be
        return trimmed

    def _trimmed_share(self, state: SloGradientState, window: Window) -> float:
        share, seen = self._ttft_share(state), news_of_first_tokens(window)
        if seen is None or not state.pool:
            return share
        if first_tokens.p90_seconds(state.pool) > max(self.ttft, _FAR_OVER * share * self.ttft):
            return share  # as above
        elasticity = state.elasticity.at(self._margin(state) * self.tpot)
        judged = Judged(seen.value.count, window.late)
        return margins.trimmed(share, elasticity, judged, window.mean_in_flight, most=self.ttft_share)

    def _margin(self, state: SloGradientState) -> float:
        return self.tpot_margin if state.margin is None else state.margin

    def _ttft_share(self, state: SloGradientState) -> float:
        return self.ttft_share if state.ttft_share is None else state.ttft_share

    def _settle(self, state: SloGradientState, since: float, window: Window) -> SloGradientState:
        detail = "the last cut has not taken effect yet"
        state = replace(state, reason=LimitReason.SETTLING, detail=detail)
        settled = window.in_flight is not None and window.in_flight <= state.slots
        if state.budget_tokens is not None and window.reserved_tokens is not None:
            settled = settled and window.reserved_tokens <= state.budget_tokens
        if not settled and window.end - since < self.cohort:
            return state
        return replace(state, settling_since=None, unproven_since=window.end, pace=state.pace.cut(), pool=())

    def _move(self, state: SloGradientState, window: Window, bounds: Sequence[Bound]) -> SloGradientState:
        worst = min(bounds, key=_gradient, default=None)
        newest = min((bound for bound in bounds if bound.new), key=_gradient, default=None)
        if newest is not None and newest.gradient < 1:
            return self._cut(state, window, newest)
        if worst is not None and worst.gradient < 1:
            return replace(state, starting=False, reason=worst.over, detail=worst.detail)
        latencies = [bound for bound in bounds if bound.over in _LATENCIES]
        measured = {bound.over for bound in bounds if bound.new}
        missing = lost(window, self.stale_after)
        if missing:
            detail = f"not seen: {', '.join(missing)}"
            state = replace(state, reason=LimitReason.STALE, detail=detail)
            return replace(state, blind_since=None) if latencies else self._decay(state, window)
        if worst is not None:
            state = self._remember(state, window)
        return self._rise(state, window, worst, measured)

    def _cut(self, state: SloGradientState, window: Window, bound: Bound) -> SloGradientState:
        factor = 1 - self.smoothing + self.smoothing * max(self.deepest_cut, bound.gradient)
        use = self._use(state, window)
        used = state.limit * (min(1.0, use) if use >= self.in_use_ratio else 1.0)
        return replace(
            state,
            limit=used * factor,
            reason=bound.over,
            detail=bound.detail,
            starting=False,
            settling_since=window.end,
            unproven=bound.over,
            blind_since=None,
        )

    def _rise(
        self, state: SloGradientState, window: Window, worst: Bound | None, measured: set[LimitReason]
    ) -> SloGradientState:
        if state.unproven in measured or window.end - state.unproven_since >= self.cohort:
            state = replace(state, unproven=None)
        if not self._in_use(state, window):
            most = window.max_in_flight
            detail = f"{'an unknown number' if most is None else f'{most:.0f}'} in flight leave room"
            return replace(state, reason=LimitReason.APP_LIMITED, detail=detail)
        if worst is None or not measured.intersection(_LATENCIES) or state.unproven is not None:
            detail = "no latency was measured, or not what cut the limit last"
            return replace(state, reason=LimitReason.NO_NEWS, detail=detail)
        fastest = self.slow_start_growth if state.starting else self.fastest_growth
        growth = min(worst.gradient, fastest)
        if not state.starting:
            growth = 1 - self.smoothing + self.smoothing * growth
        room = LimitReason.SLOW_START if state.starting else LimitReason.ROOM
        reason = worst.near if worst.gradient < fastest else room
        limit = state.limit * (1 + (growth - 1) * self._part_in_use(window))
        return replace(state, limit=limit, reason=reason, detail=worst.detail)

    def _in_use(self, state: SloGradientState, window: Window) -> bool:
        return self._use(state, window) >= self.in_use_ratio

    def _use(self, state: SloGradientState, window: Window) -> float:
        """The most of the limit that was in use at once, in slots or in tokens, whichever was fuller."""
        # A matter of slots, not of the limit: 2 are less than 0.8 of a limit of 2.6, and all that it lets in.
        use = 0.0 if window.max_in_flight is None else window.max_in_flight / state.slots
        if state.budget_tokens and window.max_reserved_tokens is not None:
            use = max(use, window.max_reserved_tokens / state.budget_tokens)
        return use

    def _part_in_use(self, window: Window) -> float:
        """For which part of the window about as many were in flight as at most. What was measured is of all
        of it, and a burst of a moment says little of how an engine is that is full."""
        if window.mean_in_flight is None or not window.max_in_flight:
            return 1.0
        return min(1.0, window.mean_in_flight / (self.in_use_ratio * window.max_in_flight))

    def _budget(self, state: SloGradientState, window: Window) -> SloGradientState:
        """What the limit is in tokens. Where the engine's own number holds it down there are slots alone:
        what tokens prevent is far, and of a few slots they would keep one free."""
        tokens, seats = window.request_tokens, self._seats(state, window)
        if seats is not None and state.limit >= self._slots(seats):
            return replace(state, budget_tokens=None)
        if tokens is None:
            return state
        return replace(state, budget_tokens=budget_tokens(state.limit, tokens))

    def _remember(self, state: SloGradientState, window: Window) -> SloGradientState:
        good = state.limit if state.good_limit is None else state.good_limit
        weight = -math.expm1(-window.seconds / self.good_memory)
        return replace(state, good_limit=good + weight * (state.limit - good), blind_since=None)

    def _decay(self, state: SloGradientState, window: Window) -> SloGradientState:
        since = window.start if state.blind_since is None else state.blind_since
        start = self._start(state, window)
        target = start if state.good_limit is None else state.good_limit
        if window.end - since > self.good_memory:
            target = min(target, max(start, target / 2))
        limit = max(min(target, state.limit), state.limit * self.blind_decay**window.seconds)
        return replace(state, limit=limit, blind_since=since)

    def _bounds(self, state: SloGradientState, window: Window) -> Iterator[Bound]:
        pace = state.pace.lately.inverse
        if pace is not None and fresh(window.step_gap, window, self.stale_after) is not None:
            yield self._tpot_bound(state, window, pace)
        pool = state.pool
        if first_tokens.count(pool) >= self.first_tokens_needed:
            seconds, target = first_tokens.p90_seconds(pool), self._ttft_share(state) * self.ttft
            detail = f"first tokens take {seconds:.3g} s in the engine, the target is {target:.3g} s"
            gradient = max(_LEAST_GRADIENT, _gradient_of(target, seconds))
            if gradient < 1:
                gradient = 1 - (1 - gradient) * _part_awaiting(window)
            new = pool[-1].at > window.start
            yield Bound(gradient, new, LimitReason.TTFT_OVER, LimitReason.TTFT_NEAR, detail)
        usage = fresh(window.kv_usage, window, self.stale_after)
        if usage is not None:
            detail = f"the KV cache is {usage:.0%} full, the target is {self.kv_target:.0%}"
            gradient = _gradient_of(self.kv_target, usage)
            new = news(window.kv_usage, window) is not None
            yield Bound(gradient, new, LimitReason.KV_OVER, LimitReason.KV_NEAR, detail)
        waiting = fresh(window.waiting, window, self.stale_after)
        if waiting is not None:
            detail = f"at least {waiting:.0f} waited in the engine all the time"
            are_many = waiting > max(1.0, _WAITING_SHARE * state.limit)
            gradient = max(_LEAST_GRADIENT, 1 - waiting / state.limit) if are_many else math.inf
            new = news(window.waiting, window) is not None
            yield Bound(gradient, new, LimitReason.WAITING, LimitReason.WAITING, detail)
        preemptions = news(window.preemptions, window)
        if preemptions is not None:
            reason, detail = LimitReason.PREEMPTIONS, f"{preemptions:.0f} sequences were preempted"
            yield Bound(
                self.preemption_gradient if preemptions > 0 else math.inf, True, reason, reason, detail
            )

    def _tpot_bound(self, state: SloGradientState, window: Window, seconds: float) -> Bound:
        target = self._margin(state) * self.tpot
        latest = news(window.step_gap, window)
        detail = f"a token takes {seconds * 1e3:.3g} ms, the target is {target * 1e3:.3g} ms"
        gradient = _gradient_of(target, seconds)
        if gradient < 1 and state.pace.lately.weight < _TRUSTED:
            gradient = 1.0
        elif gradient >= 1 and latest is not None:
            gradient = min(gradient, max(1.0, _gradient_of(target, latest)))
        return Bound(gradient, latest is not None, LimitReason.TPOT_OVER, LimitReason.TPOT_NEAR, detail)

    def _ceilings(self, state: SloGradientState, window: Window) -> list[tuple[float, LimitReason, str]]:
        """What the limit may not exceed, the lowest first; the last is no ceiling at all."""
        ceilings = [(math.inf, LimitReason.UNLIMITED, "")]
        if self.max_limit is not None:
            ceilings.append((float(self.max_limit), LimitReason.MAX_LIMIT, f"max_limit is {self.max_limit}"))
        seats = self._seats(state, window)
        if seats is not None:
            told = f"the engine runs at most {seats} sequences"
            detail = f"requests wait in the engine while {seats} run" if window.max_num_seqs is None else told
            ceilings.append((self._slots(seats), LimitReason.MAX_NUM_SEQS, detail))
        if window.kv_ceiling is not None:
            detail = f"the KV cache holds {window.kv_ceiling:.0f} requests of these lengths"
            ceilings.append((window.kv_ceiling, LimitReason.KV_CEILING, detail))
        return sorted(ceilings)

    def _slots(self, seats: int) -> float:
        """The most that an engine is given that runs `seats` at once."""
        return float(math.ceil(self.max_num_seqs_ratio * seats))

    @staticmethod
    def _seats(state: SloGradientState, window: Window) -> int | None:
        """The engine's `max_num_seqs`: as it was told, or else as it was learned."""
        return state.seats.number if window.max_num_seqs is None else window.max_num_seqs

    def _clamp(self, state: SloGradientState, window: Window) -> SloGradientState:
        ceiling, reason, detail = self._ceilings(state, window)[0]
        floor = float(min(self.min_limit, self._seats(state, window) or self.min_limit))
        if state.limit < floor:
            return replace(state, limit=floor, reason=LimitReason.FLOOR, detail=f"the floor is {floor:.0f}")
        if state.limit > max(ceiling, floor):
            return replace(state, limit=max(ceiling, floor), reason=reason, detail=detail)
        return state


def _part_awaiting(window: Window) -> float:
    """Which part of those in flight waited for their first token (Little's law). The others are long past it:
    fewer of them would change nothing about it for as long as they live."""
    seen, in_flight = window.first_token, window.mean_in_flight
    if not isinstance(seen, Known) or seen.value.mean is None or not in_flight:
        return 1.0
    return min(1.0, seen.value.count * seen.value.mean / window.seconds / in_flight)


def _gradient(bound: Bound) -> float:
    return bound.gradient


def _gradient_of(target: float, measured: float) -> float:
    return target / measured if measured > 0 else math.inf
