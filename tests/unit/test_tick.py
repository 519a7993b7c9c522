"""The tick: from samples to snapshot, events and decisions."""

import random
from collections import Counter

import msgspec
import pytest
from fleets import NOON, FakeReplica, samples

from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Event, Hold, Orders
from controlplane.signals.interval import exactly
from controlplane.signals.reading import Known, Quality, Reason, Unknown, known
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Signals
from controlplane.signals.snapshot import Denominator, FleetSnapshot, ReplicaState, Trend
from controlplane.signals.units import duration_text

SETTINGS = PolicySettings()


class Loop:
    """Runs ticks and keeps all that they told; decisions on limits apart, for they come all the time."""

    def __init__(self, settings: PolicySettings = SETTINGS) -> None:
        self.memory, self.settings = Memory(), settings
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.limits: list[Decision] = []

    def __call__(self, given: Samples, now: float) -> FleetSnapshot:
        snapshot, decisions, self.memory = tick(given, self.memory, self.settings, now)
        self.events.extend(snapshot.events)
        for decision in decisions:
            (self.limits if decision.action == "set-limit" else self.decisions).append(decision)
        return snapshot

    def kinds(self) -> list[str]:
        return [e.kind for e in self.events]

    def judged(self) -> list[tuple[str, str]]:
        return [(d.target, d.reason) for d in self.decisions]


def failure(at: float, reason: Reason = Reason.SCRAPE_FAILED) -> Samples:
    return Samples(scrapes=(ScrapeFailure("r0", at, reason, "http://r0:8000/metrics: connection refused"),))


def test_a_light_load_is_read_as_it_is() -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.gauges.update(running=3.0, waiting=0.0, kv_usage=0.25)
    loop(samples(r, at=NOON), NOON)
    for k in range(1, 13):
        r.engine.serve(10)
        now = NOON + 5 * k
        seen = loop(samples(r, at=now), now)
    replica, pool = seen.replicas["r0"], seen.pools["chat"]
    assert replica.state is ReplicaState.UP
    assert known(replica.load.running) == 3.0
    assert known(replica.load.kv_usage) == 0.25
    assert known(replica.load.generation_tokens_per_second) == pytest.approx(40.0)
    assert known(replica.load.prompt_tokens_per_second) == pytest.approx(100.0)
    assert known(replica.load.requests_per_second) == pytest.approx(2.0)
    assert replica.goodput.ratio == exactly(1.0)
    assert pool.goodput.requests == replica.goodput.requests == 120.0
    assert pool.totals.finished == 120.0
    assert pool.totals.good_tokens == exactly(120.0 * 70)
    assert isinstance(replica.latency.ttft, Known)
    assert replica.latency.ttft.value.count == 120.0
    assert loop.kinds() == ["replica-joined"]
    assert loop.decisions == []


def test_waiting_tokens_are_an_estimate_and_say_so() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    r.engine.serve(10, prompt=200)
    r.engine.gauges.update(running=1.0, waiting=4.0)
    seen = loop(samples(r, at=NOON + 10), NOON + 10)
    assert seen.replicas["r0"].load.waiting_tokens == Known(800.0, NOON + 10, Quality.ESTIMATE)


def test_A4_a_restart_in_the_tick() -> None:
    """Case A4 through the tick, with the values of its pages; once with and once without start times."""
    pages = [(0, NOON, 900_000, 500_000), (15, NOON + 12.4, 900, 1_200), (30, NOON + 12.4, 3_150, 4_200)]
    for with_start_time in (True, False):
        loop, r = Loop(), FakeReplica()
        rates = []
        for after, start_time, prompt, generated in pages:
            r.start_time = start_time if with_start_time else None
            r.engine.counts.update({"prompt_tokens_total": prompt - r.engine.counts["prompt_tokens_total"]})
            r.engine.counts.update(
                {"generation_tokens_total": generated - r.engine.counts["generation_tokens_total"]}
            )
            now = NOON + after
            load = loop(samples(r, at=now), now).replicas["r0"].load
            rates.append((known(load.prompt_tokens_per_second), known(load.generation_tokens_per_second)))
        assert rates == [(None, None), (60.0, 80.0), (150.0, 200.0)]
        assert loop.kinds() == ["replica-joined", "restart"]
        assert loop.memory.pools["chat"].totals.generation_tokens == 4_200.0


