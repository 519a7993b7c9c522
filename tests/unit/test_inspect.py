"""What `inspect` tells of one page, and of two."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape, ScrapeFailure
from controlplane.sources.catalog import CORE_SIGNALS
from controlplane.sources.inspect import inspect, read_page

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
PAGES = sorted(CAPTURES.rglob("*.prom"))


def scrape(page: str | bytes, at: float = 0.0) -> Scrape:
    read = read_page(page.encode() if isinstance(page, str) else page, name="engine", at=at)
    assert isinstance(read, Scrape), read
    return read


def told(page: str) -> dict[str, Any]:
    return inspect(scrape(page))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_capture_is_told_in_the_agreed_form(path: Path) -> None:
    out = inspect(scrape(path.read_bytes()))
    assert list(out) == ["engine", "version", "models", "signals", "engines", "warnings"]
    json.dumps(out, allow_nan=False)
    for signals in (out["signals"], *out["engines"].values()):
        for name, signal in signals.items():
            if "unknown" in signal:
                assert signal["unknown"] in set(Reason)
            elif "count" in signal:
                assert list(signal) == ["count", "sum", "mean", "p50", "p90", "p95", "p99"]
            else:
                assert isinstance(signal["value"], float), name
    assert set(CORE_SIGNALS) <= out["signals"].keys()


def test_the_overload_capture_by_hand() -> None:
    """TTFT: 1,128 observations; the figures are from the capture's buckets, linear inside one."""
    text = (CAPTURES / "vllm-0.32-overload.prom").read_text()
    buckets = {
        float(line.split('le="')[1].split('"')[0]): float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("vllm:time_to_first_token_seconds_bucket")
    }
    ttft = inspect(scrape(text))["signals"]["ttft"]
    rank = 0.99 * buckets[float("inf")]
    above = min(bound for bound, count in buckets.items() if count >= rank)
    below = max(bound for bound in buckets if bound < above)
    inside = (rank - buckets[below]) / (buckets[above] - buckets[below])
    assert ttft["count"] == buckets[float("inf")]
    assert ttft["p99"] == pytest.approx(below + inside * (above - below))
    assert ttft["mean"] == pytest.approx(ttft["sum"] / ttft["count"])


def test_signals_are_in_the_order_of_the_table() -> None:
    names = list(inspect(scrape((CAPTURES / "vllm-0.32-overload.prom").read_bytes()))["signals"])
    assert names[:3] == ["running", "waiting", "waiting_by_reason"]
    assert names.index("start_time") > names.index("e2e")


