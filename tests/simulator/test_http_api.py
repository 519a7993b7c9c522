"""The API over a socket: shapes of a real vLLM, streams, hang-ups, counters."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec
import pytest

from controlplane.commands.file_limit import raise_file_limit
from controlplane.simulator.http.fleet import FleetSettings
from controlplane.simulator.metrics_page import render

from .http_fleet import FAST, Client, completion, fleet, until
from .http_questions import MAX_MODEL_LEN, QUESTIONS, RECORDED, shapes

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "vllm-0.32-light.prom"


async def test_answers_have_the_shapes_of_a_real_vllm() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert recorded.keys() == QUESTIONS.keys()
    assert FAST.max_model_len == MAX_MODEL_LEN
    async with fleet() as client:
        mine = await asyncio.to_thread(shapes, client.url, "simulated")
    for name, shape in recorded.items():
        assert mine[name] == shape, name


async def stream(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that ends as it should."""
    async with client.session.post(client.url + path, json={**body, "stream": True}) as answer:
        assert answer.status == 200
        lines = (await answer.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_a_stream_has_one_event_a_token_and_says_what_the_whole_says() -> None:
    body = completion(30, n=2, stream_options={"include_usage": True, "continuous_usage_stats": True})
    async with fleet() as client:
        events = await stream(client, "/v1/completions", body)
        del body["stream_options"]
        whole = await client.post("/v1/completions", body)
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 60, "total_tokens": 63}
    assert whole["usage"].items() >= usage["usage"].items()
    for choice in whole["choices"]:
        mine = [event for event in events if event["choices"][0]["index"] == choice["index"]]
        assert [event["usage"]["completion_tokens"] for event in mine] == list(range(1, 31))
        assert "".join(event["choices"][0]["text"] for event in mine) == choice["text"]
        reasons = [event["choices"][0]["finish_reason"] for event in mine]
        assert reasons == [None] * 29 + ["length"]


async def test_a_body_that_is_nested_without_end_is_refused() -> None:
    body = '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"
    async with fleet() as client:
        headers = {"Content-Type": "application/json"}
        async with client.session.post(client.url + "/v1/completions", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert "nested too deeply" in await answer.text()


async def test_a_request_for_many_endless_answers_keeps_nobody_waiting() -> None:
    """Its answers are settled one after the other, and others are served in between."""
    settings = FleetSettings("h100-8b", port=0, model="simulated")
    async with fleet(settings) as client:
        much = asyncio.create_task(client.post("/v1/completions", completion(131_000, n=300)))
        waited = []
        for _ in range(20):
            begun = asyncio.get_running_loop().time()
            await client.get("/health")
            waited.append(asyncio.get_running_loop().time() - begun)
        much.cancel()
        with suppress(asyncio.CancelledError):
            await much
    assert median(waited) < 0.5


async def test_a_chat_begins_with_its_role_and_stops_by_itself() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 900}
    async with fleet() as client:
        events = await stream(client, "/v1/chat/completions", body)
        counted = await client.post("/tokenize", body | {"model": "simulated"})
        whole = await client.post("/v1/chat/completions", body)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    message = whole["choices"][0]["message"]
    assert "".join(delta["content"] for delta in deltas) == message["content"]
    assert whole["choices"][0]["finish_reason"] == events[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["prompt_tokens"] == counted["count"]
    assert whole["usage"]["completion_tokens"] == len(deltas) - 1


async def test_a_stop_string_is_named_and_not_said() -> None:
    async with fleet() as client:
        text = (await client.post("/v1/completions", completion(40)))["choices"][0]["text"]
        stop = text.split()[7]
        body = completion(40, stop=["no such words", stop])
        events = await stream(client, "/v1/completions", body)
        choice = (await client.post("/v1/completions", body))["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


async def test_the_engine_counts_what_clients_got() -> None:
    async with fleet() as client:
        asks = [client.post("/v1/completions", completion(10 + i, [i] * 20)) for i in range(20)]
        answers = await asyncio.gather(*asks)
        page = await client.samples()
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert tokens == sum(range(10, 30))
    assert page("vllm:generation_tokens_total") == page("vllm:request_generation_tokens_sum") == tokens
    assert page("vllm:prompt_tokens_total") == 400
    assert page("vllm:request_success_total", finished_reason="length") == 20
    assert page("vllm:time_to_first_token_seconds_count") == 20
    assert page("vllm:num_requests_running") == page("vllm:num_requests_waiting") == 0
    assert page("http_requests_total", handler="/v1/completions", status="2xx") == 20
    assert page("http_request_duration_seconds_count", handler="/v1/completions") == 20


async def test_a_conversation_finds_its_past_in_the_prefix_cache() -> None:
    messages = [{"role": "system", "content": "be brief " * 50}, {"role": "user", "content": "hello"}]
    async with fleet() as client:
        first = await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 100})
        said = first["choices"][0]["message"]
        more = [*messages, said, {"role": "user", "content": "go on"}]
        second = await client.post("/v1/chat/completions", {"messages": more, "max_tokens": 5})
        hits = (await client.samples())("vllm:prefix_cache_hits_total")
    past = first["usage"]["total_tokens"]
    assert past - 2 * 16 < hits <= past < second["usage"]["prompt_tokens"]


