"""Lives of single requests through the facade, the windows that are told of them, retries, observing."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from admission_gates import BATCH, admitted, ask, gate, queued, reason, spec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import Rotation
from controlplane.gateway.admission.request import Fault
from controlplane.gateway.admission.settings import (
    AdmissionSettings,
    ClassSettings,
    RetrySettings,
    RoutingSettings,
    TenantSettings,
)
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused
from controlplane.policy.boundary.pair import PoolPair
from controlplane.signals.control import Grant
from controlplane.signals.decision import Mode
from controlplane.signals.samples import OutcomeWindow

SHARED = Path(__file__).parents[3] / "tests/cases/data"


def window(admission: Admission, now: float) -> OutcomeWindow:
    windows = admission.windows(now)
    assert windows
    return windows[0]


# Windows


def test_one_request_in_its_window() -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(100, 50), 0.0, 0.5))
    admission.first_token(ticket, 0.2)
    for i in range(5):
        admission.tokens(ticket, 1, 0.2 + i * 0.03)
    admission.finished(ticket, 0.4, Usage(prompt_tokens=110, completion_tokens=5))
    told = window(admission, 1.0)
    assert (told.gateway, told.pool, told.start, told.end) == ("gw", "chat", 0.0, 1.0)
    assert (told.offered, told.finished, told.good, told.failed, told.gave_up) == (1, 1, 1, 0, 0)
    assert (told.tokens, told.good_tokens, told.tokens_by_tenant) == (115, 115, {"t": 115})
    assert (told.in_flight, told.queued) == (0, 0)
    assert told.wait is not None
    assert (told.wait.count, told.wait.mean) == (1, 0.0)
    replica = told.replicas["r0"]
    assert (replica.sent, replica.finished, replica.in_flight, replica.max_in_flight) == (1, 1, 0, 1)
    assert replica.first_token is not None
    assert replica.first_token.p90 == pytest.approx(0.2)
    assert replica.gaps == 4
    assert replica.gap_seconds == pytest.approx(0.12)
    assert replica.output_tokens == 5
    assert replica.token_steps == 5 * (110 + 2.5)
    assert admission.windows(1.5) == ()


def test_what_is_written_before_anything_can_be_seen_is_neither_late_nor_a_gap() -> None:
    """A tool call that an engine keeps back until it is whole: 200 tokens within 4 s, and one piece."""
    admission = gate()
    ticket = admitted(admission.offer(ask(100, 500), 0.0, 0.5))
    admission.first_token(ticket, 0.2)
    admission.tokens(ticket, 1, 4.2)
    admission.tokens(ticket, 1, 4.22)
    admission.finished(ticket, 4.22, Usage(prompt_tokens=100, completion_tokens=201))
    windows = admission.windows(5.0)
    replicas = [window.replicas["r0"] for window in windows]
    assert sum(seen.late for seen in replicas) == 0
    assert sum(seen.slow for seen in replicas) == 0
    assert sum(seen.gaps for seen in replicas) == 1
    assert sum(seen.gap_seconds for seen in replicas) == pytest.approx(0.02)
    assert sum(window.good for window in windows) == 1


def test_what_writes_nothing_has_its_first_token_with_its_end() -> None:
    """Embeddings: the law of limits would see nothing of them, and never grow."""
    admission = gate()
    whole = {"streams": False, "sequences": 8}
    embeds = admitted(admission.offer(ask(4000, 0, **whole), 0.0, 0.5))
    admission.finished(embeds, 0.3, Usage(prompt_tokens=4000, completion_tokens=0))
    unknown = admitted(admission.offer(ask(4000, 200, **whole), 0.3, 0.5))
    admission.finished(unknown, 0.6)
    first = window(admission, 1.0).replicas["r0"].first_token
    assert first is not None
    assert (first.count, first.mean) == (1, pytest.approx(0.3))


def test_gaps_of_chunks_and_of_several_sequences() -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    admission.tokens(ticket, 3, 0.1)  # three at once: two gaps of nothing
    admission.tokens(ticket, 5, 0.2)
    four = admitted(admission.offer(ask(sequences=4), 0.2, 0.5))
    for step in range(3):
        for _ in range(4):
            admission.tokens(four, 1, 0.3 + step * 0.05)
    replica = window(admission, 1.0).replicas["r0"]
    assert replica.gaps == 2 + 5 + 11
    assert replica.gap_seconds == pytest.approx(0.1 + 2 * 4 * 0.05), "each of the four waited 50 ms, twice"
    assert replica.in_flight == 5


@pytest.mark.parametrize(
    ("first", "last", "output", "streams", "good"),
    [
        (2.4, 2.4 + 9 * 0.05, 10, True, True),
        (2.6, 2.7, 10, True, False),
        (1.0, 1.0 + 9 * 0.06, 10, True, False),
        (1.0, 9.0, 1, True, True),
        (None, 2.5 + 9 * 0.05, 10, False, True),
        (None, 2.6 + 9 * 0.05, 10, False, False),
    ],
)
def test_good_is_both_objectives(
    first: float | None, last: float, output: int, streams: bool, good: bool
) -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(streams=streams), 0.0, 0.5))
    if first is not None:
        admission.first_token(ticket, first)
    admission.finished(ticket, last, Usage(100, output))
    windows = admission.windows(20.0)
    assert sum(told.good for told in windows) == good
    assert sum(told.good_tokens for told in windows) == good * (100 + output)


@pytest.mark.parametrize(("first", "late"), [(2.4, 0), (2.6, 1)])
def test_a_first_token_is_late_by_what_passed_since_the_offer(first: float, late: int) -> None:
    """Time in the queue is in it, unlike in what the engine took."""
    admission = gate(limit=1.0)
    before = admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(), 0.0, 0.5))
    admission.first_token(before, 0.1)
    admission.finished(before, 0.5, Usage(100, 5))
    (ticket,) = [admitted(verdict) for verdict in admission.poll(0.5)]
    admission.first_token(ticket, first)
    replica = admission.windows(3.0)[-1].replicas["r0"]
    assert replica.late == late
    assert replica.first_token is not None
    assert replica.first_token.p90 == pytest.approx(first - 0.5)


@pytest.mark.parametrize(("end", "slow"), [(2.5 + 9 * 0.05, 0), (2.6 + 9 * 0.05, 1)])
def test_an_answer_that_comes_whole_is_judged_by_both_objectives_together(end: float, slow: int) -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(streams=False), 0.0, 0.5))
    admission.finished(ticket, end, Usage(100, 10))
    replica = admission.windows(20.0)[-1].replicas["r0"]
    assert (replica.paced, replica.slow, replica.whole_tokens) == (1, slow, 9)
    assert (replica.first_token, replica.gaps) == (None, 0)


@pytest.mark.parametrize("streams", [True, False])
def test_the_first_token_of_an_answer_of_one_is_its_end(streams: bool) -> None:
    admission = gate()
    admission.finished(admitted(admission.offer(ask(streams=streams), 0.0, 0.5)), 2.6, Usage(100, 1))
    replica = admission.windows(20.0)[-1].replicas["r0"]
    assert replica.first_token is not None
    assert (replica.first_token.p90, replica.late) == (2.6, 1)
    assert (replica.paced, replica.slow, replica.whole_tokens) == (0, 0, 0)


def test_an_answer_of_which_nothing_is_known_tells_no_first_token() -> None:
    admission = gate()
    admission.finished(admitted(admission.offer(ask(streams=False), 0.0, 0.5)), 2.6)
    assert admission.windows(20.0)[-1].replicas["r0"].first_token is None


def test_each_class_has_its_objective() -> None:
    admission = gate(batch=ClassSettings(ttft="1m", tpot="1s"))
    ticket = admitted(admission.offer(ask(service_class=BATCH), 0.0, 0.5))
    admission.first_token(ticket, 50.0)
    admission.finished(ticket, 60.0, Usage(100, 11))
    assert sum(told.good for told in admission.windows(70.0)) == 1


def test_windows_of_an_idle_time_are_one_and_old_ones_are_not_kept_for_ever() -> None:
    admission = gate()
    admission.finished(admitted(admission.offer(ask(), 0.5, 0.5)), 0.6)
    admission.finished(admitted(admission.offer(ask(), 100.5, 0.5)), 100.6)
    assert [(told.start, told.end, told.finished) for told in admission.windows(101.0)] == [
        (0.0, 100.0, 1),
        (100.0, 101.0, 1),
    ]
    for i in range(3000):
        admission.finished(admitted(admission.offer(ask(), 102.0 + i, 0.5)), 102.5 + i)
    kept = admission.windows(4000.0)
    assert len(kept) <= 602
    assert kept[-1].end == 4000.0


def test_a_client_s_error_is_none_of_the_fleet_s() -> None:
    admission = gate(spec("r0", kv_tokens=1000, max_model_len=900))
    assert reason(admission.offer(ask(5000, prompt_exact=True), 0.0, 0.5)) == "request_too_large"
    ticket = admitted(admission.offer(ask(100, 100), 0.0, 0.5))
    admission.failed(ticket, 0.1, Fault.CLIENT_ERROR)
    told = window(admission, 1.0)
    assert (told.offered, told.failed, told.shed, told.client_errors) == (0, 0, {}, 2)
    assert told.tokens == 0


# Ends


def test_E1_a_client_that_hangs_up_is_charged_for_what_it_got_and_holds_nothing() -> None:
    """Case E1, the books of it: 200 hang-ups in the middle of a stream, then a normal request."""
    case_limit = 4
    admission = gate(spec("r0", kv_tokens=50_000), tenants={"t": TenantSettings(sequences=case_limit)})
    for i in range(200):
        at = float(i)
        ticket = admitted(admission.offer(ask(10, 4000), at, 0.5))
        for token in range(26):
            admission.tokens(ticket, 1, at + 0.2 + token * 0.02)
        admission.client_gone(ticket, at + 0.8)
        admission.client_gone(ticket, at + 0.8)
    status = admission.status(200.0).replicas["r0"]
    assert (status.sequences, status.reserved_tokens, status.open_sequences) == (0, 0, 0)
    assert status.breaker == "closed"
    told = admission.windows(201.0)
    assert sum(each.gave_up for each in told) == 200
    assert sum(each.failed for each in told) == 0
    assert sum(each.tokens_by_tenant.get("t", 0) for each in told) == 200 * (10 + 26)
    assert admission.counters.account("t", "chat").counter == 200 * (10 + 2 * 26)
    for _ in range(case_limit):
        admitted(admission.offer(ask(), 201.0, 0.5))
    assert reason(admission.offer(ask(), 201.0, 0.5)) == "tenant_in_flight_limit"


def test_hanging_up_in_the_queue() -> None:
    admission = gate(limit=1.0)
    admitted(admission.offer(ask(), 0.0, 0.5))
    waits = queued(admission.offer(ask(), 0.0, 0.5))
    admission.client_gone(waits, 0.1)
    assert admission.status(0.1).queued_requests == 0
    assert admission.poll(5.0) == []
    told = window(admission, 5.0)
    assert (told.gave_up, told.tokens) == (1, 0)


@pytest.mark.parametrize(("fault", "tokens", "charged"), [(Fault.BROKEN, 0, 0), (Fault.BROKEN, 7, 107)])
def test_E3_failed_streams_are_charged_what_was_seen(fault: Fault, tokens: int, charged: int) -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(100, 50), 0.0, 0.5))
    admission.tokens(ticket, tokens, 0.1)
    assert admission.failed(ticket, 0.2, fault) is None
    told = window(admission, 1.0)
    assert (told.failed, told.good, told.tokens) == (1, 0, charged)
    assert told.replicas["r0"].failed == 1
    assert (told.replicas["r0"].first_token is None) is (tokens == 0), "no first token is not one after 0 s"


# Retries


def pair(**more: Any) -> Admission:
    return gate("r0", "r1", **more)


def test_a_retry_goes_to_another_replica() -> None:
    admission = pair()
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    first = ticket.replica_name
    assert admitted(admission.failed(ticket, 0.1, Fault.BROKEN, may_retry=True)) is ticket
    assert ticket.replica_name != first
    status = admission.status(0.1).replicas
    assert status[str(first)].sequences == 0
    assert status[str(ticket.replica_name)].sequences == 1
    assert admission.failed(ticket, 0.2, Fault.BROKEN, may_retry=True) is None, "a retry is not retried"
    told = window(admission, 1.0)
    assert (told.offered, told.failed) == (1, 1)
    assert sum(replica.failed for replica in told.replicas.values()) == 2


def test_a_retry_waits_where_there_is_no_room_and_goes_first() -> None:
    admission = pair(limit=1.0)
    one = admitted(admission.offer(ask(), 0.0, 0.5))
    two = admitted(admission.offer(ask(), 0.0, 0.5))
    behind = queued(admission.offer(ask(), 0.1, 0.5))
    assert queued(admission.failed(one, 0.2, Fault.UNREACHABLE, may_retry=True)) is one
    assert admitted(admission.poll(0.2)[0]) is behind, "on the replica that failed the other"
    admission.finished(two, 0.3)
    assert admitted(admission.poll(0.3)[0]) is one


@pytest.mark.parametrize(
    ("may_retry", "request_fields", "tokens", "fault"),
    [
        (False, {}, 0, Fault.BROKEN),
        (True, {"retry": True}, 0, Fault.BROKEN),
        (True, {}, 1, Fault.BROKEN),
        (True, {}, 0, Fault.CLIENT_ERROR),
    ],
    ids=["bytes were sent", "marked as a retry", "a token came", "the client's error"],
)
def test_what_is_not_retried(
    may_retry: bool, request_fields: dict[str, bool], tokens: int, fault: Fault
) -> None:
    admission = pair()
    ticket = admitted(admission.offer(ask(**request_fields), 0.0, 0.5))
    admission.tokens(ticket, tokens, 0.1)
    assert admission.failed(ticket, 0.2, fault, may_retry=may_retry) is None
    assert ticket.has_ended


def test_nor_is_there_a_retry_without_another_replica_or_budget() -> None:
    admission = gate("r0")
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    assert admission.failed(ticket, 0.1, Fault.BROKEN, may_retry=True) is None
    admission = pair(retries=RetrySettings(least=2))
    verdicts = []
    for _ in range(4):
        ticket = admitted(admission.offer(ask(), 0.0, 0.5))
        verdicts.append(admission.failed(ticket, 0.0, Fault.UNREACHABLE, may_retry=True))
    assert [verdict is not None for verdict in verdicts] == [True, True, False, False]
    assert admission.status(0.0).counts["retries"] == 2
    assert admission.status(0.0).counts["retries_refused"] == 2


def test_E8_a_stale_connection_is_resent_once() -> None:
    admission = pair(retries=RetrySettings(least=1))
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    assert admission.may_resend(ticket, 0.1)
    assert not admission.may_resend(ticket, 0.1)
    assert admission.failed(ticket, 0.2, Fault.BROKEN, may_retry=True) is None, "never run a third time"
    other = admitted(admission.offer(ask(), 0.3, 0.5))
    assert not admission.may_resend(other, 0.3), "over the budget"


def test_a_replica_that_dies_in_a_quiet_fleet_costs_nobody_an_answer() -> None:
    """Until the breaker opens, each request that it fails can be sent elsewhere."""
    admission = pair()
    rng = random.Random(1)
    failed_at = Counter[str]()
    for step in range(40):
        now = step * 0.5
        verdict: Any = admission.offer(ask(), now, rng.random())
        ticket = admitted(verdict)
        if verdict.replica == "r1":
            failed_at["r1"] += 1
            verdict = admission.failed(ticket, now, Fault.UNREACHABLE, may_retry=True)
            ticket = admitted(verdict)
            assert verdict.replica == "r0"
        admission.first_token(ticket, now + 0.1)
        admission.finished(ticket, now + 0.2)
    assert 5 <= failed_at["r1"] <= 8


# Objectives by pool


def test_each_pool_has_its_own_objectives() -> None:
    objectives = {"slow": {"interactive": {"ttft": "30s", "tpot": "1s"}}}
    fast, slow = spec("f", models=("small",)), spec("s", pool="slow", models=("big",))
    admission = gate(fast, slow, limit=1.0, objectives=objectives)
    both = [admitted(admission.offer(ask(model=model), 0.0, 0.5)) for model in ("small", "big")]
    waiting = [queued(admission.offer(ask(model=model), 0.0, 0.5)) for model in ("small", "big")]
    assert [ticket.start_by for ticket in waiting] == [2.5, 30.0]
    for running in both:
        admission.first_token(running, 10.0)
        admission.finished(running, 20.0, Usage(800, 100))
    told = {window.pool: window for window in admission.windows(21.0)}
    assert (told["chat"].finished, told["chat"].good) == (1, 0)
    assert (told["slow"].finished, told["slow"].good) == (1, 1)
    batch = admission.offer(ask(model="big", service_class=BATCH), 21.0, 0.5)
    assert queued(batch).start_by == 21.0 + 120.0, "what is not said is as everywhere"


def test_a_line_that_moves_to_another_pool_takes_its_objective() -> None:
    objectives = {"slow": {"interactive": {"ttft": "30s", "tpot": "1s"}}}
    admission = gate("f", limit=1.0, objectives=objectives)
    admitted(admission.offer(ask(), 0.0, 0.5))
    assert queued(admission.offer(ask(), 0.0, 0.5)).start_by == 2.5
    admission.set_replicas([spec("s", pool="slow")], 1.0)
    admission.set_limits({"s": 1.0}, {}, 1.0)
    admission.poll(1.0)
    assert queued(admission.offer(ask(), 1.0, 0.5)).start_by == 31.0


# Observing


def test_observing_delays_and_refuses_nobody_and_counts() -> None:
    quota = TenantSettings(tokens_per_minute=30_000)
    admission = gate("r0", "r1", limit=5.0, mode=Mode.OBSERVE, tenants={"poor": quota})
    rng = random.Random(2)
    running = []
    now = 0.0
    for step in range(2000):
        now = step * 0.01
        tenant = "poor" if step % 4 == 0 else "t"
        running.append((now + 1.0, admitted(admission.offer(ask(tenant=tenant), now, rng.random()))))
        while running[0][0] <= now:
            ticket = running.pop(0)[1]
            admission.first_token(ticket, now)
            admission.finished(ticket, now, Usage(800, 100))
        assert admission.poll(now) == []
    told = admission.windows(now + 1.0)
    assert sum(sum(each.shed.values()) for each in told) == 0
    would: Counter[str] = Counter()
    for each in told:
        would.update(each.would_shed)
    # Ten a second fit, and the tenant's quota allows about 80 of its 500.
    assert sum(would.values()) == pytest.approx(2000 - 10 * 20 - 15, rel=0.01)
    assert would["tenant_token_quota"] == pytest.approx(420, abs=20)
    status = admission.status(now)
    assert abs(status.replicas["r0"].open_sequences - status.replicas["r1"].open_sequences) <= 4
    assert all(replica.sequences <= 5 for replica in status.replicas.values())
    for _, ticket in running:
        admission.finished(ticket, now)
    status = admission.status(now)
    assert [replica.open_sequences for replica in status.replicas.values()] == [0, 0]
    for step in range(50):
        admission.poll(now + step * 0.1)
    status = admission.status(now + 5.0)
    assert status.queued_requests == 0
    assert all((r.sequences, r.reserved_tokens) == (0, 0) for r in status.replicas.values()), (
        "the books follow"
    )


def test_observing_says_of_the_same_load_what_enforcing_does() -> None:
    """What is let in and what would be are the same, within two per cent."""
    served = {}
    for mode in Mode:
        admission = gate("r0", "r1", limit=10.0, mode=mode)
        rng = random.Random(2)
        running: list[tuple[float, Any]] = []
        for step in range(3000):
            now = step * 0.02
            verdicts = [admission.offer(ask(), now, rng.random())]
            while running and running[0][0] <= now:
                ticket = running.pop(0)[1]
                admission.first_token(ticket, now)
                admission.finished(ticket, now, Usage(800, 100))
            verdicts += admission.poll(now)
            running += [(now + 1.0, each.ticket) for each in verdicts if isinstance(each, Admitted)]
        told = admission.windows(now)
        shed = sum(sum((each.would_shed if mode is Mode.OBSERVE else each.shed).values()) for each in told)
        served[mode] = 3000 - shed
    assert served[Mode.ENFORCE] == pytest.approx(20 * 61 + 15, rel=0.02)
    assert served[Mode.OBSERVE] == pytest.approx(served[Mode.ENFORCE], rel=0.02)


def would_be_shed(mode: Mode, load: float, each_slows_by: float) -> float:
    """The share that is shed, or would be, once the load has risen to `load` of what two engines can do.

    An engine with n sequences takes 10 ms + n * `each_slows_by` for a token of each.
    """
    limit, dt, tokens = 10.0, 0.02, 100
    capacity = 2 * limit / (tokens * (0.01 + each_slows_by * limit))
    admission = gate("r0", "r1", limit=limit, mode=mode)
    rng = random.Random(1)
    running: dict[str, list[list[Any]]] = {"r0": [], "r1": []}
    due, offered, shed = 0.0, 0, 0
    for tick in range(int(160 / dt)):
        now = tick * dt
        due += capacity * load * min(1.0, now / 80) * dt
        verdicts: list[Any] = []
        while due > rng.random():
            due -= 1
            offered += now > 100
            verdicts.append(admission.offer(ask(400, 100), now, rng.random()))
        for row in running.values():
            step = dt / (0.01 + each_slows_by * len(row))
            for each in row:
                each[1] -= step
                if each[1] <= 0:
                    admission.first_token(each[0], now)
                    admission.finished(each[0], now, Usage(400, each[2]))
            row[:] = [each for each in row if each[1] > 0]
        for verdict in (*verdicts, *admission.poll(now)):
            if isinstance(verdict, Admitted):
                written = rng.randint(50, 150)
                running[verdict.replica].append([verdict.ticket, float(written), written])
        for window in admission.windows(now):
            counted = window.would_shed if mode is Mode.OBSERVE else window.shed
            shed += sum(counted.values()) if window.start > 100 else 0
    return shed / offered


@pytest.mark.parametrize(("load", "each_slows_by"), [(1.3, 0.0), (1.3, 0.001), (2.0, 0.001), (1.5, 0.004)])
def test_observing_says_it_of_engines_that_it_overruns_too(load: float, each_slows_by: float) -> None:
    """There requests run for much longer than they would: by their real times up to all would be shed."""
    enforced = would_be_shed(Mode.ENFORCE, load, each_slows_by)
    assert enforced == pytest.approx(1 - 1 / load, abs=0.04)
    assert would_be_shed(Mode.OBSERVE, load, each_slows_by) == pytest.approx(enforced, abs=0.12)


def test_the_mode_changes_without_losing_anybody() -> None:
    admission = gate(limit=1.0)
    first = admitted(admission.offer(ask(), 0.0, 0.5))
    waiting = [queued(admission.offer(ask(), 0.1, 0.5)) for _ in range(3)]
    admission.set_mode(Mode.OBSERVE, 0.2)
    assert admission.next_poll_at(0.2) == 0.2
    assert [admitted(verdict) for verdict in admission.poll(0.2)] == waiting
    more = admitted(admission.offer(ask(), 0.3, 0.5))
    assert more.is_queued, "in the books"
    admission.set_mode(Mode.ENFORCE, 0.4)
    assert admission.poll(0.4) == []
    assert not more.is_queued
    late = queued(admission.offer(ask(), 0.5, 0.5))
    for ticket in (first, *waiting, more):
        admission.finished(ticket, 0.6)
    assert admitted(admission.poll(0.6)[0]) is late
    admission.finished(late, 0.7)
    status = admission.status(0.7)
    assert status.replicas["r0"].open_sequences == status.replicas["r0"].sequences == 0


def test_observing_the_books_are_closed_with_the_request() -> None:
    quota = TenantSettings(tokens_per_minute=60_000, sequences=10)
    admission = gate(limit=1.0, mode=Mode.OBSERVE, tenants={"t": quota})
    first = admitted(admission.offer(ask(), 0.0, 0.5))
    late = admitted(admission.offer(ask(), 0.0, 0.5))
    assert late.is_queued
    assert admission.poll(3.0) == []
    assert sum(sum(each.would_shed.values()) for each in admission.windows(4.0)) == 1
    assert late.shadow, "it would have been refused by now"
    level = admission.quotas.levels(3.0)["t"]
    assert level.sequences == 1, "so that its quota is back"
    admission.finished(first, 4.5, Usage(800, 200))
    status = admission.status(4.5).replicas["r0"]
    assert (status.sequences, status.reserved_tokens, status.open_sequences) == (0, 0, 1)
    admission.finished(late, 5.0, Usage(800, 200))
    assert admission.counters.account("t", "chat").counter == 800 + 400, (
        "what would not have run costs nothing"
    )


def test_what_is_refused_at_zero_is_demand_for_the_pool_that_would_serve_it() -> None:
    admission = gate(spec("r0", pool="chat", models=("m",)), spec("r1", pool="embed", models=("e",)))
    admission.set_replicas([spec("r1", pool="embed", models=("e",))], 1.0)
    assert reason(admission.offer(ask(model="m"), 1.0, 0.5)) == "unknown_model"
    admission.set_empty_pools({"chat": frozenset({"m"})})
    assert reason(admission.offer(ask(model="m"), 1.0, 0.5)) == "no_ready_replica"
    assert reason(admission.offer(ask(model="none"), 1.0, 0.5)) == "unknown_model"
    admission.set_empty_pools({"chat": frozenset({"m"}), "new": frozenset()})
    assert reason(admission.offer(ask(model="none"), 1.0, 0.5)) == "no_ready_replica", "who knows?"
    assert {told.pool: told.shed for told in admission.windows(3.0) if told.start == 1.0} == {
        "chat": {"no_ready_replica": 1},
        "new": {"no_ready_replica": 1},
        "embed": {},
    }
    starting = spec("r0", pool="chat", models=("m",), rotation=Rotation.STARTING, ready_expected_at=60.0)
    admission.set_replicas([starting], 3.0)
    admission.set_empty_pools({})
    assert reason(admission.offer(ask(model="m"), 3.0, 0.5)) == "replica_starting_from_zero"


def test_observing_without_a_replica_is_a_refusal_all_the_same() -> None:
    admission = Admission(AdmissionSettings(), gateway="gw", now=0.0)
    assert admission.mode is Mode.OBSERVE, "the default"
    assert reason(admission.offer(ask(), 0.0, 0.5)) == "no_ready_replica"


# Settings


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PoolPair(short="a", long="a"), "two pools"),
        (lambda: RoutingSettings(spill_shuts_at=0.9), "spill_shuts_at"),
        (lambda: RoutingSettings(spill_into_at_most=0.9), "spill_into_at_most"),
        (lambda: RoutingSettings(stale_after="2m"), "stale_after"),
        (lambda: AdmissionSettings.model_validate({"breaker": {"open_for": "2m"}}), "open_for"),
        (lambda: AdmissionSettings.model_validate({"queues": {}}), "queues"),
        (lambda: AdmissionSettings.model_validate({"interactive": {"ttft": 2.5, "tpot": "50ms"}}), "unit"),
    ],
)
def test_wrong_settings_are_named(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_settings_as_people_write_them() -> None:
    text = """