def test_a_restart_whose_new_counters_have_outgrown_the_old_is_seen_by_its_start_time() -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.serve(1)
    loop(samples(r, at=NOON), NOON)
    r.restart(NOON + 1)
    r.engine.serve(100)
    seen = loop(samples(r, at=NOON + 10), NOON + 10)
    assert "restart" in loop.kinds()
    assert seen.pools["chat"].totals.finished == 100.0
    assert seen.replicas["r0"].restarts == 1


def test_engines_that_share_an_address_do_not_restart_with_each_page_nor_count_their_lives_again() -> None:
    """A Service or a proxy is the target: each page is of another engine, all of which ran for long."""
    loop, one, other = Loop(), FakeReplica(), FakeReplica()
    other.start_time = NOON - 7200
    one.engine.serve(1000)
    other.engine.serve(5000)
    for k in range(24):
        r, now = (one, other)[k % 2], NOON + 5 * k
        r.engine.serve(1)
        seen = loop(samples(r, at=now), now)
    assert loop.kinds() == ["replica-joined", "another-process"]
    assert seen.replicas["r0"].restarts == 0
    assert seen.pools["chat"].totals.finished == 0.0
    assert isinstance(seen.replicas["r0"].load.requests_per_second, Unknown)
    for k in range(24, 27):  # from now on always the same
        one.engine.serve(10)
        seen = loop(samples(one, at=NOON + 5 * k), NOON + 5 * k)
    assert known(seen.replicas["r0"].load.requests_per_second) == pytest.approx(2.0)


def test_one_failed_scrape_changes_nothing_and_three_are_told_once() -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.gauges["running"] = 2.0
    loop(samples(r, at=NOON), NOON)
    seen = loop(failure(NOON + 5), NOON + 5)
    assert seen.replicas["r0"].state is ReplicaState.UP
    assert known(seen.replicas["r0"].load.running) == 2.0
    for k in range(2, 9):
        seen = loop(failure(NOON + 5 * k), NOON + 5 * k)
    assert seen.replicas["r0"].state is ReplicaState.UNREACHABLE
    assert isinstance(seen.replicas["r0"].load.running, Unknown)
    assert seen.replicas["r0"].load.running.reason is Reason.STALE
    seen = loop(samples(r, at=NOON + 60), NOON + 60)
    assert seen.replicas["r0"].state is ReplicaState.UP
    assert loop.kinds() == ["replica-joined", "scrape-failing", "scrape-failing-over"]


def test_a_target_that_flaps_is_not_told_each_time() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    for k in range(1, 40):
        now = NOON + 5 * k
        loop(failure(now) if k % 2 else samples(r, at=now), now)
    assert loop.kinds() == ["replica-joined"]


def test_silence_makes_a_replica_unknown_without_any_sample() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    assert loop(Samples(), NOON + 19).replicas["r0"].state is ReplicaState.UP
    seen = loop(Samples(), NOON + 21)
    assert seen.replicas["r0"].state is ReplicaState.UNREACHABLE
    assert isinstance(seen.pools["chat"].load.running, Unknown)


@pytest.mark.parametrize(("apart", "is_told"), [(5, False), (15, False), (30, True), (60, True)])
def test_pages_that_come_too_seldom_are_told_once_for_a_pool(apart: int, is_told: bool) -> None:
    """Prometheus scrapes once a minute unless it was told otherwise: nothing would ever be known."""
    loop, *replicas = Loop(), FakeReplica("r0"), FakeReplica("r1")
    for k in range(6):
        loop(samples(*replicas, at=NOON + apart * k), NOON + apart * k)
    assert loop.kinds().count("pages-far-apart") == is_told
    if is_told:
        sentence = next(event.sentence for event in loop.events if event.kind == "pages-far-apart")
        assert f"policy.stale_after to {duration_text(3.0 * apart)}" in sentence


def test_a_wrong_page_is_not_an_engine_and_not_zero() -> None:
    loop, r = Loop(), FakeReplica()
    loop(Samples(targets=(r.target,)), NOON)
    seen = loop(failure(NOON + 1, Reason.NOT_AN_ENGINE), NOON + 1)
    assert seen.replicas["r0"].state is ReplicaState.NOT_AN_ENGINE
    assert isinstance(seen.replicas["r0"].load.running, Unknown)
    assert loop.kinds() == ["replica-joined", "not-an-engine"]


