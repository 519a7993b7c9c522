"""The poller's schedule, with clocks and answers in the test's hand."""

import asyncio
import gzip
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from loopback import answer, ok, redirect, serving

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure, Signals, Target
from controlplane.sources import poller as module
from controlplane.sources.catalog import tick
from controlplane.sources.exposition import Reader
from controlplane.sources.fetch import Answer, Client, Errand, Failed, FailureKind
from controlplane.sources.pages import Pages
from controlplane.sources.poller import PageReader, Poller
from controlplane.sources.rounds import CALLS_PER_INTERVAL
from controlplane.sources.settings import ScrapeSettings

NOON = 1_764_000_000.0
INTERVAL = 5.0
STEP = INTERVAL / CALLS_PER_INTERVAL
SETTINGS = ScrapeSettings()
CAPTURES = Path(__file__).parents[1] / "data" / "captures"


def targets(count: int, engine: str = "auto") -> tuple[Target, ...]:
    return tuple(
        Target(f"10.0.{i // 250}.{i % 250}:8000", "chat", f"http://10.0.{i // 250}.{i % 250}:8000/m", engine)
        for i in range(count)
    )


def scrape(target: Target, at: float, seconds: float) -> Scrape:
    return Scrape(target.name, at, seconds, "vllm", "", (), {"0": Signals()}, Signals())


