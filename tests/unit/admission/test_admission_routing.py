"""Which replica a request is sent to."""

import random
from collections import Counter
from typing import Any

import pytest
from admission_gates import admitted, ask, gate, queued, reason, spec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaReading, Rotation
from controlplane.gateway.admission.request import Fault
from controlplane.gateway.admission.settings import RoutingSettings
from controlplane.gateway.admission.usage import Usage
from controlplane.policy.boundary.pair import PoolPair
from controlplane.signals.decision import Mode

PAIR = PoolPair(short="short", long="long", boundary=4000)


def spread(admission: Admission, count: int, seed: int = 1, now: float = 0.0, **request: Any) -> Counter[str]:
    rng = random.Random(seed)
    return Counter(
        str(admitted(admission.offer(ask(**request), now, rng.random())).replica_name) for _ in range(count)
    )


def two_pools(short: int = 2, long: int = 2, limit: float = 1e6, **more: Any) -> Admission:
    replicas = [spec(f"s{i}", pool="short", max_model_len=8192, kv_tokens=50_000) for i in range(short)]
    replicas += [spec(f"l{i}", pool="long", max_model_len=65_536, kv_tokens=100_000) for i in range(long)]
    return gate(*replicas, limit=limit, pools=PAIR, **more)


# One pool


@pytest.mark.parametrize("count", [2, 3, 8, 40])
def test_load_is_spread_by_tokens(count: int) -> None:
    admission = gate(*[spec(f"r{i}", kv_tokens=10**6) for i in range(count)])
    rng = random.Random(3)
    for _ in range(100 * count):
        admitted(admission.offer(ask(rng.randrange(10, 4000), 100), 0.0, rng.random()))
    reserved = [replica.reserved_tokens for replica in admission.status(0.0).replicas.values()]
    assert max(reserved) - min(reserved) <= 5 * 4100


def test_a_smaller_replica_gets_its_part() -> None:
    admission = gate(spec("big", kv_tokens=300_000), spec("small", kv_tokens=100_000))
    got = spread(admission, 200)
    assert got["big"] == pytest.approx(150, abs=5)


def test_where_the_two_drawn_are_full_the_rest_is_looked_at() -> None:
    admission = gate(*[spec(f"r{i}", kv_tokens=1000) for i in range(10)])
    assert spread(admission, 10) == {f"r{i}": 1 for i in range(10)}
    queued(admission.offer(ask(), 0.0, 0.5))


@pytest.mark.parametrize("rotation", [r for r in Rotation if r is not Rotation.IN])
def test_out_of_rotation_gets_nothing_new_and_keeps_what_runs(rotation: Rotation) -> None:
    admission = gate("r0", "r1")
    old = [admitted(admission.offer(ask(), 0.0, 0.3)) for _ in range(10)]
    admission.set_replicas([spec("r0", rotation=rotation), spec("r1")], 1.0)
    assert spread(admission, 20, now=1.0) == {"r1": 20}
    running = admission.status(1.0).replicas["r0"]
    assert running.sequences == 5
    for ticket in old:
        admission.finished(ticket, 2.0, Usage(800, 10))
    assert admission.status(2.0).replicas["r0"].sequences == 0
    assert admission.status(2.0).replicas["r0"].reserved_tokens == 0


def test_a_replica_that_is_gone_and_comes_back_still_has_what_runs_on_it() -> None:
    admission = gate("r0")
    ticket = admitted(admission.offer(ask(), 0.0, 0.5))
    admission.set_replicas([], 1.0)
    assert reason(admission.offer(ask(), 1.0, 0.5)) == "no_ready_replica"
    admission.set_replicas([spec("r0")], 2.0)
    assert admission.status(2.0).replicas["r0"].sequences == 1
    admission.finished(ticket, 3.0)
    assert admission.status(3.0).replicas["r0"].sequences == 0


def test_adapters_go_to_the_replicas_that_have_them() -> None:
    """Case E10's adapter: on one of two replicas of its base model."""
    admission = gate(
        spec("chat-0", models=("acme/chat-8b", "sql-adapter")),
        spec("chat-1", models=("acme/chat-8b",), max_model_len=16_384),
    )
    assert admission.models == {"acme/chat-8b", "sql-adapter"}
    assert spread(admission, 20, model="sql-adapter") == {"chat-0": 20}
    assert spread(admission, 20, model="acme/chat-8b")["chat-1"] == 20, "which is empty"
    verdict = admission.offer(ask(model="gpt-5"), 0.0, 0.5)
    assert reason(verdict) == "unknown_model"
    assert spread(admission, 3, prompt=20_000, output=100, model="acme/chat-8b") == {"chat-0": 3}


