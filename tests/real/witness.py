"""Lays what clients saw beside what the daemon said, with the doubt that lies between the two.

A client is further away than the engine's own clock. A token or an end that the engine notes at one time
is seen by the client a little later, never earlier, and later still where the client's process did not get
to run. And a page is not written at the time at which it has arrived, but at some time in the scrape
before. So for a few requests it cannot be said from outside in which of two windows they ended, or on
which side of a limit they were for the engine. The truth is then itself an interval, from what is sure to
what is possible.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controlplane.signals.interval import Interval
from controlplane.signals.samples import Scrape

from .history import Objective
from .load import Outcome, Record, Slo

BLIND_SECONDS = 0.05
"""A client's process that is so late looked away."""

BLOCK_TOKENS = 32
ROUNDING = 1e-6

Blind = list[tuple[float, float]]
"""Times (Unix seconds, in their order) from when to when the clients' process did not run."""

Weight = Callable[[Record], float]


def requests(_: Record) -> float:
    """Each request counts once."""
    return 1.0


def tokens(record: Record) -> float:
    """Each request counts with its prompt and its answer."""
    return float((record.prompt_tokens or 0) + record.output_tokens)


async def note_blindness(blind: Blind, period_seconds: float = 0.01) -> None:
    """Note each time that this event loop ran late, until cancelled."""
    while True:
        due = time.time() + period_seconds
        await asyncio.sleep(period_seconds)
        now = time.time()
        if now - due > BLIND_SECONDS:
            blind.append((due, now))


class Verdict(StrEnum):
    """Where the truth lies."""

    INSIDE = "inside"  # what the clients saw lies in the interval as it is
    IN_DOUBT = "in doubt"  # only with the doubt about when the engine saw it
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A number as clients saw it, and as it may be for the engine."""

    seen: float
    possible: Interval

    def against(self, said: Interval) -> Verdict:
        """The verdict on an interval that was said."""
        low, high = said.low - ROUNDING, said.high + ROUNDING
        if low <= self.seen <= high:
            return Verdict.INSIDE
        return (
            Verdict.IN_DOUBT if self.possible.low <= high and low <= self.possible.high else Verdict.OUTSIDE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the engine can have held when a page was written: requests, those that ran, KV blocks."""

    requests: Interval
    running_most: int
    blocks: Interval


