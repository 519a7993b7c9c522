"""Lays what clients saw beside what the daemon said, with the doubt that lies between the two.

A client is further away than the engine's own clock. A token or an end that the engine notes at one time
is seen by the client up to OFFSET_SECONDS later, never earlier. And a page is not written at the time at
which it has arrived, but at some time in the scrape before. So for a few requests it cannot be said from
outside in which of two windows they ended, or on which side of a limit they were for the engine. The
truth is then itself an interval, from what is sure to what is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.signals.interval import Interval
from controlplane.signals.samples import Scrape

from .history import History, Objective
from .load import Outcome, Record, Slo, finished_in

OFFSET_SECONDS = 0.2
"""Means of 5 ms (light load) to 60 ms (overload) were measured between engine and client on a machine of
two cores; single tokens are later, because engine, server and clients share the cores."""

BLOCK_TOKENS = 32

Weight = Callable[[Record], float]


def requests(record: Record) -> float:
    """Each request counts once."""
    return 1.0


def tokens(record: Record) -> float:
    """Each request counts with its prompt and its answer."""
    return float((record.prompt_tokens or 0) + record.output_tokens)


class Verdict(StrEnum):
    """Where the truth lies."""

    INSIDE = "inside"  # what the clients saw lies in the interval as it is
    WITHIN_OFFSET = "within the offset"  # only with the doubt about when the engine saw it
    OUTSIDE = "outside"


def verdict(seen: float, possible: Interval, said: Interval) -> Verdict:
    """Of an interval that was `said`; clients saw `seen`, and all of `possible` could be true."""
    if said.low - 1e-6 <= seen <= said.high + 1e-6:
        return Verdict.INSIDE
    overlap = possible.low <= said.high + 1e-6 and said.low - 1e-6 <= possible.high
    return Verdict.WITHIN_OFFSET if overlap else Verdict.OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A window between two pages, with the times at which they can have been written."""

    begin: Scrape
    end: Scrape

    @classmethod
    def between(cls, history: History, start: float, end: float) -> Span:
        """The window (start, end] whose bounds are the times of pages."""
        return cls(begin=history.page_before(start), end=history.page_before(end))

    def surely_holds(self, seen_at: float) -> bool:
        """Whether what a client saw at that time is on the last page and was not on the first."""
        not_before = seen_at - OFFSET_SECONDS > self.begin.at
        return not_before and seen_at <= self.end.at - self.end.seconds

    def may_hold(self, seen_at: float) -> bool:
        """Whether it can be so."""
        not_before = seen_at > self.begin.at - self.begin.seconds
        return not_before and seen_at - OFFSET_SECONDS <= self.end.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One window: what was seen, what is possible, and how much was there in all."""

    seen: float
    possible: Interval
    total: float


def judge(records: Sequence[Record], span: Span, objective: Objective, weight: Weight = requests) -> Judged:
    """The good ones among those that finished in the window."""
    slo = Slo(ttft_seconds=objective.ttft_seconds, tpot_seconds=objective.tpot_seconds)
    done = finished_in(records, span.begin.at, span.end.at)
    answered = [record for record in records if record.outcome is Outcome.OK]
    sure = [r for r in answered if span.surely_holds(r.end) and _surely_good(r, objective)]
    maybe = [r for r in answered if span.may_hold(r.end) and _maybe_good(r, objective)]
    return Judged(
        seen=sum(weight(record) for record in done if slo.met_by(record)),
        possible=Interval(sum(map(weight, sure)), sum(map(weight, maybe))),
        total=sum(map(weight, done)),
    )


def _surely_good(record: Record, objective: Objective) -> bool:
    # The engine's TTFT is never longer than the client's. Its mean gap may be, where the first token was
    # seen late and the last one at once; a single token has no gap.
    ttft, tpot = _latencies(record)
    slowest = 0.0 if record.output_tokens <= 1 else tpot + OFFSET_SECONDS / _gaps(record)
    return ttft <= objective.ttft_seconds and slowest <= objective.tpot_seconds


def _maybe_good(record: Record, objective: Objective) -> bool:
    ttft, tpot = _latencies(record)
    return (
        ttft - OFFSET_SECONDS <= objective.ttft_seconds
        and tpot - OFFSET_SECONDS / _gaps(record) <= objective.tpot_seconds
    )


def _latencies(record: Record) -> tuple[float, float]:
    ttft, tpot = record.ttft_seconds, record.tpot_seconds
    assert ttft is not None
    assert tpot is not None
    return ttft, tpot


def _gaps(record: Record) -> int:
    return max(record.output_tokens - 1, 1)


def count_of(times: Iterable[float], span: Span) -> Interval:
    """How many things that clients saw at those times are in the window."""
    seen = list(times)
    sure = sum(span.surely_holds(at) for at in seen)
    return Interval(sure, max(sure, sum(span.may_hold(at) for at in seen)))


# --- gauges -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the engine can have held when a page was written."""

    requests: Interval
    running_most: float
    blocks: Interval


def held(records: Iterable[Record], page: Scrape) -> Held:
    """From those that were open when the page was written, with the offset on both sides.

    Requests wait, or run and hold a KV block for each 32 tokens of prompt and answer so far. The gauges
    are those of the engine's last step, and a request that is on its way from or to its client is in none.
    """
    begin, end = page.at - page.seconds - OFFSET_SECONDS, page.at + OFFSET_SECONDS
    low = high = running = blocks_low = blocks_high = 0
    for record in records:
        if record.start > page.at or record.end < begin:
            continue
        sure = record.start <= begin and record.end >= end
        low += sure
        high += 1
        if record.first_token is None:
            # Whoever hung up before a token may have run; no client can tell.
            running += record.outcome is not Outcome.OK and record.end <= end
            continue
        if record.first_token <= end:
            running += 1
        blocks_high += _blocks(record, end)
        blocks_low += _blocks(record, begin) if sure and record.first_token <= begin else 0
    return Held(
        requests=Interval(low, high),
        running_most=running,
        blocks=Interval(blocks_low, blocks_high),
    )


def _blocks(record: Record, at: float) -> int:
    """KV blocks of a request that runs, its answer growing evenly from the first to the last token."""
    assert record.first_token is not None
    assert record.last_token is not None
    lasted = record.last_token - record.first_token
    share = 1.0 if lasted <= 0 else min(1.0, max(0.0, (at - record.first_token) / lasted))
    so_far = (record.prompt_tokens or 0) + 1 + share * max(0, record.output_tokens - 1)
    return -int(-so_far // BLOCK_TOKENS)
