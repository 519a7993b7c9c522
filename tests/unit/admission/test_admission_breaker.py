"""The circuit breaker: each row of its table, and what must never happen."""

from collections.abc import Callable

import pytest
from admission_gates import admitted, ask, gate
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.breaker import Breaker, BreakerState
from controlplane.gateway.admission.request import Fault
from controlplane.gateway.admission.retries import RetryBudget
from controlplane.gateway.admission.settings import BreakerSettings, RetrySettings
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted

CLOSED, OPEN, HALF_OPEN = BreakerState
SETTINGS = BreakerSettings()
NOW = 1000.0
AFTER = NOW + SETTINGS.open_for


def closed() -> Breaker:
    return Breaker(SETTINGS)


def opened() -> Breaker:
    breaker = closed()
    for _ in range(SETTINGS.in_a_row):
        breaker.failed(breaker.send(NOW), NOW)
    return breaker


def half_open() -> Breaker:
    breaker = opened()
    assert breaker.allows(AFTER)
    return breaker


def one_trial() -> tuple[Breaker, int]:
    breaker = half_open()
    return breaker, breaker.send(AFTER)


def fails(breaker: Breaker, now: float) -> None:
    breaker.failed(breaker.send(now), now)


def succeeds(breaker: Breaker, now: float) -> None:
    breaker.succeeded(breaker.send(now), now)


def half_of_ten(breaker: Breaker, now: float) -> None:
    for _ in range(5):
        succeeds(breaker, now)
        fails(breaker, now)


def trial_passes(breaker: Breaker, now: float) -> None:
    assert breaker.allows(now)
    breaker.first_byte(breaker.send(now), now)


def trial_ends_well(breaker: Breaker, now: float) -> None:
    assert breaker.allows(now)
    succeeds(breaker, now)


def trial_without_a_verdict(breaker: Breaker, now: float) -> None:
    assert breaker.allows(now)
    breaker.ended(breaker.send(now))


def twice(event: Callable[[Breaker, float], object]) -> Callable[[Breaker, float], None]:
    def both(breaker: Breaker, now: float) -> None:
        event(breaker, now)
        event(breaker, now)

    return both


TABLE = [
    (closed, "a success", succeeds, NOW, CLOSED),
    (closed, "a failure", fails, NOW, CLOSED),
    (closed, "four failures in a row", twice(twice(fails)), NOW, CLOSED),
    (closed, "five failures in a row", lambda b, n: [fails(b, n) for _ in range(5)], NOW, OPEN),
    (closed, "half of ten fail", half_of_ten, NOW, OPEN),
    (
        closed,
        "half of four fail",
        lambda b, n: [(succeeds(b, n), fails(b, n)) for _ in range(2)],
        NOW,
        CLOSED,
    ),
    (opened, "not yet", lambda b, n: b.allows(n), AFTER - 0.01, OPEN),
    (opened, "its time is over", lambda b, n: b.allows(n), AFTER, HALF_OPEN),
    (half_open, "one trial has its first byte", trial_passes, AFTER, HALF_OPEN),
    (half_open, "two trials have", twice(trial_passes), AFTER, CLOSED),
    (half_open, "one trial ends well", trial_ends_well, AFTER, HALF_OPEN),
    (half_open, "two trials end well", twice(trial_ends_well), AFTER, CLOSED),
    (half_open, "a trial fails", fails, AFTER, OPEN),
    (half_open, "one of two fails", lambda b, n: (trial_passes(b, n), fails(b, n)), AFTER, OPEN),
    (
        half_open,
        "ten without a verdict",
        lambda b, n: [trial_without_a_verdict(b, n) for _ in range(10)],
        AFTER,
        HALF_OPEN,
    ),
]


@pytest.mark.parametrize(
    ("start", "name", "event", "now", "state"), TABLE, ids=[f"{s.__name__}: {n}" for s, n, *_ in TABLE]
)
def test_table(
    start: Callable[[], Breaker],
    name: str,
    event: Callable[[Breaker, float], object],
    now: float,
    state: BreakerState,
) -> None:
    breaker = start()
    event(breaker, now)
    assert breaker.state is state