def test_model_names_of_clients_make_no_lines() -> None:
    admission = gate("r0")
    for i in range(1000):
        admission.finished(admitted(admission.offer(ask(model=f"m{i}"), 0.0, 0.5)), 0.0)
    assert len(admission._routes._lines) == 1


# What scrapes show


def test_load_of_others_counts_and_is_not_ours_twice() -> None:
    admission = gate(spec("r0", kv_tokens=100_000), spec("r1", kv_tokens=100_000))
    admission.set_readings([ReplicaReading(name="r0", at=0.0, running=0, waiting=0, kv_usage=0.5)], 0.0)
    got = spread(admission, 50, now=0.1)
    assert got == {"r1": 50}
    readings = [
        ReplicaReading(name="r0", at=5.0, running=0, waiting=0, kv_usage=0.5),
        ReplicaReading(name="r1", at=5.0, running=50, waiting=0, kv_usage=0.45),
    ]
    admission.set_readings(readings, 5.2)
    foreign = {name: r.foreign_tokens for name, r in admission.status(5.2).replicas.items()}
    assert foreign == {"r0": 50_000.0, "r1": 0.0}


def test_requests_of_others_are_taken_to_be_like_ours() -> None:
    admission = gate(spec("r0"), spec("r1"))
    spread(admission, 10)
    readings = [ReplicaReading(name=f"r{i}", at=1.0, running=5 + 20 * i, waiting=0) for i in range(2)]
    admission.set_readings(readings, 1.0)
    assert admission.status(1.0).replicas["r1"].foreign_tokens == pytest.approx(20_000)
    assert spread(admission, 10, now=1.1) == {"r0": 10}


def test_readings_that_grow_old_weigh_and_are_then_forgotten() -> None:
    admission = gate("r0", "r1")
    spread(admission, 20)
    for name in ("r0", "r1"):
        admission.set_readings([ReplicaReading(name=name, at=1.0, running=20.0, waiting=0.0)], 1.0)
    replicas = admission._routes.replicas

    def loads(now: float, fresh: float) -> tuple[float, float]:
        admission.set_readings([ReplicaReading(name="r1", at=fresh, running=20.0, waiting=0.0)], now)
        admission.poll(now)
        return replicas["r0"].load(0, 0, now), replicas["r1"].load(0, 0, now)

    old, new = loads(10.0, 9.0)
    assert old == new
    old, new = loads(40.0, 39.0)
    assert old == pytest.approx(new * 1.28, abs=0.05), "held, with a growing weight"
    assert replicas["r0"].ledger.foreign_sequences == 10
    old, new = loads(70.0, 69.0)
    assert old < new, "too old: only what is ours is left"
    assert replicas["r0"].ledger.foreign_sequences == 0


# Prefixes


def test_a_prefix_goes_to_its_replica() -> None:
    admission = gate(*[spec(f"r{i}", kv_tokens=10**7) for i in range(8)])
    owners = {}
    rng = random.Random(5)
    for prefix in range(100):
        tickets = [admitted(admission.offer(ask(prefix=prefix), 0.0, rng.random())) for _ in range(4)]
        assert len({ticket.replica_name for ticket in tickets}) == 1
        owners[prefix] = tickets[0].replica_name
        for ticket in tickets:
            admission.finished(ticket, 0.0)
    counts = Counter(owners.values())
    assert len(counts) == 8
    assert max(counts.values()) < 30
    other = gate(*[spec(f"r{i}", kv_tokens=10**7) for i in range(7)])
    for prefix, owner in owners.items():
        ticket = admitted(other.offer(ask(prefix=prefix), 0.0, rng.random()))
        assert owner in (ticket.replica_name, "r7"), "when a replica goes, only its own prefixes move"
        other.finished(ticket, 0.0)


def test_a_prefix_is_not_worth_a_queue() -> None:
    admission = gate(*[spec(f"r{i}", kv_tokens=10**6) for i in range(4)])
    got = spread(admission, 80, prefix=7)
    assert max(got.values()) <= min(got.values()) + RoutingSettings().affinity_sequences_margin + 2
    limited = gate(*[spec(f"r{i}") for i in range(4)], limit=5.0)
    assert all(count == 5 for count in spread(limited, 20, prefix=7).values())