@pytest.mark.parametrize(("open_requests", "kind"), [(None, "stalled"), (3, "wedged"), (0, "frozen-gauges")])
def test_work_without_a_token_is_told_once(open_requests: int | None, kind: str) -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.gauges.update(running=4.0, waiting=2.0)
    for k in range(13):
        now = NOON + 5 * k
        given = samples(r, at=now)
        if open_requests is not None:
            window = OutcomeWindow("gw", "chat", now - 1, now, 0, 0, 0, 0, 0, {}, 0, 0, open_requests)
            given = msgspec.structs.replace(given, outcomes=(window,))
        seen = loop(given, now)
    assert loop.judged() == [("r0", kind)]
    believed = kind == "wedged"
    assert isinstance(seen.replicas["r0"].load.running, Known) == believed
    r.engine.serve(1)
    loop(samples(r, at=NOON + 65), NOON + 65)
    assert loop.judged()[-1] == ("r0", f"{kind}-over")


def test_an_idle_engine_never_stalls() -> None:
    loop, r = Loop(), FakeReplica()
    for k in range(100):
        loop(samples(r, at=NOON + 5 * k), NOON + 5 * k)
    assert loop.decisions == []


def test_one_wedged_engine_of_four_is_seen() -> None:
    loop, r = Loop(), FakeReplica(engines=4)
    for engine in r.engines.values():
        engine.gauges["running"] = 2.0
    for k in range(10):
        for name in "013":
            r.engines[name].serve(1)
        loop(samples(r, at=NOON + 5 * k), NOON + 5 * k)
    assert loop.judged() == [("r0", "stalled")]
    assert "engine 2" in loop.decisions[0].sentence


def test_dp_engines_are_summed_but_never_their_kv() -> None:
    loop, r = Loop(), FakeReplica(engines=2)
    r.engines["0"].gauges.update(running=1.0, kv_usage=0.2)
    r.engines["1"].gauges.update(running=5.0, kv_usage=0.9)
    load = loop(samples(r, at=NOON), NOON).replicas["r0"].load
    assert known(load.running) == 6.0
    assert known(load.kv_usage) == 0.9
    assert known(load.kv_usage_mean) == pytest.approx(0.55)


def test_one_burst_of_preemptions_is_not_a_trend() -> None:
    loop, r = Loop(), FakeReplica()
    trends = []
    for k in range(20):
        r.engine.serve(1)
        r.engine.counts["preemptions_total"] += 50 if k == 3 else 0
        trends.append(loop(samples(r, at=NOON + 10 * k), NOON + 10 * k).replicas["r0"].preemption_trend)
    assert Trend.BURST in trends
    assert Trend.SUSTAINED not in trends
    assert trends[-1] is Trend.NONE
    for k in range(20, 30):
        r.engine.serve(1)
        r.engine.counts["preemptions_total"] += 2
        seen = loop(samples(r, at=NOON + 10 * k), NOON + 10 * k)
    assert seen.replicas["r0"].preemption_trend is Trend.SUSTAINED
    assert loop.judged() == [("r0", "preempting")]


def test_the_gateway_decides_the_denominator() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    r.engine.serve(100)
    window = OutcomeWindow(
        "gw",
        "chat",
        NOON,
        NOON + 10,
        207,
        100,
        90,
        20,
        30,
        {"queue_full": 50, "tenant_token_quota": 7},
        9000,
        8000,
        4,
    )
    given = msgspec.structs.replace(samples(r, at=NOON + 10), outcomes=(window, window))
    found = loop(given, NOON + 10).pools["chat"].goodput
    assert found.denominator is Denominator.GATEWAY
    assert (found.requests, found.shed, found.failed, found.gave_up) == (170.0, 50.0, 20.0, 30.0)
    assert found.ratio == exactly(90 / 170)


