"""What clients do in virtual time: send, wait, hang up, try again."""

from math import inf

import numpy as np
import pytest

from controlplane.simulator.arrivals import EvenGaps
from controlplane.simulator.clients import Action, Clients, HangUp, Send
from controlplane.simulator.lengths import Fixed
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.trace import TraceRow
from controlplane.simulator.workload import (
    Backoff,
    ClosedLoop,
    OpenLoop,
    Patience,
    Replay,
    Retry,
    Source,
)


def clients(*sources: Source, until: float = 100.0, seed: int = 1) -> Clients:
    return Clients(sources, np.random.default_rng(seed), until)


def once(at: float = 1.0, **more: object) -> Source:
    """One request of 10 tokens in, 5 out."""
    return Source("s", Replay((TraceRow(at, 10, 5),)), **more)  # type: ignore[arg-type]


def sends(actions: list[Action]) -> list[tuple[float, str]]:
    return [(action.at, action.request.id) for action in actions if isinstance(action, Send)]


def test_an_open_loop_sends_whatever_becomes_of_its_requests() -> None:
    source = Source("s", OpenLoop(RateCurve.constant(2.0), EvenGaps()), Fixed(10), Fixed(5))
    crowd = clients(source, until=10.0)
    actions = crowd.advance(inf)
    assert len(actions) == 20
    assert np.diff([action.at for action in actions]) == pytest.approx(0.5)
    assert crowd.in_flight == 20
    assert crowd.next_event_time() == inf


def test_a_replayed_trace_keeps_times_and_lengths() -> None:
    (send,) = clients(once(2.5)).advance(50.0)
    assert isinstance(send, Send)
    assert (send.at, send.request.prompt_tokens, send.request.output_tokens) == (2.5, 10, 5)


def test_a_closed_loop_has_one_request_a_user() -> None:
    source = Source("s", ClosedLoop(users=3, start_seconds=1.0), Fixed(10), Fixed(5))
    crowd = clients(source)
    first = crowd.advance(5.0)
    assert len(first) == 3
    assert all(0 <= action.at <= 1 for action in first)
    assert crowd.next_event_time() == inf
    crowd.finished(first[0].request.id, 7.0)
    assert sends(crowd.advance(7.0)) == [(7.0, "s-4")]
    crowd.refused(first[1].request.id, 8.0)
    assert crowd.next_event_time() == 8.0


def test_a_closed_loop_thinks_and_ends() -> None:
    source = Source("s", ClosedLoop(users=1, think_seconds=5.0), Fixed(10), Fixed(5))
    gaps = []
    for seed in range(300):
        crowd = clients(source, until=1000.0, seed=seed)
        crowd.advance(0.0)
        crowd.finished("s-1", 10.0)
        gaps.append(crowd.next_event_time() - 10.0)
    assert np.mean(gaps) == pytest.approx(5.0, rel=0.2)
    crowd = clients(source, until=10.0)
    crowd.advance(0.0)
    crowd.finished("s-1", 10.0)
    assert crowd.next_event_time() == inf


def test_an_impatient_client_hangs_up_without_a_first_token() -> None:
    crowd = clients(once(patience=Patience(first_token_seconds=2.0, end_seconds=30.0)))
    crowd.advance(1.0)
    assert crowd.advance(10.0) == [HangUp(3.0, "s-1")]
    assert (crowd.in_flight, crowd.tallies["s"].gave_up) == (0, 1)


def test_a_first_token_buys_patience_until_the_end() -> None:
    crowd = clients(once(patience=Patience(first_token_seconds=2.0, end_seconds=30.0)))
    crowd.advance(1.0)
    crowd.first_token("s-1")
    assert crowd.advance(30.9) == []
    assert crowd.advance(40.0) == [HangUp(31.0, "s-1")]


def test_an_answer_in_time_is_the_end() -> None:
    crowd = clients(once(patience=Patience(first_token_seconds=2.0), retry=Retry(Backoff.FIXED, 5, 1.0)))
    crowd.advance(1.0)
    crowd.finished("s-1", 2.0)
    assert crowd.advance(100.0) == []
    tally = crowd.tallies["s"]
    assert (tally.offered, tally.tries, tally.finished) == (1, 1, 1)


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [(Backoff.FIXED, [2.0, 2.0, 2.0, 2.0]), (Backoff.EXPONENTIAL, [2.0, 4.0, 8.0, 10.0])],
)
def test_retries_wait_as_their_backoff_says(backoff: Backoff, waits: list[float]) -> None:
    crowd = clients(once(retry=Retry(backoff, tries=5, first_seconds=2.0, longest_seconds=10.0)))
    now = 1.0
    crowd.advance(now)
    for tried, wait in enumerate(waits, start=1):
        crowd.refused("s-1" if tried == 1 else f"s-1.{tried}", now)
        now += wait
        assert sends(crowd.advance(now)) == [(now, f"s-1.{tried + 1}")]
    crowd.refused("s-1.5", now)
    assert crowd.advance(1000.0) == []
    tally = crowd.tallies["s"]
    assert (tally.offered, tally.tries, tally.refused, tally.finished) == (1, 5, 1, 0)


