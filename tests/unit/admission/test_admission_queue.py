"""The queue: bounded by time, tested at the offer and at the dequeue, fair to the old and to the large."""

import heapq
import random
from collections import Counter
from collections.abc import Callable

import pytest
from admission_gates import AGENT, BATCH, INTERACTIVE, admitted, ask, gate, queued, reason, spec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.engine_part import EnginePart
from controlplane.gateway.admission.replica import ReplicaReading, ReplicaSpec
from controlplane.gateway.admission.request import Request
from controlplane.gateway.admission.rolling import RollingSum
from controlplane.gateway.admission.service_rate import ServiceRate
from controlplane.gateway.admission.settings import ClassSettings, QueueSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused

TTFT = 2.5


class Load:
    """Requests that run for as long as `seconds` says, with a first token after `first` seconds."""

    def __init__(
        self, admission: Admission, seconds: Callable[[Request], float], first: float = 0.05
    ) -> None:
        self.admission = admission
        self.seconds = seconds
        self.first = first
        self.now = 0.0
        self.events: list[tuple[float, int, str, Ticket]] = []
        self.waits: dict[str, list[float]] = {}
        self.refused: Counter[tuple[str, str]] = Counter()
        self.rng = random.Random(6)

    def hear(self, verdict: Admitted | Queued | Refused, name: str = "") -> None:
        if isinstance(verdict, Admitted):
            ticket = verdict.ticket
            self.waits.setdefault(ticket.request.model or ticket.request.tenant, []).append(
                self.now - ticket.offered_at
            )
            run = self.seconds(ticket.request)
            heapq.heappush(self.events, (self.now + min(self.first, run), ticket.id, "first", ticket))
            heapq.heappush(self.events, (self.now + run, ticket.id, "last", ticket))
        elif isinstance(verdict, Refused):
            tenant = verdict.ticket.request.tenant if verdict.ticket else name
            self.refused[tenant, verdict.refusal.reason.value] += 1

    def until(self, now: float) -> None:
        """Everything that ends up to then, and the polls in between."""
        while True:
            poll_at = self.admission.next_poll_at(self.now)
            at = min(self.events[0][0] if self.events else now, max(poll_at, self.now), now)
            self.now = at
            while self.events and self.events[0][0] <= at:
                _, _, what, ticket = heapq.heappop(self.events)
                if what == "first":
                    self.admission.first_token(ticket, at)
                else:
                    self.admission.finished(ticket, at, Usage(ticket.request.prompt_tokens, 10))
            for verdict in self.admission.poll(at):
                self.hear(verdict)
            if at >= now:
                return

    def offer(self, request: Request) -> None:
        self.hear(self.admission.offer(request, self.now, self.rng.random()), request.tenant)


# What time does


def test_the_wait_is_bounded_by_the_objective_less_the_engine_s_part() -> None:
    load = Load(gate(limit=1.0), lambda request: 1.0, first=0.5)
    for i in range(8):
        load.until(i * 1.01)
        load.offer(ask())
    admission = load.admission
    load.until(10.0)
    admitted(admission.offer(ask(), 10.0, 0.5))
    ticket = queued(admission.offer(ask(), 10.0, 0.5))
    assert admission.poll(10.0 + TTFT - 0.5 - 0.01) == []
    verdict = admission.poll(10.0 + TTFT - 0.5 + 0.01)[0]
    assert isinstance(verdict, Refused)
    assert verdict.ticket is ticket
    assert verdict.refusal.reason == "queue_wait_expired"
    assert "waited for 2.0 s" in verdict.refusal.message


def test_nobody_who_is_too_late_is_let_in() -> None:
    """The test at the dequeue: a place that becomes free after the time is up goes to somebody else."""
    admission = gate(limit=1.0)
    first = admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(tenant="early"), 0.0, 0.5))
    late = queued(admission.offer(ask(tenant="late"), 2.0, 0.5))
    admission.finished(first, 2.6)
    verdicts = admission.poll(2.6)
    assert [type(each).__name__ for each in verdicts] == ["Refused", "Admitted"]
    assert admitted(verdicts[1]) is late


def test_the_engine_s_part_never_latches_shut() -> None:
    """However slow the engine was: it is capped, and it is forgotten."""
    admission = gate(limit=1.0)
    for i in range(10):
        ticket = admitted(admission.offer(ask(), i * 60.0, 0.5))
        admission.first_token(ticket, i * 60.0 + 50.0)
        admission.finished(ticket, i * 60.0 + 51.0)
    now = 592.0
    admitted(admission.offer(ask(), now, 0.5))
    queued(admission.offer(ask(), now, 0.5))
    part = admission.status(now).lines[0].engine_part_seconds
    assert part == 0.0, "one sample a minute is too few to say"
    assert admission.poll(now + TTFT - 0.01) == []