def test_labels_that_matter_stand_beside_the_value() -> None:
    signals = inspect(scrape((CAPTURES / "vllm-0.32-overload-admission503.prom").read_bytes()))["signals"]
    assert signals["waiting_by_reason"] == {"value": 18, "by": {"capacity": 18, "deferred": 0}}
    assert signals["rejected_total"]["by"] == {"max_num_queued_reqs": 233, "max_num_queued_tokens": 0}
    assert signals["http_inference_requests"] == {"value": 238, "by": {"2xx": 30, "5xx": 208}}
    assert signals["sleep_state"] == {
        "value": 1,
        "by": {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
    }
    assert signals["finished_total"]["value"] == sum(signals["finished_total"]["by"].values()) == 5


def test_states_of_several_engines_are_counted() -> None:
    page = "".join(
        f'vllm:engine_sleep_state{{engine="{engine}",sleep_state="{state}"}} {int(state == own)}\n'
        for engine, own in enumerate(["awake", "awake", "discard_all"])
        for state in ("awake", "weights_offloaded", "discard_all")
    )
    out = told(page)
    assert out["signals"]["sleep_state"] == {
        "value": 2,
        "by": {"awake": 2, "weights_offloaded": 0, "discard_all": 1},
    }
    assert out["engines"]["2"]["sleep_state"]["value"] == 0


def test_lora_adapters_are_told_by_name() -> None:
    lora = 'running_lora_adapters="law",waiting_lora_adapters="chat"'
    out = told(f'vllm:num_requests_running{{engine="0"}} 1\nvllm:lora_requests_info{{{lora}}} 1.764e9\n')
    assert out["signals"]["lora_info"] == {"value": 1, "by": {"law": 1, "chat": 0}}


def test_capacity_of_several_engines() -> None:
    out = inspect(scrape((CAPTURES / "vllm-0.32-dp2-api2-overload.prom").read_bytes()))
    signals = out["signals"]
    assert signals["kv_capacity_tokens"] == {"value": 4096}
    assert signals["kv_blocks"] == {"value": 128}  # printed by both engines: it is that of both together
    assert signals["kv_usage"] == {"value": pytest.approx(61 / 63), "mean": pytest.approx(60.5 / 63)}
    assert signals["running"] == {"value": 19}
    assert out["engines"]["1"]["running"] == {"value": 6}


def test_core_signals_are_absent_or_unsupported_and_others_are_not_listed() -> None:
    signals = told("tgi_queue_size 2\n")["signals"]
    assert signals["waiting"] == {"value": 2}
    assert signals["running"] == {"unknown": "absent"}
    assert signals["ttft"] == signals["kv_usage"] == {"unknown": "unsupported"}
    assert "failed_total" not in signals
    old = inspect(scrape((CAPTURES / "logger-only" / "vllm-0.8.5-idle.prom").read_bytes()))["signals"]
    assert old["tpot"] == {"unknown": "absent"}
    assert "rejected_total" not in old


def test_one_engine_that_cannot_be_read_makes_the_whole_unknown_but_not_the_others() -> None:
    out = told(
        'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
        'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} +Inf\n'
    )
    assert out["signals"]["running"] == {"unknown": "not-a-number"}
    assert out["signals"]["waiting"] == {"unknown": "not-finite"}
    assert out["engines"]["1"]["running"] == {"value": 4}
    assert out["signals"]["kv_usage"] == {"value": 0.5}  # the other engine has had nothing to do yet


def test_no_observation_is_no_quantile() -> None:
    page = 'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 0\nvllm:time_to_first_token_seconds_sum 0\n'
    assert told(page)["signals"]["ttft"] == {
        "count": 0, "sum": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None,
    }  # fmt: skip


def test_llamacpp_tells_a_mean_only() -> None:
    page = "llamacpp:tokens_predicted_total 1250\nllamacpp:tokens_predicted_seconds_total 25\n"
    tpot = told(page)["signals"]["tpot"]
    assert (tpot["count"], tpot["mean"], tpot["p90"]) == (1250, pytest.approx(0.02), None)


# --- two pages ------------------------------------------------------------------------------------------


def page(
    tokens: float, start: float | None = None, *, e2e: tuple[float, float] = (0, 0), engine: str = "0"
) -> str:
    process = "" if start is None else f"process_start_time_seconds {start}\n"
    below, count = e2e
    return (
        f'vllm:generation_tokens_total{{engine="{engine}"}} {tokens}\n{process}'
        f'vllm:num_requests_running{{engine="{engine}"}} {tokens % 7}\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}"}} 0.5\n'
        f'vllm:e2e_request_latency_seconds_bucket{{engine="{engine}",le="1.0"}} {below}\n'
        f'vllm:e2e_request_latency_seconds_bucket{{engine="{engine}",le="2.0"}} {count}\n'
        f'vllm:e2e_request_latency_seconds_bucket{{engine="{engine}",le="+Inf"}} {count}\n'
    )


def test_counters_have_a_rate_and_gauges_none() -> None:
    out = inspect(scrape(page(700, 1e9)), scrape(page(100, 1e9)), 15)
    assert out["signals"]["generation_tokens_total"] == {"value": 700, "increase": 600, "rate": 40}
    assert out["engines"]["0"]["generation_tokens_total"]["rate"] == 40
    assert out["signals"]["running"] == {"value": 0}
    assert out["restarted"] is False
    assert out["warnings"] == []


def test_the_gap_is_told_or_taken_from_the_pages_or_unknown() -> None:
    timed = inspect(scrape(page(700), at=30.0), scrape(page(100), at=10.0))
    assert timed["signals"]["generation_tokens_total"]["rate"] == 30
    given = inspect(scrape(page(700), at=30.0), scrape(page(100), at=10.0), 60)
    assert given["signals"]["generation_tokens_total"]["rate"] == 10
    untimed = inspect(scrape(page(700)), scrape(page(100)))
    assert untimed["signals"]["generation_tokens_total"] == {"value": 700, "increase": 600}
    assert any("rates are unknown" in warning for warning in untimed["warnings"])


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan")])
def test_a_gap_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {seconds}")):
        inspect(scrape(page(700)), scrape(page(100)), seconds)


def test_distributions_have_a_window() -> None:
    out = inspect(scrape(page(1, e2e=(40, 60))), scrape(page(0, e2e=(30, 30))), 10)
    e2e = out["signals"]["e2e"]
    assert (e2e["count"], e2e["window"]["count"]) == (60, 30)
    assert e2e["window"]["p50"] == pytest.approx(1 + 1 * (15 - 10) / 20)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (page(100, 1e9), page(700, 1e9 + 50), "process start time"),
        (page(700), page(100), "generation_tokens_total fell from 700 to 100"),
        (page(700, 1e9), page(100), "generation_tokens_total fell"),
        (page(5, e2e=(9, 9)), page(100, e2e=(3, 4)), "count of e2e fell from 9 to 4"),
    ],
)
def test_a_restart_makes_everything_begin_at_zero(before: str, after: str, said: str) -> None:
    out = inspect(scrape(after), scrape(before), 10)
    tokens = out["signals"]["generation_tokens_total"]
    assert tokens["rate"] == tokens["value"] / 10
    assert out["signals"]["e2e"]["window"]["count"] == out["signals"]["e2e"]["count"]
    assert out["restarted"] is True
    assert any(warning.startswith("restarted") and said in warning for warning in out["warnings"])


