"""`controlplane inspect`: files, raw responses, standard input and live URLs, as JSON and as tables."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from loopback import Loopback, Script, ok, redirect, serving

from controlplane.commands.inspect import inspect
from controlplane.sources.answer import LIMIT_BYTES
from controlplane.terminal.page_table import unit_of

CASES = Path(__file__).parents[1] / "cases" / "data"
CAPTURES = Path(__file__).parents[1] / "data" / "captures"
OVERLOAD = CAPTURES / "vllm-0.32-overload.prom"


def run(*args: object, stdin: bytes | None = None, width: int = 100) -> Result:
    return CliRunner().invoke(inspect, [str(arg) for arg in args], input=stdin, env={"COLUMNS": str(width)})


def as_json(*args: object, stdin: bytes | None = None) -> dict[str, Any]:
    result = run(*args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)  # type: ignore[no-any-return]


def test_json_has_the_agreed_shape() -> None:
    out = as_json(OVERLOAD)
    assert set(out) == {"engine", "version", "models", "signals", "engines", "warnings"}
    assert (out["engine"], out["version"], out["models"]) == ("vllm", ">=0.32", ["tiny"])
    assert out["signals"]["waiting"] == {"value": 31.0}
    assert out["signals"]["waiting_by_reason"]["by"] == {"capacity": 31.0, "deferred": 0.0}
    assert set(out["signals"]["ttft"]) >= {"count", "sum", "p50", "p90", "p95", "p99"}
    assert out["engines"]["0"]["running"] == {"value": 9.0}


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.prom")), ids=lambda path: path.name)
def test_every_captured_page_is_read_both_ways(path: Path) -> None:
    assert as_json(path)["engine"] == "vllm"
    result = run(path)
    assert result.exit_code == 0
    assert "running" in result.output


def test_the_tables_say_value_unit_and_note() -> None:
    rows = {line.split()[0]: line.split() for line in run(OVERLOAD).output.splitlines() if line.strip()}
    assert rows["vllm"][1:3] == [">=0.32", "tiny"]
    assert rows["kv_usage"] == ["kv_usage", "100%", "ratio"]
    assert rows["finished_total"] == ["finished_total", "1,105", "requests", "length", "1,105"]
    assert rows["ttft"] == [
        *["ttft", "1,116", "332", "ms", "15.3", "ms", "44.9", "ms", "237", "ms", "9.04", "s"]
    ]


def test_engines_of_one_page_stand_side_by_side() -> None:
    output = run(CASES / "A3" / "dp4.prom").output
    assert "the fullest engine; mean 40%" in output
    assert [line.split() for line in output.splitlines()][-3] == ["1", "12", "7", "98%"]


def test_unknown_signals_come_with_their_reason() -> None:
    wanted = ("--want", "acme:forward_occupancy", "--want", "acme:spec_accept_ratio")
    page = CASES / "A1" / "nan_and_inf.prom"
    out = as_json(page, *wanted)
    assert out["signals"]["acme:forward_occupancy"] == {"unknown": "not-a-number"}
    assert out["signals"]["acme:spec_accept_ratio"] == {"unknown": "not-finite"}
    output = run(page, *wanted).output
    assert "! 3 samples are NaN or infinite and were left out" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["acme:forward_occupancy", "not-a-number"] in rows
    queue = next(row for row in rows if row[:1] == ["queue_time"])
    assert queue[:3] == ["queue_time", "100", "–"]  # a NaN sum has no mean


def test_a_page_before_adds_rates() -> None:
    pages = CASES / "A4"
    args = (pages / "t030.prom", "--previous", pages / "t015.prom", "--interval", 15)
    signals = as_json(*args)["signals"]
    assert signals["generation_tokens_total"]["rate"] == 200
    assert signals["prompt_tokens_total"]["rate"] == 150
    output = run(*args).output
    assert "per second" in output
    assert ["generation_tokens_total", "4,200", "200", "tokens"] in [x.split() for x in output.splitlines()]
    restarted = as_json(pages / "t015.prom", "--previous", pages / "t000.prom", "--interval", 15)
    assert restarted["restarted"] is True
    assert 0 <= restarted["signals"]["generation_tokens_total"]["rate"] <= 80


def test_distributions_are_of_the_time_in_between_where_that_is_known() -> None:
    output = run(OVERLOAD, "--previous", CAPTURES / "vllm-0.32-light.prom").output
    assert "distribution in between" in output
    assert "! rates are unknown: the time between the two pages is not known" in output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("login_page.http", "text/html"),
        ("empty_body.http", "empty body"),
        ("wrong_exporter.http", "not a vLLM page"),
    ],
)
def test_what_is_no_page_of_metrics_ends_with_one_sentence(name: str, told: str) -> None:
    path = CASES / "A5" / name
    result = run(path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {path}: ")
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    told_json = run(path, "--json")
    assert told_json.exit_code == 1
    out = json.loads(told_json.stdout)
    assert told in out["error"]
    assert out["engine"] is None
    assert set(out["signals"]["running"]) == {"unknown"}


@pytest.mark.parametrize("name", ["valid_body_html_type.http", "valid_body_no_type.http"])
def test_a_good_body_under_a_wrong_type_is_read_with_a_warning(name: str) -> None:
    out = as_json(CASES / "A5" / name)
    assert out["signals"]["running"] == {"value": 4}
    assert len(out["warnings"]) == 1
    assert "! " in run(CASES / "A5" / name).output


def test_standard_input_also_packed() -> None:
    for page in (OVERLOAD.read_bytes(), gzip.compress(OVERLOAD.read_bytes())):
        assert as_json("-", stdin=page)["signals"]["running"] == {"value": 9.0}
    result = run("-", stdin=b"")
    assert (result.exit_code, result.stderr) == (1, "Error: standard input: empty body\n")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    result = run(tmp_path / "none.prom")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path}/none.prom cannot be read: No such file or directory\n"
    assert "Is a directory" in run(tmp_path).stderr
    result = run(OVERLOAD, "--previous", tmp_path / "none.prom")
    assert result.stderr.startswith(f"Error: {tmp_path}/none.prom cannot be read")


def test_a_page_before_that_is_none_is_a_warning(tmp_path: Path) -> None:
    before = tmp_path / "before.prom"
    before.write_text("<html>")
    result = run(OVERLOAD, "--previous", before)
    assert result.exit_code == 0
    assert "! the page before could not be read" in result.output


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "large.prom"
    with page.open("wb") as file:
        file.write(b"x 1\n")
        file.truncate(LIMIT_BYTES + 10)
    assert f"over {LIMIT_BYTES} bytes" in run(page).stderr


def test_terminal_commands_in_a_page_are_not_obeyed(tmp_path: Path) -> None:
    page = tmp_path / "evil.prom"
    page.write_text('vllm:num_requests_running{model_name="\x1b[2Jevil\x07",engine="0"} 1\n')
    output = run(page).output
    assert "evil" in output
    assert "\x1b" not in output
    assert "\x07" not in output


# -- live --------------------------------------------------------------------------------------------


@contextmanager
def engine(**answers: bytes | Script) -> Iterator[Loopback]:
    """An engine in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = serving({f"/{path}": answer for path, answer in answers.items()})
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_a_live_engine_with_and_without_a_path() -> None:
    with engine(metrics=ok(OVERLOAD.read_bytes()), other=ok(b"x 1\n")) as server:
        for address in (server.url("/metrics"), server.url(""), f"127.0.0.1:{server.port}"):
            assert as_json(address)["signals"]["running"] == {"value": 9.0}
        assert server.requests[0].headers["accept"] == "text/plain;version=0.0.4"
        result = run(server.url("/other"))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"Error: {server.url('/other')}: not a vLLM page")