class Sighting:
    """One request as its client saw it, and when at the earliest the engine can have done that.

    `offset_seconds` is how much later than the engine the client may see something. `may_be_lost` is for
    those that finished around the last page of a server that died: what counted them may have died with it.
    """

    def __init__(self, record: Record, offset_seconds: float, blind: Blind) -> None:
        self.record = record
        self.offset_seconds = offset_seconds
        self.may_be_lost = False
        self.answered = record.outcome is Outcome.OK
        self.gave_up = record.outcome in (Outcome.CLIENT_ABORTED, Outcome.TIMEOUT)
        self.earliest_end = self._look_back(record.end, blind)
        self.earliest_first = self._look_back(record.first_token or record.end, blind)
        self.earliest_last = self._look_back(record.last_token or record.end, blind)

    def _look_back(self, seen_at: float, blind: Blind) -> float:
        looked_away = (since for since, until in blind if since <= seen_at <= until + BLIND_SECONDS)
        return min(next(looked_away, seen_at), seen_at) - self.offset_seconds

    def ended_surely(self, begin: Scrape, end: Scrape) -> bool:
        """Whether its end was not on the first page and is on the last."""
        surely = self.earliest_end > begin.at and self.record.end <= end.at - end.seconds
        return surely and not self.may_be_lost

    def ended(self, begin: Scrape, end: Scrape) -> bool:
        """Whether it is so as the client saw it."""
        return begin.at <= self.record.end < end.at and not self.may_be_lost

    def ended_maybe(self, begin: Scrape, end: Scrape) -> bool:
        """Whether that can be."""
        return self.record.end > begin.at - begin.seconds and self.earliest_end <= end.at

    def left_surely(self, begin: Scrape, end: Scrape) -> bool:
        """As `ended_surely` for a client that hung up: the server learns of that later, not earlier."""
        latest = self.record.end + self.offset_seconds
        return self.record.end > begin.at and latest <= end.at - end.seconds

    def left_maybe(self, begin: Scrape, end: Scrape) -> bool:
        """Whether that can be."""
        latest = self.record.end + self.offset_seconds
        return latest > begin.at - begin.seconds and self.record.end <= end.at

    def good(self, objective: Objective) -> tuple[bool, bool]:
        """Whether an answered request surely is good for the engine, and whether it can be."""
        first, last = self.record.first_token, self.record.last_token
        assert first is not None
        assert last is not None
        gaps = max(self.record.output_tokens - 1, 1)
        # Either token can have been seen late, so the engine's mean gap lies around the client's.
        shortest = max(0.0, self.earliest_last - first) / gaps
        longest = 0.0 if self.record.output_tokens <= 1 else (last - self.earliest_first) / gaps
        ttft, tpot = objective.ttft_seconds, objective.tpot_seconds
        surely = first - self.record.start <= ttft and longest <= tpot
        return surely, surely or (self.earliest_first - self.record.start <= ttft and shortest <= tpot)

    def blocks(self, at: float) -> int:
        """KV blocks while it runs, its answer growing evenly from the first to the last token."""
        first, last = self.record.first_token, self.record.last_token
        assert first is not None
        assert last is not None
        share = 1.0 if last <= first else min(1.0, max(0.0, (at - first) / (last - first)))
        so_far = (self.record.prompt_tokens or 0) + 1 + share * max(0, self.record.output_tokens - 1)
        return -int(-so_far // BLOCK_TOKENS)


class Witness:
    """All sightings of a run, or some of them."""

    def __init__(self, sightings: Sequence[Sighting]) -> None:
        self.sightings = sightings
        self.answered = [sighting for sighting in sightings if sighting.answered]
        self.gave_up = [sighting for sighting in sightings if sighting.gave_up]

    def good(self, begin: Scrape, end: Scrape, objective: Objective, weight: Weight = requests) -> Judged:
        """The good ones among those that finished between two pages."""
        slo = Slo(ttft_seconds=objective.ttft_seconds, tpot_seconds=objective.tpot_seconds)
        seen = sure = possible = 0.0
        for one in self.answered:
            if not one.ended_maybe(begin, end):
                continue
            counts, (surely, maybe) = weight(one.record), one.good(objective)
            seen += counts * (one.ended(begin, end) and slo.met_by(one.record))
            sure += counts * (surely and one.ended_surely(begin, end))
            possible += counts * maybe
        return Judged(seen=seen, possible=Interval(sure, possible))

    def finished(self, begin: Scrape, end: Scrape) -> Judged:
        """How many requests finished between two pages."""
        return Judged(
            seen=sum(one.ended(begin, end) for one in self.answered),
            possible=Interval(
                sum(one.ended_surely(begin, end) for one in self.answered),
                sum(one.ended_maybe(begin, end) for one in self.answered),
            ),
        )

    def hung_up(self, begin: Scrape, end: Scrape) -> Judged:
        """How many clients went away between two pages."""
        return Judged(
            seen=sum(one.ended(begin, end) for one in self.gave_up),
            possible=Interval(
                sum(one.left_surely(begin, end) for one in self.gave_up),
                sum(one.left_maybe(begin, end) for one in self.gave_up),
            ),
        )

    def held(self, page: Scrape) -> Held:
        """What was open when the page was written, with the doubt on both sides.

        Requests wait, or run and hold a KV block for each 32 tokens of prompt and answer so far. The
        gauges are those of the engine's last step, and a request that is on its way from or to its client
        is in none.
        """
        low = high = running = blocks_low = blocks_high = 0
        for one in self.sightings:
            record, offset = one.record, one.offset_seconds
            begin, end = page.at - page.seconds - offset, page.at + offset
            if record.start > page.at or record.end < begin:
                continue
            sure = record.start <= begin and one.earliest_end >= page.at
            low, high = low + sure, high + 1
            if record.first_token is None:
                running += record.end <= end  # its first token may have been on its way when it hung up
            elif one.earliest_first <= page.at:
                running += 1
                blocks_high += one.blocks(end)
                blocks_low += one.blocks(begin) if sure and record.first_token <= begin else 0
        blocks = Interval(blocks_low, max(blocks_low, blocks_high))
        return Held(requests=Interval(low, high), running_most=running, blocks=blocks)


def sightings(records: Iterable[Record], offset_seconds: float, blind: Blind) -> list[Sighting]:
    """All of them with the same offset."""
    return [Sighting(record, offset_seconds, blind) for record in records]
