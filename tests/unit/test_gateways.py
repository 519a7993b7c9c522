"""Outcome windows from gateways: each told once, whatever the gateway does."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from loopback import answer, ok, serving

from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.size_class import SizeClass
from controlplane.signals.snapshot import Quantiles
from controlplane.sources import gateways as module
from controlplane.sources.fetch import Answer, Client, Errand, Failed, FailureKind
from controlplane.sources.gateways import REMEMBERED_SECONDS, Gateways
from controlplane.sources.settings import GatewaySettings

NOON = 1_764_000_000.0
LATE = Quantiles(1.0, None, None, -2.0, None, None)
URL = "http://gw:9000"
SETTINGS = GatewaySettings.model_validate({"url": URL, "token": {"env": "GATEWAY_TOKEN"}})


def window(start: float, pool: str = "chat", gateway: str = "gw-0", **changes: object) -> OutcomeWindow:
    made = OutcomeWindow(
        gateway=gateway,
        pool=pool,
        start=start,
        end=start + 10.0,
        offered=10,
        finished=7,
        good=6,
        failed=1,
        gave_up=1,
        shed={"queue full": 1},
        tokens=700,
        good_tokens=600,
        in_flight=3,
    )
    return msgspec.structs.replace(made, **changes)


class FakeGateway:
    """Answers with `body`; remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer | Failed = Answer({}, b"[]")
        self.urls: list[str] = []
        self.errand: Errand | None = None

    def has(self, *windows: OutcomeWindow) -> None:
        self.answer = Answer({}, msgspec.json.encode(windows))

    async def fetch(self, url: str, errand: Errand) -> Answer | Failed:
        self.urls.append(url)
        self.errand = errand
        return self.answer


@pytest.fixture
def fake() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def gateways(fake: FakeGateway) -> Gateways:
    return Gateways((SETTINGS,), fake.fetch)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with Client() as client:
        yield client


async def test_new_windows_come_once_and_the_next_question_goes_on_from_there(
    fake: FakeGateway, gateways: Gateways
) -> None:
    first, second = window(NOON - 20), window(NOON - 20, "code")
    fake.has(first, second)
    assert await gateways.read(NOON) == ((first, second), ())
    third = window(NOON - 10)
    fake.has(first, second, third, third)  # a gateway that repeats itself
    assert await gateways.read(NOON) == ((third,), ())
    fake.has()
    assert await gateways.read(NOON + 10) == ((), ())
    assert fake.urls == [
        f"{URL}/control/v1/outcomes?after={end}" for end in ("0.0", "1763999990.0", "1764000000.0")
    ]
    assert fake.errand is not None
    assert fake.errand.accept == "application/json"


async def test_windows_of_different_pools_and_gateways_are_different(
    fake: FakeGateway, gateways: Gateways
) -> None:
    windows = (window(NOON - 20), window(NOON - 20, "code"), window(NOON - 20, gateway="gw-1"))
    fake.has(*windows)
    assert (await gateways.read(NOON))[0] == windows


async def test_after_a_restart_known_windows_are_not_told_again(fake: FakeGateway) -> None:
    gateways = Gateways((SETTINGS,), fake.fetch, after=NOON - 10)
    new = window(NOON - 10)
    fake.has(window(NOON - 30), window(NOON - 20), new)
    assert await gateways.read(NOON) == ((new,), ())
    assert fake.urls == [f"{URL}/control/v1/outcomes?after=1763999990.0"]


async def test_what_is_remembered_is_bounded_and_old_windows_are_not_taken_for_new(
    fake: FakeGateway, gateways: Gateways
) -> None:
    for i in range(1000):
        fake.has(window(NOON + 10 * i))
        assert len((await gateways.read(NOON + 10 * i + 10))[0]) == 1
    (gateway,) = gateways._gateways
    assert len(gateway._seen) == REMEMBERED_SECONDS / 10
    fake.has(*(window(NOON + 10 * i) for i in range(1000)))
    assert await gateways.read(NOON + 10_000) == ((), ())


async def test_a_clock_that_is_set_back_hides_no_window(fake: FakeGateway, gateways: Gateways) -> None:
    fake.has(window(NOON - 10))
    await gateways.read(NOON)
    earlier = window(NOON - 3000)
    fake.has(earlier)
    assert await gateways.read(NOON - 2990) == ((earlier,), ())
    assert fake.urls[-1].endswith(f"after={NOON - 2990}")


