"""The rig itself: what the load generator and the server helper say agrees with a real vLLM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from .conftest import StartServer
from .load import (
    HangUp,
    Load,
    Outcome,
    Slo,
    aborted_in,
    first_tokens_in,
    in_flight_at,
    parse_lengths,
    read_jsonl,
    run_load,
    write_jsonl,
)
from .server import ServerError, ServerOptions, VllmServer, sample_sum


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
    before = await settled(server)
    load = Load(
        base_url=server.base_url,
        seconds=4,
        clients=6,
        prompt=parse_lengths("8-96"),
        output=parse_lengths("1@0.2,lognormal:30:0.8:2-200@0.8"),
    )
    report = await run_load(load)
    after = await settled(server)

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
    before = await settled(server)
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
    after = await settled(server)
    records = by_tokens.records + by_time.records
    assert {record.outcome for record in records} == {Outcome.CLIENT_ABORTED}
    assert len(aborted_in(records, 0, float("inf"))) == len(records)
    assert all(record.tokens_exact and 10 <= record.output_tokens < 600 for record in by_tokens.records)
    written = sample_sum(after, "vllm:generation_tokens_total") - sample_sum(
        before, "vllm:generation_tokens_total"
    )
    assert written >= sum(record.output_tokens for record in records)
    assert len(first_tokens_in(records, 0, float("inf"))) <= len(records)


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


async def test_an_error_inside_a_stream_is_seen(vllm_server: StartServer) -> None:
    """An engine that dies under its streams ends them with an error inside their 200."""
    server = await vllm_server(own=True)
    load = Load(base_url=server.base_url, seconds=2, clients=4, max_requests=4, output=parse_lengths("900"))
    running = asyncio.create_task(run_load(load))
    while sample_sum(await server.metrics(), "vllm:generation_tokens_total") == 0:
        await asyncio.sleep(0.05)
    os.kill(engine_pid(server), signal.SIGKILL)
    report = await running
    assert {(record.outcome, record.status) for record in report.records} == {(Outcome.SSE_ERROR, 200)}


async def test_restart_keeps_the_address_and_stop_leaves_nothing(vllm_server: StartServer) -> None:
    """A restarted server answers at the same address with counters at zero; a stopped one is gone."""
    server = await vllm_server(own=True)
    first = server.pids()
    assert len(first) >= 3
    await run_load(Load(base_url=server.base_url, seconds=5, clients=2, max_requests=2))
    address = server.base_url
    await server.restart()
    assert server.base_url == address
    assert not alive(first)
    assert sample_sum(await server.metrics(), "vllm:generation_tokens_total") == 0
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


async def settled(server: VllmServer, limit_seconds: float = 20.0) -> str:
    """/metrics once nothing runs or waits and the token counter stands still."""
    async with asyncio.timeout(limit_seconds):
        last = -1.0
        while True:
            text = await server.metrics()
            busy = sample_sum(text, "vllm:num_requests_running") + sample_sum(
                text, "vllm:num_requests_waiting"
            )
            tokens = sample_sum(text, "vllm:generation_tokens_total")
            if busy == 0 and tokens == last:
                return text
            last = tokens
            await asyncio.sleep(0.3)


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
