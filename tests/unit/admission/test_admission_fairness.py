"""Virtual token counters: the lift, the bound of the paper, and quotas."""

import heapq
import random
from collections import defaultdict

import pytest
from admission_gates import admitted, ask, gate, queued, reason, spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.fairness import Account, Backlog, VirtualTokenCounters
from controlplane.gateway.admission.quota import Level, Quotas
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Fault, Request
from controlplane.gateway.admission.settings import ClassSettings, TenantSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted

FOR_EVER = ClassSettings(ttft="30d", tpot="1s")
STEP = 0.05  # seconds of a decode step


def counters() -> VirtualTokenCounters:
    return VirtualTokenCounters(lambda tenant: 2.0 if tenant == "heavy" else 1.0)


# The counters themselves


def test_idle_time_earns_no_credit() -> None:
    books = counters()
    busy, idle = books.account("busy"), books.account("idle")
    books.enters(busy, 10)
    busy.charge(5000.0)
    books.enters(busy, 10)
    books.enters(idle, 10)
    assert idle.counter == 5000.0, "lifted to the smallest of those who wait"


def test_lifted_to_the_one_who_left_last_where_nobody_waits() -> None:
    books = counters()
    first, second, late = (books.account(name) for name in ("first", "second", "late"))
    first.charge(900.0)
    second.charge(300.0)
    books.enters(second, 1)
    books.enters(first, 1)
    books.leaves(first, 1)
    books.leaves(second, 1)
    books.enters(late, 1)
    assert late.counter == 300.0


def test_never_lowered() -> None:
    books = counters()
    rich, poor = books.account("rich"), books.account("poor")
    rich.charge(1000.0)
    books.enters(poor, 1)
    books.enters(rich, 1)
    assert rich.counter == 1000.0
    books.leaves(rich, 1)
    books.passes(rich)
    assert rich.counter == 1000.0


def test_a_weight_divides() -> None:
    account = counters().account("heavy")
    account.charge(1000.0)
    assert account.counter == 500.0


def test_counters_of_several_gateways_add_up() -> None:
    here, there = counters(), counters()
    here.account("t").charge(100.0)
    there.account("t").charge(40.0)
    total = here.collect()["t"] + there.collect()["t"]
    here.account("t").charge(7.0)
    assert here.collect() == {"t": 7.0}
    assert here.collect() == {}
    here.account("t").charge(5.0)
    here.adopt({"t": total + 7.0, "new": 3.0})
    assert here.account("t").counter == 152.0, "what was not collected yet stays on top"
    assert here.account("new").counter == 3.0


def test_accounts_are_bounded_and_those_in_use_stay() -> None:
    books = counters()
    keep = books.account("keep")
    keep.open = 1
    for i in range(3 * books.MOST_ACCOUNTS):
        books.account(f"u{i}").charge(float(i))
    assert len(books._accounts) <= books.MOST_ACCOUNTS
    assert books.account("keep") is keep


@given(
    st.lists(
        st.tuples(st.sampled_from("adcl"), st.integers(0, 6), st.floats(-500, 1000)), min_size=1, max_size=300
    )
)
def test_the_least_is_the_least(events: list[tuple[str, int, float]]) -> None:
    backlog = Backlog()
    accounts = [Account(str(i), 1.0) for i in range(7)]
    members: set[Account] = set()
    for event, which, amount in events:
        account = accounts[which]
        if event == "a":
            backlog.add(account)
            members.add(account)
        elif event == "d":
            backlog.discard(account)
            members.discard(account)
        else:
            account.charge(amount)
        least = backlog.least()
        assert len(backlog) == len(members)
        if members:
            assert least in members
            assert least is not None
            assert least.counter == min(each.counter for each in members)
        else:
            assert least is None
    assert len(backlog._heap) <= 2 * len(members) + 66


# The bound, with engines that stream a token a step


class Plant:
    """Engines that decode a token a step for each request, and tenants that always have requests queued."""

    def __init__(self, admission: Admission, sizes: dict[str, list[tuple[int, int]]], depth: int) -> None:
        self.admission = admission
        self.sizes = sizes
        self.depth = depth
        self.now = 0.0
        self.offered: dict[str, int] = defaultdict(int)
        self.waiting: dict[str, int] = defaultdict(int)
        self.running: list[Ticket] = []
        self.service: dict[str, float] = defaultdict(float)
        self.rng = random.Random(1)

    def start(self, ticket: Ticket) -> None:
        self.running.append(ticket)
        self.service[ticket.request.tenant] += ticket.request.prompt_tokens

    def step(self) -> None:
        self.now += STEP
        for tenant, sizes in self.sizes.items():
            while self.waiting[tenant] < self.depth:
                prompt, output = sizes[self.offered[tenant] % len(sizes)]
                self.offered[tenant] += 1
                request = Request(tenant=tenant, prompt_tokens=prompt, output_tokens=output)
                verdict = self.admission.offer(request, self.now, self.rng.random())
                if isinstance(verdict, Admitted):
                    self.start(verdict.ticket)
                else:
                    queued(verdict)
                    self.waiting[tenant] += 1
        going = []
        for ticket in self.running:
            self.admission.tokens(ticket, 1, self.now)
            self.service[ticket.request.tenant] += 2
            if ticket.output_tokens >= ticket.request.output_tokens:
                self.admission.finished(
                    ticket, self.now, Usage(ticket.request.prompt_tokens, ticket.output_tokens)
                )
            else:
                going.append(ticket)
        self.running = going
        for verdict in self.admission.poll(self.now):
            ticket = admitted(verdict)
            self.waiting[ticket.request.tenant] -= 1
            self.start(ticket)


