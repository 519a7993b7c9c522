"""Outcome windows from gateways: each told once, whatever the gateway does."""

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


async def test_too_many_windows_are_refused(
    fake: FakeGateway, gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.has(*(window(NOON + i) for i in range(module.MOST_WINDOWS + 1)))
    windows, (event,) = await gateways.read(NOON)
    assert (windows, event.kind) == ((), "gateway-unreadable")


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
