"""A queue that CoDel shortens: `drop: codel`."""

import math
from itertools import accumulate

import pytest
from admission_gates import admitted, ask, gate, queued, spec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.settings import ClassSettings, Dropping, QueueSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.verdict import Admitted, Refused
from controlplane.signals.decision import Mode

PATIENT = ClassSettings(ttft="100s", tpot="1s")
TARGET_SECONDS, INTERVAL_SECONDS = 0.1, 1.0
SERVICE_SECONDS = 0.05


def dropping(drop: Dropping = Dropping.CODEL) -> QueueSettings:
    """For those who would wait for 100 s: only CoDel refuses anybody."""
    return QueueSettings(
        drop=drop,
        overload_wait_target=TARGET_SECONDS / PATIENT.ttft,
        overload_interval=INTERVAL_SECONDS / PATIENT.ttft,
        wait_while_overloaded=1.0,
    )


class Counter:
    """One place, free again each 50 ms; `per_service` newcomers of a flood for each."""

    def __init__(self, drop: Dropping = Dropping.CODEL) -> None:
        self.now = 0.0
        self.gate: Admission = gate(limit=1.0, interactive=PATIENT, queue=dropping(drop))
        self.served: list[tuple[float, Ticket]] = []
        self.dropped: list[tuple[float, Ticket]] = []

    def run(self, seconds: float, per_service: int = 2) -> None:
        for _ in range(round(seconds / SERVICE_SECONDS)):
            for _ in range(per_service):
                self.offer("flood")
            self.now += SERVICE_SECONDS
            if self.served:
                self.gate.finished(self.served[-1][1], self.now)
            for verdict in self.gate.poll(self.now):
                if isinstance(verdict, Admitted):
                    self.served.append((self.now, verdict.ticket))
                    continue
                assert verdict.ticket is not None
                assert verdict.refusal.reason == "queue_wait_expired"
                assert "in a queue that has become too long" in verdict.refusal.message
                self.dropped.append((self.now, verdict.ticket))

    def offer(self, tenant: str) -> None:
        verdict = self.gate.offer(ask(tenant=tenant), self.now, 0.5)
        if isinstance(verdict, Admitted):
            self.served.append((self.now, verdict.ticket))
        else:
            queued(verdict)


def test_drops_come_at_the_square_root_schedule() -> None:
    counter = Counter()
    counter.run(8.0)
    at = [when for when, _ in counter.dropped]
    begin = at[0]
    # It stands once its oldest has waited for the target, and is judged an interval later.
    assert begin == pytest.approx(TARGET_SECONDS + INTERVAL_SECONDS, abs=3 * SERVICE_SECONDS)
    schedule = [
        begin,
        *(begin + x for x in accumulate(INTERVAL_SECONDS / math.sqrt(n) for n in range(1, 12))),
    ]
    assert len(at) >= len(schedule)
    for real, expected in zip(at, schedule, strict=False):
        assert 0.0 <= real - expected + 1e-9 <= SERVICE_SECONDS + 1e-6


def test_the_oldest_are_dropped_and_a_place_is_never_left_empty() -> None:
    counter = Counter()
    counter.run(8.0)
    left = [ticket.id for _, ticket in sorted(counter.served + counter.dropped, key=lambda each: each[1].id)]
    assert left == list(range(left[0], left[0] + len(left)))
    assert len(counter.served) == round(8.0 / SERVICE_SECONDS) + 1


def test_a_burst_is_not_a_queue_that_stands() -> None:
    counter = Counter()
    for _ in range(3):
        counter.run(SERVICE_SECONDS, per_service=18)
        counter.run(20 * SERVICE_SECONDS, per_service=0)
    assert counter.dropped == []


def test_who_is_served_at_once_pays_for_nobody_s_queue() -> None:
    counter = Counter()
    for _ in range(40):
        counter.run(0.2)
        counter.offer("polite")
    assert {ticket.request.tenant for _, ticket in counter.dropped} == {"flood"}
    assert sum(ticket.request.tenant == "polite" for _, ticket in counter.served) >= 39


