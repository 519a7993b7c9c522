"""A fleet seen through Prometheus: pages put together again, back-off, and what is told when."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_prometheus import TIMES, FakePrometheus
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.signals.decision import Severity
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Target
from controlplane.sources.catalog import Catalog, tick
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import Reader
from controlplane.sources.prometheus import FORGET_SECONDS, PrometheusSource, Round
from controlplane.sources.prometheus_settings import PrometheusSettings

URL = "http://prometheus.test:9090"
CAPTURES = Path(__file__).parents[1] / "data/captures"
BUSY = {"status": "error", "errorType": "timeout", "error": "query timed out"}
TOO_MUCH = {"status": "error", "errorType": "execution", "error": "too many samples"}
WRONG = {"status": "error", "errorType": "bad_data", "error": "parse error"}
PAGE = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:generation_tokens_total{engine="0",model_name="m"} 100
vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"} 7
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.5"} 2
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 4
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3.5
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4
"""


class Bench:
    """A source with a fake server and fake clocks."""

    def __init__(self, catalog: Catalog | None = None, **settings: Any) -> None:
        self.server = FakePrometheus()
        self.monotonic = 0.0
        self.luck = 0.0
        self.source = PrometheusSource(
            PrometheusSettings.model_validate({"url": URL, **settings}),
            catalog or tick(),
            client=self.server,  # type: ignore[arg-type]
            monotonic=lambda: self.monotonic,
            wall=lambda: self.server.wall,
            luck=lambda: self.luck,
        )

    def wait(self, seconds: float) -> None:
        self.server.wall += seconds
        self.monotonic += seconds

    async def poll(self, *pages: bytes | None, after: float = 5.0) -> Round:
        """Time passes, Prometheus scrapes these pages of a:8000, the source asks a second later."""
        self.wait(after - 1)
        for page in pages:
            self.server.scrape(page)
        self.wait(1)
        self.server.asked.clear()
        return await self.source.poll()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.source.close()


def only(found: Round) -> Scrape:
    (scrape,) = found.scrapes
    assert isinstance(scrape, Scrape), scrape
    return scrape


def kinds(found: Round) -> list[str]:
    return [event.kind for event in found.events]


# --- pages


async def test_a_page_is_read_as_if_it_had_been_scraped(bench: Bench) -> None:
    found = await bench.poll(PAGE)
    assert found.targets == (Target("a:8000", "default", "http://a:8000/metrics"),)
    scrape = only(found)
    engine = scrape.engines["0"]
    assert (scrape.engine, scrape.models, scrape.partial) == ("vllm", ("m",), False)
    assert engine.numbers["running"] == 3
    assert engine.by["finished_total"] == {"stop": 7}
    assert engine.histograms["ttft"].counts == (2, 4)
    assert engine.histograms["ttft"].total == 3.5
    assert (scrape.at, scrape.seconds) == (bench.server.wall - 1 + 0.25, 0.25)


@pytest.mark.parametrize("page", sorted(CAPTURES.rglob("*.prom")), ids=lambda path: path.stem)
async def test_every_captured_page_gives_the_same_signals(page: Path) -> None:
    bench, body = Bench(), await asyncio.to_thread(page.read_bytes)
    scrape = only(await bench.poll(body))
    direct = Translator(tick()).translate(
        Reader(tick().wanted).read(body), body, target="a:8000", at=scrape.at, seconds=0.25
    )
    assert scrape == direct


async def test_one_query_a_signal_for_the_whole_fleet_at_one_time(bench: Bench) -> None:
    for i in range(50):
        bench.server.scrape(PAGE, f"replica-{i}")
    found = await bench.poll()
    assert len(found.scrapes) == 50
    assert len([promql for promql in bench.server.asked if "num_requests_running" in promql]) == 1
    ttft = [promql for promql in bench.server.asked if "time_to_first_token" in promql]
    assert len(ttft) == 1
    for name in ("vllm:time_to_first_token_seconds", "vllm_time_to_first_token_seconds"):
        for suffix in ("_bucket", "_sum", "_count"):
            assert name + suffix in ttft[0]