async def test_a_client_that_hangs_up_frees_its_blocks_and_leaves_the_trace_it_leaves_in_vllm() -> None:
    """HTTP says 2xx, the engine says nothing: no end, no e2e, not even an abort."""
    slow = msgspec.structs.replace(FAST, speed=1.0)
    async with fleet(slow) as client:
        engine = client.fleet.listeners[0].replica.drive.engine
        for body in (completion(900, stream=True), completion(900, n=3)):
            asking = asyncio.create_task(client.session.post(client.url + "/v1/completions", json=body))
            enough = engine.counters.generation_tokens + 10
            await until(lambda enough=enough: engine.counters.generation_tokens > enough)
            if body.get("stream"):
                (await asking).close()
            else:
                asking.cancel()
            await until(lambda: not engine.in_system)
        await until(lambda: not engine.kv_usage)
        page = await client.samples()
        assert (await client.get("/load")) == '{"server_load":0}'
    assert page("http_requests_total", handler="/v1/completions", status="2xx") == 2
    assert page("vllm:request_success_total") == 0
    assert page("vllm:e2e_request_latency_seconds_count") == 0
    assert page("vllm:time_to_first_token_seconds_count") == 4
    assert page("vllm:kv_cache_usage_perc") == page("vllm:num_requests_running") == 0


async def test_a_thousand_streams_at_once() -> None:
    """How fast: benchmarks/bench_simulator_http.py."""
    raise_file_limit()
    settings = msgspec.structs.replace(FAST, max_num_seqs=1024, kv_tokens=100_000)
    connector = aiohttp.TCPConnector(limit=0)
    async with fleet(settings) as client, aiohttp.ClientSession(connector=connector) as session:
        engine = client.fleet.listeners[0].replica.drive.engine
        await client.break_as(wedged=True)

        async def ask(number: int) -> str:
            body = completion(10, [number] * 20, stream=True)
            async with session.post(client.url + "/v1/completions", json=body) as answer:
                return await answer.text()

        asks = asyncio.gather(*(ask(number) for number in range(1000)))
        await until(lambda: engine.in_system == 1000)
        await client.break_as(wedged=False)
        answers = await asks
        page = await client.samples()
    assert {answer.count("data: {") for answer in answers} == {10}
    assert all(answer.endswith("data: [DONE]\n\n") for answer in answers)
    assert page("vllm:generation_tokens_total") == 10_000