# Two pools


def test_short_and_long_have_their_pools() -> None:
    admission = two_pools()
    assert set(spread(admission, 20, prompt=3000, output=1000)) == {"s0", "s1"}
    assert set(spread(admission, 20, prompt=3000, output=1001)) == {"l0", "l1"}


def test_a_boundary_over_what_the_short_pool_can_hold_does_not_send_it_there() -> None:
    admission = two_pools()
    admission.set_boundary(20_000)
    assert set(spread(admission, 8, prompt=8000, output=192)) == {"s0", "s1"}
    assert set(spread(admission, 8, prompt=8000, output=193)) == {"l0", "l1"}
    admission.set_boundary(100)
    assert set(spread(admission, 8, prompt=80, output=21)) == {"l0", "l1"}


def test_the_longest_sequence_decides_and_not_their_sum() -> None:
    admission = two_pools()
    many = admitted(admission.offer(ask(3000, 4000, sequences=4), 0.0, 0.5))
    assert (many.line.pool, many.tokens, many.sequence_tokens) == ("short", 7000, 4000)
    prompts = admitted(admission.offer(ask(20_000, 0, sequences=40, sequence_tokens=500), 0.0, 0.5))
    assert (prompts.line.pool, prompts.tokens) == ("short", 20_000)
    both = admitted(admission.offer(ask(3000, 4004, sequences=4), 0.0, 0.5))
    assert both.line.pool == "long"


def test_a_stated_limit_must_fit_whole_but_does_not_make_a_request_long() -> None:
    admission = two_pools()
    small = {"prompt": 500, "output": 300}
    assert set(spread(admission, 8, **small, most_output_tokens=7692)) == {"s0", "s1"}
    assert set(spread(admission, 8, **small, most_output_tokens=7693)) == {"l0", "l1"}, (
        "the short pool's context of 8,192 would cut its answer, or its engine refuse it"
    )
    assert set(spread(admission, 8, **small, most_output_tokens=10**6)) == {"l0", "l1"}
    assert set(spread(admission, 8, **small)) == {"s0", "s1"}


def test_a_limit_that_nobody_takes_whole_keeps_nobody_from_being_served() -> None:
    admission = gate(spec("a", max_model_len=8192), spec("b", max_model_len=4096))
    assert spread(admission, 4, prompt=500, output=300, most_output_tokens=10**6) == {"a": 4}


def test_several_answers_share_what_their_client_allows() -> None:
    admission = two_pools()
    four = admitted(admission.offer(ask(3000, 2000, sequences=4, most_output_tokens=20_768), 0.0, 0.5))
    assert (four.line.pool, four.full_tokens) == ("short", 8192)
    more = admitted(admission.offer(ask(3000, 2000, sequences=4, most_output_tokens=20_772), 0.0, 0.5))
    assert (more.line.pool, more.full_tokens) == ("long", 8193)


def test_spill_never_takes_a_limit_to_where_it_does_not_fit() -> None:
    """The long pool is full, spilling is open, and the short pool is idle."""
    admission = two_pools(short=1, long=1, limit=2.0)
    for _ in range(2):
        admitted(admission.offer(ask(9000, 100), 0.0, 0.5))
    queued(admission.offer(ask(5000, 100, most_output_tokens=4000), 0.2, 0.5))
    assert admission.poll(0.3) == []
    assert admission.status(0.3).replicas["s0"].sequences == 0
    fits = admitted(admission.offer(ask(5000, 100, most_output_tokens=3000), 0.5, 0.5))
    assert fits.replica_name == "s0"


def test_observing_sends_each_to_its_own_pool_however_full_and_never_to_one_that_cannot_hold_it() -> None:
    admission = two_pools(short=1, long=1, limit=4.0, mode=Mode.OBSERVE)
    assert spread(admission, 20, prompt=9000, output=100) == {"l0": 20}
    assert spread(admission, 20, prompt=100, output=100) == {"s0": 20}
    replicas = [
        spec("s0", pool="short", max_model_len=8192),
        spec("l0", pool="long", max_model_len=65_536, rotation=Rotation.UNREADY),
    ]
    admission.set_replicas(replicas, 1.0)
    assert spread(admission, 3, prompt=5000, output=100, now=1.0) == {"s0": 3}


