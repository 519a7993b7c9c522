"""Limits inside the tick: who is told what, when they stand still, and what they go on from."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from fleets import NOON, FakeReplica, samples

from controlplane.policy import steer
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Override, Standing
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow, Samples
from controlplane.signals.snapshot import FleetSnapshot, Limit, Quantiles

HELD = Orders(Hold(NOON, "ann", "racks"))


def policy(limits: Any = None, **changes: Any) -> PolicySettings:
    law = {} if limits is None else {"limits": limits}
    return PolicySettings(pools={"chat": PoolPolicy(slo={"ttft": "1s", "tpot": "50ms"}, **law, **changes)})


def window(
    end: float, gap: float, in_flight: int = 200, *, gateway: str = "gw", replica: str = "r0", **more: Any
) -> OutcomeWindow:
    """A second of one busy replica, whose step gap is `gap` seconds."""
    of_pool = {name: more.pop(name) for name in ("is_alone", "asked", "asked_tokens") if name in more}
    tokens = Quantiles(20.0, 0.1, 0.1, 0.2, 0.2, 0.3)
    seen = ReplicaWindow(
        in_flight=in_flight,
        max_in_flight=in_flight,
        first_token=tokens,
        gaps=1000,
        gap_seconds=1000 * gap,
        finished=10,
        output_tokens=2000,
        token_steps=2000.0 * 600,
        **more,
    )
    counts = dict.fromkeys(
        ("offered", "finished", "good", "failed", "gave_up", "tokens", "good_tokens", "in_flight"), 0
    )
    return OutcomeWindow(
        gateway, "chat", end - 1, end, shed={}, replicas={replica: seen}, **of_pool, **counts
    )


class Loop:
    """Ticks once a second, with a page every five, and keeps the decisions on limits."""

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self.settings = settings or policy()
        self.memory, self.now, self.seconds, self.page_at = Memory(), NOON, 0, 0.0
        self.replica = FakeReplica()
        self.decisions: list[Decision] = []
        self.snapshot: FleetSnapshot | None = None
        self.orders: Orders | None = None

    def __call__(self, *windows: OutcomeWindow, page: bool | None = None) -> Limit | None:
        scraped = self.seconds % 5 == 0 if page is None else page
        given = samples(self.replica, at=self.now) if scraped else Samples()
        self.page_at = self.now if scraped else self.page_at
        if self.seconds == 0:
            given = msgspec.structs.replace(given, targets=(self.replica.target,))
        given = msgspec.structs.replace(given, outcomes=windows, orders=self.orders)
        self.orders = None
        self.snapshot, decisions, self.memory = tick(given, self.memory, self.settings, self.now)
        self.decisions += [one for one in decisions if one.action == "set-limit"]
        self.now += 1.0
        self.seconds += 1
        return self.snapshot.replicas[self.replica.target.name].limit

    def steady(self, gap: float, seconds: int, **more: Any) -> list[int]:
        """So many seconds at a step gap: the limits after each."""
        limits = []
        for _ in range(seconds):
            limit = self(window(self.now, gap, **more))
            assert limit is not None
            limits.append(limit.slots)
        return limits


def test_each_change_of_the_whole_number_is_a_decision_with_the_gradient_that_bound_it() -> None:
    loop = Loop()
    rising = loop.steady(0.02, 10)
    assert rising == sorted(rising)
    assert rising[-1] > 60
    falling = loop.steady(0.08, 3)
    assert falling[-1] < rising[-1]
    numbers = [16, *rising, *falling]
    changes = [(str(a), str(b)) for a, b in pairwise(numbers) if a != b]
    assert [(d.old, d.new) for d in loop.decisions] == [("", "16"), *changes]
    cut = loop.decisions[-1]
    assert (cut.target, cut.reason) == ("r0", "tpot-over")
    assert cut.sentence.startswith(
        f"r0 may hold {cut.new} sequences at once instead of {cut.old}: a token takes"
    )
    evidence = {one.name: one for one in cut.evidence}
    assert evidence["step_gap_seconds"].value == pytest.approx(0.08)
    assert evidence["max_in_flight"].value == 200
    assert (evidence["kv_usage"].value, evidence["kv_usage"].age_seconds) == (0.0, cut.at - loop.page_at)


def test_the_snapshot_shows_the_limit_and_why() -> None:
    loop = Loop()
    loop.steady(0.02, 5)
    limit = loop(window(loop.now, 0.02, limit=7.0))
    assert limit is not None
    assert (limit.law, limit.in_force) == ("slo-gradient", 7.0)
    assert limit.detail
    assert limit.since <= loop.now


def test_a_pool_without_a_law_has_no_limit() -> None:
    loop = Loop(policy({"law": "none"}))
    assert [loop(window(loop.now, 0.2)) for _ in range(3)] == [None] * 3
    assert loop.decisions == []


def test_a_fixed_limit_is_decided_once() -> None:
    loop = Loop(policy({"law": "fixed", "limit": 40}))
    assert loop.steady(0.2, 5) == [40] * 5
    assert [(d.old, d.new, d.reason) for d in loop.decisions] == [("", "40", "fixed")]


def test_another_law_goes_on_from_the_limit_that_there_is() -> None:
    loop = Loop(policy({"law": "fixed", "limit": 40}))
    loop.steady(0.03, 3)
    loop.settings = policy()
    (limit,) = loop.steady(0.03, 1)
    assert 40 <= limit <= 50
    loop.settings = policy({"law": "fixed", "limit": 9})
    assert loop.steady(0.03, 1) == [9]


@pytest.mark.parametrize(
    "orders",
    [
        HELD,
        Orders(None, (Override("pool", "chat", "mode", Mode.OBSERVE, "ann", "test", NOON),)),
        Orders(None, (Override("replica", "r0", "mode", Mode.OBSERVE, "ann", "test", NOON),)),
    ],
)
def test_while_people_keep_it_the_limit_stands_still_and_goes_on_from_there(orders: Orders) -> None:
    loop = Loop()
    before = loop.steady(0.03, 10)[-1]
    decided = len(loop.decisions)
    loop.orders = orders
    assert loop.steady(0.2, 60) == [before] * 60
    assert len(loop.decisions) == decided
    loop.orders = Orders()
    (after,) = loop.steady(0.03, 1)
    assert 0.85 * before <= after <= 1.5 * before, "nothing jumps"


def ordered(scope: str, name: str, value: str) -> Override:
    return Override(scope, name, "limit", value, "ann", "a canary", NOON)


@pytest.mark.parametrize("law", [None, {"law": "fixed", "limit": 40}, {"law": "none"}])
def test_a_persons_word_on_a_limit_wins_over_every_law_until_it_is_taken_back(law: Any) -> None:
    loop = Loop(policy(law))
    loop(window(loop.now, 0.03))
    loop.orders = Orders(None, (ordered("replica", "r0", "7"), ordered("pool", "chat", "9")))
    assert loop.steady(0.2, 20) == [7] * 20, "the replica's own word before that on its pool"
    told = loop.decisions[-1]
    assert (told.new, told.reason) == ("7", "ordered")
    assert "ann ordered it (a canary)" in told.sentence
    loop.orders = Orders(None, (ordered("pool", "chat", "9"), ordered("pool", "batch", "3")))
    assert loop.steady(0.2, 1) == [9]
    loop.orders = Orders()
    (after,) = loop.steady(0.02, 1)
    wanted = {None: range(9, 13), "fixed": [40], "none": [1_000_000]}[law and law["law"]]
    assert after in wanted
    assert loop.decisions[-1].reason != "ordered"


def test_a_hold_keeps_also_what_people_order_of_limits_until_it_is_over() -> None:
    loop = Loop()
    before = loop.steady(0.03, 5)[-1]
    loop.orders = Orders(HELD.hold, (ordered("replica", "r0", "7"),))
    assert loop.steady(0.03, 3) == [before] * 3
    loop.orders = Orders(None, (ordered("replica", "r0", "7"),))
    assert loop.steady(0.03, 1) == [7]


def test_a_fresh_replica_begins_with_what_was_ordered_of_its_pool() -> None:
    loop = Loop()
    loop.orders = Orders(None, (ordered("pool", "chat", "9"),))
    assert loop.steady(0.03, 2) == [9, 9]


def test_an_override_of_another_replica_keeps_nothing() -> None:
    loop = Loop()
    loop.orders = Orders(None, (Override("replica", "r9", "mode", Mode.OBSERVE, "ann", "test", NOON),))
    assert loop.steady(0.02, 10)[-1] > 40


def test_a_daemon_that_comes_back_goes_on_from_what_the_gateway_found_alone() -> None:
    loop = Loop()
    loop.steady(0.03, 10)
    loop.now += 600.0
    first = loop(window(loop.now, 0.03, limit=151.0, is_alone=True), page=True)
    assert first is not None
    assert 0.85 * 151 <= first.slots <= 1.15 * 151
    assert (first.in_force, loop.decisions[-1].old) == (151.0, loop.decisions[-2].new)


def test_of_several_gateways_one_that_was_alone_does_not_move_the_others() -> None:
    loop = Loop()
    limit = loop.steady(0.038, 20)[-1]
    steered = window(loop.now, 0.038, limit=float(limit))
    alone = window(loop.now, 0.038, gateway="other", limit=500.0, is_alone=True)
    seen = loop(steered, alone)
    assert seen is not None
    assert seen.slots < 1.3 * limit


def test_a_fresh_replica_of_a_gateway_alone_begins_with_the_limit_in_force() -> None:
    loop = Loop()
    limit = loop(window(loop.now, 0.03, limit=120.0, is_alone=True))
    assert limit is not None
    assert (limit.slots, limit.reason) == (120, "resumed")


def test_a_restart_of_the_engine_begins_anew() -> None:
    loop = Loop()
    assert loop.steady(0.02, 15)[-1] > 100
    loop.replica.restart(loop.now)
    loop(window(loop.now, 0.02), page=True)
    assert loop.decisions[-1].reason in {"engine-restarted", "kv-ceiling"}
    assert int(loop.decisions[-1].new) < 100


def test_no_gateway_of_ours_means_a_window_a_page() -> None:
    """Ten requests a page, all over the objective: cut at each, and never in between."""
    loop = Loop()
    loop.replica.engine.gauges.update(running=16.0, waiting=0.0, kv_usage=0.3)
    moved = []
    for second in range(40):
        if second % 5 == 0:
            loop.replica.engine.serve(10, ttft=0.2, tpot=0.09, output=50)
        before = len(loop.decisions)
        loop()
        if len(loop.decisions) > before:
            moved.append(second)
    assert len(moved) > 2
    assert all(second % 5 == 0 for second in moved)
    assert loop.decisions[-1].reason in {"tpot-over", "floor"}


@pytest.mark.parametrize("guessed", [0, 20])
def test_what_an_engine_guesses_ahead_is_no_slowness(guessed: int) -> None:
    """A step of 90 ms brings three tokens of a stream; vLLM observes the gap once."""
    loop = Loop()
    loop.replica.engine.gauges.update(running=16.0, waiting=0.0, kv_usage=0.3)
    loop.replica.engine.counts["spec_accepted_tokens_total"] = 0
    for second in range(40):
        if second % 5 == 0:
            loop.replica.engine.serve(10, tpot=0.03, gap=0.09, output=50)
            loop.replica.engine.counts["spec_accepted_tokens_total"] += guessed
        loop()
    reasons = {decision.reason for decision in loop.decisions}
    assert ("tpot-over" in reasons) is not bool(guessed)
    assert (int(loop.decisions[-1].new) > 16) is bool(guessed)


def test_gateways_that_fall_silent_leave_it_to_the_pages() -> None:
    loop = Loop()
    loop.steady(0.03, 10)
    loop.replica.engine.gauges.update(running=100.0, waiting=0.0, kv_usage=0.3)
    decided = len(loop.decisions)
    for second in range(60):
        if second % 5 == 0:
            loop.replica.engine.serve(30, ttft=0.2, tpot=0.09, output=50)
        loop()
    later = loop.decisions[decided:]
    assert later
    assert later[0].at >= NOON + 14, "not before they were silent for a while"
    assert {d.reason for d in later} <= {"tpot-over", "floor", "stale"}


def test_blind_laws_see_that_they_are_blind() -> None:
    """Neither pages nor reports: the limit ends where it was known to be good, or lower; it never grows."""
    loop = Loop()
    before = loop.steady(0.03, 30)[-1]
    for _ in range(200):
        limit = loop(page=False)
    assert limit is not None
    assert limit.slots <= before
    assert limit.reason == "stale"


def test_a_clock_that_is_set_back_begins_the_windows_anew_at_the_same_limit() -> None:
    loop = Loop()
    before = loop.steady(0.03, 10)[-1]
    loop.memory = rewind(loop.memory, NOON - 3600)
    loop.now, loop.seconds = NOON - 3600, 0
    after = loop.steady(0.03, 3)
    assert all(0.85 * before <= limit <= 1.35 * before for limit in after)


def test_the_lengths_of_all_replicas_tell_the_ceiling_of_a_fresh_one() -> None:
    """Requests hold 600 tokens each in the middle: 8,000 hold 12 with a reserve, fewer than the start."""
    loop = Loop()
    loop.steady(0.02, 30)
    fresh = FakeReplica("r1")
    fresh.engine.gauges["kv_capacity_tokens"] = 8_000.0
    given = Samples(targets=(loop.replica.target, fresh.target), scrapes=(fresh.page(loop.now),))
    _, _, memory = tick(given, loop.memory, loop.settings, loop.now)
    told = Samples(outcomes=(window(loop.now + 1, 0.03, replica="r1", in_flight=3),))
    snapshot, decisions, _ = tick(told, memory, loop.settings, loop.now + 1)
    limit = snapshot.replicas["r1"].limit
    assert limit is not None
    assert limit.slots in {11, 12}
    assert [(d.target, d.new) for d in decisions if d.target == "r1"] == [("r1", str(limit.slots))]


# What the gateways are to be told


def orders_of(loop: Loop, standing: Standing, told: dict[str, float] | None = None) -> Any:
    assert loop.snapshot is not None
    return steer.orders(loop.snapshot, loop.settings, {"r0": standing}, told or {})[0]


def test_a_limit_in_tokens_is_told_as_a_part_of_the_kv_cache() -> None:
    loop = Loop(policy(kv_overcommit=1.2))
    loop.replica.engine.gauges["kv_capacity_tokens"] = 100_000.0
    slots = loop.steady(0.03, 2, asked=20, asked_tokens=40_000)[-1]
    assert loop.snapshot is not None
    seen = loop.snapshot.replicas["r0"]
    assert seen.limit is not None
    assert seen.limit.tokens is not None
    assert seen.limit.tokens == pytest.approx(0.9 * 3000 * slots, rel=0.05)
    told = orders_of(loop, Standing.ENFORCE)
    assert told.overcommit == pytest.approx(seen.limit.tokens / 100_000)
    # It never promises more than people allow.
    generous = msgspec.structs.replace(seen, limit=msgspec.structs.replace(seen.limit, tokens=1e9))
    assert steer.overcommit_of(generous, loop.settings) == 1.2
    unknown = msgspec.structs.replace(seen, kv_tokens=None)
    assert steer.overcommit_of(unknown, loop.settings) == 1.2


def test_what_is_told_follows_from_what_may_be_done() -> None:
    loop = Loop(policy(kv_overcommit=1.2))
    slots = loop.steady(0.03, 6)[-1]
    enforced = orders_of(loop, Standing.ENFORCE)
    assert (enforced.limit, enforced.overcommit, enforced.rotation) == (float(slots), 1.2, "in")
    assert (enforced.read_at, enforced.running) == (NOON + 5, 0.0)
    assert orders_of(loop, Standing.OBSERVE).limit is None
    assert orders_of(loop, Standing.HELD, {"r0": 33.0}).limit == 33.0
    assert orders_of(loop, Standing.HELD).limit is None


def test_no_law_tells_that_there_is_no_limit() -> None:
    loop = Loop(policy({"law": "none"}))
    loop()
    assert orders_of(loop, Standing.ENFORCE).limit == 1_000_000.0


def test_a_replica_is_starting_until_its_first_good_page_and_what_was_there_is_not_fresh() -> None:
    loop = Loop()
    loop(page=False)
    assert orders_of(loop, Standing.ENFORCE).rotation == "starting"
    loop(page=True)
    assert (orders_of(loop, Standing.ENFORCE).rotation, orders_of(loop, Standing.ENFORCE).ready_since) == (
        "in",
        None,
    )
    loop.replica.restart(loop.now)
    loop(page=True)
    assert orders_of(loop, Standing.ENFORCE).ready_since == loop.now - 1


def test_a_replica_begins_from_half_of_what_the_others_of_its_pool_have_found() -> None:
    loop = Loop()
    loop.steady(0.02, 20)
    (found,) = loop.steady(0.08, 3)[-1:]  # out of slow start
    fresh = FakeReplica("r1")
    given = samples(loop.replica, fresh, at=loop.now)
    snapshot, decisions, memory = tick(given, loop.memory, loop.settings, loop.now)
    limit = snapshot.replicas["r1"].limit
    assert limit is not None
    assert limit.slots == found // 2 > 16
    (told,) = [one for one in decisions if one.target == "r1"]
    assert f"half of the {found} that the others of its pool have found" in told.sentence

    fresh.restart(loop.now + 4)
    snapshot, _, _ = tick(samples(loop.replica, fresh, at=loop.now + 6), memory, loop.settings, loop.now + 6)
    limit, other = (snapshot.replicas[name].limit for name in ("r1", "r0"))
    assert limit is not None
    assert other is not None
    assert limit.reason == "engine-restarted"
    assert limit.slots == other.slots // 2


def test_alone_a_restarted_replica_begins_anew() -> None:
    loop = Loop()
    loop.steady(0.02, 20)
    assert loop.steady(0.08, 3)[-1] > 40
    loop.replica.restart(loop.now)
    assert loop.steady(0.03, 6)[-1] <= 40