def test_the_engine_s_part_is_the_75th_percentile_and_capped() -> None:
    part = EnginePart()
    for _ in range(4):
        part.add(0.0, 1.0)
    assert part.seconds(0.0) == 0.0, "too few"
    for i in range(96):
        part.add(0.0, i / 100)
    assert part.seconds(1.0) == pytest.approx(0.75, abs=0.05)
    for _ in range(200):
        part.add(2.0, 100.0)
    assert part.seconds(3.0) == 100.0
    assert part.seconds(70.0) == 0.0, "forgotten"

    admission = gate(limit=1.0)
    for _ in range(20):
        ticket = admitted(admission.offer(ask(), 0.0, 0.5))
        admission.first_token(ticket, 100.0)
        admission.finished(ticket, 100.0)
    admitted(admission.offer(ask(), 100.0, 0.5))
    queued(admission.offer(ask(), 100.0, 0.5))
    assert admission.poll(100.0 + 0.2 * TTFT - 0.01) == [], "0.2 of the objective is left to wait in any case"
    assert reason(admission.poll(100.0 + 0.2 * TTFT + 0.01)[0]) == "queue_wait_expired"


def test_a_client_s_own_deadline_counts() -> None:
    admission = gate(limit=1.0)
    admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(deadline_at=0.5), 0.0, 0.5))
    queued(admission.offer(ask(deadline_at=500.0), 0.0, 0.5))
    assert admission.poll(0.49) == []
    assert [reason(each) for each in admission.poll(0.51)] == ["queue_wait_expired"]
    assert [reason(each) for each in admission.poll(TTFT + 0.01)] == ["queue_wait_expired"]
    assert reason(admission.offer(ask(deadline_at=3.0), 3.1, 0.5)) == "deadline_over"


def test_at_the_offer_what_is_ahead_is_compared_with_the_wait_bound() -> None:
    load = Load(gate(limit=10.0), lambda request: 1.0)
    for step in range(400):  # four times the capacity of ten a second
        load.until(step * 0.025)
        load.offer(ask())
    status = load.admission.status(load.now)
    line = status.lines[0]
    bound = 0.3 * TTFT
    assert line.overloaded[0]
    assert line.cap_requests[0] == pytest.approx(10 * bound, rel=0.3)
    assert line.cap_tokens[0] == pytest.approx(10_000 * bound, rel=0.3)
    assert status.queued_requests <= 1.4 * 10 * bound
    assert load.refused["t", "queue_full"] > 200
    assert load.refused["t", "queue_wait_expired"] < load.refused["t", "queue_full"]
    assert len(load.waits["t"]) >= 100, "and all of the capacity is used"


def test_the_first_seconds_of_an_overload_refuse_nobody_blindly() -> None:
    """Before anything is known of the rate, nothing is ahead of anybody."""
    admission = gate(limit=1.0)
    admitted(admission.offer(ask(), 0.0, 0.5))
    for _ in range(500):
        queued(admission.offer(ask(), 0.0, 0.5))


def test_memory_s_bounds_hold_all_the_same() -> None:
    admission = gate(limit=1.0, queue=QueueSettings(most_requests=10, most_tokens=100_000))
    admitted(admission.offer(ask(), 0.0, 0.5))
    for _ in range(10):
        queued(admission.offer(ask(), 0.0, 0.5))
    assert reason(admission.offer(ask(), 0.0, 0.5)) == "queue_full"
    admission = gate(limit=1.0, queue=QueueSettings(most_requests=10, most_tokens=5000))
    admitted(admission.offer(ask(), 0.0, 0.5))
    for _ in range(5):
        queued(admission.offer(ask(), 0.0, 0.5))
    assert reason(admission.offer(ask(), 0.0, 0.5)) == "queue_full"


# Overload


