"""What the page says: from a snapshot to a headline, rows, lines and drawings, all without a browser."""

import re

import fleet_fakes as fakes
import msgspec
import page_fleet as night
import pytest
from fleet_fakes import AT, known, replica
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_fleet import OBJECTIVE, bad_pool, good_pool, idle_pool

from controlplane.api.page import cells, chart, rows
from controlplane.api.page.desk import Moment, Records, sight
from controlplane.api.page.document import whole
from controlplane.api.page.headline import headline, stance, where_time_goes
from controlplane.api.page.history import STEP_SECONDS, History, Point, point
from controlplane.api.page.records import entries, label
from controlplane.api.page.rows import Wanted
from controlplane.api.shapes import Alert
from controlplane.signals.decision import Hold, Orders, Standing
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.snapshot import (
    FleetSnapshot,
    Limit,
    Out,
    PoolBoundary,
    PoolSnapshot,
    ReplicaState,
    Scale,
)
from controlplane.signals.status import Status

NOW = AT + 1
PAGE = Alert(
    name="SloBurn",
    severity="page",
    team="",
    summary="",
    runbook_url="",
    labels={},
    since=AT - 600,
    heard_at=AT,
)


def snapshot(*pools: PoolSnapshot) -> FleetSnapshot:
    there = {f"{pool.name}-0": replica(f"{pool.name}-0", pool.name) for pool in pools}
    return FleetSnapshot(AT, 80, {pool.name: pool for pool in pools}, there, Orders(), ())


def sentence(seen: FleetSnapshot | None, **changes: object) -> tuple[str, str]:
    said = headline(seen, night.status(**changes), (), (), NOW)
    return said.tone, said.sentence


# -- the headline ----------------------------------------------------------------------------------


def test_a_proven_miss_is_said_first_with_where_the_time_goes() -> None:
    assert sentence(snapshot(good_pool(), bad_pool())) == (
        "bad",
        "Pool chat: at most 84.6% of 286 requests were good, the objective is 95.0%; "
        "requests wait in the engines' queues (TTFT p95 4.40 s, queue 4.10 s).",
    )


def test_several_misses_are_counted_and_the_first_three_named() -> None:
    tone, said = sentence(
        snapshot(*(bad_pool(name) for name in "abcd"), good_pool()),
        objectives=dict.fromkeys([*"abcd", "code"], OBJECTIVE),
    )
    assert (tone, said.startswith("4 of 5 pools miss their objective: a: at most 84.6%")) == ("bad", True)
    assert said.endswith(" and 1 more.")


def test_what_is_not_proven_is_neither_good_nor_bad() -> None:
    unsure = msgspec.structs.replace(good_pool(), goodput=fakes.goodput(90, 99, 100))
    assert sentence(snapshot(unsure)) == (
        "warn",
        "It is not proven that the objective is met: "
        "code: 90.0% to 99.0% of 100 requests were good, the objective is 95.0%.",
    )


def test_no_traffic_is_no_trouble_and_too_few_is_not_called_good() -> None:
    assert sentence(snapshot(good_pool(), idle_pool())) == (
        "good",
        "Pool code meets its objective. batch has no traffic.",
    )
    few = msgspec.structs.replace(
        idle_pool(), goodput=msgspec.structs.replace(night.SILENT, unknown=Reason.TOO_FEW)
    )
    assert sentence(snapshot(few)) == (
        "unknown",
        "No pool is known to miss its objective. Of batch too little is known to say.",
    )


def test_before_the_first_tick_nothing_is_known() -> None:
    assert sentence(None, last_tick_at=None, started_at=AT) == (
        "unknown",
        "Nothing is known: the first tick has not run yet.",
    )


def test_a_stuck_daemon_blames_itself_before_anything_else() -> None:
    said = headline(snapshot(bad_pool()), night.status(), (), (), AT + 300)
    assert said.tone == "bad"
    assert said.sentence.startswith("It is controlplane itself: the loop has not ticked for 300 s")
    assert said.sentence.endswith("What stands below is 5m old.")


