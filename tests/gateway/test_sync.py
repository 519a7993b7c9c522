"""Several gateways, one set of counters and quotas: the laws of `admission/sync.py`."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_store import LEASE, Gateway, ModelStore

from controlplane.gateway.admission.settings import TenantSettings

INTERVAL = 0.25
LIMITS = TenantSettings(tokens_per_minute=6000, sequences=10)


def fleet(count: int, limits: TenantSettings = LIMITS) -> tuple[ModelStore, list[Gateway]]:
    return ModelStore(), [Gateway(f"g{i}", limits) for i in range(count)]


def exchange_all(store: ModelStore, gateways: list[Gateway], now: float, rounds: int = 2) -> None:
    for _ in range(rounds):
        for gateway in gateways:
            gateway.exchange(store, now)


def test_a_quota_is_one_quota() -> None:
    store, (here, there) = fleet(2)
    exchange_all(store, [here, there], 0.0)
    assert here.quotas.take("t", 4000, 1, 0.0) is None
    exchange_all(store, [here, there], 0.25)
    denied = there.quotas.take("t", 4000, 1, 0.25)
    assert denied is not None
    assert denied.seconds == pytest.approx(19.75)
    assert there.quotas.take("t", 2000, 1, 0.25) is None


def test_what_was_not_used_is_there_for_all() -> None:
    store, (here, there) = fleet(2)
    assert here.quotas.take("t", 6000, 1, 0.0) is None
    exchange_all(store, [here, there], 0.0)
    assert there.quotas.take("t", 1000, 1, 0.0) is not None
    here.quotas.settle("t", 6000, 1000, 1, 0.0)
    exchange_all(store, [here, there], 0.0)
    assert there.quotas.levels(0.0)["t"].tokens == 5000.0


def test_sequences_of_all_count_and_those_of_the_dead_do_not() -> None:
    store, (here, there) = fleet(2)
    assert here.quotas.take("t", 1, 7, 0.0) is None
    exchange_all(store, [here, there], 0.0)
    assert there.quotas.take("t", 1, 4, 0.0) is not None
    for step in range(1, 30):  # here is dead
        there.exchange(store, step * 0.25)
        if step * 0.25 < LEASE:
            assert there.quotas.take("t", 1, 4, step * 0.25) is not None
    assert there.quotas.levels(7.0)["t"].elsewhere == 0
    assert there.quotas.take("t", 1, 10, 7.0) is None


def test_a_push_whose_answer_was_lost_is_carried_out_once() -> None:
    store, (here, there) = fleet(2)
    exchange_all(store, [here, there], 0.0)
    here.counters.account("t", "chat").charge(100.0)
    here.quotas.take("t", 1000, 1, 0.0)
    here.exchange(store, 0.0, answer_is_lost=True)
    here.counters.account("t", "chat").charge(10.0)
    here.quotas.take("t", 500, 1, 0.0)
    for _ in range(3):
        here.exchange(store, 0.0, answer_is_lost=True)
    exchange_all(store, [here, there], 0.0, rounds=3)
    assert there.counters.account("t", "chat").counter == here.counters.account("t", "chat").counter == 110.0
    assert there.quotas.levels(0.0)["t"].tokens == 4500.0


def test_two_lifts_of_one_tenant_lift_it_once() -> None:
    store, gateways = fleet(2)
    for gateway in gateways:
        gateway.counters.account("t", "chat").charge(10.0)
    exchange_all(store, gateways, 0.0)
    for gateway in gateways:
        gateway.counters.account("t", "chat").lift(1000.0)
        gateway.counters.account("t", "chat").charge(5.0)
    exchange_all(store, gateways, 0.0)
    assert {gateway.counters.account("t", "chat").counter for gateway in gateways} == {1010.0}


def test_a_store_that_forgot_is_told_again() -> None:
    store, gateways = fleet(3)
    for gateway in gateways:
        gateway.counters.account("t", "chat").charge(100.0)
        gateway.quotas.take("t", 1000, 2, 0.0)
    exchange_all(store, gateways, 0.0)
    empty = ModelStore()
    gateways[0].counters.account("t", "chat").charge(7.0)
    exchange_all(empty, gateways, 0.0, rounds=4)
    assert {gateway.counters.account("t", "chat").counter for gateway in gateways} == {307.0}
    levels = [gateway.quotas.levels(0.0)["t"] for gateway in gateways]
    assert [(level.tokens, level.sequences, level.elsewhere) for level in levels] == [(3000.0, 2, 4)] * 3


def test_a_store_that_was_rolled_back_is_told_again() -> None:
    store, gateways = fleet(2)
    exchange_all(store, gateways, 0.0)
    gateways[0].quotas.take("t", 1000, 2, 0.0)
    exchange_all(store, gateways, 0.0)
    old = ModelStore(
        {name: {**tenant, "sequences": dict(tenant["sequences"])} for name, tenant in store.tenants.items()},
        dict(store.changes),
        dict(store.gateways),
        store.revision,
    )
    gateways[0].quotas.take("t", 1000, 5, 0.0)
    gateways[0].counters.account("t", "chat").charge(50.0)
    exchange_all(store, gateways, 0.0)
    exchange_all(old, gateways, 0.0, rounds=3)
    assert gateways[1].quotas.levels(0.0)["t"].elsewhere == 7
    assert gateways[1].counters.account("t", "chat").counter == 50.0


def test_alone_everything_goes_on_and_is_told_later() -> None:
    store, (here, there) = fleet(2)
    for gateway in (here, there):
        assert gateway.quotas.take("t", 1000, 2, 0.0) is None
    exchange_all(store, [here, there], 0.0)
    assert here.quotas.levels(0.0)["t"].elsewhere == 2
    here.sync.lost(5.0)
    assert here.sync.is_alone
    assert here.quotas.levels(5.0)["t"].elsewhere == 0, "nobody is locked out by what is not known any more"
    for minute in range(10):
        here.counters.account("t", "chat").charge(6000.0)
        assert here.quotas.take("t", 6000, 1, 100.0 + 60 * minute) is None
        here.quotas.settle("t", 6000, 6000, 1, 100.0 + 60 * minute)
    exchange_all(store, [here, there], 670.0)
    assert not here.sync.is_alone
    assert there.counters.account("t", "chat").counter == 60_000.0
    level = there.quotas.levels(670.0)["t"].tokens
    assert level == pytest.approx(3000.0), "ten minutes of the quota are not owed after ten minutes"


def test_more_tenants_than_fit_into_one_exchange() -> None:
    store, (here, there) = fleet(2)
    for i in range(1200):
        here.counters.account(f"t{i}", "chat").charge(float(i + 1))
    for _ in range(4):
        here.exchange(store, 0.0)
    assert len(store.tenants) == 1200
    there.exchange(store, 0.0)
    for _ in range(4):
        pull = store.exchange(there.sync.push(0.0), "g1", 0.0)
        there.sync.took(pull, 0.0)
    assert all(there.counters.account(f"t{i}", "chat").counter == i + 1 for i in range(1200))


def run_exchanges(
    store: ModelStore, gateways: list[Gateway], due: list[float], now: float, loses: Callable[[int], bool]
) -> None:
    """All exchanges that are due by now, each at its time."""
    while min(due) <= now:
        i = due.index(min(due))
        gateways[i].exchange(store, due[i], answer_is_lost=loses(i))
        due[i] += INTERVAL


@dataclass
class Taken:
    at: float
    gateway: int
    tokens: float
    level: float  # of the one true bucket, before it


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.booleans())
def test_a_quota_is_exceeded_by_at_most_what_others_admit_within_one_delay(
    seed: int, count: int, answers_get_lost: bool
) -> None:
    """The true bucket is one that sees every taking at once.

    What is left of it at an admission, with what other gateways took within the delay, covers the admission.
    """
    dice = random.Random(seed)
    capacity, rate = 6000.0, 100.0
    # An exchange is instantaneous here; one that is lost is made good at the next.
    delay = 2 * INTERVAL * (3 if answers_get_lost else 1)
    store, gateways = fleet(count, TenantSettings(tokens_per_minute=6000))
    level, at = capacity, 0.0
    taken: list[Taken] = []
    running: list[tuple[float, int, int, int]] = []  # end, gateway, taken, used
    failed = [0] * count
    due = [dice.uniform(0, INTERVAL) for _ in range(count)]

    def is_lost(i: int) -> bool:
        lost = answers_get_lost and failed[i] < 2 and dice.random() < 0.3
        failed[i] = failed[i] + 1 if lost else 0
        return lost

    exchange_all(store, gateways, 0.0)
    now = 0.0
    admitted = 0.0
    while now < 60.0:
        now += dice.expovariate(30.0)
        level = min(capacity, level + (now - at) * rate)
        at = now
        run_exchanges(store, gateways, due, now, is_lost)
        for end in sorted(each for each in running if each[0] <= now):
            running.remove(end)
            _, i, expected, used = end
            gateways[i].quotas.settle("t", expected, used, 1, now)
            level = min(capacity, level + expected - used)
            admitted += used - expected
        i = dice.randrange(count)
        tokens = dice.choice((10, 100, 500, 1500))
        if gateways[i].quotas.take("t", tokens, 1, now) is None:
            unseen = sum(each.tokens for each in taken if each.gateway != i and now - each.at <= delay)
            refill = rate * delay * count  # a bucket that is full here may not be full there
            assert tokens <= level + unseen + refill + 1e-6, (now, level, unseen)
            taken.append(Taken(now, i, tokens, level))
            level -= tokens
            admitted += tokens
            used = dice.randint(0, tokens) if dice.random() < 0.5 else tokens
            running.append((now + dice.uniform(0.1, 5.0), i, tokens, used))
    # In the long run it is the quota and no more: an excess is a debt.
    most = max(sum(t.tokens for t in taken if s.at - delay <= t.at <= s.at) for s in taken)
    assert admitted <= capacity + rate * now + most + rate * delay * count + 1500


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_sequences_never_exceed_the_limit_by_more_than_one_delay_admits(seed: int) -> None:
    dice = random.Random(seed)
    limit = 10
    store, gateways = fleet(3, TenantSettings(sequences=limit))
    exchange_all(store, gateways, 0.0)
    due = [dice.uniform(0, INTERVAL) for _ in gateways]
    running: list[tuple[float, int, int]] = []
    admitted: list[tuple[float, int, int]] = []
    now = 0.0
    while now < 30.0:
        now += dice.expovariate(40.0)
        run_exchanges(store, gateways, due, now, lambda i: False)
        for end in [each for each in running if each[0] <= now]:
            running.remove(end)
            gateways[end[1]].quotas.settle("t", 0, 0, end[2], now)
        i, sequences = dice.randrange(3), dice.randint(1, 3)
        if gateways[i].quotas.take("t", 0, sequences, now) is None:
            unseen = sum(n for at, g, n in admitted if g != i and now - at <= 2 * INTERVAL)
            busy = sum(n for _, _, n in running)
            assert busy + sequences <= limit + unseen
            admitted.append((now, i, sequences))
            running.append((now + dice.uniform(0.05, 3.0), i, sequences))
    for gateway_number, gateway in enumerate(gateways):
        for _, i, sequences in running:
            if i == gateway_number:
                gateway.quotas.settle("t", 0, 0, sequences, now)
    exchange_all(store, gateways, now)
    assert all(g.quotas.levels(now)["t"].elsewhere == 0 for g in gateways)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_counters_agree_once_all_is_told(seed: int, answers_get_lost: bool) -> None:
    """Charges are counted once each, whatever is lost; lifts only ever raise."""
    dice = random.Random(seed)
    store, gateways = fleet(3)
    charged = dict.fromkeys("abc", 0.0)
    for step in range(200):
        gateway = dice.choice(gateways)
        match dice.randrange(4):
            case 0 | 1:
                tenant, amount = dice.choice("abc"), float(dice.randint(-20, 100))
                gateway.counters.account(tenant, "chat").charge(amount)
                charged[tenant] += amount
            case 2:
                lost = answers_get_lost and dice.random() < 0.4
                gateway.exchange(store, step * 0.1, answer_is_lost=lost)
            case 3:
                gateway.sync.lost(step * 0.1)
    exchange_all(store, gateways, 20.0, rounds=4)
    for tenant, total in charged.items():
        counts = [gateway.counters.account(tenant, "chat").counter for gateway in gateways]
        assert counts == [pytest.approx(total)] * 3
