"""What every limit law is: an immutable value that turns the windows of one engine into its limit.

A law holds its parameters only. `start()` gives the state before the first window and `observe(state,
window)` the state after one more; both are pure, so the same windows give the same limits again in a replay.
Who enforces a limit is none of a law's business.

    state = law.start()
    for window in windows:
        state = law.observe(state, window)
        enforce(state.slots)
"""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.snapshot import Distribution, Number

UNLIMITED = 1_000_000.0  # more than any engine holds, and still a number that every format can write


class LimitReason(StrEnum):
    """Why the limit is what it is after a window: what moved it or, where nothing did, what held it."""

    START = "start"  # no window has moved it yet
    FIXED = "fixed"
    UNLIMITED = "unlimited"
    ORDERED = "ordered"  # a person's word

    # Laws of the round trip
    ROOM = "room"  # grew: nothing speaks against it
    ROUND_TRIP = "round-trip"  # cut, or kept from growing faster: round trips are long
    DROP = "drop"  # cut: a request was dropped or timed out
    STEADY = "steady"  # between the bounds of growth and cut
    APP_LIMITED = "app-limited"  # held: the limit is not what binds
    TOO_FEW = "too-few-samples"  # held: not enough to learn from
    BASELINE = "baseline"  # held: the reference round trip was taken anew
    PROBE = "probe"  # pinned low while the reference is measured
    PROBE_OVER = "probe-over"  # back at the limit from before the probe

    # Static thresholds
    SATURATED = "saturated"
    NOT_SATURATED = "not-saturated"

    # SLO gradient; "over" cut the limit (or kept it from growing), "near" bounded its growth
    SLOW_START = "slow-start"
    RESTARTED = "engine-restarted"
    RESUMED = "resumed"  # goes on from the limit that was in force
    TPOT_OVER = "tpot-over"
    TPOT_NEAR = "tpot-near"
    TTFT_OVER = "ttft-over"
    TTFT_NEAR = "ttft-near"
    KV_OVER = "kv-over"
    KV_NEAR = "kv-near"
    WAITING = "waiting"
    PREEMPTIONS = "preemptions"
    SETTLING = "settling"  # held: the last cut has not taken effect yet
    NO_NEWS = "no-news"  # held: nothing was measured in this window
    STALE = "stale"  # frozen, or decays: what should be seen is not
    KV_CEILING = "kv-ceiling"
    MAX_NUM_SEQS = "max-num-seqs"
    MAX_LIMIT = "max-limit"
    FLOOR = "floor"


class RoundTrip(msgspec.Struct, frozen=True, gc=False):
    """One request that ended, as laws of the round trip are told of it.

    `started` is when it was sent to the engine, `seconds` (over 0) how long it took to its last token (or to
    whatever else the caller takes for a round trip: the first token, for one), `in_flight` how many were in
    flight when it started, itself included. `dropped`: it ended by a timeout, or the engine refused it.
    """

    started: float
    seconds: float
    in_flight: int
    dropped: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.seconds < math.inf:
            raise ValueError(f"a round trip takes more than 0 seconds (got {self.seconds})")