def test_who_can_reach_nothing_blames_himself() -> None:
    away = {name: night.troubled(name) for name in ("a", "b")}
    seen = msgspec.structs.replace(snapshot(bad_pool()), replicas=away)
    assert sentence(seen)[1] == "None of 2 replicas can be reached: it may be this daemon that is cut off."
    alone = msgspec.structs.replace(seen, replicas={"a": away["a"]})
    assert "cut off" not in sentence(alone)[1], "one replica that is away says nothing about us"


def test_the_lines_say_what_is_broken_what_fires_what_was_done_and_what_would_have_been() -> None:
    said = headline(
        night.fleet(20), night.status(troubles=("the disk is full",)), (PAGE,), night.decisions(), NOW
    )
    answers = {line.question: line.answer for line in said.lines}
    assert answers["Broken"] == (
        "1 of 20 replicas unreachable; 1 wedged; 1 GPU with faults; 1 node whose GPUs nobody sees; "
        "the disk is full"
    )
    assert answers["Firing"] == "1 page; SloBurn for 10m"
    assert answers["Did"].startswith("1 time in the last hour; 5s ago: vllm-1:8000 may hold 63")
    assert answers["Would have"].startswith("7 times in the last hour; 13s ago: vllm-2:8000")
    calm = headline(snapshot(good_pool()), night.status(), (), (), NOW)
    assert {line.answer for line in calm.lines} >= {"nothing that can be seen", "nothing in the last hour"}


def test_the_time_goes_to_the_queue_to_prefill_or_to_decoding() -> None:
    pool = bad_pool()
    assert "queues" in where_time_goes(pool, OBJECTIVE)
    slow = msgspec.structs.replace(pool.latency, queue_time=night.seconds(0.1), tpot=night.seconds(0.08))
    said = where_time_goes(msgspec.structs.replace(pool, latency=slow), OBJECTIVE)
    assert "prefill is slow" in said
    assert "tokens come slowly (TPOT p95 80.0 ms)" in said
    assert where_time_goes(idle_pool(), OBJECTIVE) == "", "of an unknown nothing is said"


@pytest.mark.parametrize(
    ("standings", "hold", "word"),
    [
        ({}, None, "OBSERVE"),
        ({"chat": {"gateway": Standing.OBSERVE}}, None, "OBSERVE"),
        ({"chat": {"gateway": Standing.ENFORCE}}, None, "ENFORCE"),
        ({"chat": {"gateway": Standing.ENFORCE}, "code": {}}, None, "PARTLY ENFORCE"),
        ({"chat": {"gateway": Standing.HELD}}, Hold(AT - 240, "ann", "deploy"), "HOLD"),
    ],
)
def test_observe_enforce_and_hold_are_seen_at_a_glance(
    standings: dict[str, dict[str, Standing]], hold: Hold | None, word: str
) -> None:
    said = stance(Orders(hold), night.status(pool_standings=standings), NOW)
    assert said.word == word
    assert stance(Orders(), night.status(leads=False), NOW).word == "FOLLOWS"
    if hold:
        assert said.sentence == "nothing is acted on, for 4m, by ann: deploy"


# -- cells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason))
def test_every_unknown_is_shown_as_unknown_with_its_reason_and_age(reason: Reason) -> None:
    cell = cells.number(Unknown(reason, AT - 40, "connection refused"), NOW)
    assert (cell.text, cell.tone) == (reason.replace("-", " "), "unknown")
    assert cell.why == f"unknown: {cell.text}, connection refused, for 41s"


@given(fakes.numbers, fakes.times)
def test_no_reading_whatever_breaks_a_cell(reading: Known[float] | Unknown, now: float) -> None:
    cell = cells.number(reading, now)
    assert cell.text
    assert "nan" not in cell.text


@given(fakes.distributions, fakes.times)
def test_no_distribution_whatever_breaks_a_cell(reading: Known[object] | Unknown, now: float) -> None:
    assert cells.p95(reading, now, 1.0).text  # type: ignore[arg-type]


