"""Goodput from histograms: how many requests, and tokens, met both objectives.

The engine shows two marginals and hides the pair: TTFT is observed at the first token, TPOT at the
finish, and never both of one request together. What can be proven from that is an interval, and this
file proves it in three steps, for one engine and one cell of about 10 s:

1. *Which requests.* The requests of a cell are those that **finish** in it. Their first tokens were
   seen in this cell or in an earlier one, so the requests that have their first token and still run
   are carried from cell to cell together with bounds on how many of them were in time (`Carry`).
2. *TTFT of the finishers.* Of a group of P requests of which at least L and at most H were in time, n
   leave by finishing: at least L - (P - n) and at most H of those were in time. Histograms that are
   observed at the finish tighten this: a request whose whole latency is within the TTFT limit was in
   time, one whose queue time or prefill time alone is beyond it was not.
3. *Both.* With a of n requests in time for TTFT and b of n for TPOT, both hold for at least a + b - n
   and at most min(a, b) (Fréchet-Hoeffding).

Cells are added up; small cells keep the interval narrow because load changes between cells, and within
one cell the requests mostly share a fate. The point estimate, `independent-in-cell`, multiplies the two
shares within each cell and is clipped into the interval.

Where an objective does not lie on a bucket edge, the neighbouring edges carry into the bounds. Requests
of one output token have no gap between tokens: their TPOT counts as met, as vLLM's own benchmark has it.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy.settings import Slo
from controlplane.signals.histogram import Histogram
from controlplane.signals.interval import Interval, exactly
from controlplane.signals.reading import Reason
from controlplane.signals.snapshot import Denominator, Goodput

POINT_ESTIMATE = "independent-in-cell"


class Carry(msgspec.Struct, frozen=True):
    """Requests of one engine that have their first token and have not ended: how many, how many in time.

    `limit` is the TTFT limit (seconds) that `in_time` was counted against.
    """

    size: float = 0.0
    in_time: Interval = Interval(0.0, 0.0)
    limit: float = 0.0


class Finishers(msgspec.Struct, frozen=True):
    """Growth of one engine's histograms over one cell; None where the engine does not have one."""

    ttft: Histogram | None
    tpot: Histogram | None
    e2e: Histogram | None
    queue_time: Histogram | None
    prefill_time: Histogram | None
    prompt_len: Histogram | None
    generation_len: Histogram | None
    finished: float | None = None  # growth of the counter, for engines whose histograms do not tell
    not_answers: float = 0.0  # finished with an error or aborted by the server: never good

    @property
    def count(self) -> float:
        """Number of requests that finished in the cell."""
        for seen_at_finish in (self.e2e, self.tpot):
            # With no finite bound it is a mean in disguise, whose count need not be of requests.
            if seen_at_finish is not None and len(seen_at_finish.bounds) > 1:
                return seen_at_finish.count
        return self.finished or 0.0


class EngineCell(msgspec.Struct, frozen=True):
    """What one cell proves: requests and tokens (prompt plus output) that finished, and the good ones."""

    requests: float = 0.0
    tokens: float = 0.0
    good: Interval = Interval(0.0, 0.0)
    good_point: float = 0.0
    good_tokens: Interval = Interval(0.0, 0.0)
    good_tokens_point: float = 0.0

    def __add__(self, other: "EngineCell") -> "EngineCell":
        return EngineCell(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.good + other.good,
            self.good_point + other.good_point,
            self.good_tokens + other.good_tokens,
            self.good_tokens_point + other.good_tokens_point,
        )


def start(in_flight: float) -> Carry:
    """The carry of an engine that is seen for the first time with `in_flight` requests: all unknown."""
    return Carry(in_flight, Interval(0.0, in_flight))


def _against(carry: Carry, limit: float) -> Carry:
    """The carry, forgotten but for its size where the objective has changed since it was counted."""
    return carry if carry.limit == limit else start(carry.size)


def measure(carry: Carry, seen: Finishers, slo: Slo, in_flight: float) -> tuple[EngineCell, Carry]:
    """One cell of one engine, and the carry into the next.

    `in_flight` bounds how many requests can have a first token and still be unfinished at the end of the
    cell; a carry above it means that clients hung up, which the engine does not show otherwise.
    """
    in_time, carry = _in_time(_against(carry, slo.ttft), seen, slo.ttft, in_flight)
    n = seen.count
    if n <= 0:
        return EngineCell(), carry
    fast = _fast(seen, slo.tpot)
    answers = max(0.0, n - seen.not_answers)
    high = min(in_time.high, fast.high, answers)
    low = min(max(0.0, in_time.low + fast.low - n - seen.not_answers), high)
    good = Interval(low, high)
    point = good.clip(_share_in_time(seen, slo.ttft, in_time) * _middle(fast))
    tokens, good_tokens = _tokens(seen, good)
    mean = tokens / n
    return EngineCell(n, tokens, good, point, good_tokens, good_tokens.clip(point * mean)), carry


def _in_time(carry: Carry, seen: Finishers, limit: float, in_flight: float) -> tuple[Interval, Carry]:
    """How many of the cell's finishers met the TTFT limit, and the carry into the next cell."""
    n = seen.count
    first_tokens = seen.ttft.count if seen.ttft is not None else 0.0
    new = (seen.ttft.count_below(limit) if seen.ttft is not None else None) or exactly(0.0)
    group = max(carry.size + first_tokens, n)  # finishers whose first token was missed are unknown
    unseen = group - carry.size - first_tokens
    low = carry.in_time.low + new.low
    high = carry.in_time.high + new.high + unseen

    staying = min(group - n, max(0.0, in_flight))
    gone = group - n - staying  # hung up: they leave without being observed
    stay_high = min(staying, high)
    stay_low = min(max(0.0, low - n - gone), stay_high)

    finished_high = min(n, high, *(_below(h, limit).high for h in (seen.queue_time, seen.prefill_time) if h))
    finished_low = max(0.0, low - (group - n))
    if seen.e2e is not None:
        finished_low = max(finished_low, _below(seen.e2e, limit).low)
    finished_low = min(finished_low, finished_high)
    return Interval(finished_low, finished_high), Carry(staying, Interval(stay_low, stay_high), limit)