def test_who_gave_up_is_shown_apart_by_the_http_count() -> None:
    loop, r = Loop(), FakeReplica()
    r.http = Counter({"2xx": 5})
    loop(samples(r, at=NOON), NOON)
    r.engine.serve(30)
    r.http.update({"2xx": 40, "5xx": 10})
    found = loop(samples(r, at=NOON + 10), NOON + 10).replicas["r0"].goodput
    assert found.denominator is Denominator.HTTP
    assert (found.finished, found.failed, found.gave_up) == (30.0, 10.0, 10.0)
    assert found.ratio == exactly(30 / 40)


def test_a_proven_miss_of_the_objective_is_told_once_it_lasts() -> None:
    loop, r = Loop(), FakeReplica()
    for k in range(10):
        r.engine.serve(30, ttft=9.0)
        loop(samples(r, at=NOON + 10 * k), NOON + 10 * k)
    assert loop.judged() == [("chat", "objective-missed")]
    assert "95.0%" in loop.decisions[0].sentence


@pytest.mark.parametrize(("ttft", "is_over"), [(0.1, True), (9.0, False)])
def test_a_miss_is_over_in_a_quiet_night_where_the_few_requests_are_well(ttft: float, is_over: bool) -> None:
    loop, r = Loop(), FakeReplica()
    for k in range(10):
        r.engine.serve(30, ttft=9.0)
        loop(samples(r, at=NOON + 10 * k), NOON + 10 * k)
    for k in range(10, 60):
        r.engine.serve(1, ttft=ttft)
        seen = loop(samples(r, at=NOON + 10 * k), NOON + 10 * k)
    assert seen.pools["chat"].goodput.unknown is Reason.TOO_FEW
    assert (seen.pools["chat"].conditions == ()) == is_over


def test_saturation_needs_to_last() -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.gauges.update(running=8.0, waiting=9.0, kv_usage=0.99)
    for k in range(2):
        r.engine.serve(1)
        loop(samples(r, at=NOON + 5 * k), NOON + 5 * k)
    assert loop.decisions == []
    r.engine.serve(1)
    loop(samples(r, at=NOON + 10), NOON + 10)
    assert loop.judged() == [("r0", "saturated")]
    assert loop.decisions[0].evidence[2].value == 0.99


def test_pool_sums_are_lower_bounds_while_a_replica_is_unknown() -> None:
    loop, a, b = Loop(), FakeReplica("a"), FakeReplica("b")
    a.engine.gauges["running"] = 5.0
    given = Samples(targets=(a.target, b.target), scrapes=(a.page(NOON),))
    load = loop(given, NOON).pools["chat"].load
    assert load.running == Known(5.0, NOON, Quality.LOWER_BOUND)


def test_a_replica_that_leaves_is_counted_to_its_last_page() -> None:
    loop, a, b = Loop(), FakeReplica("a"), FakeReplica("b")
    loop(samples(a, b, at=NOON), NOON)
    a.engine.serve(7)
    loop(samples(a, b, at=NOON + 3), NOON + 3)
    seen = loop(Samples(targets=(b.target,)), NOON + 4)
    assert seen.pools["chat"].totals.finished == 7.0
    assert list(seen.replicas) == ["b"]
    assert loop.kinds()[-1] == "replica-left"


def test_a_long_gap_counts_in_the_totals_but_not_in_the_window() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    r.engine.serve(1000, ttft=30.0)
    seen = loop(samples(r, at=NOON + 3600), NOON + 3600)
    assert seen.pools["chat"].totals.finished == 1000.0
    assert seen.replicas["r0"].goodput.unknown is Reason.FIRST_SAMPLE
    assert isinstance(seen.replicas["r0"].load.generation_tokens_per_second, Unknown)


def test_time_never_goes_back_and_old_pages_change_nothing() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    r.engine.serve(5)
    seen = loop(samples(r, at=NOON - 100), NOON - 100)
    assert seen.at == NOON
    assert seen.replicas["r0"].last_scrape_at == NOON


def test_orders_stand_until_they_change() -> None:
    loop, hold = Loop(), Hold(NOON, "me", "testing")
    assert loop(Samples(orders=Orders(hold)), NOON).orders.hold == hold
    assert loop(Samples(), NOON + 1).orders.hold == hold
    assert loop(Samples(orders=Orders()), NOON + 2).orders.hold is None