def test_marks_say_that_a_part_is_missing_or_that_it_is_an_estimate() -> None:
    assert cells.number(known(12345.0, Quality.LOWER_BOUND), NOW).text == "≥12.3k"
    assert cells.number(known(3.0, Quality.ESTIMATE), NOW).text == "~3"
    assert cells.number(known(3.0), NOW).why == "read 1s ago"


def test_a_limit_says_what_is_in_force_who_acts_and_why() -> None:
    law = Limit("slo-gradient", 64, "tpot-over", "a token takes 52 ms", AT, 70.0)
    cell = cells.limit(law, Standing.OBSERVE)
    assert (cell.text, cell.tone) == ("64 (70)", "dim")
    assert cell.why == "tpot-over: a token takes 52 ms; observe; the gateways go by 70"
    assert cells.limit(law, None).why.endswith("nobody acts on it; the gateways go by 70")
    assert cells.limit(None, None).text == "none"


def test_a_pool_says_how_many_replicas_it_should_have_and_why() -> None:
    wanted = Scale("work", 5, 3, 1, known(4.6), "growing", "work grows by a third", AT)
    assert cells.scale(wanted) == cells.Cell("5", "warn", "work grows by a third; 3 ready, 1 loading")
    assert cells.scale(None).why == "this pool is not scaled"


def test_goodput_is_an_interval_with_its_denominator() -> None:
    assert cells.goodput(fakes.goodput(231, 242, 286), OBJECTIVE)[:2] == ("81–85%", "bad")
    assert cells.goodput(night.SILENT, OBJECTIVE)[:2] == ("no traffic", "unknown")


# -- rows ------------------------------------------------------------------------------------------


def test_the_worst_pool_is_first_and_says_what_may_be_done_there() -> None:
    found = rows.pool_rows(night.fleet(20), night.status(), NOW)
    assert [row.name for row in found] == ["chat", "batch", "code"]
    assert [row.cells[-1].text for row in found] == ["enforce", "nobody acts", "observe"]
    assert found[0].sentences == ("pool chat: at most 84.6% of 286 requests were good (for 48s)",)
    assert all(len(row.cells) == len(rows.POOL_COLUMNS) for row in found)


def test_replicas_come_a_page_at_a_time_the_troubled_first() -> None:
    seen = night.fleet(500)
    first = rows.replica_rows(seen, night.status(), Wanted(), NOW)
    assert (len(first.items), first.pages, first.total) == (rows.REPLICAS_A_PAGE, 10, 500)
    assert {row.name for row in first.items[:3]} == {"10.0.0.9:8000", "wedged:8000", night.EVIL}
    names = [
        row.name
        for number in range(1, 11)
        for row in rows.replica_rows(seen, night.status(), Wanted(page=number), NOW).items
    ]
    assert sorted(names) == sorted(seen.replicas), "each on one page"
    assert rows.replica_rows(seen, night.status(), Wanted(page=99), NOW).number == 10


def test_replicas_can_be_looked_for() -> None:
    seen = night.fleet(100)
    found = rows.replica_rows(seen, night.status(), Wanted(text="WEDGED"), NOW)
    assert [row.name for row in found.items] == ["wedged:8000"]
    assert rows.replica_rows(seen, night.status(), Wanted(pool="batch"), NOW).total == 24
    assert rows.replica_rows(seen, night.status(), Wanted(troubled=True), NOW).total == 3


