"""Cases A1 to A6: what a metrics page may do, and what is to be read from it all the same.

A7 (the query API) and the parts of A4 and A5 that need a tick or a network have test files of their own.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure
from controlplane.sources.answer import Good, judge
from controlplane.sources.catalog import TICK_SIGNALS, Catalog, tick
from controlplane.sources.exposition import Reader
from controlplane.sources.inspect import inspect, read_page

DATA = Path(__file__).parent / "data"


def raw(name: str) -> bytes:
    return (DATA / name).read_bytes()


def scrape(page: bytes, catalog: Catalog | None = None, *, http: bool = False) -> Scrape:
    read = read_page(page, name="engine", catalog=catalog, http=http)
    assert isinstance(read, Scrape), read
    return read


def inspected(page: bytes, catalog: Catalog | None = None) -> dict[str, Any]:
    return inspect(scrape(page, catalog))


def numbers(value: Any) -> list[float]:
    """All numbers in a JSON value."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


ACME = ("acme:forward_occupancy", "acme:spec_accept_ratio")


@pytest.mark.parametrize("ending", [b"", b"# EOF\n"], ids=["text", "openmetrics"])
def test_A1_one_nan_must_not_cost_the_whole_page(ending: bytes) -> None:
    page = raw("A1/nan_and_inf.prom") + ending
    for catalog in (Catalog(extra=ACME), Catalog(TICK_SIGNALS, extra=ACME)):
        assert Reader(catalog.wanted).read(page).non_finite == 3
        out = inspected(page, catalog)
        signals = out["signals"]
        assert signals["running"] == {"value": 3}
        assert signals["waiting"] == {"value": 1}
        assert signals["kv_usage"] == {"value": 0.42}
        assert signals["acme:forward_occupancy"] == {"unknown": "not-a-number"}
        assert signals["acme:spec_accept_ratio"] == {"unknown": "not-finite"}
        queue = signals["queue_time"]
        assert (queue["count"], queue["p95"]) == (100, 1.0)
        assert queue["p90"] == pytest.approx(0.3 + 0.7 * 10 / 15)
        assert queue["sum"] is None
        assert queue["mean"] is None
        assert "3 samples are NaN or infinite and were left out" in out["warnings"]
        json.dumps(out, allow_nan=False)


@pytest.mark.parametrize("name", ["old_name", "new_name", "both_names"])
def test_A2_the_kv_gauge_has_two_names(name: str) -> None:
    for catalog in (None, tick()):
        out = inspected(raw(f"A2/{name}.prom"), catalog)
        assert out["signals"]["kv_usage"] == {"value": 0.37}
        assert out["signals"]["prefix_hits_total"] == {"value": 120}
        assert out["signals"]["prefix_queries_total"] == {"value": 400}
        assert list(out["engines"]) == ["0"]
        assert out["warnings"] == []


def test_A2_neither_name_is_unknown_and_said_once() -> None:
    out = inspected(raw("A2/neither_name.prom"))
    assert out["signals"]["kv_usage"] == {"unknown": "absent"}
    assert out["signals"]["running"] == {"value": 5}
    assert [warning for warning in out["warnings"] if "kv_usage" in warning] == out["warnings"]
    assert len(out["warnings"]) == 1


def test_A2_names_tell_the_version() -> None:
    assert inspected(raw("A2/old_name.prom"))["version"] == ">=0.7.3 <=0.9"
    assert inspected(raw("A2/new_name.prom"))["version"] == ">=0.9.2"
    assert inspected(raw("A2/both_names.prom"))["version"] == ">=0.9.2 <=0.11.2"


def test_A3_four_data_parallel_engines() -> None:
    for catalog in (None, tick()):
        out = inspected(raw("A3/dp4.prom"), catalog)
        signals = out["signals"]
        assert signals["running"] == {"value": 21}
        assert signals["waiting"] == {"value": 7}
        assert signals["kv_usage"] == {"value": 0.98, "mean": pytest.approx(0.4025)}
        ttft = signals["ttft"]
        assert (ttft["count"], ttft["p50"], ttft["p90"]) == (40, 0.5, 4.0)
        assert ttft["mean"] == pytest.approx(1.21)
        assert list(out["engines"]) == ["0", "1", "2", "3"]
        assert out["engines"]["1"]["kv_usage"] == {"value": 0.98}
        assert out["engines"]["2"]["running"] == {"value": 9}
        assert out["engines"]["1"]["ttft"]["count"] == 30


