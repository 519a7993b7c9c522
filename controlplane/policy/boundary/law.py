"""The law of the boundary between a short and a long pool.

    needed(B)  = replicas that the short pool needs for the classes up to B, and the long pool for the rest
    missing(B) = what each needs beyond the replicas that it has
    cost(B)    = needed(B) + 3 * missing(B)         the best B has the lowest cost, of the edges of classes

`learned.py` says how needs follow from the histogram of sizes. A replica that is missing weighs more than one
that could be saved: with the pools as they are, load goes first to where there is room; once whoever scales
follows the needs, nothing is missing and the fewest replicas win.

A pool that is **strained** (full for most of the last five minutes: requests queue for it, its engines queue
or preempt, or its slots or KV cache are nearly all in use) gets no more by any move, unless the other one is
strained too: then all are short of replicas, and what is missing least is best. Where a pool was strained
though the histogram says that it has room, the histogram is wrong: its needs are corrected, to 10 % more than
it has, and the correction fades only with memory, so that the boundary does not come back to be wrong again.

Regimes:
1. Learning: too few requests, or a pool whose slots and KV cache are not known, or without a replica. Holds.
2. Settled: the best boundary would cost less by under `gain_ratio`. Holds; an equal one is never better.
3. Wish: a better boundary has to be better for `confirm` on end, in the same direction, and `rest` must be
   over since the last move. What it does to queues and step times must be seen before the next.
4. Move: one octave at most towards the best, and nowhere where the cost would be higher than here.
5. Blind: what should be seen of the pool that would get more is not. Holds.

No traffic and no news hold too. Memory fades with `memory`, so a mix that changes is followed within hours.
Sizes are those that requests are routed by. A boundary that is no edge (a configured one) counts the class
in which it lies as long.
"""

import math
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from controlplane.policy.boundary.learned import Learned, replicas_needed
from controlplane.policy.boundary.seen import PairWindow, PoolSeen
from controlplane.signals.reading import Known, Reason, aged
from controlplane.signals.size_class import EDGES
from controlplane.signals.snapshot import Number
from controlplane.signals.units import Duration, Share

_MISSING_WEIGHT = 3.0
_STRAINED_NEEDS = 1.1  # of the replicas there are
_MOST_CORRECTION = 4.0
_STRAINED_SHARE = 0.5  # of the latest time
_OCTAVE = 2.0
_ROUNDING = 1e-9

# There is no such signal, or nothing happened that it could tell of: that is not blindness.
_SILENT = frozenset(
    {Reason.ABSENT, Reason.UNSUPPORTED, Reason.NO_TRAFFIC, Reason.TOO_FEW, Reason.FIRST_SAMPLE}
)


class BoundaryReason(StrEnum):
    """Why the boundary is what it is after a window: what moved it, or what held it."""

    START = "start"
    FEWER_REPLICAS = "fewer-replicas"  # moved
    RELIEF = "relief"  # moved: a pool is short of replicas, the other is less so
    SETTLED = "settled"
    CONFIRMING = "confirming"  # held: a better boundary is not better for long enough yet
    RESTING = "resting"  # held: the last move is too recent
    RECEIVER_STRAINED = "receiver-strained"  # held: the pool that would get more is full, the other is not
    BLIND = "blind"
    NO_NEWS = "no-news"
    TOO_FEW = "too-few-requests"
    NO_REPLICA = "no-replica"
    ROOM_UNKNOWN = "room-unknown"


MOVES = frozenset({BoundaryReason.FEWER_REPLICAS, BoundaryReason.RELIEF})


class Split(msgspec.Struct, frozen=True):
    """What a boundary asks for: replicas of each pool (not rounded), and their weighted sum."""

    tokens: int
    short_replicas: float
    long_replicas: float
    cost: float

    @property
    def replicas(self) -> float:
        return self.short_replicas + self.long_replicas

    def __str__(self) -> str:
        parts = f"{self.short_replicas:.1f} short and {self.long_replicas:.1f} long"
        return f"{self.replicas:.1f} replicas ({parts})"


class BoundaryState(msgspec.Struct, frozen=True):
    """What the law knows after a window. `tokens` is the boundary to enforce.

    `detail` is a sentence for people that explains `reason`. `here` is what the boundary asks for, `best` the
    same of the best one (None before anything is known). A wish for more (`wish_up`) or for less than
    `tokens` has lasted since `wish_since`.
    """

    tokens: int
    reason: BoundaryReason = BoundaryReason.START
    detail: str = "Nothing has been learned yet."
    short: Learned = Learned()
    long: Learned = Learned()
    here: Split | None = None
    best: Split | None = None
    wish_up: bool | None = None
    wish_since: float = 0.0
    moved_at: float | None = None