def test_spill_opens_late_and_shuts_later() -> None:
    admission = two_pools(short=1, long=1, limit=20.0)
    small = {"prompt": 100, "output": 100}
    running = [admitted(admission.offer(ask(**small), 0.0, 0.5)) for _ in range(20)]
    assert {ticket.replica_name for ticket in running} == {"s0"}
    spilled = [admitted(admission.offer(ask(**small), 0.2, 0.5)) for _ in range(17)]
    assert {ticket.replica_name for ticket in spilled} == {"l0"}
    assert admission.status(0.2).counts["spilled"] == 17
    # The long pool is 85 % full now: shut. It has to fall to 70 % before it opens again.
    admitted(admission.offer(ask(**small), 0.4, 0.5))
    queued(admission.offer(ask(**small), 0.6, 0.5))
    for ticket in spilled[:3]:
        admission.finished(ticket, 0.7)
    assert admission.poll(0.9) == []
    admission.finished(spilled[3], 1.0)
    assert [admitted(each).replica_name for each in admission.poll(1.2)] == ["l0"]


def test_never_to_a_pool_that_cannot_hold_it() -> None:
    admission = two_pools(short=1, long=1, limit=2.0)
    for _ in range(2):
        admitted(admission.offer(ask(9000, 100), 0.0, 0.5))
    queued(admission.offer(ask(9000, 100), 0.2, 0.5))
    assert admission.poll(0.3) == []
    small = admitted(admission.offer(ask(4000, 100), 0.4, 0.5))
    assert small.replica_name == "s0", "of the long pool's, but it fits, and that one is full"
    assert admission.status(0.5).replicas["s0"].sequences == 1


def test_a_pool_without_a_replica_in_rotation_spills() -> None:
    admission = two_pools(short=1, long=1)
    admission.set_replicas(
        [spec("s0", pool="short", max_model_len=8192, rotation=Rotation.UNREADY), spec("l0", pool="long")],
        1.0,
    )
    assert spread(admission, 5, prompt=100, output=10, now=1.0) == {"l0": 5}


# Failures


def test_a_replica_that_refused_for_load_is_left_alone_for_a_while() -> None:
    admission = gate("r0", "r1")
    ticket = admitted(admission.offer(ask(), 0.0, 0.1))
    other = admission.failed(ticket, 0.0, Fault.OVERLOADED, may_retry=True)
    assert admitted(other) is ticket
    refused_by, now_at = ("r0", "r1") if ticket.replica_name == "r1" else ("r1", "r0")
    assert spread(admission, 10, now=0.5) == {now_at: 10}
    assert spread(admission, 5, now=1.1) == {refused_by: 5}, "which is the emptier one"
    ticket = admitted(admission.offer(ask(), 2.0, 0.1))
    name = str(ticket.replica_name)
    admission.failed(ticket, 2.0, Fault.OVERLOADED, retry_after_seconds=5.0)
    assert name not in spread(admission, 30, now=6.9)


def test_slow_start_ends() -> None:
    admission = gate("r0", "r1", now=100.0, limit=10.0)
    admission.set_replicas([spec("r0"), spec("r1"), spec("r2", ready_since=100.0)], 100.0)
    admission.set_limits({"r2": 10.0}, {}, 100.0)
    # Of the fresh one's ten places one may be used at first, half of them half-way.
    assert spread(admission, 21, now=100.0)["r2"] == 1
    queued(admission.offer(ask(), 100.0, 0.5))
    admission.poll(102.5)
    admission.poll(102.6)
    for _ in range(4):
        admitted(admission.offer(ask(), 115.0, 0.5))
    queued(admission.offer(ask(), 115.0, 0.5))
    assert admission.status(115.0).replicas["r2"].sequences == 5
    assert len(admission.poll(117.0)) <= 1


# Shares


def test_a_share_divides_budget_and_limit() -> None:
    admission = gate(spec("r0", kv_tokens=100_000), limit=40.0, standing_share=0.25, now=0.0)
    status = admission.status(0.0).replicas["r0"]
    assert (status.budget_tokens, status.limit) == (0.0, 0.0), "nothing yet: another may have all of it"
    waits = queued(admission.offer(ask(), 29.0, 0.5))
    assert admission.poll(29.9) == []
    assert admitted(admission.poll(30.1)[0]) is waits
    status = admission.status(30.1).replicas["r0"]
    assert (status.budget_tokens, status.limit) == (25_000.0, 10.0)
    admission.set_limits({"r0": 2.0}, {"r0": 1.2}, 31.0)
    status = admission.status(31.0).replicas["r0"]
    assert (status.budget_tokens, status.limit) == (30_000.0, 1.0)
