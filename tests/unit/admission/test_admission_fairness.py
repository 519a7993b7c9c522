"""Virtual token counters: the lift, the bound of the paper, and quotas."""

import heapq
import random
from collections import defaultdict
from math import inf

import pytest
from admission_gates import admitted, ask, gate, queued, reason, spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.fairness import Account, Backlog, Contest, VirtualTokenCounters
from controlplane.gateway.admission.quota import Level, Quotas, Taking
from controlplane.gateway.admission.replica import ReplicaSpec
from controlplane.gateway.admission.request import Fault, Request, ServiceClass
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
    busy, idle = books.account("busy", "chat"), books.account("idle", "chat")
    books.enters(busy, 0, 10, 0.0)
    busy.charge(5000.0)
    books.enters(busy, 0, 10, 0.0)
    books.enters(idle, 0, 10, 0.0)
    assert idle.counter == 5000.0, "lifted to the smallest of those who wait"


def test_a_small_credit_is_kept_and_more_is_not() -> None:
    books = counters()
    busy, back, heavy, slow = (books.account(name, "chat") for name in ("busy", "back", "heavy", "slow"))
    busy.charge(5000.0)
    slow.charge(4900.0)
    books.enters(busy, 0, 10, 300.0)
    books.enters(back, 0, 10, 300.0)
    assert back.counter == 4700.0, "it was behind by more than the credit"
    books.leaves(back, 0, 10)
    books.enters(heavy, 0, 10, 300.0)
    assert heavy.counter == 4850.0, "a credit is service, and a weight of 2 halves what that counts"
    books.leaves(heavy, 0, 10)
    books.enters(slow, 0, 10, 300.0)
    assert slow.counter == 4900.0, "it is behind by less: that is its own"


def test_who_is_owed_what() -> None:
    books = counters()
    most, some, back = (books.account(name, "chat") for name in ("most", "some", "back"))
    most.charge(5000.0)
    some.charge(4000.0)
    assert books.ahead(back, 0, 300.0) == inf, "nobody waits"
    books.enters(most, 0, 10, 1e9)
    books.enters(some, 0, 10, 1e9)
    assert books.ahead(some, 0, 0.0) == 1000.0, "of all others the one with least is meant"
    assert books.ahead(back, 0, 300.0) == 300.0, "what it would have left after the lift"
    assert books.owed(back, 0, 300.0) == 300.0
    assert books.owed(some, 0, 0.0) == 1000.0
    assert books.owed(most, 0, 0.0) == 0.0
    most.charge(500.0)
    books.look()
    assert books.owed(some, 0, 0.0) == 1500.0


def test_lifted_to_the_one_who_left_last_where_nobody_waits() -> None:
    books = counters()
    first, second, late = (books.account(name, "chat") for name in ("first", "second", "late"))
    first.charge(900.0)
    second.charge(300.0)
    books.enters(second, 0, 1, 0.0)
    books.enters(first, 0, 1, 0.0)
    books.leaves(first, 0, 1)
    books.leaves(second, 0, 1)
    books.enters(late, 0, 1, 0.0)
    assert late.counter == 300.0


def test_never_lowered() -> None:
    books = counters()
    rich, poor = books.account("rich", "chat"), books.account("poor", "chat")
    rich.charge(1000.0)
    books.enters(poor, 0, 1, 0.0)
    books.enters(rich, 0, 1, 0.0)
    assert rich.counter == 1000.0
    books.leaves(rich, 0, 1)
    books.passes(rich, 0, 0.0)
    assert rich.counter == 1000.0


def test_a_weight_divides() -> None:
    account = counters().account("heavy", "chat")
    account.charge(1000.0)
    assert account.counter == 500.0


def test_what_happened_to_a_counter_is_a_function_of_what_it_was() -> None:
    books = counters()
    account, other = books.account("t", "chat"), books.account("other", "chat")
    account.charge(100.0)
    books.enters(other, 0, 1, 0.0)
    other.charge(500.0)
    books.enters(account, 0, 1, 0.0)
    account.charge(7.0)
    assert account.counter == 507.0
    move, counter = books.tell("chat\tt")
    assert counter == 507.0
    assert move(0.0) == 507.0
    assert move(1000.0) == 1107.0, "somebody else had counted more: the lift changes nothing"
    assert books.tell("chat\tt")[0](3.0) == 3.0, "told once"
    assert list(books.moved()) == ["chat\tother"]