def test_overload_shortens_the_wait_of_those_who_are_served() -> None:
    load = Load(gate(limit=20.0), lambda request: 1.0)
    for step in range(40 * 30):
        load.until(step * 0.025)
        load.offer(ask())
    late = load.waits["t"][len(load.waits["t"]) // 2 :]
    assert max(late) <= 0.3 * TTFT + 0.1
    assert len(load.waits["t"]) / load.now == pytest.approx(20, rel=0.05), "the fleet is kept full"
    for _ in range(40):  # it ends
        load.until(load.now + 0.1)
        load.offer(ask())
    load.until(load.now + 5.0)
    admitted(load.admission.offer(ask(), load.now, 0.5))


def test_a_burst_is_no_overload() -> None:
    load = Load(gate(limit=10.0), lambda request: 0.5)
    for _ in range(40):
        load.offer(ask())
    load.until(10.0)
    assert not load.refused
    assert max(load.waits["t"]) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("newest_first", [False, True])
def test_newest_first_while_overloaded(newest_first: bool) -> None:
    settings = QueueSettings(newest_first_while_overloaded=newest_first)
    load = Load(gate(limit=10.0, queue=settings), lambda request: 1.0)
    for step in range(40 * 20):
        load.until(step * 0.025)
        load.offer(ask())
    late = sorted(load.waits["t"][-100:])
    assert (late[50] < 0.15) is newest_first, late[50]


# Classes


def test_the_lower_classes_leave_room_for_the_higher() -> None:
    admission = gate(limit=20.0)
    for service_class, most in ((BATCH, 18), (AGENT, 19), (INTERACTIVE, 20)):
        for _ in range(40):
            admission.offer(ask(service_class=service_class), 0.0, 0.5)
            admission.poll(0.0)
        assert admission.status(0.0).replicas["r0"].sequences == most


def test_a_higher_class_goes_first() -> None:
    admission = gate(limit=1.0)
    running = admitted(admission.offer(ask(), 0.0, 0.5))
    batch = queued(admission.offer(ask(service_class=BATCH), 0.0, 0.5))
    agent = queued(admission.offer(ask(service_class=AGENT), 0.1, 0.5))
    person = queued(admission.offer(ask(service_class=INTERACTIVE), 0.2, 0.5))
    for expected in (person, agent, batch):
        admission.finished(running, 0.3)
        running = admitted(admission.poll(0.3)[0])
        assert running is expected


def test_age_counts_as_class() -> None:
    """A third of its time away from being dropped, batch counts as interactive."""
    admission = gate(limit=1.0)
    first = admitted(admission.offer(ask(), 0.0, 0.5))
    batch = queued(admission.offer(ask(service_class=BATCH, tenant="b"), 0.0, 0.5))
    ranks = []
    for now in (39.0, 41.0, 79.0, 81.0, 119.0):
        assert admission.poll(now) == []
        ranks.append(batch.rank)
    assert ranks == [2, 1, 1, 0, 0]
    admission.finished(first, 119.5)
    assert admitted(admission.poll(119.5)[0]) is batch
    assert admission.status(119.5).counts["risen"] == 2


def test_nobody_starves_under_a_flood_of_a_higher_class() -> None:
    """Interactive requests are three times the capacity; the others get through, each in its time."""
    objectives = {
        "interactive": ClassSettings(ttft="2500ms", tpot="50ms"),
        "agent": ClassSettings(ttft="6s", tpot="1s"),
        "batch": ClassSettings(ttft="20s", tpot="1s"),
    }
    load = Load(gate(limit=10.0, **objectives), lambda request: 0.5)
    asked: Counter[str] = Counter()
    for step in range(60 * 60):
        load.until(step / 60)
        load.offer(ask(tenant=f"flood{step % 3}"))
        if step % 60 == 0:
            for name, service_class in (("agent", AGENT), ("batch", BATCH)):
                asked[name] += 1
                load.offer(ask(tenant=name, service_class=service_class))
    load.until(load.now + 20.0)
    for name, most in (("agent", 6.0), ("batch", 20.0)):
        assert len(load.waits[name]) >= 0.95 * asked[name], load.refused
        assert max(load.waits[name]) <= most


# The large


def test_a_large_request_is_not_starved_by_small_ones_nor_stops_the_fleet() -> None:
    replicas = [spec(f"r{i}", kv_tokens=10_000) for i in range(4)]
    wide = ClassSettings(ttft="30s", tpot="1s")
    load = Load(gate(*replicas, interactive=wide), lambda request: 1.0)
    for step in range(30 * 100):
        load.until(step / 100)
        load.offer(ask(800, 100, tenant="small"))
        if step % 500 == 250:
            load.offer(ask(8000, 500, tenant="large"))
    load.until(60.0)
    assert len(load.waits["large"]) == 6
    assert max(load.waits["large"]) < 3.0
    assert len(load.waits["small"]) > 30 * 36, "of 44 places a second, three replicas are always in use"


def test_a_claim_keeps_one_replica_and_is_given_up_with_it() -> None:
    admission = gate(spec("r0", kv_tokens=10_000), spec("r1", kv_tokens=10_000))
    small = [admitted(admission.offer(ask(4000, 1000), 0.0, 0.1)) for _ in range(4)]
    big = queued(admission.offer(ask(8000, 1000), 0.0, 0.1))
    admission.poll(0.0)
    claimed = big.claim
    assert claimed is not None
    assert admission.status(0.0).claims == 1
    for ticket in small:
        if ticket.replica is not claimed:
            admission.finished(ticket, 0.1)
            break
    other = admitted(admission.offer(ask(4000, 1000), 0.1, 0.1)) if admission.poll(0.1) == [] else None
    assert other is not None
    assert other.replica is not claimed, "those behind go elsewhere"
    admission.set_replicas([spec("r1" if claimed.name == "r0" else "r0", kv_tokens=10_000)], 0.2)
    admission.poll(0.2)
    assert big.claim is not claimed
    for ticket in [*small, other]:
        admission.finished(ticket, 0.3)
    assert admitted(admission.poll(0.3)[0]) is big


def test_a_claim_alone_gets_a_large_request_through() -> None:
    """All are of one tenant, so that fairness has no say."""
    replicas = [spec(f"r{i}", kv_tokens=10_000) for i in range(2)]
    wide = ClassSettings(ttft="30s", tpot="1s")
    load = Load(gate(*replicas, interactive=wide), lambda request: 1.0)
    rng = random.Random(5)
    load.seconds = lambda request: rng.uniform(0.5, 1.5)
    for step in range(20 * 21):
        load.until(step / 21)  # of 22 that fit
        load.offer(ask(800, 100, model="small"))
        if step == 200:
            load.offer(ask(8000, 500, model="large"))
    load.until(40.0)
    assert len(load.waits["large"]) == 1
    assert load.waits["large"][0] < 5.0


def test_a_tenant_far_ahead_waits_with_the_one_that_has_claimed() -> None:
    """Room elsewhere is for those who are not a whole replica's worth ahead in service."""
    admission = gate(spec("r0", kv_tokens=10_000), spec("r1", kv_tokens=10_000))
    long = [admitted(admission.offer(ask(4000, 1000, tenant="ahead"), 0.0, 0.1)) for _ in range(4)]
    big = queued(admission.offer(ask(9000, 1000, tenant="behind"), 0.0, 0.1))
    assert admission.poll(0.0) == []
    claimed = big.claim
    assert claimed is not None
    elsewhere = next(ticket for ticket in long if ticket.replica is not claimed)
    admission.counters.account("ahead", "chat").charge(2 * 10_000 + 5000)
    admission.finished(elsewhere, 0.1, Usage(4000, 0))
    assert admission.poll(0.1) == []
    waits = queued(admission.offer(ask(1000, 100, tenant="ahead"), 0.1, 0.1))
    assert isinstance(admission.offer(ask(1000, 100, tenant="third"), 0.1, 0.1), Queued), "behind that one"
    third = admission.poll(0.2)
    assert [admitted(each).request.tenant for each in third] == ["third"]
    for ticket in long:
        admission.finished(ticket, 0.3)
    served = [admitted(each) for each in admission.poll(0.3)]
    assert served[0] is big
    assert waits in served


def test_a_claim_of_a_lower_class_gives_way() -> None:
    admission = gate(spec("r0", kv_tokens=10_000))
    running = [admitted(admission.offer(ask(4000, 1000), 0.0, 0.1)) for _ in range(2)]
    batch = queued(admission.offer(ask(8000, 1000, service_class=BATCH), 0.0, 0.1))
    assert admission.poll(0.0) == []
    assert batch.claim is not None
    person = queued(admission.offer(ask(8000, 1000), 0.1, 0.1))
    assert admission.poll(0.1) == []
    assert person.claim is not None
    assert batch.claim is None
    for ticket in running:
        admission.finished(ticket, 0.2)
    assert admitted(admission.poll(0.2)[0]) is person
    admission.finished(person, 0.3)
    assert admitted(admission.poll(0.3)[0]) is batch


def test_a_claim_ends_with_who_made_it() -> None:
    admission = gate(spec("r0", kv_tokens=10_000))
    admitted(admission.offer(ask(4000, 1000), 0.0, 0.1))
    big = queued(admission.offer(ask(8000, 1000), 0.0, 0.1))
    assert admission.poll(0.0) == []
    small = queued(admission.offer(ask(1000, 100), 0.01, 0.1))
    assert admission.poll(0.02) == []
    admission.client_gone(big, 0.03)
    assert admitted(admission.poll(0.03)[0]) is small


def test_a_head_whose_engine_has_become_slow_is_not_let_in_too_late() -> None:
    """What was known at the offer is not what is known at the dequeue."""
    admission = gate(limit=1.0)
    first = admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(), 0.0, 0.5))
    part = first.line.engine_part
    for _ in range(20):
        part.add(1.6, 1.2)
    admission.finished(first, 1.8)
    assert reason(admission.poll(1.8)[0]) == "queue_wait_expired", "1.8 + 1.2 s is over 2.5 s"