def test_full_jitter_is_uniform_up_to_the_exponential_wait() -> None:
    waits = []
    for seed in range(400):
        crowd = clients(once(retry=Retry(Backoff.FULL_JITTER, tries=3, first_seconds=4.0)), seed=seed)
        crowd.advance(1.0)
        crowd.refused("s-1", 1.0)
        crowd.advance(at := crowd.next_event_time())
        crowd.refused("s-1.2", at)
        waits.append((at - 1.0, crowd.next_event_time() - at))
    first, second = np.array(waits).T
    assert first.max() <= 4.0
    assert second.max() <= 8.0
    assert first.mean() == pytest.approx(2.0, rel=0.1)
    assert second.mean() == pytest.approx(4.0, rel=0.1)


def test_a_longer_retry_after_is_kept() -> None:
    crowd = clients(once(retry=Retry(Backoff.FIXED, 3, 2.0)))
    crowd.advance(1.0)
    crowd.refused("s-1", 1.0, retry_after_seconds=30.0)
    assert crowd.next_event_time() == 31.0


def test_a_hang_up_is_tried_again() -> None:
    crowd = clients(once(patience=Patience(first_token_seconds=2.0), retry=Retry(Backoff.FIXED, 2, 1.0)))
    actions = crowd.advance(50.0)
    assert [(type(action), action.at) for action in actions] == [
        (Send, 1.0),
        (HangUp, 3.0),
        (Send, 4.0),
        (HangUp, 6.0),
    ]
    assert crowd.tallies["s"].gave_up == 1


def test_a_retry_budget_bounds_the_retries() -> None:
    """1000 requests, all refused, retried up to 10 times: 10 of reserve and a tenth of the requests."""
    source = Source(
        *("s", OpenLoop(RateCurve.constant(10.0), EvenGaps()), Fixed(10), Fixed(5)),
        retry=Retry(Backoff.FIXED, tries=10, first_seconds=1.0, budget_ratio=0.1),
    )
    crowd = clients(source, until=100.0)
    while (at := crowd.next_event_time()) < inf:
        for action in crowd.advance(at):
            assert isinstance(action, Send)
            crowd.refused(action.request.id, at)
    tally = crowd.tallies["s"]
    assert tally.offered == tally.refused == 1000
    assert tally.tries - tally.offered == pytest.approx(110, abs=1)


def test_what_comes_after_a_hang_up_is_ignored() -> None:
    crowd = clients(once(patience=Patience(first_token_seconds=2.0)))
    crowd.advance(3.0)
    for tell in (crowd.finished, crowd.refused, crowd.failed):
        tell("s-1", 3.0)
    crowd.first_token("s-1")
    tally = crowd.tallies["s"]
    assert (tally.finished, tally.refused, tally.failed, tally.gave_up) == (0, 0, 0, 1)


def test_a_failure_is_counted_as_one() -> None:
    crowd = clients(once())
    crowd.advance(3.0)
    crowd.failed("s-1", 3.0)
    assert crowd.tallies["s"].failed == 1


def test_requests_carry_what_the_source_says() -> None:
    source = once(tenant="t", service_class="batch", priority=3, max_tokens=4, shared_prefix_tokens=64)
    (send,) = clients(source).advance(5.0)
    assert isinstance(send, Send)
    assert send.offer.source.tenant == "t"
    assert (send.request.priority, send.request.max_tokens, send.request.output_tokens) == (3, 4, 4)
    assert send.request.prefix[0].end_tokens == 10  # not more than the prompt


def test_one_source_does_not_change_another() -> None:
    one = Source("one", OpenLoop(RateCurve.constant(5.0)), Fixed(10), Fixed(5))
    quiet = Source("two", OpenLoop(RateCurve.constant(1.0)), Fixed(10), Fixed(5))
    busy = Source("two", OpenLoop(RateCurve.constant(50.0)), Fixed(10), Fixed(5))

    def of_one(actions: list[Action]) -> list[Action]:
        return [a for a in actions if isinstance(a, Send) and a.offer.source is one]

    assert of_one(clients(one, quiet).advance(inf)) == of_one(clients(one, busy).advance(inf))


def test_impossible_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="'s' needs lengths"):
        Source("s", OpenLoop(RateCurve.constant(1.0)), prompt=Fixed(1))
    with pytest.raises(ValueError, match="'s' replays a trace"):
        once(prompt=Fixed(1))
    with pytest.raises(ValueError, match="same name: s, s"):
        clients(once(), once())