async def test_a_gateway_whose_clock_is_behind_is_told_once(fake: FakeGateway, gateways: Gateways) -> None:
    """Its windows are too old to count for anything, which looks like a gateway without requests."""
    for i in range(3):
        fake.has(window(NOON - 40 + i))
        windows, events = await gateways.read(NOON + i)
        assert len(windows) == 1
        assert [event.kind for event in events] == ["gateway-clock-behind"] * (i == 0)
    fake.has(window(NOON))
    _, (event,) = await gateways.read(NOON + 10)
    assert event.kind == "gateway-recovered"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end": NOON - 20}, "is no span of time"),
        ({"end": NOON + 61}, "ends 61 s in the future"),
        ({"offered": 11}, "11 offered requests and 10 that ended"),
        ({"failed": -1, "offered": 8}, "has failed -1"),
        ({"shed": {"queue full": -1}, "offered": 8}, "has shed 'queue full' -1"),
        ({"good": 8}, "8 good of 7 finished"),
        ({"good_tokens": 701}, "701 good of 700 tokens"),
        ({"sizes": {512: SizeClass(1.0, 2.0, 3.0, 4.0)}}, "has sizes up to 512 tokens that cannot be"),
        ({"sizes": {512: SizeClass(2.0, 1.0, -3.0, 4.0)}}, "has sizes up to 512 tokens that cannot be"),
        ({"sizes": {512: SizeClass(2.0, 1.0, 1e300, 4.0)}}, "has sizes up to 512 tokens that cannot be"),
        ({"sizes": {n: SizeClass() for n in range(65)}}, "has 65 classes of sizes (at most 64)"),
        ({"replicas": {"r0": ReplicaWindow(in_flight=-1)}}, "has numbers of replica 'r0' that cannot be"),
        ({"replicas": {"r0": ReplicaWindow(gap_seconds=-0.5)}}, "has numbers of replica 'r0' that cannot be"),
        ({"replicas": {"r0": ReplicaWindow(limit=-3.0)}}, "has numbers of replica 'r0' that cannot be"),
        ({"replicas": {"r0": ReplicaWindow(first_token=LATE)}}, "has numbers of replica 'r0' that cannot be"),
    ],
)
async def test_a_window_that_cannot_be_true_is_left_out_and_told_once(
    fake: FakeGateway, gateways: Gateways, changes: dict[str, object], words: str
) -> None:
    good, bad = window(NOON - 20, "code"), window(NOON - 20, **changes)
    fake.has(good, bad)
    windows, (event,) = await gateways.read(NOON)
    assert windows == (good,)
    assert (event.kind, event.target) == ("gateway-windows-left-out", URL)
    assert words in event.sentence
    assert "1 of 2 outcome windows left out: pool 'chat' from" in event.sentence
    assert await gateways.read(NOON) == ((), ())
    fake.has(window(NOON - 10))
    windows, (event,) = await gateways.read(NOON)
    assert (len(windows), event.kind) == (1, "gateway-recovered")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<html>Sign in</html>",
        b"[1]",
        b'[{"gateway":"gw-0"}]',
        msgspec.json.encode([window(0.0)]).replace(b'"offered":10', b'"offered":"10"'),
        msgspec.json.encode([window(0.0)]).replace(b'"offered":10', b'"offered":10.5'),
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
async def test_what_is_no_list_of_windows_is_told_once(
    fake: FakeGateway, gateways: Gateways, body: bytes
) -> None:
    fake.answer = Answer({}, body)
    windows, (event,) = await gateways.read(NOON)
    assert (windows, event.kind, event.target) == ((), "gateway-unreadable", URL)
    assert "\n" not in event.sentence
    assert await gateways.read(NOON) == ((), ())