def test_across_lines_the_smaller_counter_goes_first() -> None:
    """A base model and its adapter are two lines before one replica."""
    admission = gate(spec("r0", models=("base", "adapter")), limit=1.0)
    running = admitted(admission.offer(ask(model="base", tenant="z"), 0.0, 0.5))
    admission.counters.account("rich", "chat").charge(50_000.0)
    rich = queued(admission.offer(ask(model="base", tenant="rich"), 0.0, 0.5))
    poor = queued(admission.offer(ask(model="adapter", tenant="poor"), 0.1, 0.5))
    assert poor.account.counter == rich.account.counter - poor.line.credit, "lifted, but for the credit"
    admission.counters.account("rich", "chat").charge(1000.0)
    admission.finished(running, 0.2)
    assert admitted(admission.poll(0.2)[0]) is poor


def test_who_is_owed_service_waits_longer_while_the_queue_stands() -> None:
    """A flood of one tenant must not make another's few requests give up early."""
    admission = gate(limit=1.0)
    now, running = 0.0, admitted(admission.offer(ask(tenant="flood"), 0.0, 0.5))
    while now < 10.0:  # one a second is served, three a second come
        now += 1.0
        for _ in range(3):
            admission.offer(ask(tenant="flood"), now, 0.5)
        admission.finished(running, now)
        running = next(one.ticket for one in admission.poll(now) if isinstance(one, Admitted))
    flood = queued(admission.offer(ask(tenant="flood"), now, 0.5))
    few = queued(admission.offer(ask(tenant="few"), now, 0.5))
    assert flood.start_by - now == pytest.approx(0.3 * TTFT)
    assert few.start_by - now > 0.9 * TTFT