async def test_the_mangled_spelling_is_read_too(bench: Bench) -> None:
    assert only(await bench.poll(PAGE.replace(b"vllm:", b"vllm_"))).engines["0"].numbers["running"] == 3


async def test_the_labels_of_the_target_are_taken_off_and_those_of_the_page_restored(bench: Bench) -> None:
    """A target label that is called like one of the page makes Prometheus rename the page's own."""
    bench.server.scrape(PAGE, engine="vllm-0.32", model_name="of-the-pod", pod="chat-0")
    scrape = only(await bench.poll())
    assert list(scrape.engines) == ["0"]
    assert scrape.models == ("m",)


async def test_a_label_that_only_up_has_hides_no_series(bench: Bench) -> None:
    """Relabelling of metrics does not touch `up`."""
    bench.server.scrape(PAGE, pod="chat-0")
    bench.server.series = {
        tuple(pair for pair in labels if pair[0] != "pod" or ("__name__", "up") in labels): points
        for labels, points in bench.server.series.items()
    }
    assert only(await bench.poll()).engines["0"].numbers["running"] == 3


async def test_more_targets_than_can_be_watched(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.sources.fleet_round.LIMIT", 2)
    for i in range(5):
        bench.server.scrape(PAGE, f"replica-{i}")
    found = await bench.poll()
    assert len(found.scrapes) == len(bench.source.targets) == 2
    assert [event.sentence for event in found.events] == [f"{URL} has 5 targets, only 2 are watched"]


async def test_a_series_that_left_the_page_does_not_live_on_in_the_window(bench: Bench) -> None:
    bench.server.scrape(PAGE)
    bench.wait(0.5)
    bench.server.scrape(PAGE.replace(b"vllm:kv_cache_usage_perc", b"another_name"))
    engine = only(await bench.poll()).engines["0"]
    assert engine.unknown["kv_usage"] is Reason.ABSENT
    assert "kv_usage" not in engine.numbers


async def test_a_scrape_in_the_middle_of_a_round_is_not_mixed_in(bench: Bench) -> None:
    """It began before the time of evaluation, and Prometheus stored it after the first answers."""
    newer = PAGE.replace(b" 3\n", b" 30\n").replace(b" 4\n", b" 40\n").replace(b" 100\n", b" 900\n")

    def store(promql: str, _: float) -> None:
        if "time_to_first_token" in promql:
            bench.server.before = lambda promql, deadline: None
            bench.server.wall -= 0.5
            bench.server.scrape(newer)
            bench.server.wall += 0.5

    bench.server.before = store
    engine = only(await bench.poll(PAGE)).engines["0"]
    assert (engine.numbers["running"], engine.numbers["generation_tokens_total"]) == (3, 100)
    assert engine.histograms["ttft"].count == 4
    later = only(await bench.poll(after=1)).engines["0"]
    assert (later.numbers["running"], later.numbers["generation_tokens_total"]) == (30, 900)
    assert later.histograms["ttft"].count == 40


async def test_without_news_only_the_times_are_asked_for(bench: Bench) -> None:
    await bench.poll(PAGE)
    found = await bench.poll()
    assert (found, bench.server.asked) == (Round(), [TIMES])


async def test_a_prometheus_that_does_not_scrape_any_more_brings_no_news(bench: Bench) -> None:
    """An instant vector would repeat the last page, fresh, for five minutes."""
    await bench.poll(PAGE)
    for _ in range(80):
        found = await bench.poll()
        assert found.scrapes == ()
    assert bench.source.targets != ()


async def test_an_old_page_is_not_asked_for_and_not_fresh(bench: Bench) -> None:
    bench.server.scrape(PAGE)
    found = await bench.poll(after=120)
    assert found.targets is not None
    assert (found.scrapes, bench.server.asked) == ((), [TIMES])


async def test_a_target_that_prometheus_cannot_scrape(bench: Bench) -> None:
    await bench.poll(PAGE)
    found = await bench.poll(None)
    detail = "Prometheus could not scrape it"
    assert found.scrapes == (
        ScrapeFailure("a:8000", bench.server.wall - 1 + 0.25, Reason.SCRAPE_FAILED, detail),
    )
    assert only(await bench.poll(PAGE)).engines["0"].numbers["running"] == 3


async def test_a_page_of_something_else(bench: Bench) -> None:
    (failure,) = (await bench.poll(b"node_load1 0.5\n")).scrapes
    assert isinstance(failure, ScrapeFailure)
    assert failure.reason is Reason.NOT_AN_ENGINE


async def test_pools_and_names_come_from_labels() -> None:
    bench = Bench(pool_label="tier", pool="rest", instance_label="pod")
    bench.server.scrape(PAGE, "10.0.0.1:8000", pod="chat-0", tier="chat")
    bench.server.scrape(PAGE, "10.0.0.2:8000", pod="chat-1")
    bench.server.scrape(PAGE, "10.0.0.3:8000")  # no pod: nobody could tell it apart
    found = await bench.poll()
    assert found.targets is not None
    assert [(target.name, target.pool) for target in found.targets] == [
        ("chat-0", "chat"),
        ("chat-1", "rest"),
    ]
    assert [scrape.target for scrape in found.scrapes] == ["chat-0", "chat-1"]


async def test_an_instance_that_is_there_twice_is_read_once_and_told_once(bench: Bench) -> None:
    bench.server.scrape(PAGE, replica="one")
    bench.wait(1)
    bench.server.scrape(PAGE.replace(b" 3\n", b" 5\n"), replica="two")
    found = await bench.poll()
    assert only(found).engines["0"].numbers["running"] == 5
    assert kinds(found) == ["doubled-target"]
    assert kinds(await bench.poll()) == []


# --- the server's failures


async def test_the_wait_doubles_with_jitter_up_to_the_limit(bench: Bench) -> None:
    bench.server.broken = {"up": (503, BUSY)}
    asked = []
    for _ in range(4000):
        if (await bench.poll(after=1)) and bench.server.asked:
            asked.append(bench.monotonic)
        if len(asked) == 7:
            break
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps == [5, 10, 20, 40, 60, 60]
    bench.luck = 1.0
    bench.wait(60)
    await bench.source.poll()
    before = bench.monotonic
    while not (await bench.poll(after=1)) or not bench.server.asked:
        pass
    assert bench.monotonic - before == 30, "half of it, by luck"


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, BUSY, "unavailable"),
        (422, TOO_MUCH, "query-failed"),
        (200, b"<html>Sign in</html>", "unavailable"),
        (401, b"", "configuration-error"),
    ],
)
async def test_an_outage_is_told_at_its_begin_and_its_end(
    bench: Bench, status: int, body: Any, reason: str
) -> None:
    await bench.poll(PAGE)
    bench.server.broken = {TIMES: (status, body)}
    events = []
    for _ in range(60):
        found = await bench.poll(PAGE)
        assert (found.targets, found.scrapes) == (None, ())
        events += found.events
    assert bench.source.failure is not None
    assert bench.source.failure.reason == reason
    bench.server.broken = {}
    scrapes: list[Any] = []
    for _ in range(13):
        found = await bench.poll(PAGE)
        events += found.events
        scrapes += found.scrapes
    assert scrapes
    assert bench.source.failure is None
    assert [(e.kind, e.target, e.severity) for e in events] == [
        (f"prometheus-{reason}", URL, Severity.WARNING),
        (f"prometheus-{reason}-over", URL, Severity.INFO),
    ]
    assert f"HTTP {status}" in events[0].sentence
    assert len(bench.source.targets) == 1