async def test_what_piled_up_while_we_were_away_makes_us_not_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway keeps an hour of windows: with many replicas far more than is taken in one answer."""
    kept = [window(NOON - 3600 + i, end=NOON - 3599 + i) for i in range(3600)]
    asked: list[float] = []

    async def fetch(url: str, errand: Errand) -> Answer | Failed:
        after = float(url.partition("after=")[2])
        asked.append(after)
        body = msgspec.json.encode([one for one in kept if one.end > after])
        if len(body) > errand.max_body_bytes:
            return Failed(FailureKind.TOO_LARGE, f"{URL}: the body is over {errand.max_body_bytes} bytes")
        return Answer({}, body)

    size = len(msgspec.json.encode(kept[0]))
    monkeypatch.setattr(module, "_MAX_BODY_BYTES", 20 * size)
    gateways = Gateways((SETTINGS,), fetch, after=NOON - 3600)
    windows, (event,) = await gateways.read(NOON)
    assert (windows, event.kind) == ((), "gateway-windows-left-out")
    reads = [await gateways.read(NOON + i) for i in (0, 0, 0)]
    assert [len(windows) for windows, _ in reads] == [0, 0, 15]
    assert [event.kind for _, events in reads for event in events] == ["gateway-recovered"]
    kept.append(window(NOON, end=NOON + 1))
    windows, _ = await gateways.read(NOON + 1)
    assert windows == (kept[-1],)
    assert asked[-1] == NOON


async def test_who_does_not_answer_in_time_is_asked_for_less(fake: FakeGateway) -> None:
    gateways = Gateways((SETTINGS,), fake.fetch, after=NOON - 3600)
    fake.answer = Failed(FailureKind.TIMEOUT, f"{URL}: no whole answer within 4 s")
    await gateways.read(NOON)
    await gateways.read(NOON)
    assert [float(url.partition("after=")[2]) for url in fake.urls] == [NOON - 3600, NOON - 60]


async def test_a_gateway_that_is_away_is_told_once_and_so_is_its_return(
    fake: FakeGateway, gateways: Gateways
) -> None:
    fake.answer = Failed(FailureKind.CONNECTION, f"{URL}/control/v1/outcomes: connection refused")
    windows, (event,) = await gateways.read(NOON)
    assert (windows, event.kind, event.severity) == ((), "gateway-unreachable", "warning")
    assert event.sentence == f"{URL}/control/v1/outcomes: connection refused"
    for _ in range(3):
        assert await gateways.read(NOON) == ((), ())
    fake.has(window(NOON - 10))
    windows, (event,) = await gateways.read(NOON)
    assert (len(windows), event.kind, event.severity) == (1, "gateway-recovered", "info")


async def test_a_gateway_that_is_gone_slows_down_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost node swallows what is sent to it: each question to its gateway lasts till the timeout."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    answers, asked = asyncio.Event(), []
    answers.set()

    async def fetch(url: str, errand: Errand) -> Answer | Failed:
        asked.append(url)
        if not url.startswith("http://gone"):
            return Answer({}, msgspec.json.encode([window(NOON + 10 * len(asked))]))
        await answers.wait()
        return (
            Failed(FailureKind.TIMEOUT, "no whole answer within 4 s") if len(asked) > 2 else Answer({}, b"[]")
        )

    gone = GatewaySettings.model_validate({"url": "http://gone:9000", "token": {"env": "GATEWAY_TOKEN"}})
    gateways = Gateways((gone, SETTINGS), fetch)
    await gateways.read(NOON + 40)
    answers.clear()
    for i in range(1, 4):
        windows, events = await gateways.read(NOON + 60 + i)
        assert (len(windows), events) == (1, ())
    assert sum(url.startswith("http://gone") for url in asked) == 2
    answers.set()
    _, (event,) = await gateways.read(NOON + 64)
    assert (event.kind, event.target) == ("gateway-unreachable", "http://gone:9000")
    await gateways.close()


async def test_over_loopback_with_a_token_from_a_file(client: Client, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    body = msgspec.json.encode([window(NOON - 10)])
    async with (
        serving({"/gw/control/v1/outcomes": ok(body, kind="application/json")}) as up,
        serving({}) as down,
    ):
        down.answers["/control/v1/outcomes"] = answer(b"", "Content-Length: 0", status="403 Forbidden")
        settings = tuple(
            GatewaySettings.model_validate({"url": url, "token": {"file": token}})
            for url in (up.url("/gw"), down.url(""))
        )
        windows, (event,) = await Gateways(settings, client.get).read(NOON)
        assert windows == (window(NOON - 10),)
        assert event.target == down.url("")
        assert "HTTP status 403" in event.sentence
        (request,) = up.requests
        assert request.path == "/gw/control/v1/outcomes?after=0.0"
        assert request.headers["authorization"] == "Bearer s3cret"
        assert request.headers["accept-encoding"] == "identity"