def test_the_order_of_replicas_does_not_follow_figures_that_move() -> None:
    calm, busy = (
        msgspec.structs.replace(
            night.fleet(),
            replicas={n: replica(n, "chat", load=fakes.load(running=load)) for n, load in figures.items()},
        )
        for figures in ({"a": 1.0, "b": 9.0}, {"a": 9.0, "b": 1.0})
    )
    orders = [
        [r.name for r in rows.replica_rows(s, night.status(), Wanted(), NOW).items] for s in (calm, busy)
    ]
    assert orders[0] == orders[1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(seen=fakes.fleets, how=fakes.statuses, orders=fakes.orders, now=fakes.times)
def test_no_fleet_whatever_breaks_the_page(
    seen: FleetSnapshot, how: Status, orders: Orders, now: float
) -> None:
    points = {name: (point(pool, now),) for name, pool in seen.pools.items()}
    moment = Moment(now, seen, how, orders, (), Records(), points)
    page = str(whole(sight(moment, Wanted())))
    assert page.endswith("</html>")


def test_nodes_with_verdicts_come_first_and_blind_ones_next() -> None:
    seen = night.fleet(nodes=250)
    part = rows.node_rows(seen, Wanted(), NOW)
    assert [row.name for row in part.items[:3]] == ["node-001", "node-002", "node-000"]
    assert (len(part.items), part.pages) == (rows.NODES_A_PAGE, 13)
    assert rows.gpus_in_words(seen) == "2,000 GPUs on 250 nodes, 1 with faults; nobody sees those of 1 node"
    assert "XID 79" in part.items[0].sentences[0]
    assert part.items[1].cells[1].text == "not for 2m"


# -- records ---------------------------------------------------------------------------------------


def test_many_decisions_of_a_kind_in_a_row_make_one_line() -> None:
    lines = entries(night.decisions(), 25)
    assert [line.label for line in lines] == ["did", "would", "noted", "failed", "held"]
    assert lines[1].sentence.startswith("set-limit 7 times on 7 targets, the last: vllm-2:8000 may hold")
    assert len(lines[1].others) == 6
    assert len(entries(night.decisions() * 50, 25)) == 25


def test_limits_that_change_all_the_time_leave_room_for_what_is_rare() -> None:
    flood = [
        fakes.decision(f"{i}-1", at=AT - i, action="set-limit", outcome=("done", "observed")[i % 2])
        for i in range(3000)
    ]
    rare = fakes.decision("x-1", at=AT - 1999.5, action="quarantine", outcome="failed: no")
    lines = entries(sorted([*flood, rare], key=lambda one: -one.at), 25)
    assert [line.label for line in lines] == ["did", "would", "failed"]


def test_what_was_cut_off_is_counted_as_at_least() -> None:
    said = headline(night.fleet(), night.status(), (), night.decisions(), NOW, is_all=False)
    assert next(line.answer for line in said.lines if line.question == "Did").startswith("at least 1 time")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("done", "did"),
        ("pending", "doing"),
        ("observed", "would"),
        ("held", "held"),
        ("superseded", "superseded"),
        ("recorded", "noted"),
        ("failed: no answer within 10 s", "failed"),
    ],
)
def test_each_outcome_has_a_word(outcome: str, said: str) -> None:
    assert label(fakes.decision(outcome=outcome)) == said


def test_a_limit_that_nobody_could_set_is_what_would_have_been_done() -> None:
    assert label(fakes.decision(action="set-limit", outcome="recorded")) == "would"


# -- charts ----------------------------------------------------------------------------------------


def test_the_hour_is_drawn_as_a_band_with_gaps_where_nothing_can_be_said() -> None:
    points = [Point(AT - 3600 + 10 * i, 0.8, 0.9, 0.85) for i in range(361)]
    points[100:120] = [Point(p.at, None, None, None) for p in points[100:120]]
    shape = chart.shape(points, OBJECTIVE, AT)
    assert shape.band.count("Z") == shape.line.count("M") == 2
    assert shape.objective == pytest.approx(9.0)
    assert shape.band.startswith("M0 14L")
    assert "L360 24" in shape.band
    assert len(shape.band) < 200, "level stretches are two places"


@given(
    st.lists(
        st.builds(
            lambda at, low, width: Point(at, low, None if low is None else low + width, low),
            st.floats(0, 8000),
            st.none() | st.floats(0, 2),
            st.floats(0, 1),
        ),
        max_size=30,
    )
)
def test_every_drawing_stays_in_its_field(points: list[Point]) -> None:
    shape = chart.shape(sorted(points, key=lambda p: p.at), None, 8000.0)
    numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", shape.band + " " + shape.line)]
    step = chart.WIDTH * STEP_SECONDS / 3600
    assert all(-step - 0.1 <= x <= chart.WIDTH for x in numbers[::2])
    assert all(0 <= y <= chart.HEIGHT for y in numbers[1::2])