async def test_a_wrong_selector_is_told_once_and_never_asked_again(bench: Bench) -> None:
    bench.server.broken = {TIMES: (400, WRONG)}
    found = await bench.poll(PAGE)
    assert kinds(found) == ["prometheus-configuration-error"]
    assert "parse error" in found.events[0].sentence
    assert "until the settings change" in found.events[0].sentence
    bench.server.broken = {}
    bench.wait(1e9)
    assert await bench.poll(PAGE) == Round()
    assert bench.server.asked == []


async def test_a_query_that_asks_too_much_waits_alone(bench: Bench) -> None:
    await bench.poll(PAGE)
    bench.server.broken = {"time_to_first_token": (422, TOO_MUCH)}
    found = await bench.poll(PAGE)
    engine = only(found).engines["0"]
    assert engine.unknown["ttft"] is Reason.QUERY_FAILED
    assert "ttft" not in engine.histograms
    assert (engine.numbers["running"], engine.numbers["kv_usage"]) == (3, 0.5)
    assert [(event.kind, event.target) for event in found.events] == [("query-failing", "ttft")]
    asked = events = 0
    for _ in range(28):
        found = await bench.poll(PAGE)
        asked += any("time_to_first_token" in promql for promql in bench.server.asked)
        events += len(found.events)
        assert only(found).engines["0"].unknown["ttft"] is Reason.QUERY_FAILED
    assert (asked, events) == (5, 0), "after 5, 10, 20, 40 and 60 s"
    bench.server.broken = {}
    bench.wait(60)
    found = await bench.poll(PAGE)
    assert kinds(found) == ["query-failing-over"]
    assert only(found).engines["0"].histograms["ttft"].count == 4


