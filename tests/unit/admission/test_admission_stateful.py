"""Random lives of requests on a random fleet: the laws of admission hold after every step.

Nothing is lost, nothing is told twice, nothing goes below zero, no admission goes over a budget, and in the
end everything that was reserved is given back.
"""

from collections import Counter
from math import inf

from admission_gates import spec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaReading, Rotation
from controlplane.gateway.admission.request import RANK, Fault, Request, ServiceClass
from controlplane.gateway.admission.settings import (
    AdmissionSettings,
    Dropping,
    QueueSettings,
    TenantSettings,
)
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Queued, Refused, Verdict
from controlplane.policy.boundary.pair import PoolPair
from controlplane.signals.control import Grant
from controlplane.signals.decision import Mode
from controlplane.signals.samples import OutcomeWindow

NAMES = ("a", "b", "c", "d")
TENANTS = ("x", "y", "z")
POOLS = ("short", "long", "")
KV = 20_000
DRAWS = st.floats(0, 1, exclude_max=True)
SPECS = st.builds(
    lambda name, kv, length, rotation, since, model: spec(
        name,
        pool="short" if name in "ab" else "long",
        kv_tokens=kv,
        max_model_len=length,
        rotation=rotation,
        ready_since=since,
        models=model,
    ),
    st.sampled_from(NAMES),
    st.sampled_from([None, KV, 2 * KV]),
    st.sampled_from([None, 4096, 16_384]),
    st.sampled_from([Rotation.IN, Rotation.IN, Rotation.IN, Rotation.DRAINING, Rotation.QUARANTINED]),
    st.sampled_from([None, 0.0, 5.0]),
    st.sampled_from([(), ("m",), ("m", "adapter")]),
)