@given(
    st.lists(
        st.tuples(st.sampled_from(("charge", "lift")), st.integers(0, 1000).map(float)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 2000).map(float),
)
def test_a_move_is_what_its_steps_are_one_after_the_other(
    steps: list[tuple[str, float]], before: float
) -> None:
    books = counters()
    account, direct = books.account("t", "chat"), before
    for kind, amount in steps:
        getattr(account, kind)(amount)
        direct = direct + amount if kind == "charge" else max(direct, amount)
    # A lift under what is known here says nothing new, and is not told.
    assert books.tell("chat\tt")[0](before) <= direct
    books.adopt("chat\tt", direct)
    assert books.account("t", "chat").counter == direct


def test_what_was_not_told_yet_stays_on_top() -> None:
    books = counters()
    books.account("t", "chat").charge(100.0)
    books.tell("chat\tt")
    books.account("t", "chat").charge(7.0)
    books.adopt("chat\tt", 140.0)
    assert books.account("t", "chat").counter == 147.0
    books.retell()
    assert books.tell("chat\tt")[0](0.0) == 147.0, "at least what is known here"


def test_accounts_are_bounded_and_those_in_use_stay() -> None:
    books = counters()
    keep = books.account("keep", "chat")
    keep.open = 1
    for i in range(3 * books.MOST_ACCOUNTS):
        books.account(f"u{i}", "chat").charge(float(i))
    assert len(books._accounts) <= books.MOST_ACCOUNTS
    assert books.account("keep", "chat") is keep


@given(
    st.lists(
        st.tuples(st.sampled_from("adcl"), st.integers(0, 6), st.floats(-500, 1000)), min_size=1, max_size=300
    )
)
def test_the_least_is_the_least(events: list[tuple[str, int, float]]) -> None:
    backlog = Backlog()
    accounts = [Account(str(i), 1.0, Contest()) for i in range(7)]
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


def test_who_waits_behind_a_higher_rank_is_no_measure_for_who_comes() -> None:
    books = counters()
    busy, patient, late = (books.account(name, "chat") for name in ("busy", "patient", "late"))
    books.enters(patient, 2, 10, 0.0)
    books.enters(busy, 0, 10, 0.0)
    busy.charge(5000.0)
    books.enters(late, 0, 10, 300.0)
    assert late.counter == 4700.0, "lifted to the one it competes with"
    assert books.others(patient, 0) == 2
    assert books.ahead(patient, 0, 300.0) == 300.0, (
        "what it got less as batch gives it no more than the credit"
    )
    books.enters(patient, 0, 10, 300.0)
    assert patient.counter == 4700.0, "lifted, with a request of another rank queued all the while"
    books.leaves(late, 0, 10)
    books.leaves(patient, 0, 10)
    books.leaves(patient, 2, 10)
    books.leaves(busy, 0, 10)
    assert [patient.queued, patient.queued_tokens, books.others(late, 2)] == [0, 0, 0]
    books.enters(late, 0, 10, 0.0)
    assert late.counter == 5000.0, "nobody waits: the one who was last of its rank"


def test_who_comes_after_one_with_a_credit_has_one_and_not_two() -> None:
    books = counters()
    steady = books.account("steady", "chat")
    steady.charge(5000.0)
    books.enters(steady, 0, 10, 300.0)
    for name in ("first", "second", "third"):
        books.enters(books.account(name, "chat"), 0, 10, 300.0)
        assert books.account(name, "chat").counter == 4700.0


def test_counters_that_were_lowered_lift_nobody_above_those_who_wait() -> None:
    """The others' counters came to less than was known here: who comes must not wait for what is no more."""
    books = counters()
    steady, early, late = (books.account(name, "chat") for name in ("steady", "early", "late"))
    steady.charge(5000.0)
    books.enters(steady, 0, 10, 0.0)
    books.enters(early, 0, 10, 0.0)
    books.tell("chat\tsteady")
    books.tell("chat\tearly")
    books.adopt("chat\tsteady", 2000.0)
    books.adopt("chat\tearly", 1000.0)
    books.look()
    books.enters(late, 0, 10, 0.0)
    assert late.counter == 2000.0


def test_a_request_that_rises_comes_to_its_new_rank() -> None:
    books = counters()
    busy, patient = books.account("busy", "chat"), books.account("patient", "chat")
    busy.charge(5000.0)
    books.enters(patient, 2, 10, 0.0)
    books.enters(busy, 1, 10, 0.0)
    books.rises(patient, 1, 300.0)
    assert patient.counter == 4700.0
    assert (patient.up_to, books.others(busy, 0), books.others(busy, 1)) == ([0, 1, 1], 0, 1)
    books.rises(patient, 0, 300.0)
    books.leaves(patient, 0, 10)
    assert (patient.up_to, books.others(busy, 2)) == ([0, 0, 0], 0)


def test_pools_have_counters_of_their_own() -> None:
    books = counters()
    books.account("t", "code").charge(5000.0)
    books.enters(books.account("t", "code"), 0, 10, 0.0)
    there = books.account("t", "chat")
    books.enters(there, 0, 10, 0.0)
    assert (there.counter, books.others(there, 0)) == (0.0, 0)


@settings(max_examples=200, deadline=None)
@given(
    credit=st.sampled_from([0.0, 50.0, 300.0]),
    patient=st.booleans(),
    steps=st.lists(
        st.tuples(st.sets(st.sampled_from(["sly", "twin", "heavy"])), st.integers(1, 100)),
        min_size=1,
        max_size=20,
    ),
    lasts=st.integers(1, 12),
    rounds=st.integers(1, 8),
)
def test_bursts_gain_one_credit_in_all(
    credit: float, patient: bool, steps: list[tuple[set[str], int]], lasts: int, rounds: int
) -> None:
    """Whoever comes and goes as it likes, against one that always waits: one credit in any interval."""
    books = counters()
    accounts = {name: books.account(name, "chat") for name in ("steady", "sly", "twin", "heavy")}
    books.enters(accounts["steady"], 0, 1, credit)
    if patient:
        for name in ("sly", "twin", "heavy"):
            books.enters(accounts[name], 2, 1, credit)  # and is never served
    service = dict.fromkeys(accounts, 0.0)
    lowest = dict.fromkeys(accounts, 0.0)
    for wants, cost in [step for step in steps * rounds for _ in range(lasts)]:
        for name in ("sly", "twin", "heavy"):
            account = accounts[name]
            if name in wants and not account.up_to[0]:
                books.enters(account, 0, 1, credit)
            elif name not in wants and account.up_to[0]:
                books.leaves(account, 0, 1)
        served = accounts["steady"].contest.waiting[0].least()
        assert served is not None
        served.charge(float(cost))
        service[served.name.partition("\t")[2]] += cost / served.weight
        for name in ("sly", "twin", "heavy"):
            lead = service[name] - service["steady"]
            lowest[name] = min(lowest[name], lead)
            assert lead - lowest[name] <= credit / accounts[name].weight + 2 * 100


class Crowd:
    """One engine with ten places; an answer takes a second, a tiny one a tenth. `got` is by tenant."""

    def __init__(self) -> None:
        self.admission = gate(spec("r0", kv_tokens=20_000), limit=10.0)
        self.rng = random.Random(1)
        self.now = 0.0
        self.running: list[tuple[float, int, Ticket]] = []
        self.got: dict[str, int] = defaultdict(int)

    def step(self, *asked: Request) -> None:
        """20 ms."""
        self.now += 0.02
        while self.running and self.running[0][0] <= self.now:
            ticket = heapq.heappop(self.running)[2]
            self.admission.finished(ticket, self.now, Usage(ticket.request.prompt_tokens, 100))
        verdicts = [self.admission.offer(each, self.now, self.rng.random()) for each in asked]
        for verdict in [*verdicts, *self.admission.poll(self.now)]:
            if isinstance(verdict, Admitted):
                request = verdict.ticket.request
                until = self.now + (0.1 if request.prompt_tokens == 1 else 1.0)
                heapq.heappush(self.running, (until, verdict.ticket.id, verdict.ticket))
                self.got[request.tenant] += request.prompt_tokens > 1


def chat(tenant: str, **more: object) -> Request:
    return ask(800, 100, tenant=tenant, **more)


@pytest.mark.parametrize("trickle", [ServiceClass.BATCH, ServiceClass.AGENT, None])
def test_a_trickle_of_patient_requests_saves_nothing_up_for_a_burst(trickle: ServiceClass | None) -> None:
    """A few tiny requests that may wait, for minutes, and then a flood: half of the engine, and no more."""
    crowd = Crowd()
    for step in range(2500):
        tiny = [ask(1, 1, tenant="sly", service_class=trickle)] if trickle and step % 25 == 0 else []
        crowd.step(chat("steady"), *tiny)
    crowd.got.clear()
    for _ in range(1000):
        crowd.step(chat("steady"), chat("sly"))
    assert crowd.got["steady"] > 0.45 * (crowd.got["steady"] + crowd.got["sly"])


def test_a_flood_of_batch_saves_nothing_up_either() -> None:
    """Requests that have risen compete like others of their new rank: with the credit, no more."""
    crowd = Crowd()
    for step in range(2500):
        tiny = [ask(1, 1, tenant="sly", service_class=ServiceClass.BATCH)] if step % 25 == 0 else []
        crowd.step(chat("steady"), *tiny)
    crowd.got.clear()
    for _ in range(1000):
        crowd.step(chat("steady"), chat("sly", service_class=ServiceClass.BATCH))
    assert crowd.got["steady"] > 0.45 * (crowd.got["steady"] + crowd.got["sly"])


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    phases=st.lists(
        st.tuples(st.sampled_from(["rests", "floods", "trickles", "many names"]), st.integers(10, 300)),
        min_size=1,
        max_size=6,
    ),
    classes=st.lists(st.sampled_from(list(ServiceClass)), min_size=1, max_size=3),
)
def test_no_pattern_of_rests_and_bursts_gets_more_than_its_share_and_the_credit(
    phases: list[tuple[str, int]], classes: list[ServiceClass]
) -> None:
    """Against one that always floods, no name gets more in any interval, but for bound and credit.

    A name that comes for the first time has the credit too, so many names have as many.
    """
    crowd = Crowd()
    leads: dict[str, list[int]] = defaultdict(lambda: [0])
    step = 0
    for kind, steps in phases:
        for _ in range(steps):
            step += 1
            of = classes[step % len(classes)]
            asked = [chat("steady")]
            if kind == "floods" or (kind == "trickles" and step % 20 == 0):
                asked.append(chat("sly", service_class=of))
            elif kind == "many names":
                asked.append(chat(f"sly{step % 7}", service_class=of))
            crowd.step(*asked)
            for name in ("sly", *(f"sly{i}" for i in range(7))):
                leads[name].append(crowd.got[name] - crowd.got["steady"])
    cost = 800 + 2 * 100
    bound = 2 * 2 * 20_000 + 2 * 20_000 / 16 + cost
    for lead in leads.values():
        lowest, most = 0, 0
        for each in lead:
            lowest = min(lowest, each)
            most = max(most, each - lowest)
        assert most * cost <= bound


