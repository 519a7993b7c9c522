"""What two pools would need instead of one: a short pool for sequences up to a boundary, a long one for the
rest.

Two ways to fill an engine are compared, because the answer depends on them:

* **by context**: an engine gets as many slots as sequences of its longest context fit into its KV cache
  (how arXiv 2604.08075 sets up its pools). A short pool has many more slots than a long one.
* **by size**: a request reserves what it is likely to need, as the gateway's ledger does. Slots are no
  scarcer in one pool than in the other, and one pool that holds all sizes wastes least.

Requests are routed as the gateway does it: by prompt and learned output (the 90th of 100 outputs). A pool
needs the engine-seconds of the requests that come in its busiest ten seconds / 10 / target load: requests
whose objectives are seconds cannot wait for a quieter minute.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from controlplane.planner.capacity import Bound, Mix, Tokens, capacity, engine_seconds
from controlplane.signals.size_class import EDGES
from controlplane.simulator.constants import EngineModel
from controlplane.simulator.trace import TraceRow

OUTPUT_QUANTILE = 0.9
TARGET_LOAD = 0.85
_PEAK_SECONDS = 10.0
_LEAST_SHARE = 0.01
"""Of the requests on each side of a boundary: less is no pool."""
_MOST_CUT = 0.01
_ROUNDING = 1e-9


class Filling(StrEnum):
    """How many requests an engine takes at once."""

    BY_CONTEXT = "by context"
    BY_SIZE = "by size"


class Traffic(msgspec.Struct, frozen=True):
    """Requests of a trace at a rate of requests a second. Arrays of one length: `at` in seconds."""

    at: Tokens
    mix: Mix
    rate: float

    @property
    def longest_tokens(self) -> int:
        return int((self.mix.prompt + self.mix.output).max())


class Site(msgspec.Struct, frozen=True):
    """What is planned for: the engine, objectives (most seconds to the first token, and in the mean per token
    after it), and the context that the engines of one pool, or of the long one, are set up with."""

    engine: EngineModel
    ttft_seconds: float
    tpot_seconds: float
    context_tokens: int


class PoolNeed(msgspec.Struct, frozen=True):
    """What a pool needs: whole `engines` for the busiest ten seconds, `exact_engines` before rounding up.

    An engine has `slots` by its setting and holds `sequences` when full, for `bound`. `requests_per_second`
    is the pool's mean, `p99_prefill_seconds` what the P99 of TTFT cannot be under.
    """

    engines: int
    exact_engines: float
    context_tokens: int
    slots: int
    sequences: float
    bound: Bound
    requests_per_second: float
    p99_prefill_seconds: float


class PoolPlan(msgspec.Struct, frozen=True):
    """One pool against two, filled one way. `short_ratio` of the requests are short; `cut_ratio` of those
    would write more than the short pool's context allows."""

    filling: Filling
    boundary_tokens: int
    one: PoolNeed
    short: PoolNeed
    long: PoolNeed
    short_ratio: float
    cut_ratio: float

    @property
    def engines(self) -> int:
        """Whole engines of two pools."""
        return self.short.engines + self.long.engines

    @property
    def saved_ratio(self) -> float:
        """Of whole engines."""
        return 1 - self.engines / self.one.engines

    @property
    def saved_ratio_of_many(self) -> float:
        """What a fleet so large that rounding does not count would save."""
        return 1 - (self.short.exact_engines + self.long.exact_engines) / self.one.exact_engines


class TrafficError(ValueError):
    """A trace that nothing can be planned from, in a sentence."""


def traffic(rows: Sequence[TraceRow], rate: float | None) -> Traffic:
    """A trace at `rate` requests a second (None: its own). Raises TrafficError."""
    if len(rows) < 2:
        raise TrafficError(f"{len(rows)} requests are too few to plan from")
    table = np.array(rows, dtype=np.float64)
    at, prompt, output = table[:, 0] - table[0, 0], table[:, 1], table[:, 2]
    span = float(at[-1])
    if span <= 0:
        raise TrafficError("all requests come at the same second, so there is no rate")
    own = len(rows) / span
    rate = own if rate is None else rate
    mix = Mix(prompt, output, prompt + float(np.quantile(output, OUTPUT_QUANTILE, method="higher")))
    return Traffic(at * (own / rate), mix, rate)


