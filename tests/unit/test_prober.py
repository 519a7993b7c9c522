"""Health pages and trials, with clocks and answers in the test's hand."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.samples import Target
from controlplane.sources import prober as module
from controlplane.sources.fetch import Answer, Errand, Failed, FailureKind
from controlplane.sources.prober import AGAIN_SECONDS, Prober, judge
from controlplane.sources.rounds import CALLS_PER_INTERVAL
from controlplane.sources.settings import ScrapeSettings

NOON = 1_764_000_000.0
INTERVAL = 5.0
STEP = INTERVAL / CALLS_PER_INTERVAL


def targets(count: int) -> tuple[Target, ...]:
    return tuple(Target(f"r{i}", "chat", f"http://r{i}:8000/metrics") for i in range(count))


class Asked(msgspec.Struct, frozen=True):
    at: float
    method: str
    url: str
    body: bytes
    errand: Errand


class Site:
    """A fake network and clocks. One in `silent` never answers."""

    def __init__(self, trial_pools: Collection[str] | None = None, **settings: Any) -> None:
        self.now = 1000.0
        self.asked: list[Asked] = []
        self.silent: set[str] = set()
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.prober = Prober(
            ScrapeSettings.model_validate({"probe": settings}),
            self.send,
            trial_pools=trial_pools,
            monotonic=lambda: self.now,
            wall=lambda: NOON + self.now,
        )

    async def send(
        self, method: str, url: str, errand: Errand, headers: Mapping[str, str], body: bytes
    ) -> Answer | Failed:
        self.asked.append(Asked(self.now, method, url, body, errand))
        self.under_way[url] += 1
        self.most = max(self.most, self.under_way.total())
        try:
            assert self.under_way[url] == 1, "two of one kind at one replica at once"
            if url in self.silent:
                await asyncio.Event().wait()
        finally:
            self.under_way[url] -= 1
        return Answer({}, b"{}")

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.prober.probe_due(self.now)
            for _ in range(3):
                await asyncio.sleep(0)

    def of(self, path: str) -> list[Asked]:
        return [one for one in self.asked if one.url.endswith(path)]


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.prober.close()


async def test_each_engine_is_asked_for_its_health_page_once_an_interval(site: Site) -> None:
    site.prober.set_targets(targets(100), site.now)
    await site.run(4 * INTERVAL)
    asked = Counter(one.url for one in site.of("/health"))
    assert len(asked) == 100
    assert set(asked.values()) == {4}
    first = site.asked[0]
    assert (first.method, first.errand.timeout_seconds, first.body) == ("GET", 2.0, b"")
    probes = site.prober.take()
    assert len(probes) == 400
    assert site.prober.take() == ()
    assert probes[0] == Probe(first.url[7:-12], NOON + first.at, 0.0, ProbeKind.HEALTH, ProbeResult.OK)
    assert site.prober.counts == {(ProbeKind.HEALTH, ProbeResult.OK): 400}


async def test_nobody_is_tried_unless_it_is_doubted_and_then_at_rests(site: Site) -> None:
    site.prober.set_targets(targets(3), site.now)
    await site.run(INTERVAL)
    assert site.of("/completions") == []
    site.prober.doubt({"r1": "acme/chat-8b", "r2": "", "nobody": "m"})
    await site.run(3 * AGAIN_SECONDS)
    tried = Counter(one.url for one in site.of("/completions"))
    assert tried == {"http://r1:8000/v1/completions": 3, "http://r2:8000/v1/completions": 3}
    r1, r2 = (next(one for one in site.of("/completions") if name in one.url) for name in ("r1", "r2"))
    wish = {"prompt": "1", "max_tokens": 1, "temperature": 0}
    assert msgspec.json.decode(r1.body) == {**wish, "model": "acme/chat-8b"}
    assert msgspec.json.decode(r2.body) == wish
    assert (r1.method, r1.errand.timeout_seconds) == ("POST", 20.0)
    site.prober.doubt({})
    await site.run(3 * AGAIN_SECONDS)
    assert len(site.of("/completions")) == 6


async def test_one_trial_at_a_time_and_not_too_many_in_the_fleet(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    site.prober.set_targets(targets(10), site.now)
    site.silent = {f"http://r{i}:8000/v1/completions" for i in range(10)}
    site.prober.doubt({f"r{i}": "m" for i in range(10)})
    await site.run(60.0)
    assert len(site.of("/completions")) == 4


async def test_a_replica_that_left_is_given_up(site: Site) -> None:
    site.prober.set_targets(targets(2), site.now)
    site.silent = {"http://r1:8000/v1/completions"}
    site.prober.doubt({"r1": "m"})
    await site.run(1.0)
    assert site.under_way["http://r1:8000/v1/completions"] == 1
    site.prober.set_targets(targets(1), site.now)
    await site.run(1.0)
    assert site.under_way.total() == 0
    assert {probe.target for probe in site.prober.take()} <= {"r0", "r1"}
    site.asked.clear()
    await site.run(3 * INTERVAL)
    assert {one.url for one in site.asked} == {"http://r0:8000/health"}


async def test_each_of_both_can_be_turned_off() -> None:
    for off, path in ({"health_path": None}, "/health"), ({"trial": False}, "/completions"):
        site = Site(**off)
        site.prober.set_targets(targets(1), site.now)
        site.prober.doubt({"r0": "m"})
        await site.run(INTERVAL)
        assert site.of(path) == []
        assert site.asked != []
        assert site.prober.triable == (frozenset({"r0"}) if path == "/health" else frozenset())
        await site.prober.close()


async def test_engines_of_pools_on_which_nobody_acts_are_asked_for_no_token() -> None:
    (target,) = targets(1)
    for pools, may in ({target.pool}, True), (set[str](), False):
        site = Site(pools)
        site.prober.set_targets((target,), site.now)
        site.prober.doubt({target.name: "m"})
        await site.run(INTERVAL)
        assert bool(site.of("/completions")) is may
        assert site.prober.triable == (frozenset({target.name}) if may else frozenset())
        assert site.of("/health")
        await site.prober.close()


async def test_an_engine_that_only_has_an_api_of_its_own_is_not_probed(site: Site) -> None:
    site.prober.set_targets((Target("o", "chat", "http://o:11434/api/ps", "ollama"),), site.now)
    site.prober.doubt({"o": "m"})
    await site.run(INTERVAL)
    assert (site.asked, site.prober.triable) == ([], frozenset())


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer({}, b"", 200), ProbeResult.OK),
        (Answer({}, b"", 503), ProbeResult.ERROR),
        (Answer({}, b"", 500), ProbeResult.ERROR),
        *((Answer({}, b"", status), ProbeResult.NO_VERDICT) for status in (301, 400, 401, 404, 429, 501)),
        (Failed(FailureKind.TIMEOUT, "late"), ProbeResult.TIMEOUT),
        (Failed(FailureKind.CONNECTION, "refused"), ProbeResult.REFUSED),
        (Failed(FailureKind.CUT, "cut"), ProbeResult.ERROR),
        *(
            (Failed(kind, "ours"), ProbeResult.NO_VERDICT)
            for kind in (FailureKind.CREDENTIALS, FailureKind.TLS, FailureKind.OWN_FAULT)
        ),
    ],
)
def test_what_an_answer_says_of_an_engine(answer: Answer | Failed, result: ProbeResult) -> None:
    found, detail = judge(answer)
    assert found is result
    assert (detail == "") == (result is ProbeResult.OK)
