"""The histogram of sizes that a gateway reports: every request once, with what it held of a replica."""

import random

import pytest
from admission_gates import admitted, ask, gate, queued, reason, spec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.request import Fault
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted
from controlplane.policy.boundary.pair import PoolPair
from controlplane.policy.boundary.seen import merged
from controlplane.signals.decision import Mode
from controlplane.signals.size_class import SizeClass


def told(admission: Admission, now: float, pool: str = "chat") -> dict[int, SizeClass]:
    return merged(window.sizes for window in admission.windows(now) if window.pool == pool)


def test_a_request_counts_with_its_time_and_the_larger_of_what_it_reserved_and_used() -> None:
    admission = gate()
    usual = admitted(admission.offer(ask(800, 200), 0.0, 0.5))
    grown = admitted(admission.offer(ask(100, 100, sequences=2), 0.0, 0.5))
    admission.finished(usual, 4.0, Usage(800, 50))
    admission.finished(grown, 2.0, Usage(100, 400))
    assert told(admission, 10.0) == {
        1024: SizeClass(1, 1, 4.0, 4.0 * 1000),
        256: SizeClass(1, 1, 2.0 * 2, 2.0 * 500),
    }


def test_it_is_by_the_size_that_routed_it() -> None:
    """Not by what it became: that is what a boundary can act on."""
    admission = gate()
    ticket = admitted(admission.offer(ask(100, 100), 0.0, 0.5))
    admission.finished(ticket, 1.0, Usage(100, 20_000))
    assert set(told(admission, 5.0)) == {256}


def test_those_that_were_shed_are_offered_and_not_served() -> None:
    admission = gate(limit=1.0)
    admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(), 0.0, 0.5))
    assert reason(admission.poll(30.0)[0]) == "queue_wait_expired"
    assert told(admission, 40.0)[1024] == SizeClass(1, 0, 0.0, 0.0)


def test_wrong_requests_and_those_over_a_quota_are_no_demand() -> None:
    admission = gate(tenants={"t": {"sequences": 1}})
    assert reason(admission.offer(ask(10**6, 1, prompt_exact=True), 0.0, 0.5)) == "request_too_large"
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    assert reason(admission.offer(ask(), 0.0, 0.5)) == "tenant_in_flight_limit"
    admission.client_gone(ticket, 2.0)
    assert told(admission, 5.0) == {1024: SizeClass(1, 1, 2.0, 2.0 * 1000)}


def test_a_retry_is_one_request() -> None:
    admission = gate("r0", "r1")
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    assert isinstance(admission.failed(ticket, 1.0, Fault.UNREACHABLE, may_retry=True), Admitted)
    admission.finished(ticket, 3.0, Usage(800, 200))
    assert told(admission, 5.0) == {1024: SizeClass(1, 1, 2.0, 2.0 * 1000)}


def test_each_pool_has_its_own() -> None:
    admission = gate(
        spec("s", pool="short", max_model_len=8192),
        spec("l", pool="long"),
        pools=PoolPair(short="short", long="long", boundary=4096),
    )
    admission.set_boundary(6144)
    for prompt in (100, 9000):
        admission.finished(admitted(admission.offer(ask(prompt, 100), 0.0, 0.5)), 1.0, Usage(prompt, 100))
    windows = admission.windows(5.0)
    said = {(w.pool, w.boundary_tokens, w.longest_tokens) for w in windows}
    assert said == {("short", 6144, 8192), ("long", None, None)}
    assert merged(w.sizes for w in windows if w.pool == "short").keys() == {256}
    assert merged(w.sizes for w in windows if w.pool == "long").keys() == {12_288}


@pytest.mark.parametrize("mode", Mode)
def test_all_are_counted_once_whatever_becomes_of_them(mode: Mode) -> None:
    rng = random.Random(5)
    admission = gate("r0", "r1", limit=4.0, mode=mode)
    running, offered, ended, now = [], 0, [], 0.0
    for _ in range(600):
        now += rng.expovariate(8.0)
        verdicts = [
            admission.offer(ask(rng.randrange(10, 3000), 200), now, rng.random()),
            *admission.poll(now),
        ]
        offered += 1
        running += [verdict.ticket for verdict in verdicts if isinstance(verdict, Admitted)]
        while running and rng.random() < 0.5:
            ticket = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.2:
                admission.client_gone(ticket, now)
            else:
                admission.finished(ticket, now, Usage(ticket.request.prompt_tokens, 100))
            ended.append(ticket)
    for verdict in admission.poll(now + 100.0):
        if isinstance(verdict, Admitted):
            running.append(verdict.ticket)
    for ticket in running:
        admission.finished(ticket, now + 100.0, Usage(ticket.request.prompt_tokens, 100))
        ended.append(ticket)
    sizes = told(admission, now + 110.0)
    assert sum(size.offered for size in sizes.values()) == offered
    assert sum(size.served for size in sizes.values()) == len(ended)