def test_memory_follows_what_is_queued() -> None:
    admission = gate(limit=1.0, batch=ClassSettings(ttft="1d", tpot="1s"))
    running = admitted(admission.offer(ask(), 0.0, 0.5))
    for i in range(5000):
        waits = queued(admission.offer(ask(service_class=BATCH, tenant=f"t{i % 7}"), i * 0.001, 0.5))
        admission.client_gone(waits, i * 0.001)
        admission.poll(i * 0.001)
    queue = admission._queue
    assert len(queue._timers) <= 200
    assert queue.lines() == ()
    admission.finished(running, 6.0)


def test_larger_than_a_replica_is_refused_with_the_numbers() -> None:
    admission = gate(spec("r0", kv_tokens=10_000, max_model_len=8192))
    verdict = admission.offer(ask(9000, 100, prompt_exact=True), 0.0, 0.5)
    assert reason(verdict) == "request_too_large"
    assert isinstance(verdict, Refused)
    assert verdict.refusal.status == 400
    assert "9000 tokens" in verdict.refusal.message
    assert "8192" in verdict.refusal.message
    ticket = admitted(admission.offer(ask(9000, 100), 0.0, 0.5))
    assert ticket.tokens == 8192, "estimated: the engine counts, and says so itself"
    ticket = admitted(gate(spec("r0", kv_tokens=None)).offer(ask(1000, 10**6), 0.0, 0.5))
    assert ticket.tokens == 32_768, "clamped for admission"
    small = gate(spec("r0", kv_tokens=4000, max_model_len=None))
    verdict = small.offer(ask(3000, 2000), 0.0, 0.5)
    assert reason(verdict) == "request_too_large"
    assert isinstance(verdict, Refused)
    assert "needs 5000 tokens of KV cache; the largest replica holds 4000" in verdict.refusal.message