def test_the_bar_of_now_shows_what_is_proven_what_may_be_and_the_objective() -> None:
    drawn = str(chart.bar(Point(AT, 0.808, 0.846, 0.83), OBJECTIVE, "now"))
    assert 'd="M0 1H84.6V7H0Z"' in drawn
    assert 'd="M0 1H80.8V7H0Z"' in drawn
    assert 'x1="95"' in drawn
    assert "path" not in str(chart.bar(Point(AT, None, None, None), None, "now")), "an unknown is no 0"


def test_history_keeps_an_hour_of_each_pool_and_begins_anew_when_the_clock_goes_back() -> None:
    daemon = night.night()
    history = History(daemon)
    night.hour(daemon)
    points = history.of("chat")
    assert len(points) == 361
    assert points[-1].at - points[0].at == 3600.0
    assert [p.low for p in points[101:120]] == [None] * 19
    assert daemon.seen is not None
    for second in range(1, 10):  # nearer than a step: no point of their own
        daemon.seen = msgspec.structs.replace(daemon.seen, at=AT + second)
        daemon.tick()
    assert history.of("chat")[-1].at == AT
    daemon.seen = msgspec.structs.replace(daemon.seen, at=AT - 7200)
    daemon.tick()
    assert [p.at for p in history.of("chat")] == [AT - 7200]
    pools = {f"p{i}": bad_pool(f"p{i}") for i in range(300)}
    daemon.seen = msgspec.structs.replace(daemon.seen, at=AT + 9000, pools=pools)
    daemon.tick()
    assert history.of("p0")
    assert not history.of("p299"), "there is an end to pools"
    assert not history.of("chat"), "a pool that is gone is forgotten"
    history.close()
    history.close()
    assert not daemon.listeners


def test_the_boundary_between_two_pools_is_said_with_who_acts_on_it() -> None:
    assert rows.boundary(night.fleet(), night.status(), NOW) == ""
    parted = PoolBoundary("chat", "batch", 4096, "waste", "chat stands idle", AT - 60, 8192)
    seen = msgspec.structs.replace(night.fleet(), boundary=parted)
    assert rows.boundary(seen, night.status(boundary_standing=Standing.OBSERVE), NOW) == (
        "Boundary between chat and batch: 4,096 tokens for 61s, the gateways go by 8,192 (observe): "
        "chat stands idle"
    )
    assert "(nobody acts on it)" in rows.boundary(seen, night.status(), NOW)


def test_a_replica_out_of_rotation_says_why() -> None:
    seen = msgspec.structs.replace(night.fleet(), replicas={"q": replica("q", quarantined_since=AT - 600)})
    (row,) = rows.replica_rows(seen, night.status(), Wanted(), NOW).items
    assert row.cells[1].text == "quarantined"
    assert row.sentences == ("it is out of rotation for 10m: its GPU is held to be broken",)


@pytest.mark.parametrize(("out", "words"), [({"vllm-0:8000"}, "is"), (set(), "should be")])
def test_a_replica_that_gets_nothing_says_why(out: set[str], words: str) -> None:
    gone = replica(out=Out(NOW - 600, "wedged", "it has work and makes no token"))
    status = night.status(out=frozenset(out))
    (row,) = rows.replica_rows(fakes.fleet(gone), status, Wanted(), NOW).items
    assert row.sentences == (f"it {words} out of rotation for 10m: it has work and makes no token",)


def test_a_pool_all_of_whose_replicas_are_away_is_bad() -> None:
    gone = msgspec.structs.replace(idle_pool(), replicas_up=0)
    seen = msgspec.structs.replace(
        snapshot(gone), replicas={"a": replica("a", "batch", state=ReplicaState.ASLEEP)}
    )
    (row,) = rows.pool_rows(seen, night.status(), NOW)
    assert row.cells[1][:2] == ("0/1", "bad")


def test_a_replica_that_is_up_and_gets_nothing_yet_says_why() -> None:
    seen = fakes.fleet(replica(was_ready=False))
    (row,) = rows.replica_rows(seen, night.status(), Wanted(troubled=True), NOW).items
    assert row.sentences == ("it gets no requests yet: it has not made a token since it was started",)
