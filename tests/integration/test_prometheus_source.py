"""The Prometheus source against a real Prometheus that scrapes captured pages, and against impostors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_server import Exporter, Prometheus, job, needs_prometheus, prometheus, scraping, until

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure
from controlplane.sources.catalog import Catalog, full, tick
from controlplane.sources.dialect import Translator
from controlplane.sources.exposition import Reader
from controlplane.sources.prometheus import PrometheusSource, Round
from controlplane.sources.prometheus_settings import PrometheusSettings

CAPTURES = Path(__file__).parents[1] / "data/captures"
PAGES = {f"/{path.stem}": path.read_bytes() for path in sorted(CAPTURES.rglob("*.prom"))}
PAGE = PAGES["/vllm-0.32-overload"]
QUICK = {"timeout": "30s", "backoff_first": "20ms", "backoff_limit": "40ms"}


def source_of(url: str, catalog: Catalog | None = None, **settings: Any) -> PrometheusSource:
    whole = PrometheusSettings.model_validate({"url": url, **QUICK, **settings})
    return PrometheusSource(whole, catalog or tick())


async def poll_until(
    source: PrometheusSource, condition: Callable[[Round], bool], what: str, seconds: float = 60.0
) -> Round:
    """Poll until a round is as wanted. AssertionError if none is in time."""
    deadline = time.monotonic() + seconds
    while not condition(found := await source.poll()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; last: {found}"
        await asyncio.sleep(0.02)
    return found


def scrape_in(found: Round, target: str) -> Scrape | None:
    return next((s for s in found.scrapes if isinstance(s, Scrape) and s.target == target), None)


def failure_in(found: Round, target: str) -> ScrapeFailure | None:
    return next((s for s in found.scrapes if isinstance(s, ScrapeFailure) and s.target == target), None)


async def next_scrape(source: PrometheusSource, target: str) -> Scrape:
    found = await poll_until(source, lambda r: scrape_in(r, target) is not None, f"a page of {target}")
    scrape = scrape_in(found, target)
    assert scrape is not None
    return scrape


def direct(body: bytes, scrape: Scrape, catalog: Catalog) -> Scrape | ScrapeFailure:
    """The same page scraped by ourselves."""
    page = Reader(catalog.wanted).read(body)
    translator = Translator(catalog)
    return translator.translate(page, body, target=scrape.target, at=scrape.at, seconds=scrape.seconds)


# --- a real Prometheus

OLD_NAMES = PAGE.replace(b"vllm:", b"vllm_")


@pytest.fixture(scope="module")
def shared_exporter() -> Iterator[Exporter]:
    with Exporter({}).running() as running:
        yield running


@pytest.fixture
def exporter(shared_exporter: Exporter) -> Exporter:
    """The pages as they are at the beginning of each test."""
    shared_exporter.pages = {"/a": PAGE, "/b": PAGES["/vllm-0.27-light"], "/_": OLD_NAMES}
    shared_exporter.pages |= {"/labelled": PAGE, **PAGES}
    return shared_exporter


@pytest.fixture(scope="module")
def shared_server(
    shared_exporter: Exporter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """One server for all tests that leave it as it is: each job is a fleet of its own."""
    labels = {"engine": "vllm", "model_name": "pod", "pool": "chat"}
    config = scraping(
        job(shared_exporter, {"a": "/a", "b": "/b"}),
        job(shared_exporter, {path[1:]: path for path in PAGES}, name="all", interval="2s"),
        job(shared_exporter, {"a": "/labelled"}, name="labelled", labels=labels),
        job(shared_exporter, {"a": "/_"}, name="underscore"),
    )
    with prometheus(tmp_path_factory.mktemp("prometheus"), config) as running:
        yield running


@pytest.fixture
def server(shared_server: Prometheus, exporter: Exporter) -> Prometheus:
    until(lambda: len(shared_server.query("up == 1")) == 4 + len(PAGES), "all targets are up")
    return shared_server


@pytest.fixture
def own_server(exporter: Exporter, tmp_path: Path) -> Iterator[Prometheus]:
    """A server for a test that changes it."""
    with prometheus(tmp_path, scraping(job(exporter, {"a": "/a", "b": "/b"}))) as running:
        until(lambda: len(running.query("up == 1")) == 2, "both targets are up")
        yield running


@needs_prometheus
@pytest.mark.parametrize("catalog", [tick, full])
async def test_each_page_is_read_as_by_a_scrape_of_our_own(
    server: Prometheus, catalog: Callable[[], Catalog]
) -> None:
    """All captured versions in one fleet, for the daemon's signals and for all that there are."""
    read: dict[str, Scrape] = {}

    def has_all(found: Round) -> bool:
        read.update({one.target: one for one in found.scrapes if isinstance(one, Scrape)})
        return len(read) == len(PAGES)

    began = time.time()
    with closing(source_of(server.url, catalog(), selector='job="all"')) as source:
        await poll_until(source, has_all, "a scrape of each page")
        assert {f"/{target.name}" for target in source.targets} == PAGES.keys()
        for scrape in read.values():
            assert scrape == direct(PAGES[f"/{scrape.target}"], scrape, catalog())
            assert began - 10 < scrape.at < time.time() + 1
            assert 0 < scrape.seconds < 2