def test_a_start_time_that_wanders_by_a_hair_is_no_restart() -> None:
    assert inspect(scrape(page(700, 1e9 + 0.02)), scrape(page(100, 1e9)), 10)["restarted"] is False


def test_a_gauge_that_falls_is_no_restart() -> None:
    assert inspect(scrape(page(140)), scrape(page(139)), 10)["restarted"] is False


def test_an_engine_that_was_not_there_before_has_no_rate() -> None:
    out = inspect(scrape(page(50) + page(500_000, engine="1")), scrape(page(20)), 10)
    assert out["signals"]["generation_tokens_total"]["value"] == 500_050
    assert out["signals"]["generation_tokens_total"].keys() == {"value"}
    assert out["signals"]["e2e"].keys() >= {"count"}
    assert "window" not in out["signals"]["e2e"]
    assert out["engines"]["0"]["generation_tokens_total"]["rate"] == 3
    assert "rate" not in out["engines"]["1"]["generation_tokens_total"]
    assert out["warnings"] == [
        "no growth of generation_tokens_total, e2e: a part of it is new, or fell without a restart"
    ]


def test_a_counter_that_falls_in_one_process_is_no_restart_and_has_no_growth() -> None:
    """A series left the page; the start times say that the process is the same."""
    out = inspect(scrape(page(100, 1e9, e2e=(3, 4))), scrape(page(700, 1e9, e2e=(9, 9))), 10)
    assert out["restarted"] is False
    assert out["signals"]["generation_tokens_total"] == {"value": 100}
    assert "window" not in out["signals"]["e2e"]
    assert any("fell without a restart" in warning for warning in out["warnings"])


def test_a_page_before_of_something_else_is_passed_over() -> None:
    out = inspect(scrape(page(50)), scrape("tgi_queue_size 2\n"), 10)
    assert "restarted" not in out
    assert any("tgi" in warning for warning in out["warnings"])
    failed = read_page(b"<html>", name="engine")
    assert any("could not be read" in text for text in inspect(scrape(page(50)), failed, 10)["warnings"])


# --- pages that cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "http", "reason", "said"),
    [
        (b"", False, "scrape-failed", "empty body"),
        (b"<html>", False, "scrape-failed", "HTML"),
        (b"vllm:num_requests_running{ 1\n", False, "scrape-failed", "line 1"),
        (b"node_load1 1\n", False, "not-an-engine", "not a vLLM page"),
        (b"node_load1 1\n", True, "scrape-failed", "not an HTTP response"),
        (b"HTTP/1.1 503 Overloaded\r\n\r\nvllm:x 1\n", True, "scrape-failed", "HTTP status 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nvllm:x 1\n", True, "scrape-failed", "9 of 99 bytes"),
    ],
)
def test_a_page_that_cannot_be_read_says_why(raw: bytes, http: bool, reason: str, said: str) -> None:
    failure = read_page(raw, name="engine", http=http)
    assert isinstance(failure, ScrapeFailure)
    out = inspect(failure)
    assert said in out["error"]
    assert out["signals"]["running"] == {"unknown": reason}
    assert (out["engine"], out["engines"]) == (None, {})


def test_a_packed_file_and_a_packed_response_are_unpacked() -> None:
    body = gzip.compress(page(5).encode())
    assert inspect(scrape(body))["signals"]["generation_tokens_total"]["value"] == 5
    headers = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n"
    read = read_page(headers + body, name="engine", http=True)
    assert isinstance(read, Scrape)
    assert read.warnings == ()


def test_a_file_without_a_last_line_feed_is_read_with_a_warning_and_a_response_is_not() -> None:
    cut = b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_waiting{engine="0"} 12'
    assert scrape(cut).warnings[0] == "the page was cut short: its last line has no end"
    response = read_page(b"HTTP/1.1 200 OK\r\n\r\n" + cut, name="engine", http=True)
    assert isinstance(response, ScrapeFailure)
    assert "cut short" in response.detail


# --- any page at all ------------------------------------------------------------------------------------

LINES = [line for path in PAGES[:3] for line in path.read_text().splitlines() if not line.startswith("#")]
VALUES = st.sampled_from(["NaN", "+Inf", "-1", "0", "1e308", "-1e308", "1e-320", "1e149", "7"])


@given(
    st.lists(st.tuples(st.sampled_from(LINES), VALUES), max_size=60),
    st.lists(st.tuples(st.sampled_from(LINES), VALUES), max_size=60),
    st.sampled_from([None, 0.001, 5.0]),
)
def test_whatever_two_pages_say_the_json_is_valid(
    before: list[tuple[str, str]], after: list[tuple[str, str]], gap: float | None
) -> None:
    reads = [
        read_page(
            "".join(f"{line.rsplit(' ', 1)[0]} {value}\n" for line, value in lines).encode(), name="engine"
        )
        for lines in (before, after)
    ]
    json.dumps(inspect(reads[1], reads[0], gap), allow_nan=False)