def context_of(longest_tokens: int) -> int:
    """The context that engines are set up with for such a longest sequence: the next power of two."""
    return 1 << max(8, math.ceil(math.log2(longest_tokens)))


def boundaries(load: Traffic, context_tokens: int) -> list[int]:
    """Boundaries that leave something on both sides."""
    shares = [(edge, float((load.mix.reserved <= edge).mean())) for edge in EDGES if edge < context_tokens]
    return [edge for edge, share in shares if _LEAST_SHARE <= share <= 1 - _LEAST_SHARE]


def best_plan(site: Site, load: Traffic, filling: Filling) -> PoolPlan | None:
    """The plan with the fewest engines, whole ones first; None where no boundary parts the requests without
    cutting more than one answer in 100."""
    plans = (plan_at(site, load, filling, edge) for edge in boundaries(load, site.context_tokens))
    return min(
        (plan for plan in plans if plan.cut_ratio <= _MOST_CUT),
        key=lambda plan: (plan.engines, -plan.saved_ratio_of_many),
        default=None,
    )


def plan_at(site: Site, load: Traffic, filling: Filling, boundary_tokens: int) -> PoolPlan:
    """The plan with the boundary at so many tokens. Raises TrafficError where a side has no requests."""
    is_short = load.mix.reserved <= boundary_tokens
    if is_short.all() or not is_short.any():
        side = "over" if is_short.all() else "up to"
        raise TrafficError(f"no request is {side} the boundary of {boundary_tokens:,} tokens")
    everything = np.ones(len(is_short), dtype=bool)
    real = load.mix.prompt + load.mix.output
    return PoolPlan(
        filling,
        boundary_tokens,
        one=_need(site, load, filling, everything, site.context_tokens),
        short=_need(site, load, filling, is_short, min(boundary_tokens, site.context_tokens)),
        long=_need(site, load, filling, ~is_short, site.context_tokens),
        short_ratio=float(is_short.mean()),
        cut_ratio=float((real[is_short] > boundary_tokens).mean()),
    )


def _need(
    site: Site, load: Traffic, filling: Filling, which: NDArray[np.bool_], context_tokens: int
) -> PoolNeed:
    """What a pool needs for the requests that are `which`."""
    settings, law = site.engine.settings, site.engine.law
    slots = settings.max_num_seqs
    if filling is Filling.BY_CONTEXT:
        slots = max(1, min(slots, settings.kv_tokens // context_tokens))
    mix = load.mix.only(which)
    full = capacity(
        law, settings, mix, slots=slots, kv_tokens=settings.kv_tokens, tpot_seconds=site.tpot_seconds
    )
    busy = _busiest(load.at[which], engine_seconds(law, settings, mix, full), float(load.at[-1]))
    needed = busy / TARGET_LOAD
    return PoolNeed(
        engines=max(1, math.ceil(needed - _ROUNDING)),
        exact_engines=needed,
        context_tokens=context_tokens,
        slots=slots,
        sequences=full.sequences,
        bound=full.bound,
        requests_per_second=load.rate * float(which.mean()),
        p99_prefill_seconds=full.p99_prefill_seconds,
    )


def _busiest(at: Tokens, seconds: Tokens, span: float) -> float:
    """Engine-seconds a second in the busiest ten seconds; in the mean where there are not twenty."""
    count = int(span // _PEAK_SECONDS)
    if count < 2:
        return float(seconds.sum()) / span
    inside = at < count * _PEAK_SECONDS
    work = np.bincount((at[inside] // _PEAK_SECONDS).astype(np.int64), seconds[inside], count)
    return float(work.max()) / _PEAK_SECONDS