# What is charged


def test_charged_as_tokens_stream_and_trued_up_at_the_end() -> None:
    admission = gate()
    account = admission.counters.account("t", "chat")
    ticket = admitted(admission.offer(ask(100, 50), 0.0, 0.5))
    assert account.counter == 100
    for i in range(10):
        admission.tokens(ticket, 2, i * 0.1)
    assert account.counter == 140
    admission.finished(ticket, 1.0, Usage(prompt_tokens=110, completion_tokens=21), cached_tokens=64)
    assert account.counter == 110 - 64 + 2 * 21


def test_an_engine_s_nonsense_puts_nobody_in_debt_for_years() -> None:
    quota = TenantSettings(tokens_per_minute=1_000_000)
    admission = gate(spec("r0", max_model_len=8192), tenants={"t": quota})
    ticket = admitted(admission.offer(ask(800, 100), 0.0, 0.5))
    admission.finished(ticket, 1.0, Usage(2**26, 2**26))
    assert ticket.account.counter <= 3 * 16 * 8192
    assert isinstance(admission.offer(ask(800, 100), 60.0, 0.5), Admitted)


def test_what_is_not_streamed_is_charged_ahead() -> None:
    admission = gate()
    account = admission.counters.account("t", "chat")
    ticket = admitted(admission.offer(ask(100, 50, streams=False), 0.0, 0.5))
    assert account.counter == 200
    admission.finished(ticket, 1.0, Usage(100, 400))
    assert account.counter == 900