def test_page_warnings_are_told_once() -> None:
    loop, r = Loop(), FakeReplica()
    for k in range(5):
        page = msgspec.structs.replace(
            r.page(NOON + k), warnings=("kv_usage is on the page under no known name",)
        )
        loop(Samples(targets=(r.target,), scrapes=(page,)), NOON + k)
    assert loop.kinds() == ["replica-joined", "page-warning"]


def random_day(seed: int) -> list[tuple[Samples, float]]:
    rng = random.Random(seed)
    fleet = [FakeReplica(f"r{i}", rng.choice(["a", "b"]), rng.choice([1, 2])) for i in range(4)]
    day: list[tuple[Samples, float]] = [(Samples(targets=tuple(r.target for r in fleet)), NOON)]
    for k in range(1, 80):
        now, scrapes = NOON + k * rng.uniform(1, 4), []
        for r in fleet:
            chance = rng.random()
            if chance < 0.02:
                r.restart(now)
            for engine in r.engines.values():
                engine.serve(rng.randrange(4), ttft=rng.uniform(0, 6), tpot=rng.uniform(0.01, 0.1))
                engine.gauges.update(
                    running=rng.randrange(5), waiting=rng.randrange(3), kv_usage=rng.random()
                )
                engine.counts["preemptions_total"] += rng.choice([0, 0, 3])
            page: Scrape | ScrapeFailure = r.page(now)
            if chance > 0.9:
                page = ScrapeFailure(r.target.name, now, Reason.SCRAPE_FAILED, "refused")
            scrapes.append(page)
        day.append((Samples(scrapes=tuple(scrapes)), now))
    return day


@pytest.mark.parametrize("seed", range(5))
def test_memory_survives_the_journal_and_the_tick_is_deterministic(seed: int) -> None:
    """Writing the memory down and reading it back at every step changes nothing."""
    straight, through = Loop(), Loop()
    for given, now in random_day(seed):
        one = straight(given, now)
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=Samples)
        through.memory = msgspec.msgpack.decode(msgspec.msgpack.encode(through.memory), type=Memory)
        assert through(wire, now) == one
    assert through.memory == straight.memory
    assert through.decisions == straight.decisions
    assert through.limits == straight.limits
    assert len(straight.limits) > 5


def test_latencies_that_only_the_server_counts_are_measured_too() -> None:
    """SGLang with several engines: gauges by engine, latencies and tokens for all together."""
    loop, r = Loop(), FakeReplica(engines=2)

    def page(at: float) -> Samples:
        whole = r.page(at)
        shared = whole.engines["0"]
        gauges = {n: Signals(numbers=r.engines[n].gauges.copy()) for n in "01"}
        counted = {k: v for k, v in shared.numbers.items() if k.endswith("_total")}
        server = Signals(numbers={**whole.server.numbers, **counted}, histograms=shared.histograms)
        given = msgspec.structs.replace(whole, engines=gauges, server=server)
        return Samples(targets=(r.target,), scrapes=(given,))

    r.engines["0"].gauges.update(running=3.0, kv_usage=0.4)
    loop(page(NOON), NOON)
    r.engine.serve(30)
    seen = loop(page(NOON + 10), NOON + 10).replicas["r0"]
    assert known(seen.load.running) == 3.0
    assert known(seen.load.generation_tokens_per_second) == 60.0
    assert seen.goodput.ratio == exactly(1.0)


def test_a_series_that_leaves_the_page_and_returns_is_no_restart_and_no_load() -> None:
    """The start time says that the process is the same; what fell or appeared gives no growth."""
    loop, r = Loop(), FakeReplica()
    r.engine.counts.update({"prompt_tokens_total": 900_000, "generation_tokens_total": 500_000})
    full = dict(r.engine.counts)
    for k in range(9):
        r.engine.counts.update(dict.fromkeys(full, 100))
        gone = r.engine.counts.copy()
        if k in (3, 4):
            for name in ("prompt_tokens_total", "generation_tokens_total"):
                r.engine.counts[name] = 40
        load = loop(samples(r, at=NOON + 10 * k), NOON + 10 * k).replicas["r0"].load
        rate = known(load.generation_tokens_per_second)
        assert rate is None or 0 <= rate <= 10
        r.engine.counts = gone
    assert loop.kinds() == ["replica-joined"]
    assert loop.memory.pools["chat"].totals.generation_tokens <= 800


