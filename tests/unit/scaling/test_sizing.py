"""Replica counts inside the tick: when they are told, on what, and what keeps them as they are."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from fleets import NOON, FakeReplica, samples

from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Override
from controlplane.signals.pod import PodFacts, PodNews
from controlplane.signals.reading import Known, Unknown
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow, Target
from controlplane.signals.snapshot import FleetSnapshot, Scale

PROMPT, OUTPUT = 1000, 200
WORK = PROMPT + 5 * OUTPUT
SCALE = {"min": 1, "max": 10, "down_after": "1m", "down_every": "15s", "cold_start": "1m"}


def most(limit: float = 100.0) -> float:
    """Requests a second of a replica at its limit: a token takes 10 ms and 0.3 ms for each in flight."""
    return limit / (OUTPUT * (0.01 + 0.0003 * limit))


def flight(rate: float) -> float:
    """How many are in flight on a replica that does that many requests a second."""
    return 0.01 * OUTPUT * rate / (1 - 0.0003 * OUTPUT * rate)


def window(
    end: float,
    rate: float,
    replicas: Sequence[str],
    *,
    pool: str = "chat",
    gateway: str = "gw",
    whole: bool = False,
) -> OutcomeWindow:
    """A second of requests at `rate`, shared evenly; what does not fit is shed. Answers may come `whole`."""
    served = min(rate / max(1, len(replicas)), most()) if replicas else 0.0
    inside = flight(served)
    finished = round(served * 10) / 10
    step = 0.01 + 0.0003 * inside
    seen = ReplicaWindow(
        sent=round(finished),
        finished=round(finished),
        in_flight=round(inside),
        max_in_flight=round(inside),
        mean_in_flight=inside,
        output_tokens=round(finished * OUTPUT),
        gaps=0 if whole else round(inside / step),
        gap_seconds=0.0 if whole else inside,
        limit=100.0,
    )
    total = round(finished) * len(replicas)
    shed = max(0, round(rate) - total)
    return OutcomeWindow(
        gateway=gateway,
        pool=pool,
        start=end - 1,
        end=end,
        offered=total + shed,
        finished=total,
        good=total,
        failed=0,
        gave_up=0,
        shed={"queue_full": shed} if shed > 1 else {},
        tokens=total * (PROMPT + OUTPUT),
        good_tokens=total * (PROMPT + OUTPUT),
        in_flight=round(inside) * len(replicas),
        replicas=dict.fromkeys(replicas, seen),
    )


class Loop:
    """Ticks once a second with a page every five; the gateway sees requests at the rates given."""

    def __init__(self, replicas: int = 2, **scale: Any) -> None:
        pool = PoolPolicy(scale={**SCALE, **scale})
        self.settings = PolicySettings(pools={"chat": pool})
        self.memory, self.now = Memory(), NOON
        self.replicas = [FakeReplica(f"r{i}") for i in range(replicas)]
        self.starting: list[Target] = []
        self.decisions: list[Decision] = []
        self.snapshot: FleetSnapshot | None = None
        self.orders: Orders | None = None
        self.pods: PodNews | None = None
        self.seconds = 0
        self.scrapes = True
        self.whole = False

    def __call__(self, rates: Sequence[float | None]) -> Scale | None:
        for rate in rates:
            self.second(rate)
        assert self.snapshot is not None
        return self.snapshot.pools["chat"].scale

    def second(self, rate: float | None) -> None:
        names = [replica.target.name for replica in self.replicas]
        pages = self.replicas if self.scrapes and self.seconds % 5 == 0 else []
        given = samples(*pages, at=self.now)
        windows = () if rate is None else (window(self.now, rate, names, whole=self.whole),)
        targets = (*(replica.target for replica in self.replicas), *self.starting)
        given = msgspec.structs.replace(
            given, outcomes=windows, orders=self.orders, targets=targets, pods=self.pods
        )
        self.orders = self.pods = None
        self.snapshot, decisions, self.memory = tick(given, self.memory, self.settings, self.now)
        self.decisions += [one for one in decisions if one.action == "scale"]
        self.now += 1
        self.seconds += 1


def swings(seconds: int, low: float = 6.0, high: float = 10.0) -> list[float]:
    """A minute low, a minute high: so that what a replica can do is learned."""
    return [high if i // 60 % 2 else low for i in range(seconds)]


def test_what_is_shed_is_asked_for_and_told_with_evidence() -> None:
    loop = Loop()
    loop(swings(240))
    settled = len(loop.decisions)
    scale = loop([7 * most()] * 30)
    assert scale is not None
    assert scale.replicas >= 6  # beyond the two that are ready at most four
    told = loop.decisions[settled:]
    assert told
    assert told[0].target == "chat"
    assert told[-1].new == str(scale.replicas)
    assert told[-1].mode is Mode.OBSERVE
    assert "tokens of work/s" in told[-1].sentence
    evidence = {one.name: one for one in told[-1].evidence}
    assert evidence["arrived_work_per_second"].value == pytest.approx(7 * most() * WORK, rel=0.1)
    assert evidence["ready_replicas"].value == 2
    assert all(0 <= one.age_seconds < 60 for one in evidence.values())


def test_answers_that_come_whole_tell_by_the_page_what_a_replica_can_do() -> None:
    """No gateway sees a token of them before the last: without the page the need was never known."""

    def needed(*, whole: bool, page: bool) -> Scale | None:
        loop, scale = Loop(), None
        loop.whole = whole
        for rate in [*swings(600), *[1.8 * most()] * 120]:
            for replica in loop.replicas if page else ():
                step = 0.01 + 0.0003 * flight(rate / len(loop.replicas))
                replica.engine.serve(round(rate / 2), tpot=step, prompt=PROMPT, output=OUTPUT)
            scale = loop([rate])
        return scale

    by_gaps, by_page = needed(whole=False, page=False), needed(whole=True, page=True)
    by_nobody = needed(whole=True, page=False)
    assert by_gaps is not None
    assert by_page is not None
    assert by_nobody is not None
    assert isinstance(by_gaps.need, Known)
    assert isinstance(by_page.need, Known)
    assert by_page.need.value == pytest.approx(by_gaps.need.value, rel=0.1)
    assert by_page.replicas == by_gaps.replicas == 3
    assert isinstance(by_nobody.need, Unknown)


@pytest.mark.parametrize("tells_gaps", [True, False])  # TGI and TensorRT-LLM tell none
def test_pages_alone_tell_what_a_replica_can_do_in_quick_swings(tells_gaps: bool) -> None:
    """A mean over a minute, held against what is in flight now, made it a thousand times too much."""
    loop, scale = Loop(), None
    for second in range(1200):
        each = 4 + 2 * math.sin(second * math.tau / 120)
        for replica in loop.replicas:
            replica.engine.gauges["running"] = round(flight(each))
            replica.engine.serve(round(each), tpot=0.01 + 0.0003 * flight(each), prompt=PROMPT, output=OUTPUT)
            if not tells_gaps:
                replica.engine.seen["itl"] = []
        scale = loop([None])
    assert scale is not None
    assert loop.snapshot is not None
    state = loop.memory.pools["chat"].scale
    assert state is not None
    assert state.state is not None
    assert state.state.per_replica == pytest.approx(most() * WORK, rel=0.2)
    assert isinstance(scale.need, Known)


def test_a_pool_without_bounds_is_not_scaled() -> None:
    loop = Loop()
    loop.settings = PolicySettings()
    assert loop(swings(60)) is None
    assert not loop.decisions


def test_what_is_too_much_goes_one_by_one() -> None:
    loop = Loop(6)
    loop(swings(900, 12.0, 24.0))
    counts = [int(one.new) for one in loop.decisions]
    assert counts[0] == 6
    assert counts == sorted(counts, reverse=True)
    assert all(a - b == 1 for a, b in pairwise(counts))
    assert 2 <= counts[-1] <= 3


def test_nothing_is_taken_away_while_nobody_tells() -> None:
    loop = Loop(4)
    loop(swings(240, 20.0, 40.0))
    loop.scrapes = False
    before = loop([None] * 60)
    scale = loop([None] * 600)
    assert before is not None
    assert scale is not None
    assert scale.replicas == before.replicas >= 4
    assert scale.reason == "held"
    assert isinstance(scale.need, Unknown)


def test_a_hold_keeps_the_count_and_the_law_goes_on_later() -> None:
    loop = Loop()
    loop(swings(240))
    before = len(loop.decisions)
    loop.orders = Orders(Hold(loop.now, "ann", "a sale"))
    loop([7 * most()] * 60)
    assert len(loop.decisions) == before
    loop.orders = Orders()
    loop([7 * most()] * 60)
    assert len(loop.decisions) > before


def test_an_override_of_the_pool_keeps_it_too() -> None:
    loop = Loop()
    loop(swings(240))
    before = len(loop.decisions)
    kept = Override("pool", "chat", "mode", "observe", "ann", "", loop.now)
    loop.orders = Orders(overrides=(kept,))
    loop([7 * most()] * 60)
    assert len(loop.decisions) == before


def test_pods_without_an_address_load() -> None:
    loop = Loop()
    pod = PodFacts(namespace="llm", name="chat-7", pool="chat", created_at=NOON)
    loop.pods = PodNews(changed={pod.key: pod}, whole=True)
    scale = loop(swings(30))
    assert scale is not None
    assert (scale.ready, scale.loading) == (2, 1)


def start(loop: Loop, name: str, seconds: int) -> None:
    """A pod is made, gets its address halfway, and answers so many seconds after it was made."""
    pod = PodFacts(namespace="llm", name=name, pool="chat", created_at=loop.now)
    loop.pods = PodNews(changed={pod.key: pod})
    loop(swings(seconds // 2))
    replica = FakeReplica(name)
    replica.target = msgspec.structs.replace(replica.target, pod=pod.key)
    loop.pods = PodNews(changed={pod.key: msgspec.structs.replace(pod, url=replica.target.url)})
    loop.starting = [replica.target]
    loop(swings(seconds - seconds // 2))
    loop.starting = []
    loop.replicas = [*loop.replicas, replica]


def test_how_long_replicas_take_to_start_is_learned_and_told() -> None:
    loop = Loop()
    scale = loop(swings(40))
    assert scale is not None
    assert scale.cold_start_seconds == 60.0, "the configured one"
    for name in ("a", "b", "c", "d"):
        start(loop, name, 150)
        loop(swings(30))
    scale = loop([7 * most()] * 60)
    assert scale is not None
    assert scale.cold_start_seconds == pytest.approx(150.0, abs=15.0)
    assert loop.memory.pools["chat"].scale is not None
    assert len(loop.memory.pools["chat"].scale.start_ups) == 4
    evidence = {one.name: one.value for one in loop.decisions[-1].evidence}
    assert evidence["cold_start_seconds"] == scale.cold_start_seconds
    again = rewind(loop.memory, NOON - 3600).pools["chat"].scale
    assert again is not None
    assert again.start_ups == loop.memory.pools["chat"].scale.start_ups


def test_nothing_is_learned_of_a_start_that_was_not_watched() -> None:
    loop = Loop()
    start(loop, "there-at-first", 90)
    loop(swings(30))
    assert loop.memory.pools["chat"].scale is not None
    assert loop.memory.pools["chat"].scale.start_ups == ()
    loop.orders = Orders(Hold(loop.now, "ann", "a sale"))
    start(loop, "during-a-hold", 90)
    loop(swings(30))
    loop.orders = Orders()
    loop(swings(60))
    start(loop, "around-a-pause", 90)
    loop.now += 300
    loop(swings(60))
    assert loop.memory.pools["chat"].scale.start_ups == ()
    start(loop, "watched", 90)
    loop(swings(30))
    assert loop.memory.pools["chat"].scale.start_ups == (90.0,)


def test_one_that_is_stuck_is_replaced_once_others_have_shown_how_long_it_takes() -> None:
    loop = Loop(startup_timeout="10m")
    loop(swings(40))
    start(loop, "a", 60)
    start(loop, "b", 60)
    loop(swings(60))
    stuck = PodFacts(namespace="llm", name="stuck", pool="chat", created_at=loop.now)
    loop.pods = PodNews(changed={stuck.key: stuck})
    loop(swings(150))
    assert loop.memory.pools["chat"].scale is not None
    assert loop.memory.pools["chat"].scale.wish is not None
    assert loop.memory.pools["chat"].scale.wish.overdue == 0
    loop(swings(60))
    wish = loop.memory.pools["chat"].scale.wish
    assert wish is not None
    assert wish.overdue == 1


def test_from_zero_one_is_asked_for_and_an_idle_pool_goes_to_zero() -> None:
    loop = Loop(0, min=0, law={"idle_after": "1m"})
    scale = loop([5.0] * 40)
    assert scale is not None
    assert scale.replicas == 1
    loop.replicas = [FakeReplica("r0")]
    scale = loop([0.0] * 300)
    assert scale is not None
    assert scale.replicas == 0


def test_a_warm_spare_is_kept_beyond_the_need() -> None:
    plain, spare = Loop(), Loop(spare=2)
    rates = swings(300)
    without, with_it = plain(rates), spare(rates)
    assert without is not None
    assert with_it is not None
    assert with_it.replicas == without.replicas + 2


def test_a_budget_of_all_pools_stops_what_would_be_added() -> None:
    loop = Loop()
    loop.settings = loop.settings.model_copy(
        update={"budget": loop.settings.budget.model_copy(update={"gpus": 3})}
    )
    loop(swings(240))
    scale = loop([7 * most()] * 30)
    assert scale is not None
    assert scale.replicas == 3
    assert scale.reason == "budget"


def test_the_target_ratio_scales_by_what_is_in_flight() -> None:
    loop = Loop(law={"law": "target-ratio", "target": 10.0})
    loop([4 * most()] * 60)
    assert int(loop.decisions[-1].new) == 6  # the surge of four beyond two: 200 in flight need twenty
    assert "in flight" in loop.decisions[-1].sentence


def test_engines_alone_tell_enough_where_no_gateway_does() -> None:
    loop = Loop()
    for _ in range(120):
        for i, replica in enumerate(loop.replicas):
            replica.engine.gauges["running"] = 10.0 + 5 * i + loop.seconds % 11
            replica.engine.serve(2 + i, tpot=0.01 + 0.001 * (loop.seconds % 11 + 5 * i))
        scale = loop([None])
    assert scale is not None
    assert scale.ready == 2
    assert not isinstance(scale.need, Unknown) or "known" in scale.need.detail


def test_the_memory_goes_through_the_journal_and_a_clock_that_goes_back() -> None:
    loop = Loop()
    loop(swings(240))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(loop.memory), type=Memory)
    assert kept.pools["chat"].scale == loop.memory.pools["chat"].scale
    before = loop.memory.pools["chat"].scale
    assert before is not None
    assert before.wish is not None
    again = rewind(kept, NOON - 3600).pools["chat"].scale
    assert again is not None
    assert again.wish is not None
    assert again.wish.replicas == before.wish.replicas
    assert again.state is not None
    assert again.state.per_replica == before.state.per_replica if before.state else None