async def test_a_query_that_is_wrong_is_never_asked_again(bench: Bench) -> None:
    bench.server.broken = {"time_to_first_token": (400, WRONG)}
    assert kinds(await bench.poll(PAGE)) == ["query-failing"]
    bench.wait(1e9)
    found = await bench.poll(PAGE)
    assert not any("time_to_first_token" in promql for promql in bench.server.asked)
    assert only(found).engines["0"].unknown["ttft"] is Reason.CONFIGURATION_ERROR


async def test_a_lost_query_is_no_zero_even_where_the_page_could_prove_one(bench: Bench) -> None:
    """http_requests_total has no series before the first request, which other names on the page tell."""
    page = PAGE + b"http_request_duration_highr_seconds_count 0\n"
    assert only(await bench.poll(page)).server.numbers["http_inference_requests"] == 0
    bench.server.broken = {"http_requests_total": (422, TOO_MUCH)}
    server = only(await bench.poll(page)).server
    assert "http_inference_requests" not in server.numbers
    assert server.unknown["http_inference_requests"] is Reason.QUERY_FAILED


async def test_without_the_engines_own_names_nobody_is_called_a_stranger(bench: Bench) -> None:
    bench.server.broken = {"vllm:": (422, TOO_MUCH)}
    (failure,) = (await bench.poll(PAGE)).scrapes
    assert isinstance(failure, ScrapeFailure)
    assert failure.reason is Reason.QUERY_FAILED


async def test_what_came_before_the_server_went_away_counts(bench: Bench) -> None:
    def go_away(promql: str, _: float) -> None:
        if "time_to_first_token" in promql:
            bench.server.broken = {"": (503, BUSY)}

    bench.server.before = go_away
    found = await bench.poll(PAGE)
    assert kinds(found) == [], "one failure of a query is not told: it may be the server"
    engine = only(found).engines["0"]
    assert engine.numbers["running"] == 3
    assert engine.unknown["ttft"] is Reason.UNAVAILABLE
    found = await bench.poll(PAGE)
    assert (found.scrapes, kinds(found)) == ((), ["prometheus-unavailable"])


async def test_a_query_that_is_too_slow_again_and_again_is_told_once(bench: Bench) -> None:
    bench.server.broken = {"time_to_first_token": (503, BUSY)}
    events = []
    for _ in range(60):
        found = await bench.poll(PAGE)
        assert only(found).engines["0"].unknown["ttft"] is Reason.UNAVAILABLE
        events += [(event.kind, event.target) for event in found.events]
    assert events == [("query-failing", "ttft")]
    assert bench.source.counts.results == {"ok": 60}