def test_nothing_to_embed_is_a_request_like_any_other() -> None:
    admission = gate(limit=1.0)
    for _ in range(20):  # so that the rate of service is known
        admission.offer(ask(tenant="other"), 0.0, 0.5)
    admission.poll(1.5)
    empty = queued(admission.offer(ask(0, 0, tenant="a"), 1.5, 0.5))
    queued(admission.offer(ask(0, 0, tenant="b"), 1.5, 0.5))
    assert empty.tokens == 1
    assert admission.poll(200.0)


def test_many_sequences_that_a_replica_holds_one_by_one_are_let_in_alone() -> None:
    """A batch of texts to embed, or `n` long answers: engines run them one after the other."""
    admission = gate(spec("r0", kv_tokens=10_000))
    small = admitted(admission.offer(ask(), 0.0, 0.5))
    batch = queued(admission.offer(ask(100_000, 0, sequences=50), 0.0, 0.5))
    admission.finished(small, 0.1)
    assert [admitted(verdict) for verdict in admission.poll(0.1)] == [batch]
    assert admission.status(0.1).replicas["r0"].reserved_tokens == 10_000
    queued(admission.offer(ask(), 0.2, 0.5))
    verdict = admission.offer(ask(300_000, 0, sequences=20), 0.2, 0.5)
    assert reason(verdict) == "request_too_large"
    assert isinstance(verdict, Refused)
    assert "needs 15000 tokens of KV cache for each sequence" in verdict.refusal.message


@pytest.mark.parametrize("wrong", [{"sequences": 0}, {"prompt_tokens": -1}, {"output_tokens": -5}])
def test_a_request_that_cannot_be_is_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"got .*{next(iter(wrong.values()))}"):
        ask(**wrong)


# What it is made of


def test_a_service_rate_is_known_after_a_second_of_queueing() -> None:
    rate = ServiceRate()
    for i in range(100):
        rate.served(i * 0.1, 100)
    assert rate.per_second(10.0, 0) is None, "an idle fleet's rate says nothing"
    rate.pass_time(10.0, is_backlogged=True)
    for i in range(1, 21):
        rate.served(10.0 + i * 0.1, 100)
        rate.pass_time(10.0 + i * 0.1, is_backlogged=True)
    requests, tokens = rate.per_second(12.0, 0) or (0.0, 0.0)
    assert requests == pytest.approx(10.5), "the next one counts as if it came now"
    assert tokens == pytest.approx(1000, rel=0.01)
    rate.pass_time(12.0, is_backlogged=False)
    assert rate.per_second(12.0, 0) == (requests, tokens)
    assert rate.per_second(30.0, 0) is None


def test_a_rolling_sum_forgets() -> None:
    sums = RollingSum(10.0)
    for second in range(100):
        sums.add(float(second), 2.0)
        assert sums.total(float(second)) == 2.0 * min(second + 1, 10)
    assert sums.total(50.0) == 20.0, "an earlier time counts as the last one"
    assert sums.total(104.0) == 10.0
    assert sums.total(1e9) == 0.0


def test_next_poll() -> None:
    admission = gate(limit=1.0)
    assert admission.next_poll_at(0.0) == float("inf")
    admitted(admission.offer(ask(), 0.0, 0.5))
    queued(admission.offer(ask(), 0.0, 0.5))
    assert admission.next_poll_at(0.0) == 0.1


def test_measured_use_beyond_what_was_reserved_closes_admission() -> None:
    admission = gate(ReplicaSpec(name="r0", pool="chat", kv_tokens=10_000))
    mine = admitted(admission.offer(ask(3000, 1000), 0.0, 0.5))
    admission.set_readings([ReplicaReading(name="r0", at=1.0, running=1, waiting=0, kv_usage=0.3)], 1.0)
    assert admission.status(1.0).replicas["r0"].foreign_tokens == 0, "less than we reserved"
    admission.set_readings([ReplicaReading(name="r0", at=2.0, running=1, waiting=0, kv_usage=0.9)], 2.0)
    assert admission.status(2.0).replicas["r0"].foreign_tokens == pytest.approx(5000)
    queued(admission.offer(ask(1500, 0), 2.0, 0.5))
    admission.finished(mine, 2.1)
    assert len(admission.poll(2.1)) == 1
    admission.set_readings([ReplicaReading(name="r0", at=1.5, running=9, waiting=9, kv_usage=1.0)], 2.2)
    assert admission.status(2.2).replicas["r0"].foreign_tokens == pytest.approx(5000), "older than the last"