class _Pair(NamedTuple):
    """Both pools in the newest window, and what is known of them with it."""

    window: PairWindow
    short: Learned
    long: Learned


class Boundary(BaseModel):
    """The law's parameters. It is pure: `start(tokens)` is the state before the first window, `observe(state,
    window)` the state after one more."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gain_ratio: Share = Field(0.05, gt=0, description="a move must save this much")
    target_load: Share = Field(0.85, gt=0, description="of slots or KV cache, whichever is fuller")
    full_ratio: Share = Field(0.95, gt=0, description="of slots or KV cache in use is a full pool")
    enough_requests: int = Field(500, ge=1, description="served, in memory")
    confirm: Duration = Field(300.0, gt=0)
    rest: Duration = Field(1800.0, gt=0)
    memory: Duration = Field(3600.0, gt=0)
    stale_after: Duration = Field(60.0, gt=0, description="engine readings older than this are not believed")

    def start(self, tokens: int) -> BoundaryState:
        """The state with the boundary that is configured."""
        return BoundaryState(tokens)

    def observe(self, state: BoundaryState, window: PairWindow) -> BoundaryState:
        """The state after one more window."""
        if not (window.short.heard or window.long.heard):
            return _held(state, BoundaryReason.NO_NEWS, "No gateway has told anything new.")
        seconds = window.end - window.start
        pair = _Pair(
            window,
            self._learn(state.short, window.short, seconds),
            self._learn(state.long, window.long, seconds),
        )
        state = replace(state, short=pair.short, long=pair.long)
        trouble = self._trouble(pair)
        if trouble is not None:
            return replace(_held(state, *trouble), here=None, best=None)
        pair = self._corrected(pair, _effective(state.tokens, window.short))
        state = replace(state, short=pair.short, long=pair.long)
        here = self._split(pair, _effective(state.tokens, window.short))
        best = min(
            (here, *(self._split(pair, edge) for edge in _candidates(window.short))),
            key=lambda split: (_rounded(split.cost), abs(math.log(split.tokens / here.tokens))),
        )
        state = replace(state, here=here, best=best)
        if best.cost > (1 - self.gain_ratio) * here.cost:
            sentence = f"{here.tokens:,} tokens need {here}; no boundary is better by {self.gain_ratio:.0%}."
            return _held(state, BoundaryReason.SETTLED, sentence)
        return self._towards(state, pair, here, best)

    def _learn(self, learned: Learned, seen: PoolSeen, seconds: float) -> Learned:
        learned = learned.learn(seen, seconds, self.memory)
        return learned.strained(self._is_full(seen), seconds, self.confirm)

    def _is_full(self, seen: PoolSeen) -> bool:
        """Whether the pool was full in this window, by whatever shows it."""
        if seen.replicas == 0 or seen.queued >= 1:
            return True
        waiting, usage, preempted = (
            reading.value if isinstance(reading, Known) else 0.0
            for reading in (seen.waiting, seen.kv_usage, seen.preemptions_per_second)
        )
        in_use = seen.in_flight / (seen.replicas * seen.slots) if seen.slots else 0.0
        # One that has just come waits for the step to end; a queue is more than one on each.
        return waiting > seen.replicas or preempted > 0 or max(usage, in_use) >= self.full_ratio

    def _trouble(self, pair: _Pair) -> tuple[BoundaryReason, str] | None:
        """Why nothing can be said at all."""
        for name, seen in (("short", pair.window.short), ("long", pair.window.long)):
            if seen.replicas == 0:
                return BoundaryReason.NO_REPLICA, f"No replica of the {name} pool is in rotation."
            if not seen.slots and not seen.kv_tokens:
                return BoundaryReason.ROOM_UNKNOWN, (
                    f"Neither limit nor KV cache of the {name} pool's replicas is known."
                )
        served = pair.short.served + pair.long.served
        if served < self.enough_requests:
            return BoundaryReason.TOO_FEW, (
                f"{served:.0f} requests are remembered, {self.enough_requests} are needed."
            )
        return None

    def _corrected(self, pair: _Pair, tokens: int) -> _Pair:
        """The same where a strained pool does not seem to need more than it has."""
        here = self._split(pair, tokens)
        short = self._correct(pair.short, here.short_replicas, pair.window.short.replicas)
        return _Pair(
            pair.window, short, self._correct(pair.long, here.long_replicas, pair.window.long.replicas)
        )

    def _correct(self, learned: Learned, needed: float, replicas: int) -> Learned:
        if learned.strain < _STRAINED_SHARE or not 0 < needed < _STRAINED_NEEDS * replicas:
            return learned
        correction = learned.correction * _STRAINED_NEEDS * replicas / needed
        return replace(learned, correction=min(correction, _MOST_CORRECTION))

    def _split(self, pair: _Pair, tokens: int) -> Split:
        """What a boundary of so many tokens asks for."""
        below = [edge for edge in EDGES if edge <= tokens]
        above = [edge for edge in EDGES if edge > tokens]
        short, long = pair.window.short, pair.window.long
        needs = (
            replicas_needed(short, pair.short, pair.long, below, self.target_load),
            replicas_needed(long, pair.long, pair.short, above, self.target_load),
        )
        missing = sum(max(0.0, need - pool.replicas) for need, pool in zip(needs, (short, long), strict=True))
        return Split(tokens, *needs, sum(needs) + _MISSING_WEIGHT * missing)

    def _towards(self, state: BoundaryState, pair: _Pair, here: Split, best: Split) -> BoundaryState:
        """A better boundary is known: whether, and how far, to go there now."""
        up = best.tokens > here.tokens
        name, receiver = ("short", pair.window.short) if up else ("long", pair.window.long)
        gets, gives = (pair.short, pair.long) if up else (pair.long, pair.short)
        better = f"{best.tokens:,} tokens would need {best} instead of {here}"
        if gives.strain < _STRAINED_SHARE <= gets.strain:
            sentence = f"{better}, but the {name} pool, which would get more, is full."
            return _held(state, BoundaryReason.RECEIVER_STRAINED, sentence)
        lost = self._lost(receiver, pair.window.end)
        if lost:
            sentence = f"{better}, but {lost} of the {name} pool, which would get more, cannot be seen."
            return _held(state, BoundaryReason.BLIND, sentence)
        end = pair.window.end
        since = state.wish_since if state.wish_up is up else pair.window.start
        state = replace(state, wish_up=up, wish_since=since)
        if end - since < self.confirm:
            sentence = f"{better}, for {end - since:.0f} s of {self.confirm:.0f} s that it takes."
            return replace(state, reason=BoundaryReason.CONFIRMING, detail=sentence)
        if state.moved_at is not None and end - state.moved_at < self.rest:
            sentence = f"{better}; the last move was {end - state.moved_at:.0f} s ago."
            return replace(state, reason=BoundaryReason.RESTING, detail=sentence)
        step = self._step(pair, here, best)
        if step is None:
            return _held(state, BoundaryReason.SETTLED, f"{better}, but the way there is worse than here.")
        relieved = here.cost - here.replicas > step.cost - step.replicas + _ROUNDING
        reason = BoundaryReason.RELIEF if relieved else BoundaryReason.FEWER_REPLICAS
        why = "a pool is short of replicas: " if relieved else ""
        sentence = f"From {here.tokens:,} to {step.tokens:,} tokens: {why}{step} instead of {here}."
        return replace(
            state, tokens=step.tokens, reason=reason, detail=sentence, here=step, wish_up=None, moved_at=end
        )

    def _step(self, pair: _Pair, here: Split, best: Split) -> Split | None:
        """The boundary nearest to the best one within an octave; None where it is worse than here."""
        within = (here.tokens / _OCTAVE, here.tokens * _OCTAVE)
        reachable = [edge for edge in _candidates(pair.window.short) if within[0] <= edge <= within[1]]
        towards = [edge for edge in reachable if (edge > here.tokens) is (best.tokens > here.tokens)]
        towards = [edge for edge in towards if edge != here.tokens]
        if not towards:
            return None
        split = self._split(pair, min(towards, key=lambda edge: abs(math.log(edge / best.tokens))))
        return split if split.cost <= here.cost else None

    def _lost(self, seen: PoolSeen, now: float) -> str:
        """The signal of the engines that should be seen and is not; empty where there is none."""
        signals = {
            "the queue": seen.waiting,
            "KV usage": seen.kv_usage,
            "preemptions": seen.preemptions_per_second,
        }
        return next((name for name, reading in signals.items() if self._is_lost(reading, now)), "")

    def _is_lost(self, reading: Number, now: float) -> bool:
        reading = aged(reading, now, self.stale_after)
        if isinstance(reading, Known):
            return not math.isfinite(reading.value)
        return reading.reason not in _SILENT


def _held(state: BoundaryState, reason: BoundaryReason, sentence: str) -> BoundaryState:
    """Nothing moves, and nothing is wished any more."""
    return replace(state, reason=reason, detail=sentence, wish_up=None)


def _effective(tokens: int, short: PoolSeen) -> int:
    """Gateways send nothing to the short pool that it cannot take."""
    return tokens if short.longest_tokens is None else min(tokens, short.longest_tokens)


def _candidates(short: PoolSeen) -> list[int]:
    return [edge for edge in EDGES if short.longest_tokens is None or edge <= short.longest_tokens]


def _rounded(cost: float) -> float:
    return float(f"{cost:.9g}")