def test_open_lets_nothing_through_and_says_until_when() -> None:
    breaker = opened()
    assert not breaker.allows(NOW)
    assert not breaker.allows(AFTER - 0.01)
    assert breaker.next_trial_at(NOW) == AFTER


def test_trials_are_capped() -> None:
    breaker = half_open()
    for _ in range(SETTINGS.trials):
        assert breaker.allows(AFTER)
        breaker.send(AFTER)
    assert not breaker.allows(AFTER)
    assert breaker.next_trial_at(AFTER) == AFTER + SETTINGS.trial_timeout


def test_a_trial_that_hangs_opens_it_again() -> None:
    """A half-open breaker must not stick (sglang#31206)."""
    breaker, _ = one_trial()
    assert breaker.allows(AFTER + SETTINGS.trial_timeout - 0.01)
    assert not breaker.allows(AFTER + SETTINGS.trial_timeout)
    assert breaker.state is OPEN


@pytest.mark.parametrize("shows", [Breaker.succeeded, Breaker.first_byte])
def test_answers_that_come_whole_and_late_close_it_all_the_same(
    shows: Callable[[Breaker, int, float], None],
) -> None:
    """Not streamed, a minute long each: no trial has a first byte within `trial_timeout`."""
    breaker, trial = one_trial()
    late = AFTER + 2 * SETTINGS.trial_timeout
    assert not breaker.allows(AFTER + SETTINGS.trial_timeout)
    shows(breaker, trial, late)
    assert breaker.state is CLOSED
    breaker.failed(trial, late)
    assert breaker.allows(late), "it has spoken"


def test_a_late_trial_that_fails_changes_nothing() -> None:
    breaker, trial = one_trial()
    assert not breaker.allows(AFTER + SETTINGS.trial_timeout)
    until = breaker.next_trial_at(AFTER + SETTINGS.trial_timeout)
    breaker.failed(trial, until - 1)
    breaker.succeeded(trial, until - 1)
    assert not breaker.allows(until - 1)


def test_the_time_it_stays_open_doubles_up_to_a_bound_and_starts_again_after_success() -> None:
    breaker, now = opened(), NOW
    spans = []
    for _ in range(6):
        until = breaker.next_trial_at(now)
        spans.append(until - now)
        now = until
        assert breaker.allows(now)
        fails(breaker, now)
    assert spans == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    now = breaker.next_trial_at(now)
    for _ in range(2):
        trial_passes(breaker, now)
    for _ in range(5):
        fails(breaker, now)
    assert breaker.next_trial_at(now) == now + 5.0


def test_those_sent_before_it_opened_do_not_speak_of_what_is_now() -> None:
    breaker = closed()
    old = [breaker.send(NOW) for _ in range(20)]
    for number in old[:5]:
        breaker.failed(number, NOW)
    assert breaker.allows(AFTER)
    for number in old[5:12]:
        breaker.failed(number, AFTER)
    for number in old[12:]:
        breaker.succeeded(number, AFTER)
    assert breaker.state is HALF_OPEN
    for _ in range(2):
        trial_passes(breaker, AFTER)
    for number in old:
        breaker.failed(number, AFTER)
    assert breaker.state is CLOSED


def test_old_failures_are_forgotten() -> None:
    breaker = closed()
    for i in range(100):
        now = NOW + i * SETTINGS.window
        fails(breaker, now)
        succeeds(breaker, now)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("fault", [Fault.CLIENT_ERROR, Fault.OVERLOADED])
def test_client_errors_and_overload_do_not_count(fault: Fault) -> None:
    """sglang#13894: a breaker that counts overload turns a full fleet into a dead one; #25811: so do 4xx."""
    admission = gate("r0")
    now = NOW
    for _ in range(50):
        now += 5.0
        assert admission.failed(admitted(admission.offer(ask(), now, 0.5)), now, fault) is None
    assert admission.status(now).replicas["r0"].breaker is CLOSED