SIZES = st.lists(st.tuples(st.integers(1, 1500), st.integers(1, 60)), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(SIZES, min_size=2, max_size=4),
    engines=st.integers(1, 3),
    kv_tokens=st.integers(1600, 6000),
    limit=st.integers(1, 12),
)
def test_the_bound_holds_between_tenants_that_always_wait(
    sizes: list[list[tuple[int, int]]], engines: int, kv_tokens: int, limit: int
) -> None:
    """|difference of service| <= 2 max(L, 2 M) x engines over every interval, L the longest prompt."""
    specs = [ReplicaSpec(name=f"r{i}", pool="p", kv_tokens=kv_tokens) for i in range(engines)]
    admission = gate(*specs, limit=float(limit), interactive=FOR_EVER)
    tenants = {f"t{i}": each for i, each in enumerate(sizes)}
    plant = Plant(admission, tenants, depth=engines * limit + 2)
    longest = max(prompt for each in sizes for prompt, _ in each)
    bound = 2 * max(longest, 2 * kv_tokens) * engines
    history: list[dict[str, float]] = []
    for _ in range(300):
        plant.step()
        history.append({tenant: plant.service[tenant] for tenant in tenants})
    names = list(tenants)
    for a in names:
        for b in names:
            # The largest difference over any interval is that of the highest and the lowest point.
            lead = [each[a] - each[b] for each in history]
            assert max(lead) - min(lead) <= bound


@pytest.mark.parametrize("engines", [1, 3])
def test_equal_tenants_get_equal_service_and_weights_their_part(engines: int) -> None:
    specs = [ReplicaSpec(name=f"r{i}", pool="p", kv_tokens=20_000) for i in range(engines)]
    admission = gate(*specs, limit=8.0, interactive=FOR_EVER, tenants={"double": TenantSettings(weight=2)})
    rng = random.Random(4)
    sizes = {
        "short": [(rng.randrange(20, 100), rng.randrange(5, 20)) for _ in range(50)],
        "long": [(rng.randrange(1000, 2000), rng.randrange(50, 120)) for _ in range(50)],
        "double": [(rng.randrange(100, 900), rng.randrange(20, 60)) for _ in range(50)],
    }
    plant = Plant(admission, sizes, depth=30)
    for _ in range(4000):
        plant.step()
    service = plant.service
    assert service["short"] == pytest.approx(service["long"], rel=0.05)
    assert service["double"] == pytest.approx(2 * service["short"], rel=0.05)


def test_a_flood_does_not_keep_another_waiting() -> None:
    """One tenant offers ten times what fits, the other a little: the other is served as if it were alone."""
    admission = gate("r0", limit=10.0)
    rng = random.Random(2)
    running: list[tuple[float, int, Ticket]] = []
    waits: list[float] = []
    asked = 0
    for step in range(6000):
        now = step * 0.01
        while running and running[0][0] <= now:
            ticket = heapq.heappop(running)[2]
            admission.first_token(ticket, now)
            admission.finished(ticket, now, Usage(800, 100))
        verdicts = [admission.offer(ask(tenant="loud"), now, rng.random())]
        if step % 100 == 0:
            asked += 1
            verdicts.append(admission.offer(ask(tenant="quiet"), now, rng.random()))
        for verdict in [*verdicts, *admission.poll(now)]:
            if isinstance(verdict, Admitted):
                heapq.heappush(running, (now + 1.0, verdict.ticket.id, verdict.ticket))
                if verdict.ticket.request.tenant == "quiet":
                    waits.append(now - verdict.ticket.offered_at)
    assert len(waits) == asked == 60
    assert sorted(waits)[-3] <= 0.3, "a place is free every 100 ms, and it is next"


# What is charged