def _fast(seen: Finishers, limit: float) -> Interval:
    """How many of the finishers met the TPOT limit; anything from none to all where it is not measured."""
    n = seen.count
    if seen.tpot is None or len(seen.tpot.bounds) == 1:
        return Interval(0.0, n)
    single = max(0.0, n - seen.tpot.count)  # one output token: no gap to be slow in
    below = _below(seen.tpot, limit)
    return Interval(min(n, below.low + single), min(n, below.high + single))


def _share_in_time(seen: Finishers, limit: float, finished: Interval) -> float:
    """Point estimate of the finishers' share within the TTFT limit: that of the cell's first tokens."""
    n = seen.count
    share = seen.ttft.fraction_below(limit) if seen.ttft is not None else None
    return finished.clip(_middle(share) * n) / n if share is not None else _middle(finished) / n


def _tokens(seen: Finishers, good: Interval) -> tuple[float, Interval]:
    """All tokens of the finishers, and bounds on those of the good ones.

    k requests have at least the tokens of the k shortest; the rest of the proven sum is the upper bound.
    """
    lengths = [h for h in (seen.prompt_len, seen.generation_len) if h is not None and h.total is not None]
    total = sum(h.total or 0.0 for h in lengths)
    n = seen.count
    low = sum(_least(h, good.low) for h in lengths)
    high = total - sum(_least(h, n - good.high) for h in lengths)
    if good.low >= n:
        low = total
    if good.high <= 0:
        high = 0.0
    high = max(high, 0.0)
    return total, Interval(min(low, high), high)


def _least(lengths: Histogram, k: float) -> float:
    """A lower bound on the sum of the `k` smallest observations: each at least its bucket's lower edge."""
    total, taken, edge = 0.0, 0.0, 0.0
    for bound, cumulative in zip(lengths.bounds, lengths.counts, strict=True):
        take = min(cumulative, k) - taken
        if take > 0:
            total += take * edge
            taken += take
        if taken >= k:
            break
        edge = bound
    return total


def _below(histogram: Histogram, limit: float) -> Interval:
    return histogram.count_below(limit) or exactly(0.0)


def _middle(interval: Interval) -> float:
    return (interval.low + interval.high) / 2


class Ends(msgspec.Struct, frozen=True):
    """How the requests of one replica or pool ended in one cell, beside those that finished.

    `answered` counts the requests that the HTTP server answered with 2xx, `server_errors` those with
    5xx, both None where the page has no such count; `rejected` those the engine refused for load.
    """

    rejected: float = 0.0
    answered: float | None = None
    server_errors: float | None = None

    def __add__(self, other: "Ends") -> "Ends":
        return Ends(
            self.rejected + other.rejected,
            _plus(self.answered, other.answered),
            _plus(self.server_errors, other.server_errors),
        )


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


class Cell(msgspec.Struct, frozen=True):
    """One cell of one replica, all its engines together, from `start` to `end` (Unix seconds)."""

    start: float
    end: float
    engines: EngineCell
    ends: Ends


def summarize(
    cells: Iterable[Cell], window_seconds: float, enough: int, unmeasured: Reason | None
) -> Goodput:
    """Goodput over many cells, of one replica or of a pool.

    `unmeasured` is why the engine cannot be judged at all (it has no TTFT histogram, say), None where it can.
    Fewer than `enough` requests are too few to say: the counts are told, the ratio is not.
    """
    engines, ends = EngineCell(), Ends(0.0, 0.0, 0.0)
    any_cell = False
    for cell in cells:
        engines, ends, any_cell = engines + cell.engines, ends + cell.ends, True
    finished = engines.requests
    by_http = ends.answered is not None and ends.server_errors is not None and any_cell
    shed = ends.rejected
    failed = gave_up = 0.0
    if by_http:
        assert ends.answered is not None
        assert ends.server_errors is not None
        failed = max(0.0, ends.server_errors - shed)
        # A refusal inside a stream is a 200 to the HTTP server, so refusals may be on either side.
        gave_up = max(0.0, ends.answered + ends.server_errors - finished - shed - failed)
    requests = finished + shed + failed
    unknown = unmeasured or _too_few(any_cell, requests, enough)
    return Goodput(
        window_seconds=window_seconds,
        denominator=Denominator.HTTP if by_http else Denominator.FINISHED,
        requests=requests,
        finished=finished,
        failed=failed,
        shed=shed,
        gave_up=gave_up,
        tokens=engines.tokens,
        good_requests=None if unmeasured else engines.good,
        good_requests_point=None if unmeasured else engines.good_point,
        good_tokens=None if unmeasured else engines.good_tokens,
        good_tokens_point=None if unmeasured else engines.good_tokens_point,
        unknown=unknown,
    )


def _too_few(any_cell: bool, requests: float, enough: int) -> Reason | None:
    if not any_cell:
        return Reason.FIRST_SAMPLE
    if requests <= 0:
        return Reason.NO_TRAFFIC
    return Reason.TOO_FEW if requests < enough else None