def test_by_default_nobody_is_dropped_before_the_time_is_up() -> None:
    counter = Counter(Dropping.WAIT)
    counter.run(8.0)
    assert counter.dropped == []


def test_observing_it_drops_in_the_books_only() -> None:
    """All run, two at a time for 50 ms each; in the books there is one place."""
    admission = gate(limit=1.0, interactive=PATIENT, queue=dropping(), mode=Mode.OBSERVE)
    windows, now = [], 0.0
    for _ in range(160):
        running = [admitted(admission.offer(ask(), now, 0.5)) for _ in range(2)]
        now += SERVICE_SECONDS
        for ticket in running:
            admission.finished(ticket, now)
        assert admission.poll(now) == []
        windows += admission.windows(now)
    assert sum(window.would_shed.get("queue_wait_expired", 0) for window in windows) > 10
    assert not any(window.shed for window in windows)


def test_the_oldest_may_have_claimed_a_replica() -> None:
    """It waits for more memory than becomes free there, while small ones go on elsewhere."""
    fleet = [spec("r0", kv_tokens=10_000), spec("r1", kv_tokens=10_000)]
    admission = gate(*fleet, interactive=PATIENT, queue=dropping())
    small = [admitted(admission.offer(ask(4000, 1000), 0.0, 0.1)) for _ in range(4)]
    big = queued(admission.offer(ask(8000, 1000), 0.0, 0.1))
    admission.poll(0.0)
    claimed = big.claim
    assert claimed is not None
    running = next(ticket for ticket in small if ticket.replica is not claimed)
    now = 0.0
    while not big.has_ended:
        for _ in range(2):
            queued(admission.offer(ask(4000, 1000), now, 0.1))
        now += SERVICE_SECONDS
        admission.finished(running, now)
        verdicts = admission.poll(now)
        running = admitted(verdicts[-1])
    assert now == pytest.approx(TARGET_SECONDS + INTERVAL_SECONDS, abs=3 * SERVICE_SECONDS)
    refused = verdicts[0]
    assert isinstance(refused, Refused)
    assert (refused.ticket, len(verdicts)) == (big, 2)
    assert big.claim is None
    assert claimed.claimant is not big


def test_who_is_dropped_while_claimants_are_served_is_not_served_too() -> None:
    """The younger one has claimed first, for its tenant got less; both would find room now."""
    fleet = [spec(name, kv_tokens=20_000) for name in ("r0", "r1", "r2")]
    admission = gate(*fleet, interactive=PATIENT, queue=dropping())
    small = [admitted(admission.offer(ask(4000, 1000), 0.0, 0.1)) for _ in range(12)]
    older = queued(admission.offer(ask(8000, 1000, tenant="ahead"), 0.0, 0.1))
    younger = queued(admission.offer(ask(8000, 1000, tenant="behind"), 0.01, 0.1))
    admission.counters.account("ahead", "chat").charge(100)
    assert admission.poll(0.02) == []
    assert list(admission._queue.claimants.values()) == [younger, older]
    free = [ticket for ticket in small if ticket.replica not in (younger.claim, older.claim)]
    queued(admission.offer(ask(4000, 1000), 0.5, 0.1))
    admission.finished(free.pop(), 0.5)
    (served,) = admission.poll(0.5)  # from now on the queue is over the target
    free.append(admitted(served))
    now = 0.5 + INTERVAL_SECONDS
    for _ in range(3):
        queued(admission.offer(ask(4000, 1000), now, 0.1))
    for ticket in free:
        admission.finished(ticket, now)
    verdicts = admission.poll(now)
    assert isinstance(verdicts[0], Refused)
    told = [verdict.ticket for verdict in verdicts]
    assert told[:2] == [older, younger]
    assert told.count(older) == 1
