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

from collections.abc import Sequence

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
    """Growth of one engine's histograms over one cell; None where it is not known.

    `queue_time` and `prefill_time` are there only where they are observed at the finish. `finished` is the
    growth of the counter, for engines whose histograms do not tell; `why` is why it is unknown, if it is.
    """

    ttft: Histogram | None
    tpot: Histogram | None
    e2e: Histogram | None
    queue_time: Histogram | None
    prefill_time: Histogram | None
    prompt_len: Histogram | None
    generation_len: Histogram | None
    finished: float | None = None
    not_answers: float = 0.0  # finished with an error or aborted by the server: never good
    why: Reason = Reason.ABSENT

    @property
    def count(self) -> float | None:
        """Number of requests that finished in the cell; None where no signal tells."""
        for seen_at_finish in (self.e2e, self.tpot):
            # With no finite bound it is a mean in disguise, whose count need not be of requests.
            if seen_at_finish is not None and len(seen_at_finish.bounds) > 1:
                return seen_at_finish.count
        return self.finished


class EngineCell(msgspec.Struct, frozen=True):
    """What one cell proves: requests and tokens (prompt plus output) that finished, and the good ones.

    `unknown` is why the requests could not be counted; the tokens are None where they could not be.
    """

    requests: float = 0.0
    not_answers: float = 0.0
    good: Interval = Interval(0.0, 0.0)
    good_point: float = 0.0
    tokens: float | None = 0.0
    good_tokens: Interval | None = Interval(0.0, 0.0)
    good_tokens_point: float | None = 0.0
    unknown: Reason | None = None

    def __add__(self, other: "EngineCell") -> "EngineCell":
        both = self.good_tokens is not None and other.good_tokens is not None
        return EngineCell(
            requests=self.requests + other.requests,
            not_answers=self.not_answers + other.not_answers,
            good=self.good + other.good,
            good_point=self.good_point + other.good_point,
            tokens=_plus(self.tokens, other.tokens),
            good_tokens=self.good_tokens + other.good_tokens if both else None,  # type: ignore[operator]
            good_tokens_point=_plus(self.good_tokens_point, other.good_tokens_point),
            unknown=self.unknown or other.unknown,
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
    n = seen.count
    if n is None:
        return EngineCell(tokens=None, good_tokens=None, good_tokens_point=None, unknown=seen.why), start(
            in_flight
        )
    in_time, carry = _in_time(_against(carry, slo.ttft), seen, n, slo.ttft, in_flight)
    if n <= 0:
        return EngineCell(), carry
    fast = _fast(seen, n, slo.tpot)
    high = min(in_time.high, fast.high, max(0.0, n - seen.not_answers))
    low = min(max(0.0, in_time.low + fast.low - n), high)
    good = Interval(low, high)
    point = good.clip(_share_in_time(seen, n, slo.ttft, in_time) * _middle(fast))
    tokens = _tokens(seen)
    good_tokens = None if tokens is None else _good_tokens(seen, n, tokens, good)
    good_tokens_point = None
    if tokens is not None and good_tokens is not None:
        good_tokens_point = good_tokens.clip(point * tokens / n)
    return EngineCell(n, seen.not_answers, good, point, tokens, good_tokens, good_tokens_point), carry


def _in_time(
    carry: Carry, seen: Finishers, n: float, limit: float, in_flight: float
) -> tuple[Interval, Carry]:
    """How many of the cell's finishers met the TTFT limit, and the carry into the next cell.

    Of the requests with a first token, at least those leave that finished with an answer: an error may
    come before any token. The lower bound is of answers, the upper one of all.
    """
    if seen.ttft is None:
        return Interval(0.0, n), start(in_flight)
    answers = max(0.0, n - seen.not_answers)
    new = seen.ttft.count_below(limit) or exactly(0.0)
    group = max(carry.size + seen.ttft.count, answers)
    missed = group - carry.size - seen.ttft.count  # finished without a first token that we saw: unknown
    low = carry.in_time.low + new.low
    high = carry.in_time.high + new.high + missed

    staying = min(group - answers, in_flight)
    stay_high = min(staying, high)
    stay_low = min(max(0.0, low - (group - staying)), stay_high)

    at_finish = [h for h in (seen.queue_time, seen.prefill_time) if h is not None and h.count == n]
    finished_high = min(n, high, *(_below(h, limit).high for h in at_finish))
    finished_low = max(0.0, low - (group - answers))
    if seen.e2e is not None:
        finished_low = max(finished_low, _below(seen.e2e, limit).low - seen.not_answers)
    finished_low = min(finished_low, finished_high)
    return Interval(finished_low, finished_high), Carry(staying, Interval(stay_low, stay_high), limit)


def _fast(seen: Finishers, n: float, limit: float) -> Interval:
    """How many of the finishers met the TPOT limit; anything from none to all where it is not measured."""
    if seen.tpot is None or len(seen.tpot.bounds) == 1:
        return Interval(0.0, n)
    single = max(0.0, n - seen.tpot.count)  # one output token: no gap to be slow in
    below = _below(seen.tpot, limit)
    return Interval(min(n, below.low + single), min(n, below.high + single))


def _share_in_time(seen: Finishers, n: float, limit: float, finished: Interval) -> float:
    """Point estimate of the finishers' share within the TTFT limit: that of the cell's first tokens."""
    share = seen.ttft.fraction_below(limit) if seen.ttft is not None else None
    return finished.clip(_middle(share) * n) / n if share is not None else _middle(finished) / n


def _tokens(seen: Finishers) -> float | None:
    """Prompt and output tokens of all finishers; None where either is not known."""
    if seen.prompt_len is None or seen.generation_len is None:
        return None
    return _plus(seen.prompt_len.total, seen.generation_len.total)


def _good_tokens(seen: Finishers, n: float, total: float, good: Interval) -> Interval:
    """Bounds on the tokens of the good requests, out of `total`.

    k requests have at least the tokens of the k shortest; the rest of the proven sum is the upper bound.
    """
    if good.low >= n:
        return exactly(total)
    if good.high <= 0:
        return exactly(0.0)
    lengths = [h for h in (seen.prompt_len, seen.generation_len) if h is not None]
    low = sum(_least(h, good.low) for h in lengths)
    high = max(0.0, total - sum(_least(h, n - good.high) for h in lengths))
    return Interval(min(low, high), high)


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
    5xx, both None where the page has no such count; `rejected` those the engine refused for load, None
    where that could not be read.
    """

    rejected: float | None = 0.0
    answered: float | None = None
    server_errors: float | None = None

    def __add__(self, other: "Ends") -> "Ends":
        return Ends(
            _plus(self.rejected, other.rejected),
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
    cells: Sequence[Cell], window_seconds: float, enough: int, unmeasured: Reason | None
) -> Goodput:
    """Goodput over many cells, of one replica or of a pool.

    `unmeasured` is why the engine cannot be judged at all (it has no TTFT histogram, say), None where it can.
    Fewer than `enough` requests are too few to say: the counts are told, the ratio is not.
    """
    engines = sum((cell.engines for cell in cells), EngineCell())
    ends = sum((cell.ends for cell in cells), Ends(0.0, 0.0, 0.0))
    finished, shed = engines.requests, ends.rejected or 0.0
    failed = gave_up = 0.0
    by_http = bool(cells) and ends.answered is not None and ends.server_errors is not None
    if ends.answered is not None and ends.server_errors is not None:
        # Requests that finished with an error are among the finished; where the error came inside a stream
        # it is no 5xx. A refusal inside a stream is a 200 to the HTTP server too.
        failed = max(0.0, ends.server_errors - shed - engines.not_answers)
        gave_up = max(0.0, ends.answered + ends.server_errors - finished - shed - failed)
    requests = finished + shed + failed
    unread = engines.unknown or (Reason.NOT_A_NUMBER if ends.rejected is None else None)
    judged = unmeasured is None
    return Goodput(
        window_seconds=window_seconds,
        denominator=Denominator.HTTP if by_http else Denominator.FINISHED,
        requests=requests,
        finished=finished,
        failed=failed,
        shed=shed,
        gave_up=0.0 if unread else gave_up,
        tokens=engines.tokens,
        good_requests=engines.good if judged else None,
        good_requests_point=engines.good_point if judged else None,
        good_tokens=engines.good_tokens if judged else None,
        good_tokens_point=engines.good_tokens_point if judged else None,
        unknown=unmeasured or unread or _too_few(bool(cells), requests, enough),
    )


def _too_few(any_cell: bool, requests: float, enough: int) -> Reason | None:
    if not any_cell:
        return Reason.FIRST_SAMPLE
    if requests <= 0:
        return Reason.NO_TRAFFIC
    return Reason.TOO_FEW if requests < enough else None