def errors(admission: Admission, times: int) -> None:
    """Requests that end with a 500 wherever they are sent, each on another replica than the one before."""
    for i in range(times):
        verdict = admission.offer(ask(tenant="bad"), NOW, i / times)
        if isinstance(verdict, Admitted):
            admission.failed(verdict.ticket, NOW, Fault.ERROR)


@pytest.mark.parametrize(("replicas", "left"), [(1, 1), (2, 1), (3, 2), (8, 4)])
def test_a_tenant_whose_requests_end_with_a_500_does_not_shut_the_fleet(replicas: int, left: int) -> None:
    """vllm#47163: an image that cannot be fetched is a 500."""
    admission = gate(*(f"r{i}" for i in range(replicas)))
    errors(admission, 400)
    states = [replica.breaker for replica in admission.status(NOW).replicas.values()]
    assert states.count(CLOSED) == left
    admitted(admission.offer(ask(), NOW, 0.5))
    for _ in range(400):  # cuts are nobody's fault but the replica's
        verdict = admission.offer(ask(), NOW, 0.5)
        if isinstance(verdict, Admitted):
            admission.failed(verdict.ticket, NOW, Fault.BROKEN)
    assert {replica.breaker for replica in admission.status(NOW).replicas.values()} == {OPEN}


def test_a_client_that_hangs_up_does_not_count() -> None:
    admission = gate("r0")
    for _ in range(50):
        admission.client_gone(admitted(admission.offer(ask(), NOW, 0.5)), NOW)
    assert admission.status(NOW).replicas["r0"].breaker is CLOSED


def test_a_replica_that_fails_gets_nothing_until_its_trials_pass() -> None:
    admission = gate("r0", "r1")
    for _ in range(200):
        ticket = admitted(admission.offer(ask(), NOW, 0.1))
        if ticket.replica_name == "r0":
            admission.failed(ticket, NOW, Fault.BROKEN)
        else:
            admission.finished(ticket, NOW, Usage(800, 5))
    assert admission.status(NOW).replicas["r0"].breaker is OPEN
    assert all(admitted(admission.offer(ask(), NOW + 1, i / 20)).replica_name == "r1" for i in range(20))
    trials = [admitted(admission.offer(ask(), AFTER + 1, i / 20)) for i in range(20)]
    on_trial = [ticket for ticket in trials if ticket.replica_name == "r0"]
    assert len(on_trial) == SETTINGS.trials
    for ticket in on_trial:
        admission.first_token(ticket, AFTER + 2)
    assert admission.status(AFTER + 2).replicas["r0"].breaker is CLOSED


@given(st.lists(st.tuples(st.sampled_from("sfbenw"), st.integers(0, 30)), max_size=200))
def test_never_more_trials_than_allowed_and_never_stuck(events: list[tuple[str, int]]) -> None:
    breaker, now = closed(), NOW
    sent: list[int] = []
    for event, number in events:
        if event == "s" and breaker.allows(now):
            sent.append(breaker.send(now))
        elif event == "w":
            now += number
        elif sent and event in "fben":
            which = sent[number % len(sent)]
            if event == "f":
                breaker.failed(which, now)
            elif event == "b":
                breaker.first_byte(which, now)
            elif event == "e":
                breaker.succeeded(which, now)
            else:
                breaker.ended(which)
        assert len(breaker._trials) <= SETTINGS.trials
        assert now <= breaker.next_trial_at(now) <= now + SETTINGS.open_for_at_most
    later = now + SETTINGS.trial_timeout + 0.1
    breaker.allows(later)
    assert breaker.allows(later + SETTINGS.open_for_at_most), "it always comes back"


def test_retries_are_a_tenth_of_the_successes_and_a_few() -> None:
    budget = RetryBudget(RetrySettings())
    assert [budget.take(NOW) for _ in range(6)] == [True, True, True, True, True, False]
    for _ in range(100):
        budget.succeeded(NOW + 1)
    assert sum(budget.take(NOW + 1) for _ in range(50)) == 10
    assert sum(budget.take(NOW + 9) for _ in range(50)) == 0
    assert sum(budget.take(NOW + 30) for _ in range(50)) == 5, "both are of the last ten seconds"
