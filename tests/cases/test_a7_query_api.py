"""Case A7: what the Prometheus query API may answer; and of A5 the sign-in page in its place."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.sources.catalog import tick
from controlplane.sources.prometheus import PrometheusSource
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.query_answer import Answer, Retry, interpret, load

DATA = Path(__file__).parent / "data"
RESPONSES = json.loads((DATA / "A7/responses.json").read_bytes())
ROWS = {row["name"]: row for row in RESPONSES["cases"]}
NOW = RESPONSES["local_clock"]


def answered(status: int, body: Any) -> Answer:
    return interpret(status, "application/json", json.dumps(body).encode(), NOW)


def vector(*values: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [NOW, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.mark.parametrize("name", list(ROWS))
def test_A7_what_the_query_api_may_answer(name: str) -> None:
    row, want = ROWS[name], ROWS[name]["expect"]
    answer = answered(row["status"], row["body"])
    number = answer.number
    if want["value"] is None:
        assert isinstance(number, Unknown)
        assert number.reason == want["reason"]
    else:
        assert number == Known(want["value"], NOW, Quality.EXACT)
    if "retry" in want:
        assert answer.retry is (Retry.BACKOFF if want["retry"] == "with-backoff" else Retry.NO)
    assert answer.notes == (("the server's clock is 90 s ahead of ours",) if "note" in want else ())


def test_A7_every_row_of_the_case_is_there() -> None:
    assert len(ROWS) == len(RESPONSES["cases"]) == 12


@pytest.mark.parametrize("extra", ["warnings", "infos"])
def test_A7_an_answer_with_warnings_is_a_lower_bound(extra: str) -> None:
    answer = answered(200, vector("7") | {extra: ["one store did not answer"]})
    assert answer.number == Known(7.0, NOW, Quality.LOWER_BOUND)
    assert answer.notes == ("one store did not answer",)


def test_A7_no_traffic_is_a_load_of_zero_only_on_proof() -> None:
    """dynamo#3131: `increase(sum) / increase(count)` is NaN where nothing happened."""
    nan = answered(200, vector("NaN")).number
    idle, absent, busy = (answered(200, vector(*values)).number for values in (["0"], [], ["12"]))
    partly = answered(200, vector("0") | {"warnings": ["one store did not answer"]}).number
    away = answered(503, {"status": "error", "errorType": "timeout", "error": "busy"}).number

    assert load(nan, idle) == Known(0.0, NOW)
    for count in (absent, busy, partly, away):
        held = load(nan, count)
        assert isinstance(held, Unknown)
        assert held.reason is Reason.NOT_A_NUMBER
    ratio = answered(200, vector("0.25")).number
    assert load(ratio, busy) == ratio
    assert load(absent, idle) == absent, "no ratio at all is not the ratio of nothing"


async def test_A5_login_page_from_the_query_api() -> None:
    """The source is unavailable, which is told once; no target is invented and none is lost."""
    page = (DATA / "A5/login_page.http").read_bytes()

    async def sign_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(sign_in, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    now = [0.0]
    source = PrometheusSource(PrometheusSettings(url=url), tick(), monotonic=lambda: now[0])
    try:
        first = await source.poll()
        now[0] += 3600
        second = await source.poll()
    finally:
        source.close()
        server.close()
    assert source.failure is not None
    assert source.failure.reason is Reason.UNAVAILABLE
    assert source.counts.results == {"unavailable": 2}
    assert [event.kind for event in first.events] == ["prometheus-unavailable"]
    assert "text/html" in first.events[0].sentence
    assert url in first.events[0].sentence
    assert "Sign in" not in first.events[0].sentence
    assert (first.targets, first.scrapes) == (None, ())
    assert (second.targets, second.scrapes, second.events) == (None, (), ())