async def test_a_slow_query_leaves_time_for_the_others(bench: Bench) -> None:
    def take_all_its_time(promql: str, deadline: float) -> None:
        if "time_to_first_token" in promql or "num_requests_waiting" in promql:
            bench.monotonic = deadline

    bench.server.before = take_all_its_time
    bench.server.broken = dict.fromkeys(("time_to_first_token", "num_requests_waiting"), (503, BUSY))
    engine = only(await bench.poll(PAGE)).engines["0"]
    assert bench.monotonic < 5 + 5, "the timeout is for all of them"
    assert engine.unknown["ttft"] is engine.unknown["waiting"] is Reason.UNAVAILABLE
    assert (engine.numbers["running"], engine.numbers["kv_usage"]) == (3, 0.5)
    assert engine.by["finished_total"] == {"stop": 7}


async def test_a_server_that_answers_no_query_for_a_signal_is_away(bench: Bench) -> None:
    """It is not the engines that fail."""
    bench.server.broken = {"__name__": (503, BUSY)}
    bench.server.works = {TIMES, "scrape_duration_seconds"}
    found = await bench.poll(PAGE)
    assert (found.scrapes, kinds(found)) == ((), ["prometheus-unavailable"])
    assert "query timed out" in found.events[0].sentence


async def test_an_answer_with_warnings_is_partial(bench: Bench) -> None:
    bench.server.warnings = {"num_requests_running": "one store did not answer"}
    found = await bench.poll(PAGE)
    assert only(found).partial
    assert kinds(found) == ["partial-answers"]
    assert "one store did not answer" in found.events[0].sentence
    assert kinds(await bench.poll()) == []
    assert kinds(await bench.poll(PAGE)) == []
    bench.server.warnings = {}
    found = await bench.poll(PAGE)
    assert not only(found).partial
    assert kinds(found) == ["partial-answers-over"]


async def test_a_partial_page_makes_nobody_a_stranger(bench: Bench) -> None:
    bench.server.warnings = {"running": "one store did not answer"}
    (failure,) = (await bench.poll(b"node_load1 0.5\n")).scrapes
    assert isinstance(failure, ScrapeFailure)
    assert failure.reason is Reason.QUERY_FAILED


@pytest.mark.parametrize("ahead", [90.0, -90.0, 3600.0])
async def test_times_are_brought_to_our_clock(bench: Bench, ahead: float) -> None:
    bench.server.ahead = ahead
    found = await bench.poll(PAGE)
    assert only(found).at == pytest.approx(bench.server.wall - 1 + 0.25, abs=1e-3)
    assert kinds(found) == ["clock-difference"]
    assert kinds(await bench.poll(PAGE)) == []
    bench.server.ahead += 2.0  # clocks wander and answers take their time: intervals stay exact
    before = only(await bench.poll(PAGE)).at
    assert only(await bench.poll(PAGE)).at - before == pytest.approx(5.0, abs=1e-3)
    bench.server.ahead = 0.0
    found = await bench.poll(PAGE)
    assert kinds(found) == ["clock-difference-over"]
    assert only(found).at == pytest.approx(bench.server.wall - 1 + 0.25, abs=1e-3)


# --- targets


async def test_an_empty_answer_takes_no_target_away(bench: Bench) -> None:
    await bench.poll(PAGE)
    bench.server.forget()
    events = []
    for _ in range(100):
        found = await bench.poll()
        assert found.targets is None
        events += kinds(found)
    assert events == ["prometheus-no-data"]
    assert len(bench.source.targets) == 1
    assert kinds(await bench.poll(PAGE)) == ["prometheus-no-data-over"]


async def test_a_target_that_stays_away_leaves(bench: Bench) -> None:
    bench.server.scrape(PAGE, "b:8000")
    await bench.poll(PAGE)
    bench.server.forget("b:8000")
    changes = []
    for i in range(20):
        found = await bench.poll(PAGE)
        if found.targets is not None:
            changes.append((i * 5, [target.name for target in found.targets]))
    assert changes == [(FORGET_SECONDS, ["a:8000"])]