@needs_prometheus
async def test_counters_grow_by_what_the_page_says_over_the_time_that_passed(
    server: Prometheus, exporter: Exporter
) -> None:
    def tokens(scrape: Scrape) -> float:
        return scrape.engines["0"].numbers["generation_tokens_total"]

    with closing(source_of(server.url)) as source:
        first = await next_scrape(source, "a")
        old = next(line for line in PAGE.split(b"\n") if line.startswith(b"vllm:generation_tokens_total{"))
        new = old.rpartition(b" ")[0] + b" %d" % (tokens(first) + 1000)
        exporter.pages["/a"] = PAGE.replace(old, new)
        second = await next_scrape(source, "a")
        while tokens(second) == tokens(first):
            first, second = second, await next_scrape(source, "a")
        assert tokens(second) - tokens(first) == 1000
        assert 0.1 < second.at - first.at < 20
        assert second.engines["0"].histograms["ttft"].minus(first.engines["0"].histograms["ttft"]) is not None


@needs_prometheus
async def test_a_target_that_goes_down_and_comes_back(server: Prometheus, exporter: Exporter) -> None:
    with closing(source_of(server.url)) as source:
        await next_scrape(source, "a")
        del exporter.pages["/a"]
        found = await poll_until(source, lambda r: failure_in(r, "a") is not None, "the failure of a")
        failure = failure_in(found, "a")
        assert failure is not None
        assert failure.reason is Reason.SCRAPE_FAILED
        assert failure.detail == "Prometheus could not scrape it"
        assert (await next_scrape(source, "b")).target == "b", "the other is still read"
        exporter.pages["/a"] = PAGE
        assert (await next_scrape(source, "a")).engines["0"].numbers["running"] == 9


@needs_prometheus
async def test_a_series_that_leaves_the_page_is_absent_at_once(
    server: Prometheus, exporter: Exporter
) -> None:
    with closing(source_of(server.url)) as source:
        assert "kv_usage" in (await next_scrape(source, "a")).engines["0"].numbers
        exporter.pages["/a"] = PAGE.replace(b"\nvllm:kv_cache_usage_perc", b"\nanother_name")

        def without(found: Round) -> bool:
            scrape = scrape_in(found, "a")
            return scrape is not None and scrape.engines["0"].unknown.get("kv_usage") is Reason.ABSENT

        await poll_until(source, without, "a page without kv_usage")


@needs_prometheus
async def test_labels_of_the_target_do_not_hide_those_of_the_page(server: Prometheus) -> None:
    until(
        lambda: server.query('{__name__="vllm:num_requests_running",exported_engine="0",job="labelled"}'),
        "a page with the labels of its target",
    )
    with closing(source_of(server.url, selector='job="labelled"', pool_label="pool")) as source:
        scrape = await next_scrape(source, "a")
        assert scrape == direct(PAGE, scrape, tick())
        assert [target.pool for target in source.targets] == ["chat"]


@needs_prometheus
async def test_names_with_an_underscore_for_the_colon(server: Prometheus) -> None:
    with closing(source_of(server.url, selector='job="underscore"')) as source:
        scrape = await next_scrape(source, "a")
        assert scrape == direct(PAGE, scrape, tick())


@needs_prometheus
async def test_a_wrong_selector_is_refused_by_the_server_and_told_once(server: Prometheus) -> None:
    with closing(source_of(server.url, selector="job=~vllm")) as source:
        found = await source.poll()
        assert [event.kind for event in found.events] == ["prometheus-configuration-error"]
        assert "HTTP 400" in found.events[0].sentence
        assert "parse error" in found.events[0].sentence
        assert await source.poll() == Round()
        assert source.counts.results == {"configuration-error": 1}


@needs_prometheus
async def test_a_selector_that_matches_nothing(server: Prometheus) -> None:
    with closing(source_of(server.url, selector='job="another"')) as source:
        found = await source.poll()
        assert [event.kind for event in found.events] == ["prometheus-no-data"]
        assert 'job="another"' in found.events[0].sentence
        assert (found.targets, source.targets) == (None, ())


@needs_prometheus
async def test_a_server_that_dies_and_returns(own_server: Prometheus) -> None:
    with closing(source_of(own_server.url)) as source:
        await next_scrape(source, "a")
        own_server.stop(kill=True)
        events = list((await poll_until(source, lambda r: bool(r.events), "the outage is told")).events)
        assert source.failure is not None
        assert source.failure.reason is Reason.UNAVAILABLE
        assert "Connection refused" in events[0].sentence
        for _ in range(5):
            found = await source.poll()
            assert (found.targets, found.scrapes, found.events) == (None, (), ())
        assert len(source.targets) == 2
        own_server.start()
        found = await poll_until(source, lambda r: bool(r.events), "the end of the outage is told")
        assert [event.kind for event in (*events, *found.events)] == [
            "prometheus-unavailable",
            "prometheus-unavailable-over",
        ]
        assert (await next_scrape(source, "a")).engines["0"].numbers["running"] == 9


