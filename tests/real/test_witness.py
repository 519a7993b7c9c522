"""The judge itself: what it holds for sure, for possible and for wrong."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.signals.interval import Interval, exactly
from controlplane.signals.samples import Scrape, Signals

from .history import Objective
from .load import Outcome, Record
from .witness import Judged, Verdict, Witness, sightings, tokens

OBJECTIVE = Objective(ttft_seconds=1.0, tpot_seconds=0.1)
OFFSET = 0.2


def request(start: float, first: float, last: float, answer: int = 11, **more: Any) -> Record:
    """Answered in full, unless `more` says otherwise; it ends with its last token."""
    fields = {"end": last, "outcome": Outcome.OK} | more
    return Record(
        index=0, due=start, start=start, first_token=first, last_token=last, asked_prompt_tokens=40,
        asked_output_tokens=answer, prompt_tokens=40, output_tokens=answer, **fields,
    )  # fmt: skip


def page(at: float, seconds: float = 0.0) -> Scrape:
    """A page that was read at that time; what it says does not matter here."""
    return Scrape("engine", at, seconds, "vllm", "", (), {}, Signals())


def good(*records: Record, blind: tuple[float, float] | None = None) -> Judged:
    """The good ones from second 10 to second 20."""
    seen = sightings(records, OFFSET, [blind] if blind else [])
    return Witness(seen).good(page(10.0), page(20.0), OBJECTIVE)


def test_what_is_far_from_every_edge_is_sure() -> None:
    fine, late, slow = request(12, 12.5, 13), request(12, 14, 14.5), request(12, 12.5, 15)
    elsewhere = request(2, 2.5, 3)
    assert good(fine, late, slow, elsewhere) == Judged(seen=1.0, possible=exactly(1.0))


@pytest.mark.parametrize(
    ("record", "seen", "possible"),
    [
        (request(12, 13.1, 13.5), 0, (0, 1)),  # its first token may have come in time
        (request(12, 12.9, 13.2), 1, (1, 1)),  # no token comes earlier to the client than it was
        (request(12, 12.5, 13.4), 1, (0, 1)),  # its first token may have been seen late, so gaps were longer
        (request(12, 12.5, 13.6), 0, (0, 1)),  # its last token may have been seen late
        (request(12, 12.5, 12.5, answer=1), 1, (1, 1)),  # a single token has no gap
        (request(9, 9.5, 10.1), 1, (0, 1)),  # it may have ended before the window
        (request(19, 19.5, 20.1), 0, (0, 1)),  # it may have ended in the window
        (request(9, 9.5, 9.9), 0, (0, 0)),
        (request(12, 12.5, 13, outcome=Outcome.TIMEOUT), 0, (0, 0)),
    ],
)
def test_what_is_close_to_an_edge_is_in_doubt(record: Record, seen: int, possible: tuple[int, int]) -> None:
    assert good(record) == Judged(seen=seen, possible=Interval(*possible))


def test_a_slow_page_was_written_some_time_before() -> None:
    ended = request(19, 19.5, 19.9)
    judged = Witness(sightings([ended], OFFSET, [])).good(page(10.0), page(20.0, seconds=0.3), OBJECTIVE)
    assert judged == Judged(seen=1.0, possible=Interval(0, 1))


def test_what_was_seen_after_looking_away_may_be_older() -> None:
    ended = request(19, 19.5, 21.0)
    assert good(ended).possible == exactly(0)
    assert good(ended, blind=(19.9, 21.0)) == Judged(seen=0.0, possible=Interval(0, 1))
    assert good(ended, blind=(19.9, 20.5)).possible == exactly(0)


def test_tokens_weigh_prompt_and_answer() -> None:
    witness = Witness(sightings([request(12, 12.5, 13)], OFFSET, []))
    judged = witness.good(page(10.0), page(20.0), OBJECTIVE, tokens)
    assert judged.seen == 51


@pytest.mark.parametrize(
    ("said", "is_"),
    [
        ((4, 6), Verdict.INSIDE),
        ((6, 8), Verdict.IN_DOUBT),
        ((8, 9), Verdict.OUTSIDE),
        ((0, 1), Verdict.OUTSIDE),
    ],
)
def test_verdicts(said: tuple[float, float], is_: Verdict) -> None:
    assert Judged(seen=5, possible=Interval(2, 7)).against(Interval(*said)) is is_


def test_hang_ups_reach_the_server_later() -> None:
    def gone(at: float) -> Judged:
        record = request(9, 9.5, 9.6, end=at, outcome=Outcome.CLIENT_ABORTED)
        return Witness(sightings([record], OFFSET, [])).hung_up(page(10.0), page(20.0))

    assert gone(15.0) == Judged(seen=1, possible=exactly(1))
    assert gone(10.0 - OFFSET / 2) == Judged(seen=0, possible=Interval(0, 1))
    assert gone(20.0 - OFFSET / 2) == Judged(seen=1, possible=Interval(0, 1))
    assert gone(9.7) == Judged(seen=0, possible=exactly(0))


def test_what_the_engine_holds() -> None:
    """Long under way, just sent, gone for a moment; blocks are 32 tokens of prompt and answer so far."""
    running = request(1, 2, 18, answer=161)  # at second 10 half of its answer, 81 tokens
    waiting = request(1, 15, 18)
    sent, gone, over = request(9.9, 15, 18), request(1, 2, 9.9), request(1, 2, 5)
    everyone = sightings([running, waiting, sent, gone, over], OFFSET, [])
    held = Witness(everyone).held(page(10.0))
    assert held.requests == Interval(2, 4)
    assert held.running_most == 2
    assert held.blocks.low == 4  # 119 tokens a moment before
    assert held.blocks.high == 4 + 2  # 123 tokens a moment later; and the 51 of the one that may be there


def test_what_died_with_its_server_may_not_have_been_counted() -> None:
    (ended,) = sightings([request(12, 12.5, 13)], OFFSET, [])
    ended.may_be_lost = True
    assert Witness([ended]).good(page(10.0), page(20.0), OBJECTIVE) == Judged(seen=0, possible=Interval(0, 1))
    assert Witness([ended]).finished(page(10.0), page(20.0)) == Judged(seen=0, possible=Interval(0, 1))