def without_start_time(page: bytes) -> bytes:
    return b"\n".join(line for line in page.split(b"\n") if b"process_start_time_seconds" not in line)


@pytest.mark.parametrize("start_time", [True, False], ids=["start time", "no start time"])
def test_A4_counters_start_again_after_a_restart(start_time: bool) -> None:
    pages = [raw(f"A4/t0{second}.prom") for second in ("00", "15", "30")]
    first, second, third = (scrape(page if start_time else without_start_time(page)) for page in pages)

    around = inspect(second, previous=first, interval_seconds=15)
    assert around["signals"]["generation_tokens_total"]["rate"] == 80
    assert around["signals"]["prompt_tokens_total"]["rate"] == 60
    assert around["restarted"] is True
    assert [warning for warning in around["warnings"] if warning.startswith("restarted")]
    assert all(number >= 0 for number in numbers(around["signals"]))
    assert 500_000 not in numbers(around)

    after = inspect(third, previous=second, interval_seconds=15)
    assert after["signals"]["generation_tokens_total"]["rate"] == 200
    assert after["signals"]["prompt_tokens_total"]["rate"] == 150
    assert after["restarted"] is False
    assert not [warning for warning in after["warnings"] if "restarted" in warning]


def test_A5_login_page_is_a_failed_scrape() -> None:
    read = read_page(raw("A5/login_page.http"), name="engine", http=True)
    assert isinstance(read, ScrapeFailure)
    assert read.reason is Reason.SCRAPE_FAILED
    assert "text/html; charset=utf-8" in read.detail
    assert inspect(read)["signals"]["running"] == {"unknown": "scrape-failed"}


def test_A5_empty_body_is_a_failed_scrape() -> None:
    read = read_page(raw("A5/empty_body.http"), name="engine", http=True)
    assert isinstance(read, ScrapeFailure)
    assert read.reason is Reason.SCRAPE_FAILED
    assert "empty body" in read.detail


@pytest.mark.parametrize("name", ["valid_body_html_type", "valid_body_no_type"])
def test_A5_good_page_under_a_wrong_name_is_read_with_one_warning(name: str) -> None:
    out = inspect(scrape(raw(f"A5/{name}.http"), http=True))
    assert out["signals"]["running"] == {"value": 4}
    assert out["signals"]["waiting"] == {"value": 2}
    assert out["signals"]["kv_usage"] == {"value": 0.5}
    assert len(out["warnings"]) == 1
    assert "content type" in out["warnings"][0]


def test_A5_wrong_exporter_is_no_engine() -> None:
    read = read_page(raw("A5/wrong_exporter.http"), name="engine", http=True)
    assert isinstance(read, ScrapeFailure)
    assert read.reason is Reason.NOT_AN_ENGINE
    assert "not a vLLM page" in read.detail
    assert "process_cpu_seconds_total, node_load1" in read.detail


@pytest.mark.parametrize(
    "content_type", ["text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"]
)
def test_A6_exemplars_and_created(content_type: str) -> None:
    answer = judge(200, {"Content-Type": content_type}, raw("A6/exemplars.prom"))
    assert isinstance(answer, Good)
    assert answer.warnings == ()
    read = read_page(answer.body, name="engine", at=1764000100.0)
    assert isinstance(read, Scrape)
    assert read.at == 1764000100.0
    signals = inspect(read)["signals"]
    assert signals["finished_total"] == {"value": 42, "by": {"stop": 42}}
    assert signals["e2e"]["count"] == 42
    assert read.engines["0"].histograms["e2e"].counts == (40, 42)
    assert read.engines["0"].histograms["e2e"].bounds == (1.0, math.inf)
    assert (signals["step_tokens"]["count"], signals["step_tokens"]["sum"]) == (1000, 5200)
    assert max(numbers(signals)) < 1e9
