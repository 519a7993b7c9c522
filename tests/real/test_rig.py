"""The rig itself: what the load generator and the server helper say agrees with a real vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from .conftest import StartServer
from .load import (
    HangUp,
    Load,
    Outcome,
    Record,
    Slo,
    aborted_in,
    first_tokens_in,
    in_flight_at,
    parse_lengths,
    quantile,
    read_jsonl,
    run_load,
    truth_in,
    write_jsonl,
)
from .server import ServerError, ServerOptions, VllmServer, sample_sum, wait_until

LOAD = Path(__file__).with_name("load.py")


async def test_streams_a_completion_and_a_chat(vllm_server: StartServer) -> None:
    """One request of each kind is answered with the tokens that were asked for."""
    server = await vllm_server()
    for chat in (False, True):
        load = Load(
            base_url=server.base_url,
            seconds=30,
            clients=1,
            max_requests=1,
            chat=chat,
            prompt=parse_lengths("20"),
            output=parse_lengths("12"),
        )
        (record,) = (await run_load(load)).records
        assert record.outcome is Outcome.OK, record
        assert (record.output_tokens, record.tokens_exact, record.finish_reason) == (12, True, "length")
        assert record.prompt_tokens == 20 + (3 if chat else 0)  # two roles and an end mark
        assert record.ttft_seconds is not None
        assert 0 < record.ttft_seconds < record.e2e_seconds


async def test_truth_agrees_with_the_engines_counters(vllm_server: StartServer, tmp_path: Path) -> None:
    """Requests, prompt tokens and answer tokens of a closed loop are exactly those of /metrics."""
    server = await vllm_server()
    before = await server.settled_metrics()
    load = Load(
        base_url=server.base_url,
        seconds=4,
        clients=6,
        prompt=parse_lengths("8-96"),
        output=parse_lengths("1@0.2,lognormal:30:0.8:2-200@0.8"),
    )
    report = await run_load(load)
    after = await server.settled_metrics()

    def grew(name: str) -> float:
        return sample_sum(after, f"vllm:{name}") - sample_sum(before, f"vllm:{name}")

    truth = report.truth(Slo(ttft_seconds=60.0, tpot_seconds=60.0))
    assert truth.outcomes == {"ok": len(report.records)}
    assert truth.good == truth.finished == grew("request_success_total")
    assert truth.prompt_tokens == grew("prompt_tokens_total") == truth.good_prompt_tokens
    assert truth.output_tokens == grew("generation_tokens_total") == truth.good_output_tokens
    assert grew("time_to_first_token_seconds_count") == truth.finished
    assert grew("e2e_request_latency_seconds_count") == truth.finished
    # The client is further away than the engine's front end: it sees all of it a little later, never earlier.
    assert truth.e2e.mean > grew("e2e_request_latency_seconds_sum") / truth.finished

    write_jsonl(report.records, tmp_path / "run.jsonl")
    assert read_jsonl(tmp_path / "run.jsonl") == report.records


async def test_open_loop_keeps_its_rate_and_its_bound(vllm_server: StartServer) -> None:
    """Arrivals follow the schedule; those beyond the bound are skipped and counted."""
    server = await vllm_server()
    load = Load(base_url=server.base_url, seconds=5, rate=20, clients=64, output=parse_lengths("8"), seed=3)
    report = await run_load(load)
    assert report.skipped == 0
    assert 60 <= len(report.records) <= 140  # four standard deviations of a Poisson count around 100
    bounded = await run_load(
        Load(base_url=server.base_url, seconds=2, rate=50, clients=2, output=parse_lengths("400"), seed=3)
    )
    assert bounded.skipped > 0
    assert max(in_flight_at(bounded.records, record.start) for record in bounded.records) <= 2


async def test_clients_that_hang_up_know_their_tokens(vllm_server: StartServer) -> None:
    """Callers leave after so many tokens or seconds, and the engine then has nothing left to do."""
    server = await vllm_server()
    before = await server.settled_metrics()
    by_tokens = await run_load(
        Load(
            base_url=server.base_url,
            seconds=20,
            clients=4,
            max_requests=8,
            output=parse_lengths("600"),
            hang_up=HangUp(after_tokens=10),
        )
    )
    by_time = await run_load(
        Load(
            base_url=server.base_url,
            seconds=20,
            clients=4,
            max_requests=4,
            output=parse_lengths("900"),
            hang_up=HangUp(after_seconds=0.3),
        )
    )
    after = await server.settled_metrics()
    records = by_tokens.records + by_time.records
    assert {record.outcome for record in records} == {Outcome.CLIENT_ABORTED}
    assert len(aborted_in(records, 0, float("inf"))) == len(records)
    assert all(record.tokens_exact and 10 <= record.output_tokens < 600 for record in by_tokens.records)

    def grew(name: str, **labels: str) -> float:
        return sample_sum(after, name, **labels) - sample_sum(before, name, **labels)

    assert grew("vllm:generation_tokens_total") >= sum(record.output_tokens for record in records)
    assert len(first_tokens_in(records, 0, float("inf"))) <= grew("vllm:time_to_first_token_seconds_count")
    # What the engine's own counters leave out shows as answered HTTP requests without a finished one.
    assert grew("vllm:request_success_total") == 0
    assert grew("http_requests_total", handler="/v1/completions", status="2xx") == len(records)


async def test_timeouts_refusals_and_errors_are_told_apart(vllm_server: StartServer) -> None:
    """A client that waits in vain, a model that does not exist, a port where nobody listens."""
    server = await vllm_server()
    slow = Load(
        base_url=server.base_url,
        seconds=5,
        clients=1,
        max_requests=1,
        output=parse_lengths("900"),
        timeout_seconds=0.2,
    )
    assert [record.outcome for record in (await run_load(slow)).records] == [Outcome.TIMEOUT]
    unknown = Load(base_url=server.base_url, seconds=5, clients=1, max_requests=1, model="other")
    (record,) = (await run_load(unknown)).records
    assert (record.outcome, record.status) == (Outcome.ERROR, 404)
    nobody = Load(base_url=f"http://127.0.0.1:{closed_port()}", seconds=5, clients=1, max_requests=1)
    (record,) = (await run_load(nobody)).records
    assert (record.outcome, record.status) == (Outcome.ERROR, None)


async def test_the_command_line_prints_the_truth(vllm_server: StartServer, tmp_path: Path) -> None:
    """One JSON object on standard output, one record a line in the file."""
    server = await vllm_server()
    options = f"{server.base_url} --clients 2 --max-requests 6 --prompt 10-20 --output 5 --slo-ttft 60"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        LOAD,
        *options.split(),
        "--jsonl",
        tmp_path / "run.jsonl",
        stdout=asyncio.subprocess.PIPE,
    )
    said = json.loads((await process.communicate())[0])
    assert process.returncode == 0
    assert (said["finished"], said["good"], said["output_tokens"]) == (6, 6, 30)
    assert len(read_jsonl(tmp_path / "run.jsonl")) == 6


def test_windows_count_by_the_end_of_requests() -> None:
    """A request belongs to the window it ended in; one that is late or aborted is not good."""

    def record(end: float, outcome: Outcome, **more: float) -> Record:
        times = {"first_token": end - 1.0, "last_token": end} | more
        return Record(
            index=0, due=0.0, start=end - 2.0, end=end, outcome=outcome, output_tokens=11, prompt_tokens=7,
            asked_prompt_tokens=7, asked_output_tokens=11, first_token=times["first_token"],
            last_token=times["last_token"],
        )  # fmt: skip

    records = [
        record(10.0, Outcome.OK),
        record(11.0, Outcome.OK, first_token=9.5),
        record(12.0, Outcome.CLIENT_ABORTED),
        record(20.0, Outcome.OK),
    ]
    truth = truth_in(records, 10.0, 20.0, Slo(ttft_seconds=1.0, tpot_seconds=0.12))
    assert truth.outcomes == {"ok": 2, "client_aborted": 1}
    assert (truth.ended, truth.finished, truth.aborted, truth.good) == (3, 2, 1, 1)
    assert (truth.good_output_tokens, truth.output_tokens) == (11, 33)
    assert truth.ttft.mean == pytest.approx(0.75)
    assert truth.tpot.max == pytest.approx(0.15)
    assert in_flight_at(records, 9.5) == 2
    assert quantile([3.0, 1.0, 2.0], 0.75) == pytest.approx(2.5)


async def test_a_server_that_died_restarts_at_its_address(vllm_server: StartServer) -> None:
    """Streams of a dead engine end with an error inside their 200; after a restart all counts from zero."""
    server = await vllm_server(own=True)
    address, first = server.base_url, server.pids()
    assert len(first) >= 3
    load = Load(base_url=address, seconds=20, clients=4, max_requests=4, output=parse_lengths("900"))
    running = asyncio.create_task(run_load(load))
    await wait_until(lambda: writes_tokens(server))
    os.kill(engine_pid(server), signal.SIGKILL)
    report = await running
    assert {(record.outcome, record.status) for record in report.records} == {(Outcome.SSE_ERROR, 200)}

    await server.restart()
    assert not alive(first)
    assert server.base_url == address
    assert not await writes_tokens(server)
    report = await run_load(Load(base_url=address, seconds=20, clients=2, max_requests=2))
    assert [record.outcome for record in report.records] == [Outcome.OK, Outcome.OK]

    second = server.pids()
    await server.stop()
    assert not alive(second)
    assert server.pids() == []
    assert not await server.healthy()


async def test_a_server_that_cannot_start_says_why(vllm_venv: Path, tmp_path: Path) -> None:
    """The error holds the end of the server's log, and no process is left."""
    server = VllmServer(ServerOptions(), vllm_venv, tmp_path / "no-model", tmp_path)
    with pytest.raises(ServerError, match="no-model"):
        await server.start()
    assert server.pids() == []


def test_sizes_that_cannot_work_are_refused() -> None:
    """Too small a cache, and targets that are not this machine."""
    with pytest.raises(ValueError, match="cannot hold"):
        ServerOptions(blocks=32, max_len=1024)
    with pytest.raises(ValueError, match="loopback"):
        Load(base_url="http://192.0.2.1:8000", seconds=1)


async def writes_tokens(server: VllmServer) -> bool:
    """Whether it has written any token since its start."""
    return sample_sum(await server.metrics(), "vllm:generation_tokens_total") > 0


def engine_pid(server: VllmServer) -> int:
    """The scheduler's process, told by its title."""
    for pid in server.pids():
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError(f"no EngineCore among {server.pids()}")


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run (dead ones may wait for init to reap them)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def closed_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
