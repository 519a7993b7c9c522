"""Faults are switched on, do what they say, and are mended."""

import asyncio
import re
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from .http_fleet import FAST, Client, completion, fleet, until

SLOW = msgspec.structs.replace(FAST, speed=1.0)
LOAD_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


async def seconds_of(client: Client, body: dict[str, Any]) -> float:
    """How long the engine itself says that it took."""
    before = await client.samples()
    await client.post("/v1/completions", body)
    after, name = await client.samples(), "vllm:e2e_request_latency_seconds_sum"
    return after(name) - before(name)


def test_nothing_is_broken_at_first() -> None:
    async def state() -> Any:
        async with fleet() as client, client.session.get(client.url + "/sim") as answer:
            return await answer.json()

    found = asyncio.run(state())
    assert found["faults"] == {
        "wedged": False,
        "slow_factor": 1.0,
        "thermal_factor": 1.0,
        "gauges_frozen": False,
        "scrape": "good",
        "scrape_delay_seconds": 0.0,
        "warming_up": False,
        "health": "good",
        "health_delay_seconds": 0.0,
        "xid": {},
    }
    assert found["requests"] == 0


async def test_a_wedged_engine_makes_no_progress_and_looks_healthy() -> None:
    async with fleet() as client:
        await client.break_as(wedged=True)
        engine = client.fleet.listeners[0].replica.drive.engine
        asking = asyncio.create_task(client.post("/v1/completions", completion(5)))
        await until(lambda: engine.in_system == 1)
        await client.get("/health")
        page = await client.samples()
        assert page("vllm:generation_tokens_total") == 0
        assert not asking.done()
        await client.break_as(wedged=False)
        assert (await asking)["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("fault", ["slow_factor", "thermal_factor"])
async def test_a_slow_engine_takes_so_many_times_as_long(fault: str) -> None:
    async with fleet() as client:
        sound = await seconds_of(client, completion(50))
        await client.break_as(**{fault: 3.0})
        slow = await seconds_of(client, completion(50, "other words"))
        await client.break_as(**{fault: 1.0})
        mended = await seconds_of(client, completion(50, "more words"))
    assert slow == pytest.approx(3 * sound, rel=0.02)
    assert mended == pytest.approx(sound, rel=0.02)


async def test_frozen_gauges_stay_while_counters_move() -> None:
    async with fleet(SLOW) as client:
        engine = client.fleet.listeners[0].replica.drive.engine
        await client.break_as(slow_factor=100.0)  # or they might have ended before it is frozen
        asking = asyncio.create_task(client.post("/v1/completions", completion(30, n=3)))
        await until(lambda: engine.counters.running == 3)
        await client.break_as(gauges_frozen=True)
        await client.break_as(slow_factor=1.0)
        await asking
        frozen = await client.samples()
        assert frozen("vllm:num_requests_running") == 3
        assert frozen("vllm:generation_tokens_total") == 90
        await client.break_as(gauges_frozen=False)
        assert (await client.samples())("vllm:num_requests_running") == 0


async def test_a_scrape_can_be_nan_cut_an_error_or_slow() -> None:
    async with fleet() as client:
        await client.post("/v1/completions", completion(5))
        good = await client.get("/metrics")
        await client.break_as(scrape="nan")
        nan = await client.get("/metrics")
        for gauge in LOAD_GAUGES:
            assert re.search(rf"^{gauge}\{{[^}}]*\}} NaN$", nan, re.MULTILINE)
        assert [line for line in nan.splitlines() if "NaN" not in line] == [
            line for line in good.splitlines() if not re.match(r"vllm:(num_requests_|kv_cache_usage)", line)
        ]
        await client.break_as(scrape="cut")
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.get("/metrics")
        await client.break_as(scrape="error")
        async with client.session.get(client.url + "/metrics") as answer:
            assert answer.status == 500
        await client.get("/health")
        await client.break_as(scrape="good", scrape_delay_seconds=0.2)
        begun = time.monotonic()
        await client.get("/metrics")
        assert time.monotonic() - begun >= 0.2


async def test_health_can_be_late_or_an_error() -> None:
    async with fleet() as client:
        await client.break_as(health="error")
        async with client.session.get(client.url + "/health") as answer:
            assert answer.status == 503
        await client.break_as(health="good", health_delay_seconds=0.2)
        begun = time.monotonic()
        await client.get("/health")
        assert time.monotonic() - begun >= 0.2


async def test_a_model_that_warms_up_answers_nothing_though_all_else_is_there_also_after_a_restart() -> None:
    async with fleet() as client:
        replica = client.fleet.listeners[0].replica
        old = replica.drive
        await client.break_as(warming_up=True, restart_seconds=0.0)
        # By the new process: between the two it is down for less than a look at it takes.
        await until(lambda: replica.is_up and replica.drive is not old)
        asking = asyncio.create_task(client.post("/v1/completions", completion(1)))
        await until(lambda: replica.drive.engine.in_system == 1)
        for path in ("/health", "/v1/models", "/metrics"):
            await client.get(path)
        assert not asking.done()
        await client.break_as(warming_up=False)
        assert (await asking)["usage"]["completion_tokens"] == 1


async def test_dropped_connections_end_streams_without_an_end_mark_and_the_server_stays() -> None:
    async with fleet(SLOW) as client, aiohttp.ClientSession() as other:
        engine = client.fleet.listeners[0].replica.drive.engine
        answer = await other.post(client.url + "/v1/completions", json=completion(900, stream=True))
        await answer.content.readline()
        await client.break_as(drop_connections=True)
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
        await until(lambda: not engine.in_system)
        await client.post("/v1/completions", completion(1))


async def test_a_restart_refuses_connections_while_it_loads_and_counts_from_zero() -> None:
    async with fleet(SLOW) as client, aiohttp.ClientSession() as other:
        await client.post("/v1/completions", completion(5))
        await client.break_as(wedged=True, slow_factor=2.0, xid={"0": 63})
        before = await client.samples()
        stream = await other.post(client.url + "/v1/completions", json=completion(900, stream=True))
        await client.break_as(restart_seconds=600.0)
        listener = client.fleet.listeners[0]
        await until(lambda: not listener.replica.is_up)
        with pytest.raises(aiohttp.ClientError):
            await stream.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
        listener.restart(0.0)
        await until(lambda: listener.replica.is_up)
        after = await client.samples()
        faults = listener.replica.faults
    assert after("process_start_time_seconds") > before("process_start_time_seconds")
    assert (before("vllm:generation_tokens_total"), after("vllm:generation_tokens_total")) == (5, 0)
    assert not [sample for sample in after.found if sample.name == "http_requests_total"]
    assert (faults.wedged, faults.slow_factor, faults.xid) == (False, 1.0, {"0": 63})


async def test_an_engine_that_goes_down_again_while_it_loads_loads_anew() -> None:
    async with fleet() as client:
        listener = client.fleet.listeners[0]
        listener.restart(60.0)
        await until(lambda: not listener.replica.is_up)
        listener.restart(0.0)
        await until(lambda: listener.replica.is_up)
        await client.post("/v1/completions", completion(1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"wedge": True}, "unknown field `wedge`"),
        ({"wedged": "yes"}, "$.wedged"),
        ({"slow_factor": 0.5}, "$.slow_factor"),
        ({"scrape": "lost"}, "'lost'"),
        ({"restart_seconds": -1}, "$.restart_seconds"),
        ({"xid": {"7": 79}}, "GPU '7' is not under this replica, which has 0"),
        ([1], "Expected `object`"),
    ],
)
async def test_a_fault_that_cannot_be_is_refused_and_nothing_changes(body: Any, words: str) -> None:
    async with fleet() as client:
        error = await client.post("/sim/faults", body, status=400)
        assert words in error["error"]["message"]
        assert client.fleet.listeners[0].replica.faults == type(client.fleet.listeners[0].replica.faults)()


async def test_only_this_machine_may_break_things(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet() as client:
        monkeypatch.setattr("aiohttp.web.BaseRequest.remote", "192.0.2.7")
        error = await client.post("/sim/faults", {"wedged": True}, status=403)
        assert "192.0.2.7" in error["error"]["message"]
        assert not client.fleet.listeners[0].replica.faults.wedged