class Lives(RuleBasedStateMachine):
    mode = Mode.ENFORCE
    pools: PoolPair | None = None
    standing_share = 1.0
    queue = QueueSettings()

    def __init__(self) -> None:
        super().__init__()
        quota = TenantSettings(tokens_per_minute=200_000, sequences=40)
        made = AdmissionSettings(
            mode=self.mode,
            tenants={"x": quota, "y": TenantSettings(weight=3)},
            pools=self.pools,
            standing_share=self.standing_share,
            queue=self.queue,
        )
        self.now = 100.0
        self.gate = Admission(made, gateway="gw", now=self.now)
        self.gate.set_replicas([spec("a", pool="short", kv_tokens=KV, models=("m",))], self.now)
        self.waiting: dict[int, Ticket] = {}
        self.running: dict[int, Ticket] = {}
        self.ended: list[Ticket] = []
        self.counts: Counter[str] = Counter()
        self.windows: list[OutcomeWindow] = []
        self.version = 0
        self.has_observed = self.mode is Mode.OBSERVE

    # What is told

    def hear(self, verdict: Verdict, *, by_poll: bool = False) -> None:
        if isinstance(verdict, Refused):
            assert verdict.refusal.status in (400, 404, 429, 503)
            if verdict.refusal.status in (429, 503):
                assert int(verdict.refusal.retry_after or 0) >= 1
                self.counts["shed"] += verdict.ticket is not None or bool(self.gate.models or self.known)
            if verdict.ticket is not None:
                assert verdict.ticket.has_ended
            if by_poll:
                assert verdict.ticket is not None
                del self.waiting[verdict.ticket.id]
            return
        ticket = verdict.ticket
        assert not ticket.has_ended
        if isinstance(verdict, Queued):
            assert not by_poll
            assert self.gate.mode is Mode.ENFORCE
            assert ticket.is_queued
            self.waiting[ticket.id] = ticket
            return
        if by_poll:
            del self.waiting[ticket.id]
        assert ticket.id not in self.running
        self.running[ticket.id] = ticket
        assert ticket.replica is not None
        assert verdict.replica == ticket.replica.name
        assert ticket.replica.in_rotation, "out of rotation, and sent something new"
        self.check_admission(ticket)

    def check_admission(self, ticket: Ticket) -> None:
        """The last admission to each replica of one call: it went over nothing."""
        replica = ticket.reserved_at
        if replica is None or ticket.reservation is None:
            assert self.has_observed
            return
        ledger = replica.ledger
        alone = ledger.sequences == ticket.request.sequences
        others = 0.0 if alone else ledger.foreign_tokens
        assert ledger.reserved_tokens <= max(0.0, ledger.budget_tokens - others) + 1e-6
        assert ledger.sequences + ledger.foreign_sequences <= max(1.0, ledger.limit) + 1e-6 or alone
        assert ledger.limit > 0
        assert ticket.least_tokens <= replica.holds_tokens

    @property
    def known(self) -> bool:
        return bool(self.gate.status(self.now).replicas)

    def pick(self, number: int) -> Ticket | None:
        tickets = list(self.running.values())
        return tickets[number % len(tickets)] if tickets else None

    def end(self, ticket: Ticket, how: str) -> None:
        self.counts[how] += 1
        self.running.pop(ticket.id, None)
        self.waiting.pop(ticket.id, None)
        self.ended.append(ticket)

    # What happens

    @rule(
        tenant=st.sampled_from(TENANTS),
        prompt=st.integers(0, 6000) | st.integers(0, 60_000),
        output=st.integers(0, 3000),
        most=st.none() | st.integers(1, 3000),
        service_class=st.sampled_from(ServiceClass),
        sequences=st.sampled_from([1, 1, 1, 4]),
        exact=st.booleans(),
        streams=st.booleans(),
        prefix=st.none() | st.integers(0, 5),
        deadline=st.none() | st.floats(-1, 20),
        model=st.sampled_from(["m", "m", "m", "adapter", "unheard-of"]),
        marked=st.booleans(),
        draw=DRAWS,
        times=st.integers(1, 6),
    )
    def offer(self, times: int, draw: float, deadline: float | None, **given: object) -> None:
        names = {"prompt": "prompt_tokens", "output": "output_tokens", "most": "most_output_tokens"}
        names |= {"exact": "prompt_exact", "marked": "retry"}
        fields = {names.get(name, name): value for name, value in given.items()}
        deadline_at = None if deadline is None else self.now + deadline
        request = Request(deadline_at=deadline_at, **fields)  # type: ignore[arg-type]
        for _ in range(times):
            self.counts["offered"] += 1
            verdict = self.gate.offer(request, self.now, draw)
            if self.gate.mode is Mode.OBSERVE and isinstance(verdict, Refused):
                assert verdict.refusal.status in (404, 503)
            self.hear(verdict)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.5, 3.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.poll()

    @rule()
    def poll(self) -> None:
        for verdict in self.gate.poll(self.now):
            assert self.mode is Mode.ENFORCE, "observing, nothing is kept waiting"
            assert self.gate.mode is Mode.ENFORCE or verdict.ticket is not None
            self.hear(verdict, by_poll=True)

    @rule(number=st.integers(0), count=st.integers(0, 400))
    def stream(self, number: int, count: int) -> None:
        ticket = self.pick(number)
        if ticket is not None:
            if count % 2:
                self.gate.first_token(ticket, self.now)
            self.gate.tokens(ticket, count, self.now)

    @rule(number=st.integers(0), prompt=st.integers(0, 5000), output=st.integers(0, 5000), told=st.booleans())
    def finish(self, number: int, prompt: int, output: int, told: bool) -> None:
        ticket = self.pick(number)
        if ticket is not None:
            self.gate.finished(
                ticket, self.now, Usage(prompt, output) if told else None, cached_tokens=prompt // 2
            )
            self.end(ticket, "finished")

    @rule(number=st.integers(0), fault=st.sampled_from(Fault), may_retry=st.booleans())
    def fail(self, number: int, fault: Fault, may_retry: bool) -> None:
        ticket = self.pick(number)
        if ticket is None:
            return
        failed = ticket.replica
        verdict = self.gate.failed(ticket, self.now, fault, may_retry=may_retry)
        if verdict is None:
            assert ticket.has_ended
            self.end(ticket, "client error" if fault is Fault.CLIENT_ERROR else "failed")
            return
        assert may_retry
        assert ticket.first_token_at is None
        assert not ticket.request.retry
        del self.running[ticket.id]
        self.hear(verdict)
        assert ticket.replica is not failed

    @rule(number=st.integers(0))
    def resend(self, number: int) -> None:
        ticket = self.pick(number)
        if ticket is not None:
            self.gate.may_resend(ticket, self.now)
            assert not self.gate.may_resend(ticket, self.now), "never twice"

    @rule(number=st.integers(0), of_waiting=st.booleans())
    def hang_up(self, number: int, of_waiting: bool) -> None:
        tickets = list((self.waiting if of_waiting else self.running).values())
        if tickets:
            ticket = tickets[number % len(tickets)]
            self.gate.client_gone(ticket, self.now)
            self.end(ticket, "gave up")

    @rule(number=st.integers(0))
    def tell_an_end_again(self, number: int) -> None:
        if self.ended:
            ticket = self.ended[number % len(self.ended)]
            self.gate.finished(ticket, self.now, Usage(10, 10))
            self.gate.client_gone(ticket, self.now)
            self.gate.tokens(ticket, 5, self.now)
            self.gate.first_token(ticket, self.now)
            assert self.gate.failed(ticket, self.now, Fault.BROKEN, may_retry=True) is None

    @rule(specs=st.lists(SPECS, max_size=4, unique_by=lambda each: each.name))
    def change_fleet(self, specs: list) -> None:  # type: ignore[type-arg]
        self.gate.set_replicas(specs, self.now)

    @rule(
        name=st.sampled_from(NAMES),
        limit=st.sampled_from([1.0, 2.5, 8.0, 1e6]),
        factor=st.sampled_from([0.8, 1.0, 1.3]),
    )
    def limit(self, name: str, limit: float, factor: float) -> None:
        self.gate.set_limits({name: limit}, {name: factor}, self.now)

    @rule(
        name=st.sampled_from(NAMES),
        running=st.none() | st.floats(0, 20),
        usage=st.none() | st.floats(0, 1),
        age=st.floats(0, 5),
    )
    def read(self, name: str, running: float | None, usage: float | None, age: float) -> None:
        reading = ReplicaReading(name=name, at=self.now - age, running=running, kv_usage=usage)
        self.gate.set_readings([reading], self.now)

    @rule(share=st.sampled_from([0.0, 0.3, 1.0]), seconds=st.floats(0.1, 20))
    def grant(self, share: float, seconds: float) -> None:
        self.version += 1
        assert self.gate.take_grant(Grant("gw", share, self.now + seconds, 1, self.version), self.now)
        assert not self.gate.take_grant(Grant("gw", 1.0, self.now + seconds, 1, self.version), self.now)

    @precondition(lambda self: self.pools is not None)
    @rule(boundary=st.integers(1, 8000))
    def move_boundary(self, boundary: int) -> None:
        self.gate.set_boundary(boundary)

    @rule()
    def take_windows(self) -> None:
        self.windows += self.gate.windows(self.now)

    # What always holds

    @invariant()
    def reservations_add_up(self) -> None:
        tokens: Counter[object] = Counter()
        sequences: Counter[object] = Counter()
        for ticket in self.in_the_books():
            if ticket.reservation is not None:
                assert ticket.reserved_at is not None
                assert ticket.reservation.tokens >= 0
                tokens[ticket.reserved_at] += ticket.reservation.tokens
                sequences[ticket.reserved_at] += ticket.request.sequences
        for replica in self.replicas():
            ledger = replica.ledger
            assert ledger.reserved_tokens == tokens[replica] >= 0
            assert ledger.sequences == sequences[replica] >= 0
            assert 0 <= ledger.grown_tokens <= ledger.reserved_tokens
            opened = [t for t in self.running.values() if t.replica is replica]
            assert replica.open_sequences == sum(t.request.sequences for t in opened)
            assert replica.open_tokens == sum(t.tokens for t in opened)

    def in_the_books(self) -> list[Ticket]:
        """Observing, what has ended may still hold what it would have held."""
        return [*self.running.values(), *(self.ended if self.has_observed else [])]

    def replicas(self) -> set:  # type: ignore[type-arg]
        there = set(self.gate._routes.replicas.values())
        return there | {t.reserved_at for t in self.in_the_books() if t.reserved_at is not None}

    @invariant()
    def the_queue_adds_up(self) -> None:
        status = self.gate.status(self.now)
        assert all(ticket.is_queued for ticket in self.waiting.values())
        queued = [*self.waiting.values(), *(t for t in self.in_the_books() if t.is_queued)]
        assert status.queued_requests == len(queued)
        assert status.queued_tokens == sum(ticket.tokens for ticket in queued)
        for tenant in TENANTS:
            mine = [ticket for ticket in queued if ticket.request.tenant == tenant]
            accounts = [self.gate.counters.account(tenant, pool) for pool in POOLS]
            for rank in RANK.values():
                up_to = sum(ticket.rank <= rank for ticket in mine)
                assert sum(account.up_to[rank] for account in accounts) == up_to
                for account in accounts:
                    assert (account in set(account.contest.waiting[rank])) == (account.up_to[rank] > 0)
            assert sum(account.queued_tokens for account in accounts) == sum(t.tokens for t in mine)
        for replica in self.gate._routes.replicas.values():
            if replica.claimant is not None:
                assert replica.claimant.is_queued
                assert replica.claimant.claim is replica

    def teardown(self) -> None:
        """Everybody gets an answer, and everything is given back."""
        for ticket in list(self.running.values()):
            self.gate.finished(ticket, self.now)
            self.end(ticket, "finished")
        for _ in range(60):
            self.now += 3.0
            self.poll()
            for ticket in list(self.running.values()):
                self.gate.finished(ticket, self.now)
                self.end(ticket, "finished")
        assert not self.waiting, "nobody told these what became of them"
        self.reservations_add_up()
        self.the_queue_adds_up()
        status = self.gate.status(self.now)
        assert (status.queued_requests, status.queued_tokens, status.claims) == (0, 0, 0)
        for tenant in TENANTS:
            for pool in POOLS:
                account = self.gate.counters.account(tenant, pool)
                assert (account.open, account.queued, account.queued_tokens) == (0, 0, 0)
        assert all(level.sequences == 0 for level in self.gate.quotas.levels(self.now).values())
        self.now += 2.0
        self.windows += self.gate.windows(self.now)
        told: Counter[str] = Counter()
        for window in self.windows:
            assert window.offered == window.finished + window.failed + window.gave_up + sum(
                window.shed.values()
            )
            told["finished"] += window.finished
            told["failed"] += window.failed
            told["gave up"] += window.gave_up
            told["shed"] += sum(window.shed.values())
            assert window.good <= window.finished
            assert window.good_tokens <= window.tokens
            for replica in window.replicas.values():
                assert 0 <= replica.in_flight <= replica.max_in_flight
        for how in ("finished", "failed", "gave up"):
            assert told[how] == self.counts[how], how
        assert all(window.in_flight >= 0 and window.queued >= 0 for window in self.windows)
        last = {window.pool: window for window in self.windows}
        assert all((window.in_flight, window.queued) == (0, 0) for window in last.values())
        assert all(ticket.reservation is None and not ticket.is_queued for ticket in self.ended)
        for replica in self.gate._routes.replicas.values():
            assert replica.ledger.foreign_tokens < inf


class TwoPools(Lives):
    pools = PoolPair(short="short", long="long", boundary=3000)
    standing_share = 0.5


class Dropped(TwoPools):
    """By CoDel, which thinks that a queue stands at once."""

    queue = QueueSettings(drop=Dropping.CODEL, overload_wait_target=1e-9, overload_interval=1e-9)


class Observing(Lives):
    mode = Mode.OBSERVE


class Switching(Lives):
    """Somebody cannot decide whether to enforce."""

    @rule(mode=st.sampled_from(Mode))
    def switch(self, mode: Mode) -> None:
        self.gate.set_mode(mode, self.now)
        self.has_observed = True


_SETTINGS = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEnforcing = Lives.TestCase
TestEnforcing.settings = _SETTINGS
TestTwoPools = TwoPools.TestCase
TestTwoPools.settings = _SETTINGS
TestDropped = Dropped.TestCase
TestDropped.settings = _SETTINGS
TestObserving = Observing.TestCase
TestObserving.settings = _SETTINGS
TestSwitching = Switching.TestCase
TestSwitching.settings = _SETTINGS