def test_an_engine_that_appears_later_brings_no_load_with_it() -> None:
    loop, r = Loop(), FakeReplica(engines=2)
    late = r.engines.pop("1")
    late.counts["generation_tokens_total"] = 900_000
    loop(samples(r, at=NOON), NOON)
    r.engines["1"] = late
    load = loop(samples(r, at=NOON + 10), NOON + 10).replicas["r0"].load
    assert isinstance(load.generation_tokens_per_second, Unknown)
    late.counts["generation_tokens_total"] += 100
    load = loop(samples(r, at=NOON + 20), NOON + 20).replicas["r0"].load
    assert known(load.generation_tokens_per_second) == 10.0


def test_nothing_is_over_because_it_is_unknown() -> None:
    loop, r = Loop(), FakeReplica()
    r.engine.gauges.update(running=8.0, waiting=9.0, kv_usage=0.99)
    for k in range(5):
        r.engine.serve(30, ttft=9.0)
        loop(samples(r, at=NOON + 10 * k), NOON + 10 * k)
    told = loop.judged()
    assert ("r0", "saturated") in told
    assert ("chat", "objective-missed") in told
    for k in range(5, 20):
        loop(Samples(), NOON + 10 * k)
    assert loop.judged() == told


def test_an_idle_replica_with_frozen_gauges_in_a_busy_pool_is_not_called_wedged() -> None:
    loop, a, b = Loop(), FakeReplica("a"), FakeReplica("b")
    a.engine.gauges["running"] = 3.0
    for k in range(10):
        now = NOON + 5 * k
        b.engine.serve(1)
        window = OutcomeWindow("gw", "chat", now - 1, now, 0, 0, 0, 0, 0, {}, 0, 0, 7)
        loop(msgspec.structs.replace(samples(a, b, at=now), outcomes=(window,)), now)
    assert loop.judged() == [("a", "stalled")]


def test_the_other_engines_are_believed_while_one_stalls() -> None:
    loop, r = Loop(), FakeReplica(engines=2)
    for engine in r.engines.values():
        engine.gauges.update(running=4.0, kv_usage=0.5)
    for k in range(10):
        r.engines["0"].serve(1)
        seen = loop(samples(r, at=NOON + 5 * k), NOON + 5 * k)
    load = seen.replicas["r0"].load
    assert load.running == Known(4.0, NOON + 45, Quality.LOWER_BOUND)
    assert isinstance(seen.replicas["r0"].engines["1"].running, Unknown)


def test_an_engine_that_counts_only_finished_requests_is_not_judged() -> None:
    loop, r = Loop(), FakeReplica()
    del r.engine.seen["itl"]
    r.engine.gauges["running"] = 1.0
    for k in range(30):
        page = msgspec.structs.replace(r.page(NOON + 5 * k), gauges_lag=True)
        loop(Samples(targets=(r.target,), scrapes=(page,)), NOON + 5 * k)
    assert loop.decisions == []


def test_an_objective_off_the_edges_is_told_once_for_its_pool() -> None:
    settings = PolicySettings.model_validate({"pools": {"chat": {"slo": {"ttft": "2s"}}}})
    loop, a, b = Loop(settings), FakeReplica("a"), FakeReplica("b")
    for k in range(5):
        loop(samples(a, b, at=NOON + 10 * k), NOON + 10 * k)
    told = [e for e in loop.events if e.kind == "objective-off-edge"]
    assert len(told) == 1
    assert "1s and 2.5s" in told[0].sentence


def test_a_clock_set_back_keeps_what_was_counted() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON + 10**7), NOON + 10**7)
    r.engine.serve(5)
    loop(samples(r, at=NOON + 10**7 + 10), NOON + 10**7 + 10)
    loop.memory = rewind(loop.memory, NOON)
    r.engine.serve(5)
    assert loop(samples(r, at=NOON), NOON).at == NOON
    r.engine.serve(5)
    seen = loop(samples(r, at=NOON + 10), NOON + 10)
    assert seen.pools["chat"].totals.finished == 10.0


def test_a_pool_that_nobody_names_any_more_is_forgotten() -> None:
    loop, r = Loop(), FakeReplica()
    loop(samples(r, at=NOON), NOON)
    assert loop(Samples(targets=()), NOON + 1).pools == {}