def test_charged_as_tokens_stream_and_trued_up_at_the_end() -> None:
    admission = gate()
    account = admission.counters.account("t")
    ticket = admitted(admission.offer(ask(100, 50), 0.0, 0.5))
    assert account.counter == 100
    for i in range(10):
        admission.tokens(ticket, 2, i * 0.1)
    assert account.counter == 140
    admission.finished(ticket, 1.0, Usage(prompt_tokens=110, completion_tokens=21), cached_tokens=64)
    assert account.counter == 110 - 64 + 2 * 21


def test_what_is_not_streamed_is_charged_ahead() -> None:
    admission = gate()
    account = admission.counters.account("t")
    ticket = admitted(admission.offer(ask(100, 50, streams=False), 0.0, 0.5))
    assert account.counter == 200
    admission.finished(ticket, 1.0, Usage(100, 400))
    assert account.counter == 900


def test_a_failure_before_the_first_token_costs_nothing() -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    admission.failed(ticket, 0.1, Fault.BROKEN)
    assert admission.counters.account("t").counter == 0


# Quotas


def quotas(**settings: int) -> Quotas:
    return Quotas(lambda tenant: TenantSettings(**settings) if tenant == "t" else TenantSettings())


def test_tokens_a_minute() -> None:
    books = quotas(tokens_per_minute=600)
    assert books.take("t", 500, 1, 0.0) is None
    denied = books.take("t", 200, 1, 0.0)
    assert denied is not None
    assert (denied.reason, denied.seconds) == ("tenant_token_quota", 10.0)
    assert books.take("t", 200, 1, 9.9) is not None
    assert books.take("t", 200, 1, 10.0) is None
    books.settle("t", 200, 80, 1, 10.0)
    assert books.take("t", 120, 1, 10.0) is None, "what was not used came back"
    assert books.take("other", 10**9, 100, 10.0) is None


def test_a_minute_s_worth_is_the_most_that_is_saved_up() -> None:
    books = quotas(tokens_per_minute=600)
    assert books.take("t", 600, 1, 1e6) is None
    assert books.take("t", 1, 1, 1e6) is not None


def test_a_request_larger_than_the_bucket_waits_for_a_full_one() -> None:
    books = quotas(tokens_per_minute=600)
    assert books.take("t", 100, 1, 0.0) is None
    denied = books.take("t", 5000, 1, 0.0)
    assert denied is not None
    assert denied.seconds == 10.0
    assert books.take("t", 5000, 1, 10.0) is None
    assert books.levels(10.0)["t"].tokens == -4400


def test_sequences_in_flight() -> None:
    books = quotas(sequences=4)
    assert books.take("t", 1, 3, 0.0) is None
    assert books.take("t", 1, 1, 0.0) is None
    denied = books.take("t", 1, 1, 0.0)
    assert denied is not None
    assert denied.reason == "tenant_in_flight_limit"
    books.settle("t", 1, 1, 3, 0.0)
    assert books.take("t", 1, 3, 0.0) is None
    books.settle("t", 1, 1, 3, 0.0)
    books.settle("t", 1, 1, 1, 0.0)
    assert books.take("t", 1, 9, 0.0) is None, "more than the limit, but alone"


def test_the_state_goes_to_a_store_and_back() -> None:
    here, there = quotas(tokens_per_minute=600, sequences=4), quotas(tokens_per_minute=600, sequences=4)
    assert here.take("t", 500, 2, 0.0) is None
    level = here.levels(0.0)["t"]
    assert level == Level(100.0, 0.0, 2)
    there.adopt({"t": Level(level.tokens, level.at, 0, elsewhere=level.sequences)}, 1.0)
    assert there.levels(1.0)["t"] == Level(110.0, 1.0, 0, 2)
    assert there.take("t", 1, 3, 1.0) is not None
    assert there.take("t", 1, 2, 1.0) is None


def test_buckets_are_bounded() -> None:
    books = Quotas(lambda tenant: TenantSettings(tokens_per_minute=60, sequences=1))
    for i in range(3 * books.MOST_BUCKETS):
        assert books.take(f"u{i}", 1, 1, float(i)) is None
        books.settle(f"u{i}", 1, 1, 1, float(i))
    assert len(books._buckets) <= books.MOST_BUCKETS + 1


def test_a_request_that_is_refused_later_gives_its_quota_back() -> None:
    admission = gate(
        spec("r0", kv_tokens=1000),
        limit=1.0,
        tenants={"t": TenantSettings(tokens_per_minute=10_000, sequences=10)},
    )
    admitted(admission.offer(ask(500, 100), 0.0, 0.5))
    queued(admission.offer(ask(500, 100), 0.0, 0.5))
    assert admission.quotas.levels(0.0)["t"] == Level(8800.0, 0.0, 2)
    assert reason(admission.poll(3.0)[0]) == "queue_wait_expired"
    assert admission.quotas.levels(3.0)["t"] == Level(9900.0, 3.0, 1)