def test_a_failure_before_the_first_token_costs_nothing() -> None:
    admission = gate()
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    admission.failed(ticket, 0.1, Fault.BROKEN)
    assert admission.counters.account("t", "chat").counter == 0


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
    assert list(here.moved()) == ["t"]
    assert here.tell("t", 0.0) == Taking(600.0, 10.0, level=100.0, taken=500.0, sequences=2)
    assert list(here.moved()) == []
    there.adopt("t", 100.0, 0.0)
    there.set_elsewhere("t", 2, 0.0)
    assert there.levels(1.0)["t"] == Level(110.0, 0, 2)
    assert there.take("t", 1, 3, 1.0) is not None
    assert there.take("t", 1, 2, 1.0) is None


def test_who_is_alone_again_goes_by_its_own_part() -> None:
    limits = TenantSettings(tokens_per_minute=600, sequences=4)
    books = Quotas(lambda tenant: limits, part=0.5)
    assert books.take("t", 300, 2, 0.0) is None
    books.join(0.0)
    assert books.levels(0.0)["t"].tokens == 300.0, "what was taken is taken from the whole"
    assert books.take("t", 300, 2, 0.0) is None
    books.leave(0.0)
    assert books.levels(0.0)["t"].tokens == 0.0
    assert books.levels(1000.0)["t"].tokens == 300.0
    books.forgive(1000.0)
    books.join(1000.0)
    assert books.tell("t", 1000.0).taken == 0.0, "what was refilled since is nobody's business"


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
    assert admission.quotas.levels(0.0)["t"] == Level(8800.0, 2)
    assert reason(admission.poll(3.0)[0]) == "queue_wait_expired"
    assert admission.quotas.levels(3.0)["t"] == Level(9900.0, 1)