class Fleet:
    """A fake network and clocks. A target in `slow` answers only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = NOON
        self.asked: list[tuple[float, str]] = []
        self.slow: dict[str, asyncio.Event] = {}
        self.broken: set[str] = set()
        self.in_flight: Counter[str] = Counter()
        self.most_in_flight = 0
        self.errands: dict[str, Errand] = {}
        self.poller = Poller(
            SETTINGS, self.fetch, self.reader_for, monotonic=lambda: self.now, wall=lambda: self.wall
        )

    async def fetch(self, url: str, errand: Errand) -> Answer | Failed:
        self.asked.append((self.now, url))
        self.errands[url] = errand
        self.in_flight[url] += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight.total())
        try:
            assert self.in_flight[url] == 1, "two scrapes of one target at once"
            if url in self.slow:
                await self.slow[url].wait()
        finally:
            self.in_flight[url] -= 1
        return (
            Failed(FailureKind.CONNECTION, f"{url}: refused") if url in self.broken else Answer({}, b"page")
        )

    def reader_for(self, target: Target) -> PageReader:
        return lambda answer, at, seconds, *, quickly=False: scrape(target, at, seconds)

    async def run(self, seconds: float, step: float = STEP) -> None:
        """Calls the poller for that long in virtual time."""
        for _ in range(round(seconds / step)):
            self.now += step
            self.wall += step
            self.poller.poll_due(self.now)
            await settle()

    def asked_since(self, start: float) -> Counter[str]:
        return Counter(url for at, url in self.asked if at > start)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.poller.close()


# --- the schedule


async def test_every_target_is_asked_once_an_interval_at_its_own_phase(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(1000), fleet.now)
    await fleet.run(INTERVAL)
    start = fleet.now
    await fleet.run(10 * INTERVAL)
    asked = fleet.asked_since(start)
    assert set(asked.values()) == {10}
    assert len(asked) == 1000
    a_call = Counter(at for at, _ in fleet.asked if at > start)
    assert max(a_call.values()) < 100, "twice the even 50 a call"
    assert min(a_call.values()) > 25
    assert fleet.poller.missed_turns == 0
    moments: dict[str, set[int]] = {}
    for at, url in fleet.asked:
        if at > start:
            moments.setdefault(url, set()).add(round((at % INTERVAL) / STEP))
    assert all(len(places) == 1 for places in moments.values()), "the phase of a target never moves"


async def test_the_phase_survives_a_restart(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(50), fleet.now)
    await fleet.run(4 * INTERVAL)
    other = Fleet()
    other.now = 1002.0
    other.poller.set_targets(targets(50), other.now)
    await other.run(4 * INTERVAL)

    def phases(asked: list[tuple[float, str]]) -> dict[str, float]:
        return {url: round(at % INTERVAL, 6) for at, url in asked[-50:]}

    assert phases(fleet.asked) == pytest.approx(phases(other.asked))
    assert len(set(phases(fleet.asked).values())) > 10


async def test_a_small_fleet_is_asked_at_once_a_large_one_evenly_from_the_start(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(10), fleet.now)
    fleet.poller.poll_due(fleet.now)
    await settle()
    assert len(fleet.asked) == 10
    large = Fleet()
    large.poller.set_targets(targets(1000), large.now)
    await large.run(INTERVAL)
    a_call = Counter(at for at, _ in large.asked)
    assert max(a_call.values()) < 100, "twice the even 50 a call"
    assert len(large.asked) == len(large.asked_since(0.0)) == 1000
    assert large.poller.missed_turns == 0


async def test_a_slow_target_misses_its_turns_and_costs_nobody_else_any(fleet: Fleet) -> None:
    slow, *others = targets(20)
    fleet.slow[slow.url] = asyncio.Event()
    fleet.poller.set_targets((slow, *others), fleet.now)
    await fleet.run(INTERVAL)
    start = fleet.now
    await fleet.run(4 * INTERVAL)
    assert set(fleet.asked_since(start).values()) == {4}
    assert slow.url not in fleet.asked_since(start)
    assert 4 <= fleet.poller.missed_turns <= 5
    fleet.slow.pop(slow.url).set()
    start, missed = fleet.now, fleet.poller.missed_turns
    await fleet.run(4 * INTERVAL)
    assert fleet.asked_since(start)[slow.url] == 4
    assert fleet.poller.missed_turns == missed


async def test_many_dead_targets_leave_room_and_never_exceed_the_bound(fleet: Fleet) -> None:
    fleet.poller._rounds._most = 64
    fleet.slow = {target.url: asyncio.Event() for target in targets(500)}
    fleet.poller.set_targets(targets(500), fleet.now)
    await fleet.run(2 * INTERVAL)
    assert fleet.most_in_flight == 64
    asked = [url for _, url in fleet.asked]
    for _ in range(20):  # each round of answers lets others in
        for event in fleet.slow.values():
            event.set()
        await settle()
        fleet.slow = {target.url: asyncio.Event() for target in targets(500)}
        await fleet.run(1.0)
    asked = [url for _, url in fleet.asked]
    assert fleet.most_in_flight == 64
    assert len(set(asked)) == 500, "the longest due first: nobody starves"
    assert fleet.poller.missed_turns > 0


# --- clocks


@pytest.mark.parametrize("jump", [3600.0, 7.0, -7.0, -3600.0])
async def test_a_jump_of_the_monotonic_clock_neither_stops_polling_nor_makes_a_burst(
    fleet: Fleet, jump: float
) -> None:
    fleet.poller.set_targets(targets(200), fleet.now)
    await fleet.run(3 * INTERVAL)
    fleet.now += jump
    fleet.asked.clear()
    await fleet.run(2 * INTERVAL)
    a_call = Counter(at for at, _ in fleet.asked)
    assert max(a_call.values()) <= 20, "a tenth of the fleet a call"
    assert set(Counter(url for _, url in fleet.asked).values()) <= {1, 2, 3}
    assert len(fleet.asked_since(float("-inf"))) == 200
    start = fleet.now
    await fleet.run(4 * INTERVAL)
    assert set(fleet.asked_since(start).values()) == {4}
    assert len(fleet.asked_since(start)) == 200


async def test_a_jump_of_the_wall_clock_only_moves_the_stamps(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(20), fleet.now)
    await fleet.run(2 * INTERVAL)
    fleet.poller.take()
    for jump in (-86_400.0, 2 * 86_400.0):
        fleet.wall += jump
        start = fleet.now
        await fleet.run(3 * INTERVAL)
        assert set(fleet.asked_since(start).values()) == {3}
        assert all(abs(result.at - fleet.wall) <= 3 * INTERVAL for result in fleet.poller.take())


async def test_a_scheduler_that_stalls_loses_turns_but_makes_no_burst(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(200), fleet.now)
    await fleet.run(3 * INTERVAL)
    before = fleet.poller.missed_turns
    fleet.now += 6.0 * INTERVAL
    fleet.asked.clear()
    await fleet.run(INTERVAL)
    assert len(fleet.asked) <= 400
    missed = fleet.poller.missed_turns - before
    assert 5 * 200 <= missed <= 7 * 200


# --- results


async def test_results_are_handed_over_once_with_their_stamps(fleet: Fleet) -> None:
    one, two = targets(2)
    fleet.slow[one.url] = asyncio.Event()
    fleet.broken.add(two.url)
    fleet.poller.set_targets((one, two), fleet.now)
    fleet.poller.poll_due(fleet.now)
    await settle()
    fleet.now += 2.5
    fleet.wall += 2.5
    fleet.slow[one.url].set()
    await settle()
    assert fleet.poller.take() == (
        ScrapeFailure(two.name, NOON, Reason.SCRAPE_FAILED, f"{two.url}: refused"),
        scrape(one, NOON + 2.5, 2.5),
    )
    assert fleet.poller.take() == ()
    counts = fleet.poller.counts
    assert counts.results == {"ok": 1, "connection": 1}
    assert (counts.seconds.count, counts.seconds.total) == (2, 2.5)
    assert counts.seconds.counts[:2] == (1, 1)
    assert counts.seconds.quantile(1.0) == 2.5


async def test_results_that_nobody_takes_are_bounded_and_the_newest_stay(fleet: Fleet) -> None:
    fleet.poller.set_targets(targets(20), fleet.now)
    await fleet.run(20 * INTERVAL)
    results = fleet.poller.take()
    assert len(results) == 80
    assert fleet.poller.counts.dropped == len(fleet.asked) - 80
    assert results[-1].at == pytest.approx(fleet.wall, abs=INTERVAL)


async def test_a_target_that_leaves_is_given_up_and_a_new_one_gets_a_new_reader(fleet: Fleet) -> None:
    gone, stays = targets(2)
    made: list[Target] = []
    make = fleet.reader_for

    def reader_for(target: Target) -> PageReader:
        made.append(target)
        return make(target)

    fleet.poller._reader_for = reader_for
    fleet.slow[gone.url] = asyncio.Event()
    fleet.poller.set_targets((gone, stays), fleet.now)
    fleet.poller.poll_due(fleet.now)
    await settle()
    fleet.poller.set_targets((stays,), fleet.now)
    await settle()
    assert fleet.in_flight[gone.url] == 0
    assert [result.target for result in fleet.poller.take()] == [stays.name]
    moved = Target(stays.name, stays.pool, "http://10.9.9.9:8000/m")
    fleet.poller.set_targets((moved,), fleet.now)
    fleet.poller.set_targets((moved,), fleet.now)
    assert made == [gone, stays, moved]


async def test_a_reader_that_raises_costs_one_scrape(fleet: Fleet) -> None:
    def reader_for(target: Target) -> PageReader:
        def read(answer: Answer, at: float, seconds: float, *, quickly: bool = False) -> Scrape:
            raise KeyError("s3cret")

        return read

    fleet.poller._reader_for = reader_for
    fleet.poller.set_targets(targets(1), fleet.now)
    await fleet.run(2 * INTERVAL)
    results = fleet.poller.take()
    assert len(results) >= 2
    assert all(isinstance(result, ScrapeFailure) for result in results)
    assert "cannot be read: KeyError at test_poller.py:" in results[0].detail
    assert "s3cret" not in results[0].detail
    assert fleet.poller.counts.results == {"own-fault": len(results)}


# --- the whole way, over loopback


async def polled(answers: dict[str, bytes], *, engine: str = "auto") -> dict[str, Scrape | ScrapeFailure]:
    """One scrape of each path, by path."""
    async with serving(dict(answers)) as server, Client() as client:
        pages, patient = Pages(tick(), SETTINGS.max_body), ScrapeSettings(interval="60s", timeout="50s")
        poller = Poller(patient, client.get, pages.reader_for)
        poller.set_targets(tuple(Target(path, "chat", server.url(path), engine) for path in answers), 0.0)
        poller.poll_due(0.0)
        await asyncio.gather(*poller._rounds._tasks)
        results = poller.take()
        assert [
            r.detail for r in results if isinstance(r, ScrapeFailure) and server.url("") not in r.detail
        ] == []
        return {result.target: result for result in results}


async def test_pages_become_scrapes_and_all_else_failures_that_name_the_target() -> None:
    page = (CAPTURES / "vllm-0.32-overload.prom").read_bytes()
    results = await polled(
        {
            "/good": ok(page),
            "/cut": answer(page[:-4], "Connection: close"),
            "/login": ok(b"<html>Sign in</html>", kind="text/html"),
            "/empty": ok(b""),
            "/other": ok(b"node_load1 0.3\n"),
            "/broken": ok(b"vllm:num_requests_running 3\nvllm:num_requests_waiting four\n"),
            "/moved": redirect("/good"),
            "/error": answer(page, f"Content-Length: {len(page)}", status="500 Oops"),
        }
    )
    good, moved = results["/good"], results["/moved"]
    assert isinstance(good, Scrape)
    assert isinstance(moved, Scrape)
    assert good.engines["0"].numbers["running"] == 9
    assert good.engines["0"].numbers["waiting"] == 31
    details = {path: (r.reason, r.detail) for path, r in results.items() if isinstance(r, ScrapeFailure)}
    assert details.keys() == results.keys() - {"/good", "/moved"}
    assert {path for path, (reason, _) in details.items() if reason is Reason.NOT_AN_ENGINE} == {"/other"}
    for path, words in {
        "/cut": "last line has no end",
        "/login": "text/html",
        "/empty": "empty body",
        "/other": "node_load1",
        "/broken": "line 2",
        "/error": "HTTP status 500",
    }.items():
        assert words in details[path][1]


@pytest.mark.parametrize("packed", [False, True])
async def test_only_small_familiar_pages_are_read_in_the_event_loop(
    packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LIGHT_BYTES", 100)
    learnt: list[str] = []
    whole = Reader.read

    def read(reader: Reader, body: bytes, *, quickly: bool = False) -> Any:
        page = whole(reader, body, quickly=quickly)
        learnt.append(threading.current_thread().name.split("_")[0])
        return page

    monkeypatch.setattr(Reader, "read", read)
    heavy = b"# " + b"x" * 100 + b"\ntgi_queue_size 3\n"
    bodies = [
        *(b"tgi_queue_size 2\n", b"tgi_queue_size 3\n", b"tgi_queue_size 4\ntgi_batch_current_size 1\n"),
        *(b"tgi_queue_size 5\ntgi_batch_current_size 2\n", heavy, heavy),
    ]
    answers = iter(bodies)

    async def fetch(url: str, errand: Errand) -> Answer:
        body = next(answers)
        return Answer({"content-type": "text/plain"}, gzip.compress(body) if packed else body)

    poller = Poller(SETTINGS, fetch, Pages(tick(), SETTINGS.max_body).reader_for)
    poller.set_targets(targets(1), 0.0)
    for turn in range(len(bodies)):
        poller.poll_due(2 * INTERVAL * turn)
        await asyncio.gather(*poller._rounds._tasks)
    found = [result.engines["0"].numbers["waiting"] for result in poller.take() if isinstance(result, Scrape)]
    assert found == [2, 3, 4, 5, 3, 3]
    assert learnt == ["slow-pages", "MainThread", "slow-pages", "MainThread", "slow-pages", "slow-pages"]
    assert poller.counts.results == {"ok": 6}
    await poller.close()


async def test_pages_that_are_not_whole_or_too_much_are_failures() -> None:
    run = b"vllm:num_requests_running"
    big = {
        "/lines": b"# x\n" * 60_000,
        "/series": b"".join(b'%s{engine="0",model_name="m%d"} 1\n' % (run, i) for i in range(20_001)),
        "/line": b'%s{engine="0",model_name="%s"} 1\n' % (run, b"x" * 70_000),
    }
    kind = "application/openmetrics-text; version=1.0.0"
    page = b'vllm:num_requests_running{engine="0"} 1\n'
    results = await polled(
        {path: ok(body) for path, body in big.items()}
        | {"/cut": ok(page, kind=kind), "/whole": ok(page + b"# EOF", kind=kind)}
    )
    assert isinstance(results.pop("/whole"), Scrape)
    details = {path: result.detail for path, result in results.items() if isinstance(result, ScrapeFailure)}
    assert "over 50000 lines" in details["/lines"]
    assert "over 20000 series" in details["/series"]
    assert "over the limit of 65536" in details["/line"]
    assert "ends with # EOF" in details["/cut"]


async def test_ollama_is_watched_through_its_api() -> None:
    loaded = {"models": [{"name": "llama3:8b", "size": 5, "size_vram": 5}, {"name": "gemma:2b"}]}
    results = await polled(
        {
            "/api/ps": ok(json.dumps(loaded).encode(), kind="application/json"),
            "/idle": ok(b'{"models":[]}', kind="application/json"),
            "/other": ok(b"Ollama is running", kind="text/plain"),
        },
        engine="ollama",
    )
    scrape = results["/api/ps"]
    assert isinstance(scrape, Scrape)
    assert (scrape.engine, scrape.models) == ("ollama", ("gemma:2b", "llama3:8b"))
    signals = scrape.engines["0"]
    assert signals.numbers == {}
    assert {signals.unknown[name] for name in ("running", "waiting", "kv_usage", "ttft")} == {
        Reason.UNSUPPORTED
    }
    assert any("gateway" in warning for warning in scrape.warnings)
    idle, other = results["/idle"], results["/other"]
    assert isinstance(idle, Scrape)
    assert idle.models == ()
    assert isinstance(other, ScrapeFailure)
    assert other.reason is Reason.NOT_AN_ENGINE


async def test_an_engine_page_is_asked_for_as_text_and_an_api_as_json(fleet: Fleet) -> None:
    page, api = Target("a", "chat", "http://a/"), Target("b", "chat", "http://b/", "ollama")
    fleet.poller.set_targets((page, api), fleet.now)
    fleet.poller.poll_due(fleet.now)
    await settle()
    accepted = {url: (errand.accept, errand.encoding) for url, errand in fleet.errands.items()}
    assert accepted == {
        "http://a/": ("text/plain;version=0.0.4", "gzip"),
        "http://b/": ("application/json", "identity"),
    }
    assert {errand.timeout_seconds for errand in fleet.errands.values()} == {4.0}