mode: enforce
interactive: {ttft: 1s, tpot: 40ms}
tenants:
  acme: {weight: 3, tokens_per_minute: 600000, sequences: 64}
pools: {short: small, long: big, boundary: 6144}
queue: {hold_back: 20%}
standing_share: 0.5
"""
    made = AdmissionSettings.model_validate(yaml.safe_load(text))
    assert made.interactive.ttft == 1.0
    assert made.tenant("acme").weight == 3
    assert made.tenant("nobody").tokens_per_minute is None
    assert made.queue.hold_back == 0.2


def test_a_grant_of_an_older_leader_is_refused() -> None:
    admission = gate(limit=10.0)
    assert admission.take_grant(Grant("gw", 0.5, 100.0, term=2, version=1), 0.0)
    assert not admission.take_grant(Grant("gw", 1.0, 100.0, term=1, version=9), 0.0)
    assert admission.status(0.0).replicas["r0"].limit == 5.0
    admission.poll(100.0)
    assert admission.status(100.0).replicas["r0"].limit == 10.0, "back at the standing share"


def test_the_same_calls_give_the_same_answers() -> None:
    def run() -> list[str]:
        admission = gate("r0", "r1", "r2", limit=3.0)
        rng = random.Random(8)
        running = []
        told = []
        for step in range(800):
            now = step * 0.02
            verdicts: list[Any] = [
                admission.offer(
                    ask(rng.randrange(10, 4000), tenant=f"t{rng.randrange(9)}", prefix=rng.randrange(5)),
                    now,
                    rng.random(),
                )
            ]
            if running and rng.random() < 0.5:
                admission.finished(running.pop(rng.randrange(len(running))), now)
            for verdict in [*verdicts, *admission.poll(now)]:
                if isinstance(verdict, Admitted):
                    running.append(verdict.ticket)
                    told.append(f"{verdict.ticket.id} {verdict.replica}")
                elif isinstance(verdict, Refused):
                    told.append(f"{verdict.refusal.reason} {verdict.refusal.retry_after}")
                else:
                    assert isinstance(verdict, Queued)
        return told

    assert run() == run()


def test_one_that_was_queued_twice_waits_in_vain_once() -> None:
    """A retried request has the timer of its first wait as well as that of its second."""
    admission = gate("a", "b", limit=1.0)
    first = [admission.offer(ask(), 0.0, 0.5) for _ in range(3)]
    admission.finished(admitted(first[0]), 0.1, Usage(prompt_tokens=800, completion_tokens=5))
    (later,) = admission.poll(0.1)
    queued(admission.offer(ask(), 0.1, 0.5))
    assert isinstance(admission.failed(admitted(later), 0.2, Fault.UNREACHABLE, may_retry=True), Queued)
    assert len(admission.poll(50.0)) == 2
    assert admission.poll(100.0) == []