def test_a_live_engine_twice_adds_rates() -> None:
    with engine(metrics=ok(OVERLOAD.read_bytes())) as server:
        out = as_json(server.url("/metrics"), "--interval", 0.1)
    assert len(server.requests) == 2
    assert out["signals"]["generation_tokens_total"]["rate"] == 0


def test_a_live_page_that_is_cut_is_no_page() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(ok(OVERLOAD.read_bytes())[:-100])
        await writer.drain()

    with engine(metrics=cut) as server:
        result = run(server.url("/metrics"))
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "cut short" in result.stderr


def test_nobody_there_is_one_sentence_without_the_password() -> None:
    result = run("http://ann:secret@127.0.0.1:1/metrics")
    assert result.exit_code == 1
    assert "secret" not in result.output
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: http")


def test_a_redirect_to_a_login_page_names_what_came() -> None:
    with engine(metrics=redirect("/login"), login=ok(b"<html>sign in", kind="text/html")) as server:
        result = run(server.url("/metrics"))
    assert result.exit_code == 1
    assert "text/html" in result.stderr


def test_every_signal_of_every_table_has_a_unit_or_needs_none() -> None:
    from controlplane.sources.dialects import SERVER, dialect, engines

    signals = {row.signal for table in (*engines(), dialect(SERVER)) for row in table.metrics}
    without = {signal for signal in signals if not unit_of(signal)}
    assert without <= {
        *("preemptions_total", "preemptions_per_request", "sleep_state", "lora_info", "engine_info"),
        *("engine_healthy", "est_flops_total", "decode_steps_total", "kv_expired_total", "kv_xfer_speed"),
        *("kv_notify_failures_total", "kv_xfer_failures_total", "spec_drafts_total"),
        "spec_accepted_per_pos_total",
    }, without


def test_quantiles_beyond_the_buckets_are_shown_as_no_more_than_that(tmp_path: Path) -> None:
    lines = ["vllm:num_requests_running 1"]
    for name, first, all_ in (("request_queue_time_seconds", 50, 50), ("time_to_first_token_seconds", 0, 50)):
        lines += [
            f'vllm:{name}_bucket{{le="{le}"}} {n}'
            for le, n in (("0.3", first), ("60", first), ("+Inf", all_))
        ]
        lines += [f"vllm:{name}_sum 9", f"vllm:{name}_count {all_}"]
    path = tmp_path / "page.prom"
    path.write_text("\n".join(lines) + "\n")
    said = CliRunner().invoke(inspect, [str(path)], env={"COLUMNS": "140"}).output
    rows = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert rows["queue_time"].count("<300 ms") == 4
    assert rows["ttft"].count(">60.0 s") == 4
    found = json.loads(CliRunner().invoke(inspect, [str(path), "--json"]).output)["signals"]
    assert found["queue_time"]["p99"] == pytest.approx(0.297)