@needs_prometheus
async def test_a_server_that_no_longer_scrapes_is_not_taken_for_fresh(own_server: Prometheus) -> None:
    """It starts again without jobs, keeps its data, and would repeat the last values for five minutes."""
    with closing(source_of(own_server.url)) as source:
        await next_scrape(source, "a")
        own_server.stop(kill=True)
        own_server.config = scraping()
        own_server.start()
        last = await source.poll()  # what was scraped between our last look and the end, if anything
        assert own_server.query('vllm:num_requests_running{instance="a"}')
        assert last.events == ()
        assert source.counts.results == {"ok": sum(source.counts.results.values())}
        for _ in range(3):
            assert await source.poll() == Round()
        assert len(source.targets) == 2


@needs_prometheus
async def test_a_target_that_is_taken_away_leaves_after_a_while(
    own_server: Prometheus, exporter: Exporter
) -> None:
    jump = [0.0]
    settings = PrometheusSettings.model_validate({"url": own_server.url, **QUICK})
    source = PrometheusSource(settings, tick(), monotonic=lambda: time.monotonic() + jump[0])
    with closing(source):
        found = await source.poll()
        assert found.targets is not None
        own_server.configure(scraping(job(exporter, {"a": "/a"})))
        own_server.reload()
        until(lambda: len(own_server.query("up")) == 1, "b is gone")
        assert (await source.poll()).targets is None, "it may come back"

        def is_told(found: Round) -> bool:
            jump[0] += 61.0
            return found.targets is not None

        # The server may tell of it for some rounds after its last `up`; each minute without it counts anew.
        found = await poll_until(source, is_told, "the targets without b")
        assert found.targets is not None
        assert [target.name for target in found.targets] == ["a"]


@needs_prometheus
async def test_a_query_that_would_load_too_much_costs_its_signals_only(
    exporter: Exporter, tmp_path: Path
) -> None:
    config = scraping(job(exporter, {"a": "/a"}, interval="1s"))
    with prometheus(tmp_path, config, "--query.max-samples=20") as server:
        until(lambda: server.query("up == 1"), "the target is up")
        with closing(source_of(server.url)) as source:
            engine = (await next_scrape(source, "a")).engines["0"]
            assert engine.numbers["running"] == 9
            assert engine.unknown["ttft"] is Reason.QUERY_FAILED
            assert "ttft" not in engine.histograms


# --- impostors


@asynccontextmanager
async def impostor(answer: Callable[[asyncio.StreamWriter], Any]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request in this way; its URL and the heads of the requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", heads
    finally:
        listening.close()


def saying(raw: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


async def away(source: PrometheusSource, *words: str) -> None:
    """One round finds the server away, says so with these words, and concludes nothing."""
    found = await source.poll()
    assert (found.targets, found.scrapes) == (None, ())
    assert [event.kind for event in found.events] == ["prometheus-unavailable"]
    for word in words:
        assert word in found.events[0].sentence


async def test_a_redirect_to_another_host_gets_no_credentials(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-that-must-not-travel")
    async with impostor(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (other, others_heads):
        elsewhere = other.replace("127.0.0.1", "localhost").encode()
        redirect = b"HTTP/1.1 307 Over There\r\nLocation: %s/\r\nContent-Length: 0\r\n\r\n" % elsewhere
        async with impostor(saying(redirect)) as (url, heads):
            with closing(source_of(url, auth={"bearer": {"file": token}})) as source:
                await away(source, "307", "redirect")
    assert b"Authorization: Bearer a-secret-that-must-not-travel" in heads[0]
    assert others_heads == []


async def test_a_server_that_hangs_costs_no_more_than_the_timeout() -> None:
    done = asyncio.Event()

    async def hang(_: asyncio.StreamWriter) -> None:
        await done.wait()

    async with impostor(hang) as (url, _), asyncio.timeout(60):
        with closing(source_of(url, timeout="500ms")) as source:
            await away(source, "no whole answer")
        done.set()


async def test_a_sign_in_page() -> None:
    page = (Path(__file__).parents[1] / "cases/data/A5/login_page.http").read_bytes()
    async with impostor(saying(page)) as (url, _):
        with closing(source_of(url)) as source:
            await away(source, "text/html")


async def test_a_body_of_a_gigabyte_is_cut_off() -> None:
    sent = 0

    async def pour(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n"
        )
        while sent < 1 << 30:
            writer.write(b" " * (1 << 20))
            await writer.drain()
            sent += 1 << 20

    async with impostor(pour) as (url, _):
        with closing(source_of(url)) as source:
            await away(source, "over 67108864 bytes")
    assert sent < 160 << 20