async def test_requests_are_counted_by_handler_and_status_as_in_vllm() -> None:
    async with fleet() as client:
        await client.post("/v1/completions", completion(1))
        await client.post("/v1/completions", {}, status=400)
        await client.post("/v1/chat/completions", {"model": "x", "messages": []}, status=404)
        await client.get("/v1/models")
        for path in ("/nowhere", "/v1/completions"):
            async with client.session.get(client.url + path) as answer:
                assert answer.status in (404, 405)
        for path in ("/health", "/ping", "/version", "/load", "/metrics", "/sim", "/dcgm/metrics"):
            await client.get(path)
        page = await client.samples()
    counted = {
        (s.labels["handler"], s.labels["method"], s.labels["status"]): s.value
        for s in page.found
        if s.name == "http_requests_total"
    }
    assert counted == {
        ("/v1/completions", "POST", "2xx"): 1,
        ("/v1/completions", "POST", "4xx"): 1,
        ("/v1/chat/completions", "POST", "4xx"): 1,
        ("/v1/models", "GET", "2xx"): 1,
        ("none", "GET", "4xx"): 2,
    }


async def test_the_page_has_the_http_families_of_a_real_one_and_all_of_the_engines() -> None:
    async with fleet() as client:
        await client.post("/v1/completions", completion(3))
        replica = client.fleet.listeners[0].replica
        page = await client.get("/metrics")
        mine = {line for line in page.splitlines() if line.startswith("# TYPE")}
        engines = render(replica.known, replica.drive.engine.counters).decode()
    bodies = ("http_request_size_bytes", "http_response_size_bytes")
    wanted = {
        line
        for line in CAPTURE.read_text().splitlines()
        if line.startswith("# TYPE http_") and not line.split()[2].startswith(bodies)
    }
    assert wanted <= mine
    assert {line for line in engines.splitlines() if line.startswith("# TYPE vllm:")} <= mine
    assert len(mine) == len([line for line in page.splitlines() if line.startswith("# TYPE")])


async def test_only_json_is_read_and_only_so_much_of_it() -> None:
    async with fleet() as client:
        url = client.url + "/v1/completions"
        async with client.session.post(url, data=b'{"prompt": "x"}') as answer:
            assert answer.status == 400
            assert "Unsupported Media Type" in await answer.text()
        huge = b'{"prompt": "' + b"x" * (9 << 20)
        async with client.session.post(
            url, data=huge, headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 413


async def test_a_server_that_ends_says_what_it_has_as_vllm_on_sigterm() -> None:
    """Streams end properly, with their usage, short of max_tokens."""
    async with aiohttp.ClientSession() as session, fleet(msgspec.structs.replace(FAST, speed=1.0)) as client:
        body = completion(900, stream=True, stream_options={"include_usage": True})
        answer = await session.post(client.url + "/v1/completions", json=body)
        await answer.content.readline()
        reading = asyncio.create_task(answer.text())
        await client.fleet.stop()
        text = await reading
    *_, last, usage, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "abort"
    assert 0 < json.loads(usage[6:])["usage"]["completion_tokens"] < 900


async def test_a_name_given_to_a_request_is_its_id_even_twice_at_once() -> None:
    async with fleet() as client:
        url, headers = client.url + "/v1/completions", {"X-Request-Id": "mine"}
        asks = [client.session.post(url, json=completion(50), headers=headers) for _ in range(2)]
        answers = [await answer.json() for answer in await asyncio.gather(*asks)]
    assert [answer["id"] for answer in answers] == ["cmpl-mine"] * 2


@pytest.mark.parametrize("speed", [1.0, 4.0])
async def test_speed_makes_everything_shorter(speed: float) -> None:
    """Also what the engine says: its seconds are the wall clock's."""
    async with fleet(msgspec.structs.replace(FAST, speed=speed)) as client:
        await client.post("/v1/completions", completion(40))
        page = await client.samples()
    tpot = page("vllm:request_time_per_output_token_seconds_sum")
    assert tpot == pytest.approx(0.0079 / speed, rel=0.02)
