"""The webhook that Alertmanager posts to: what is shown, what is forgotten, what is refused."""

from typing import Any

import pytest
from fleet_fakes import AT, FakeDaemon
from starlette.testclient import TestClient

from controlplane.api.alerts import FORGET_SECONDS, LONGEST_TEXT_CHARS, MOST_ALERTS
from controlplane.api.app import create_app
from controlplane.api.settings import ApiSettings

TOKEN = {"authorization": "Bearer a-token"}


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon()


@pytest.fixture
def client(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("ALERTS_TOKEN", "a-token")
    return TestClient(create_app(daemon, ApiSettings(token_env="ALERTS_TOKEN")))


def told(
    name: str = "EngineDown", *, status: str = "firing", fingerprint: str = "f1", **labels: str
) -> dict[str, Any]:
    """One alert as Alertmanager 0.25 posts it."""
    return {
        "status": status,
        "labels": {"alertname": name, "severity": "page", "team": "serving", **labels},
        "annotations": {
            "summary": f"{name} of {labels}",
            "runbook_url": "https://runbooks.example/EngineDown",
        },
        "startsAt": "2026-03-01T10:00:00.123Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": fingerprint,
    }


def payload(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "controlplane",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "alerts": list(alerts),
        **more,
    }


def names(client: TestClient) -> list[str]:
    return [item["name"] for item in client.get("/api/v1/alerts").json()["items"]]


def test_what_fires_is_shown_until_it_ends(client: TestClient) -> None:
    assert names(client) == []
    posted = client.post("/api/v1/alerts", json=payload(told(pool="chat")), headers=TOKEN)
    assert posted.status_code == 200
    (item,) = client.get("/api/v1/alerts").json()["items"]
    assert item["labels"]["pool"] == "chat"
    assert item["since"] == pytest.approx(1772359200.123)
    assert item["heard_at"] == AT + 1
    assert item["runbook_url"] == "https://runbooks.example/EngineDown"
    client.post("/api/v1/alerts", json=payload(told(status="resolved")), headers=TOKEN)
    assert names(client) == []


def test_a_repeated_word_is_one_alert_and_pages_come_first(client: TestClient) -> None:
    first = told("GpuHot", fingerprint="f2") | {"labels": {"alertname": "GpuHot", "severity": "ticket"}}
    client.post("/api/v1/alerts", json=payload(first, told()), headers=TOKEN)
    client.post("/api/v1/alerts", json=payload(told()), headers=TOKEN)
    assert names(client) == ["EngineDown", "GpuHot"]


def test_what_nobody_speaks_of_any_more_is_forgotten(client: TestClient, daemon: FakeDaemon) -> None:
    client.post("/api/v1/alerts", json=payload(told()), headers=TOKEN)
    daemon.clock = AT + 1 + FORGET_SECONDS - 1
    assert names(client) == ["EngineDown"]
    daemon.clock = AT + 1 + FORGET_SECONDS
    assert names(client) == []


def test_it_needs_the_token(client: TestClient) -> None:
    assert client.post("/api/v1/alerts", json=payload(told())).status_code == 401
    assert names(client) == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (payload(told(), version="5"), "version"),
        (payload(told() | {"startsAt": "yesterday"}), "startsAt"),
        (payload(told() | {"status": "maybe"}), "'maybe'"),
        (payload(told() | {"fingerprint": ""}), "fingerprint"),
        (payload(told() | {"labels": {f"l{i}": "x" for i in range(65)}}), "labels"),
        (payload(told() | {"labels": {"alertname": 7}}), "labels.alertname"),
        ({"version": "4"}, "alerts"),
    ],
)
def test_what_is_no_such_payload_is_refused_with_a_sentence(
    client: TestClient, body: dict[str, Any], named: str
) -> None:
    answer = client.post("/api/v1/alerts", json=body, headers=TOKEN)
    assert answer.status_code == 422
    assert named in answer.json()["error"]["message"]
    assert names(client) == []


def test_texts_are_short_and_on_one_line_and_links_are_links(client: TestClient) -> None:
    bad = told(node="a\nb\x00c" + "x" * 5000)
    bad["annotations"] = {"summary": "two\nlines\x1b[31m", "runbook_url": "javascript:alert(1)"}
    client.post("/api/v1/alerts", json=payload(bad), headers=TOKEN)
    (item,) = client.get("/api/v1/alerts").json()["items"]
    assert item["labels"]["node"].startswith("a bc")
    assert len(item["labels"]["node"]) <= LONGEST_TEXT_CHARS
    assert item["summary"] == "two lines[31m"
    assert item["runbook_url"] == ""


def test_the_board_is_bounded(client: TestClient) -> None:
    for start in range(0, MOST_ALERTS + 100, 100):
        some = [told(fingerprint=f"f{i}") | {"annotations": {}} for i in range(start, start + 100)]
        assert client.post("/api/v1/alerts", json=payload(*some), headers=TOKEN).status_code == 200
    assert len(names(client)) == MOST_ALERTS