_NOT_TOLD = Unknown(Reason.ABSENT, 0.0)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine showed from `start` to `end` (seconds of any clock, the same for all windows).

    Readings carry the time (`at`) at which they were measured, on the same clock: what was not measured after
    `start` is no news, and too old a reading is not believed. A source that cannot see a thing leaves it
    unknown; an unknown is never 0.
    """

    start: float
    end: float

    # Requests that ended in the window, in the order in which they ended.
    round_trips: tuple[RoundTrip, ...] = ()
    # Uniform in [0, 1), drawn anew for each window by the caller: it spreads the probes of laws that probe.
    random: float = 0.5

    # Requests sent to the engine and not yet ended (or their weights): the most at once, and those at `end`.
    max_in_flight: float | None = None
    in_flight: float | None = None
    # The same on average over the window; None where not known.
    mean_in_flight: float | None = None

    # Tokens of KV cache that those in flight are likely to need in the end: at `end`, and the most at once;
    # and what a request needs on average, of those that come. None where not known.
    reserved_tokens: float | None = None
    max_reserved_tokens: float | None = None
    request_tokens: float | None = None

    # Answers of two tokens and more that finished in the window, and how many of them missed the TPOT
    # objective (or, if they came whole, both together); None where not known.
    paced: float | None = None
    slow: float | None = None

    # How many of the first tokens missed the TTFT objective, which begins when the request was offered: a
    # gateway's queue is in it, where there is one. None where not known.
    late: float | None = None

    # Tokens after the first of an answer that came in the window, of all answers; None where not known.
    tokens: float | None = None

    # Seconds from sending a request to the engine until its first token, of those that came in the window. A
    # request that waits for it longer than the objective counts too, with its age: what comes too late, or
    # never, must not be invisible until it comes.
    first_token: Distribution = _NOT_TOLD
    # Mean seconds between two tokens of one stream, over all gaps that ended in the window.
    step_gap: Number = _NOT_TOLD
    # Share of the KV cache in use, 0..1.
    kv_usage: Number = _NOT_TOLD
    # How many requests the engine computed at its newest page.
    running: Number = _NOT_TOLD
    # The fewest requests that waited inside the engine at any look during the window.
    waiting: Number = _NOT_TOLD
    # How many preemptions happened in the window.
    preemptions: Number = _NOT_TOLD

    # The engine's own `max_num_seqs` as people told it, and how many requests of today's lengths its KV cache
    # can hold (`kv_ceiling.kv_ceiling`); None where not known.
    max_num_seqs: int | None = None
    kv_ceiling: float | None = None
    # The engine is a new process since the window before.
    restarted: bool = False

    def __post_init__(self) -> None:
        if not self.end > self.start:
            raise ValueError(f"a window ends after it starts (got {self.start} to {self.end})")
        if not 0.0 <= self.random < 1.0:
            raise ValueError(f"a window's random number lies in [0, 1) (got {self.random})")

    @property
    def seconds(self) -> float:
        return self.end - self.start


class State(msgspec.Struct, frozen=True):
    """What a law knows after a window; each law adds what it has to remember.

    `detail` is a clause for people that explains `reason`, without capital and full stop.
    """

    limit: float
    reason: LimitReason
    detail: str

    @property
    def slots(self) -> int:
        """The limit to enforce: a whole number, at least 1."""
        return max(1, int(self.limit))


S = TypeVar("S", bound=State)


class Law(Protocol[S]):
    """One way to set a limit."""

    def start(self) -> S:
        """The state before the first window."""

    def observe(self, state: S, window: Window) -> S:
        """The state after one more window."""


class Parameters(BaseModel):
    """Base of the laws: immutable parameters that a user may set in the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Bounded(Parameters):
    """Parameters of a law that starts at `initial_limit` and never leaves `min_limit`..`max_limit`."""

    initial_limit: int = Field(ge=1)
    min_limit: int = Field(1, ge=1)
    max_limit: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min_limit <= self.initial_limit <= self.max_limit:
            raise ValueError(
                f"initial_limit ({self.initial_limit}) must lie between min_limit ({self.min_limit}) "
                f"and max_limit ({self.max_limit})"
            )
        return self

    def clamp(self, limit: float) -> float:
        return min(float(self.max_limit), max(float(self.min_limit), limit))


def after_each(update: Callable[[S, RoundTrip], S], state: S, window: Window) -> S:
    """The state after each round trip of the window in turn.

    The last one that moved the limit gives the reason, or the last one of all where none did.
    """
    if not window.round_trips:
        return replace(state, reason=LimitReason.TOO_FEW, detail="no request ended in the window")
    before = state.limit
    mover: S | None = None
    for round_trip in window.round_trips:
        limit = state.limit
        state = update(state, round_trip)
        if state.limit != limit:
            mover = state
    if mover is None or state.limit == before:
        return state
    return replace(state, reason=mover.reason, detail=mover.detail)
