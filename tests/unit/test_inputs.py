"""All sources put together: polled pages, Prometheus's pages, gateways' windows, one list of targets."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from daemon_fakes import NOON
from loopback import Loopback, ok, serving

from controlplane.daemon.inputs import FleetInputs, outcomes_until
from controlplane.policy.memory import Memory, PoolMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.probe import ProbeKind, ProbeResult
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Signals, Target
from controlplane.sources.prometheus import Round, RoundCounts
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.settings import GatewaySettings, ScrapeSettings, TargetSettings

PAGE = Path(__file__).parents[1] / "data" / "captures" / "vllm-0.27-light.prom"
WINDOW = OutcomeWindow("gw", "chat", NOON - 20, NOON - 10, 3, 3, 2, 0, 0, {}, 30, 20, 1)
SCRAPE = ScrapeSettings(interval="500ms", timeout="400ms")


def inputs(
    server: Loopback,
    *,
    prometheus: bool = False,
    gateway: bool = False,
    after: float = 0.0,
    scrape: ScrapeSettings = SCRAPE,
) -> FleetInputs:
    targets = TargetSettings(static=(server.url("/metrics"),))
    gateways = (GatewaySettings(url=server.url(""), token={"env": "TOKEN"}),) if gateway else ()
    settings = PrometheusSettings(url=server.url("")) if prometheus else None
    return FleetInputs({"chat": targets}, scrape, settings, gateways, outcomes_after=after, now=lambda: NOON)


async def taken(one: FleetInputs, enough: int = 1, *, kind: str = "scrapes") -> list[Samples]:
    """Poll for real until there is enough of a kind; what a slow machine had no time for does not count."""
    found: list[Samples] = []
    async with asyncio.timeout(60):
        while (
            sum(not isinstance(one, ScrapeFailure) for each in found for one in getattr(each, kind)) < enough
        ):
            await one.poll()
            await asyncio.sleep(0.02)
            samples, _ = one.take()
            found.append(samples)
    return found


@pytest.fixture
def page() -> bytes:
    return PAGE.read_bytes()


async def test_a_target_is_discovered_and_polled(page: bytes) -> None:
    async with serving({"/metrics": ok(page)}) as server:
        one = inputs(server)
        await one.open()
        await one.discover()
        name = f"127.0.0.1:{server.port}"
        (first, *_, last) = await taken(one, 2)
        assert first.targets == (Target(name, "chat", server.url("/metrics")),)
        assert last.targets is None
        scrape = next(one for one in last.scrapes if isinstance(one, Scrape))
        assert (scrape.target, scrape.at) == (name, NOON)
        assert one.counts.scrapes["ok"] >= 2
        assert one.poll_seconds == 0.025
        await one.close()


async def test_health_pages_are_asked_for_and_who_can_be_tried_is_told_once(
    page: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRAPE_TOKEN", "s3cret")
    auth = {"bearer": {"env": "SCRAPE_TOKEN"}}
    async with serving({"/metrics": ok(page), "/health": ok(b"")}) as server:
        one = inputs(server, scrape=ScrapeSettings(interval="60s", timeout="50s", auth=auth))
        await one.open()
        await one.discover()
        found = [*await taken(one, kind="probes"), one.take()[0]]
        name = f"127.0.0.1:{server.port}"
        assert [one.triable for one in found] == [frozenset({name}), *[None] * (len(found) - 1)]
        probes = [probe for each in found for probe in each.probes]
        assert {(one.target, one.at, one.kind, one.result) for one in probes} == {
            (name, NOON, ProbeKind.HEALTH, ProbeResult.OK)
        }
        assert one.counts.probes[ProbeKind.HEALTH, ProbeResult.OK] == 1
        asked = [request for request in server.requests if request.path == "/health"]
        assert {request.headers["authorization"] for request in asked} == {"Bearer s3cret"}
        await one.close()


async def test_gateways_are_read_and_known_windows_are_not_read_again(
    page: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    windows = msgspec.json.encode([WINDOW, msgspec.structs.replace(WINDOW, start=NOON - 10, end=NOON)])
    answers = {"/metrics": ok(page), "/control/v1/outcomes": ok(windows, kind="application/json")}
    async with serving(answers) as server:
        one = inputs(server, gateway=True, after=NOON - 10)
        await one.open()
        await one.discover()
        await one.hear()
        found = await taken(one, 1, kind="outcomes")
        await one.hear()
        found += await taken(one, 3)
        assert [w.end for samples in found for w in samples.outcomes] == [NOON]
        await one.close()


class FakePrometheus:
    """Knows the target that is scraped anyway, and one more."""

    def __init__(self, *names: str) -> None:
        self.counts = RoundCounts({"ok": 1}, 2)
        self.targets = tuple(Target(name, "batch", f"http://{name}/metrics") for name in names)
        self.closed = False

    async def poll(self) -> Round:
        scrapes = tuple(
            Scrape(target.name, NOON - 3, 0.1, "vllm", "", (), {"0": Signals()}, Signals())
            for target in self.targets
        )
        return Round(self.targets, scrapes)

    def close(self) -> None:
        self.closed = True


async def test_what_we_scrape_ourselves_is_not_counted_again_from_prometheus(page: bytes) -> None:
    async with serving({"/metrics": ok(page)}) as server:
        one = inputs(server, prometheus=True)
        ours = f"127.0.0.1:{server.port}"
        one._prometheus.close()
        one._prometheus = fake = FakePrometheus(ours, "far:8000")
        await one.open()
        await one.discover()
        found = await taken(one, 4)
        by_time = {(scrape.target, scrape.at) for samples in found for scrape in samples.scrapes}
        assert by_time == {(ours, NOON), ("far:8000", NOON - 3)}
        newest = [samples.targets for samples in found if samples.targets is not None][-1]
        assert [(target.name, target.pool) for target in newest] == [(ours, "chat"), ("far:8000", "batch")]
        assert one.counts.missed_scrapes >= 2
        await one.close()
        assert fake.closed


async def test_what_a_source_raises_comes_out_of_the_next_poll_and_it_goes_on(page: bytes) -> None:
    async with serving({"/metrics": ok(page)}) as server:
        one = inputs(server, prometheus=True)
        rounds = iter([RuntimeError("odd"), Round(), Round()])

        async def poll() -> Round:
            if isinstance(answer := next(rounds, Round()), Exception):
                raise answer
            return answer

        one._prometheus.poll = poll
        await one.open()
        await one.poll()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="odd"):
            await one.poll()
        await asyncio.sleep(0.5)
        await one.poll()
        await one.close()


def test_the_windows_that_memory_knows_end_with_its_newest() -> None:
    settings = PolicySettings()
    assert outcomes_until(Memory(now=NOON), settings, NOON) == NOON - settings.window
    memory = Memory(now=NOON, pools={"chat": PoolMemory(outcomes=(WINDOW,)), "batch": PoolMemory()})
    assert outcomes_until(memory, settings, NOON) == WINDOW.end
    assert outcomes_until(memory, settings, NOON - 3600) == NOON - 3600