@pytest.mark.parametrize("trouble", ["partial", "outage", "restart"])
async def test_a_target_that_may_be_there_stays(bench: Bench, trouble: str) -> None:
    bench.server.scrape(PAGE, "b:8000")
    await bench.poll(PAGE)
    bench.server.forget("b:8000")
    if trouble == "partial":
        bench.server.warnings = {TIMES: "one store did not answer"}
    for i in range(60):
        if trouble == "outage":
            bench.server.broken = {TIMES: (503, BUSY)} if i % 10 == 9 else {}
        if trouble == "restart" and i % 10 == 9:  # comes back with one target more each time
            bench.server.scrape(PAGE, "b:8000")
        found = await bench.poll(PAGE)
        assert found.targets is None
        if trouble == "restart":
            bench.server.forget("b:8000")
    assert [target.name for target in bench.source.targets] == ["a:8000", "b:8000"]


# --- one round at a time


async def test_a_round_that_is_late_is_skipped_and_counted(bench: Bench) -> None:
    go_on = threading.Event()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(promql: str, deadline: float) -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(60)

    bench.server.before = hold
    first = asyncio.create_task(bench.poll(PAGE))
    await began.wait()
    for i in range(3):
        assert await bench.source.poll() == Round()
        assert bench.source.counts.skipped == i + 1
    go_on.set()
    assert only(await first).engines["0"].numbers["running"] == 3
    assert bench.source.counts.results == {"ok": 1}
    await bench.poll(PAGE)
    assert (bench.source.counts.results, bench.source.counts.skipped) == ({"ok": 2}, 3)


async def test_nan_counters_and_gauges_are_unknown(bench: Bench) -> None:
    scrape = only(await bench.poll(PAGE.replace(b" 0.5\n", b" NaN\n").replace(b" 100\n", b" +Inf\n")))
    engine = scrape.engines["0"]
    assert engine.unknown["kv_usage"] is Reason.NOT_A_NUMBER
    assert engine.unknown["generation_tokens_total"] is Reason.NOT_FINITE
    assert all(math.isfinite(value) for value in engine.numbers.values())
    assert bench.source.counts.dropped_samples == 2


async def test_what_a_dialect_says_of_its_histograms_and_gauges_comes_along(bench: Bench) -> None:
    page = b'sglang:num_running_reqs 1\nsglang:queue_time_seconds_bucket{le="+Inf"} 4\n'
    scrape = only(await bench.poll(page))
    assert (scrape.engine, scrape.loose, scrape.gauges_lag) == ("sglang", ("queue_time",), True)


NAMES = st.sampled_from(["up", "scrape_duration_seconds", "vllm:num_requests_running", "instance", "le", "m"])
LABELS = st.dictionaries(NAMES | st.just("__name__"), NAMES | st.text(max_size=3), max_size=4)
POINT = st.tuples(
    st.sampled_from([0.0, 1_764_000_004.0, 1e300]), st.sampled_from(["0", "1", "1764000004", "NaN", "x"])
)
ELEMENT = st.fixed_dictionaries(
    {"metric": LABELS}, optional={"value": POINT, "values": st.lists(POINT, max_size=3), "histogram": POINT}
)
BODY = st.fixed_dictionaries(
    {
        "status": st.just("success"),
        "data": st.fixed_dictionaries(
            {
                "resultType": st.sampled_from(["vector", "matrix"]),
                "result": st.lists(ELEMENT, max_size=4),
            }
        ),
    },
    optional={"warnings": st.lists(st.text(max_size=5), max_size=2)},
)


@settings(deadline=None)
@given(st.lists(BODY, min_size=3, max_size=3), st.sampled_from([200, 200, 200, 422, 503]))
def test_whatever_is_answered_nothing_is_raised_and_nothing_is_made_up(
    bodies: list[Any], status: int
) -> None:
    async def poll_twice() -> None:
        bench = Bench()
        bench.server.broken = {
            TIMES: (200, bodies[0]),
            "scrape_duration_seconds": (200, bodies[1]),
            "_": (status, bodies[2]),
        }
        for _ in range(2):
            for scrape in (await bench.poll()).scrapes:
                said = json.dumps(bodies)
                assert isinstance(scrape, ScrapeFailure) or "num_requests_running" in said
        bench.source.close()

    asyncio.run(poll_twice())
