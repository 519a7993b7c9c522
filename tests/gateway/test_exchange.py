"""One request through the gateway: headers, holding, retries, limits, time, keys. Engines are stand-ins."""

import asyncio
import hashlib
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from rig import PATIENT, Connection, Response, Rig, chat, gateway, until
from standin import DONE, Call, StandIn, event_of, says_hello, tokens

ENFORCE = {"mode": "enforce", **PATIENT}
OPENS_AT_ONCE = {"in_a_row": 1, "open_for": "60s"}


def key_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def answers(status: str, body: bytes = b'{"error":{"message":"no","code":1}}', *headers: str) -> Any:
    async def script(call: Call) -> None:
        call.whole(body, status, *headers)

    return script


async def ask_until(rig: Rig, engine: StandIn, **fields: Any) -> list[Response]:
    """Different questions until this engine has been asked."""
    responses = []
    for number in range(60):
        responses.append(await rig.ask(chat(messages=[{"role": "user", "content": f"{number}"}], **fields)))
        if engine.calls:
            return responses
    raise AssertionError("it was never asked")


# Headers


async def test_headers_that_pass_and_headers_that_do_not() -> None:
    async def script(call: Call) -> None:
        call.whole(
            b"{}", "200 OK", "x-request-id: 7", "keep-alive: timeout=5", "connection: x-hop", "x-hop: 1"
        )

    engine = StandIn(script)
    async with gateway(engine) as rig:
        response = await rig.ask(
            chat(stream=False),
            "/v1/chat/completions?a=1&b=%20",
            {
                "authorization": "Bearer sk-mine",
                "x-api-key": "sk-mine",
                "api-key": "sk-mine",
                "x-request-id": "7",
                "te": "trailers",
                "connection": "close, x-secret-hop",
                "x-secret-hop": "1",
                "traceparent": "00-1-2-3",
            },
        )
    got = engine.calls[0].headers
    assert engine.calls[0].target == "/v1/chat/completions?a=1&b=%20"
    assert got["host"] == engine.name
    assert got["x-request-id"] == "7"
    assert got["traceparent"] == "00-1-2-3"
    assert not {"authorization", "x-api-key", "api-key", "te", "connection", "x-secret-hop"} & got.keys()
    assert response.headers["x-request-id"] == "7"
    assert not {"keep-alive", "x-hop"} & response.headers.keys()


async def test_the_clients_key_goes_on_only_when_told_so_and_our_own_wins(tmp_path: Any) -> None:
    engine = StandIn()
    mine = {"authorization": "Bearer sk-mine", "x-api-key": "sk-mine"}
    async with gateway(engine, upstream={"pass_client_key": True}) as rig:
        await rig.ask(chat(stream=False), headers=mine)
        assert engine.calls[-1].headers["authorization"] == "Bearer sk-mine"
        assert engine.calls[-1].headers["x-api-key"] == "sk-mine"
    engine.port = 0
    (tmp_path / "key").write_text("sk-ours")
    auth = {"bearer": {"file": str(tmp_path / "key")}}
    async with gateway(engine, upstream={"auth": auth}) as rig:
        await rig.ask(chat(stream=False), headers=mine)
        assert engine.calls[-1].headers["authorization"] == "Bearer sk-ours"
        assert "x-api-key" not in engine.calls[-1].headers


async def test_streams_are_not_to_be_buffered_on_the_way() -> None:
    async with gateway(StandIn()) as rig:
        assert (await rig.ask(chat())).headers["x-accel-buffering"] == "no"
        assert "x-accel-buffering" not in (await rig.ask(chat(stream=False))).headers


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"])
async def test_every_endpoint_is_passed_on_as_it_is(path: str) -> None:
    engine = StandIn(answers("200 OK", b'{"usage":{"input_tokens":3,"output_tokens":4}}'))
    async with gateway(engine) as rig:
        body = b'{"model" : "acme/chat-8b",  "input":"x","prompt":"x", "max_tokens": 5}'
        response = await rig.ask(body, path)
        assert response.status == 200
        assert engine.calls[0].body == body
        assert engine.calls[0].target == path
        assert await rig.metric("requests_total", endpoint=path, end="finished") == 1


async def test_engines_behind_tls_are_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    engine = StandIn(tls=context)
    upstream = {"tls": {"ca_file": str(tmp_path / "ca.pem")}, "idle": "60s"}
    async with gateway(engine, upstream=upstream) as rig:
        assert (await rig.ask(chat())).status == 200
        assert (await rig.ask(chat(stream=False))).status == 200
        assert rig.worker.around.pool.reused == 1
    engine.port = 0
    async with gateway(engine, wait_ready=False) as rig:  # nobody that we trust
        await asyncio.sleep(0.1)
        assert (await rig.ask(chat())).status == 503
        assert not rig.worker.around.pool.connected


# Holding the head


async def test_a_refusal_inside_a_200_becomes_a_real_503_with_when_to_come_back() -> None:
    async def refuses(call: Call) -> None:
        call.stream()
        await asyncio.sleep(0.1)
        call.chunk(b'data: {"error": {"message": "queue full", "type": "x", "param": null, "code": 503}}\n\n')
        call.chunk(DONE)
        call.last_chunk()

    async with gateway(StandIn(refuses)) as rig:
        response = await rig.ask(chat())
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.headers["content-type"] == "application/json"
        assert response.error["code"] == "upstream_overloaded"
        await rig.until_idle()
        assert next(iter(rig.replicas.values())).breaker == "closed"


async def test_a_head_is_held_no_longer_than_told() -> None:
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        call.stream()
        await go.wait()
        call.chunk(event_of("late"))
        call.chunk(event_of(finish_reason="stop") + DONE)
        call.last_chunk()

    async with gateway(StandIn(slow), hold_headers="100ms") as rig:
        client = await Connection.open(rig.port)
        loop = asyncio.get_running_loop()
        began = loop.time()
        client.send(chat())
        response = await client.head()
        assert loop.time() - began >= 0.08
        assert response.status == 200
        go.set()
        assert b"late" in await client.piece(response)
        client.close()


async def test_comments_are_no_event() -> None:
    async def pings(call: Call) -> None:
        call.stream()
        call.chunk(b": ping\n\n")
        await call.drain()
        await asyncio.sleep(0.05)
        call.chunk(b'data: {"error": {"message": "no", "code": 500}}\n\n')
        call.last_chunk()

    async with gateway(StandIn(pings)) as rig:
        assert (await rig.ask(chat())).status == 500


# Retries


async def test_an_engine_that_is_gone_is_not_noticed_by_clients() -> None:
    gone, there = StandIn(), StandIn()
    budget = {"least": 10}  # a breaker takes five failures to open, two more than three retries allow
    async with gateway(gone, there, admission={**ENFORCE, "retries": budget}) as rig:
        await gone.stop()
        for number in range(12):
            response = await rig.ask(chat(messages=[{"role": "user", "content": f"{number}"}]))
            assert response.status == 200
            assert b"hello" in response.body
        assert await rig.metric("retries_total", kind="retries") >= 1


@pytest.mark.parametrize(
    "status", ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests"]
)
async def test_a_failed_try_goes_to_another_engine_marked(status: str) -> None:
    bad, good = StandIn(answers(status)), StandIn()
    async with gateway(bad, good) as rig:
        assert {response.status for response in await ask_until(rig, bad)} == {200}
        assert good.calls[-1].headers["x-envoy-attempt-count"] == "2"
        assert all("x-envoy-attempt-count" not in call.headers for call in good.calls[:-1])


async def test_a_marked_retry_is_not_retried() -> None:
    bad = StandIn(answers("500 Internal Server Error"))
    async with gateway(bad, StandIn()) as rig:
        for number in range(60):
            body = chat(messages=[{"role": "user", "content": f"{number}"}])
            response = await rig.ask(body, headers={"x-stainless-retry-count": "1"})
            if bad.calls:
                break
        assert response.status == 500


@pytest.mark.parametrize("field", ["store", "background", "previous_response_id"])
async def test_what_changes_something_is_not_run_twice(field: str) -> None:
    async def dies(call: Call) -> None:
        call.reset()

    bad, good = StandIn(dies), StandIn()
    async with gateway(bad, good, admission={"retries": {"least": 50}}) as rig:
        last = (await ask_until(rig, bad, stream=False, **{field: "x"}))[-1]
        assert last.status == 502
        assert await rig.metric("retries_total") == 0
        await bad.stop()
        asked = len(good.calls)
        for number in range(20):
            body = chat(
                stream=False, messages=[{"role": "user", "content": f"again {number}"}], **{field: "x"}
            )
            assert (await rig.ask(body)).status == 200  # nothing was delivered to the one that is gone
        assert len(good.calls) == asked + 20


async def test_a_clients_error_is_passed_on_as_it_came_and_never_retried() -> None:
    body = b'{"error":{"message":"max_tokens is too large","type":"BadRequestError","param":null,"code":400}}'
    bad = StandIn(answers("400 Bad Request", body, "x-detail: 1"))
    async with gateway(bad, StandIn(), admission={"breaker": {"in_a_row": 1}}) as rig:
        last = (await ask_until(rig, bad))[-1]
        assert (last.status, last.body, last.headers["x-detail"]) == (400, body, "1")
        assert await rig.metric("retries_total") == 0
        assert await rig.metric("requests_total", end="client_error") == 1
        assert rig.replicas[bad.name].breaker == "closed"


async def test_an_engine_that_does_not_take_our_key_is_its_own_fault_not_the_clients() -> None:
    """It answers at once and looks empty: as a client's error its 401 would draw most requests to it."""
    bad, good = StandIn(answers("401 Unauthorized")), StandIn()
    async with gateway(bad, good, admission={"breaker": OPENS_AT_ONCE}) as rig:
        assert [each.status for each in await ask_until(rig, bad)][-1] == 200
        assert rig.replicas[bad.name].breaker == "open"
    bad, headers = StandIn(answers("401 Unauthorized")), {"authorization": "Bearer sk-mine"}
    async with gateway(bad) as rig:
        response = await rig.ask(chat(), headers=headers)
        assert (response.status, response.error["code"]) == (502, "upstream_unauthorized")
    bad.port = 0
    async with gateway(bad, upstream={"pass_client_key": True}) as rig:
        assert (await rig.ask(chat(), headers=headers)).status == 401


async def test_an_answer_that_is_given_up_with_its_head_is_tried_elsewhere() -> None:
    async def aborts(call: Call) -> None:
        call.stream()
        call.chunk(event_of("") + event_of(finish_reason="abort") + DONE)
        call.last_chunk()

    bad, good = StandIn(aborts), StandIn()
    async with gateway(bad, good) as rig:
        assert all(b"hello" in each.body for each in await ask_until(rig, bad))


async def test_why_an_engine_gets_no_requests_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = StandIn()
    engine.models.clear()
    async with gateway(engine, wait_ready=False) as rig:
        await until(lambda: sum("gets no requests" in each.getMessage() for each in caplog.records) >= 1)
        first = rig.worker.lookout._look_at[engine.name]
        await until(lambda: rig.worker.lookout._look_at[engine.name] > first)
        refused = await rig.ask(chat())
        assert (refused.status, refused.error["code"]) == (503, "no_ready_replica")
    said = [record.getMessage() for record in caplog.records if "gets no requests" in record.getMessage()]
    assert said == [f"{engine.name} gets no requests until it says what it serves: it names no model"]


async def test_an_answer_in_bytes_is_whole_with_its_end() -> None:
    """vLLM's `encoding_format: bytes`."""

    async def embeds(call: Call) -> None:
        call.whole(b"\x00\xff" * 9, kind="application/octet-stream")

    async with gateway(StandIn(embeds), admission={"breaker": OPENS_AT_ONCE}) as rig:
        for _ in range(2):
            assert (await rig.ask(chat(stream=False), "/v1/embeddings")).body == b"\x00\xff" * 9
        await rig.until_idle()
        assert await rig.metric("requests_total", end="finished") == 2


@pytest.mark.parametrize("told", ["17", "Wed, 21 Oct 2037 07:28:00 GMT", None])
async def test_an_engines_own_retry_after_is_passed_on(told: str | None) -> None:
    headers = () if told is None else (f"retry-after: {told}",)
    async with gateway(StandIn(answers("429 Too Many Requests", b"{}", *headers))) as rig:
        response = await rig.ask(chat())
        assert response.status == 429
        assert set(response.error) == {"message", "type", "param", "code"}
        if told is None:
            assert int(response.headers["retry-after"]) >= 1
        else:
            assert response.headers["retry-after"] == told


async def test_answers_that_are_not_http_or_cut_are_502() -> None:
    async def lies(call: Call) -> None:
        call.send(b"SSH-2.0-OpenSSH\r\n\r\n")
        call.fin()

    async def promises(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\ncontent-type: application/json\r\n\r\n{}")
        await call.drain()
        call.fin()

    async with gateway(StandIn(lies)) as rig:
        assert (await rig.ask(chat())).error["code"] == "upstream_failure"
    async with gateway(StandIn(promises)) as rig:
        response = await rig.ask(chat(stream=False))
        assert response.cut
        assert await rig.metric("requests_total", end="failed") == 1


async def test_an_answer_that_ends_with_its_connection() -> None:
    async def old(call: Call) -> None:
        call.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        call.send(b"".join(tokens("a", "b")) + event_of(finish_reason="stop") + DONE)
        await call.drain()
        call.fin()

    async with gateway(StandIn(old)) as rig:
        response = await rig.ask(chat(stream_options={"include_usage": True}))
        assert response.body.endswith(DONE)
        assert not response.cut
        await rig.until_idle()
        assert await rig.metric("requests_total", end="finished") == 1


async def test_an_engine_that_sends_several_tokens_at_once_is_not_taken_for_a_slow_one() -> None:
    """Speculative decoding, `--stream-interval`: 1 token and 30 pieces of 10, as their usage tells."""

    async def by_tens(call: Call) -> None:
        call.stream()
        for event in tokens(*["0123456789"] * 31):
            call.chunk(event)
        call.chunk(event_of(finish_reason="stop"))
        call.chunk(event_of(usage={"prompt_tokens": 12, "completion_tokens": 301, "total_tokens": 313}))
        call.chunk(DONE)
        call.last_chunk()

    async with gateway(StandIn(by_tens)) as rig:
        for _ in range(40):
            await rig.ask(chat())
        await rig.until_idle()
        gaps = sum(seen.gaps for window in rig.windows() for seen in window.replicas.values())
        assert gaps == pytest.approx(40 * 300, rel=0.1)  # the first few answers teach it


async def test_an_engine_that_thinks_unseen_is_not_taken_for_a_late_one() -> None:
    """A tool call is kept back until it is whole (vllm#50627: 32 s); the role came with the first token."""
    may_go_on = asyncio.Event()

    async def calls_a_tool(call: Call) -> None:
        call.stream()
        call.chunk(event_of(""))
        await may_go_on.wait()
        call.chunk(event_of("{}"))
        call.chunk(event_of(finish_reason="stop"))
        call.chunk(DONE)
        call.last_chunk()

    async with gateway(StandIn(calls_a_tool)) as rig:
        asking = asyncio.create_task(rig.ask(chat()))
        tickets = rig.worker.around.exchanges
        await until(lambda: any(each.ticket and each.ticket.first_token_at for each in tickets))
        assert all(each.ticket and not each.ticket.output_tokens for each in tickets)
        may_go_on.set()
        assert (await asking).status == 200


# Time


async def test_the_wall_clock_cap_cuts_with_an_event_and_counts_against_the_engine() -> None:
    async def endless(call: Call) -> None:
        call.stream()
        while not call.is_closed.is_set():
            call.chunk(event_of("x"))
            await asyncio.sleep(0.02)

    engine = StandIn(endless)
    async with gateway(engine, request_timeout="300ms", admission={"breaker": OPENS_AT_ONCE}) as rig:
        response = await rig.ask(chat())
        assert json.loads(response.body.split(b"data: ")[-1])["error"]["code"] == "request_timeout"
        await engine.calls[0].until_closed()
        assert await rig.metric("requests_total", end="timed_out") == 1
        assert rig.replicas[engine.name].breaker == "open"


@pytest.mark.parametrize(
    "header", [("x-request-timeout", "0.2"), ("grpc-timeout", "200m"), ("x-request-timeout", "200ms")]
)
async def test_a_clients_own_deadline_is_504_and_no_fault_of_the_engine(header: tuple[str, str]) -> None:
    async def never(call: Call) -> None:
        await call.until_closed()

    engine = StandIn(never)
    async with gateway(engine, admission={"breaker": {"in_a_row": 1}}) as rig:
        response = await rig.ask(chat(), headers=dict([header]))
        assert response.status == 504
        assert response.error["code"] == "request_timeout"
        await engine.calls[0].until_closed()
        assert rig.replicas[engine.name].breaker == "closed"
        assert rig.replicas[engine.name].open_sequences == 0


async def test_heartbeats_go_between_events_only() -> None:
    go = asyncio.Event()

    async def stutters(call: Call) -> None:
        call.stream()
        call.chunk(event_of("a"))
        await go.wait()
        half = event_of("b")
        call.chunk(half[:20])
        await call.drain()
        await asyncio.sleep(0.35)
        call.chunk(half[20:] + event_of(finish_reason="stop") + DONE)
        call.last_chunk()

    async with gateway(StandIn(stutters), heartbeat="100ms") as rig:
        client = await Connection.open(rig.port)
        client.send(chat(stream_options={"include_usage": True}))
        response = await client.head()
        while response.body.count(b": keep-alive\n\n") < 2:
            assert await asyncio.wait_for(client.piece(response), 60)
        go.set()
        while await asyncio.wait_for(client.piece(response), 60):
            pass
        client.close()
    text = response.body
    assert event_of("b") in text, "nothing comes in between"
    assert text.replace(b": keep-alive\n\n", b"") == (
        event_of("a") + event_of("b") + event_of(finish_reason="stop") + DONE
    )


# Who may what


async def test_keys_are_known_in_three_headers_and_nothing_else_is() -> None:
    tenants = {"acme": {"keys": [key_of("sk-1"), key_of("sk-2")]}, "other": {"keys": [key_of("sk-3")]}}
    engine = StandIn()
    async with gateway(engine, tenants=tenants) as rig:
        for headers in (
            {},
            {"authorization": "Bearer sk-4"},
            {"authorization": "Basic sk-1"},
            {"authorization": f"Bearer {key_of('sk-1')}"},
            {"x-api-key": ""},
        ):
            response = await rig.ask(chat(stream=False), headers=headers)
            assert response.status == 401
            assert response.error["code"] == "invalid_api_key"
            assert (await rig.get("/v1/models", headers)).status == 401
        assert not engine.calls
        for headers in (
            {"authorization": "Bearer sk-1"},
            {"authorization": "bearer sk-2"},
            {"x-api-key": "sk-1"},
            {"api-key": "sk-3"},
        ):
            assert (await rig.ask(chat(stream=False), headers=headers)).status == 200
        assert await rig.metric("requests_total", tenant="acme") == 3
        assert await rig.metric("requests_total", tenant="other") == 1
        assert (await rig.get("/metrics")).status == 401
        assert (await rig.get("/health")).status == 200


async def test_ceilings_edit_the_body_and_nothing_else_of_it() -> None:
    tenants = {"acme": {"keys": [key_of("k")], "ceiling": {"tokens": 50}}}
    engine = StandIn()
    async with gateway(engine, tenants=tenants) as rig:
        message = b'{"role":"user","content":"h\\u00e9"}'
        raw = b'{"model":"acme/chat-8b", "messages":[%b],  "max_tokens" : 4000 }' % message
        assert (await rig.ask(raw, headers={"x-api-key": "k"})).status == 200
        assert engine.calls[0].body == raw.replace(b"4000", b"50")


async def test_a_limit_that_is_required_and_bodies_that_are_none() -> None:
    async with gateway(StandIn(), output={"when_missing": "require"}) as rig:
        response = await rig.ask(chat())
        assert response.status == 400
        assert response.error["code"] == "output_limit_missing"
        for raw in (b"", b"{", b"[]", b"\xff\xfe"):
            response = await rig.ask(raw)
            assert response.status == 400
            assert response.error["code"] == "bad_json"
            assert "retry-after" not in response.headers


async def test_paths_and_methods() -> None:
    async with gateway(StandIn()) as rig:
        assert (await rig.ask(b"{}", "/v1/nothing")).error["code"] == "unknown_path"
        response = await rig.get("/v1/chat/completions")
        assert (response.status, response.headers["allow"]) == (405, "POST")
        assert (await rig.ask(None, "/health", method="HEAD")).status == 200
        assert (await rig.get("/ready")).json == {"status": "ready"}


# Waiting


async def one_at_a_time(rig: Rig) -> None:
    now = rig.worker.around.door.now()
    rig.worker.admission.set_limits(dict.fromkeys(rig.replicas, 1.0), {}, now)


async def test_what_has_no_room_waits_and_is_let_in_when_there_is() -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await says_hello(call)

    engine = StandIn(waits)
    async with gateway(engine, admission=ENFORCE) as rig:
        await one_at_a_time(rig)
        asked = [asyncio.create_task(rig.ask(chat(stream=False))) for _ in range(3)]
        await until(lambda: len(rig.worker.around.exchanges) == 3)
        await asyncio.sleep(0.05)
        assert len(engine.calls) == 1
        go.set()
        assert [response.status for response in await asyncio.gather(*asked)] == [200] * 3
        assert await rig.metric("queue_time_seconds_count") == 3


async def test_who_hangs_up_while_waiting_is_forgotten() -> None:
    go = asyncio.Event()

    async def waits(call: Call) -> None:
        await go.wait()
        await says_hello(call)

    engine = StandIn(waits)
    async with gateway(engine, admission=ENFORCE) as rig:
        await one_at_a_time(rig)
        first = asyncio.create_task(rig.ask(chat(stream=False)))
        await until(lambda: len(engine.calls) == 1)
        client = await Connection.open(rig.port)
        client.send(chat())
        await until(lambda: len(rig.worker.around.exchanges) == 2)
        client.reset()
        await until(lambda: len(rig.worker.around.exchanges) == 1)
        assert rig.worker.admission.status(rig.worker.around.door.now()).queued_requests == 0
        go.set()
        assert (await first).status == 200
        assert len(engine.calls) == 1
        assert await rig.metric("requests_total", end="client_cancelled") == 1


async def test_observing_nothing_waits_and_what_would_be_refused_is_counted() -> None:
    engine = StandIn()
    tenants = {"acme": {"keys": [key_of("k")], "tokens_per_minute": 1}}
    async with gateway(engine, tenants=tenants) as rig:
        for _ in range(3):
            assert (await rig.ask(chat(stream=False), headers={"x-api-key": "k"})).status == 200
        rig.worker.around.metrics.add_windows(rig.worker.admission.windows(rig.worker.around.door.now() + 2))
        assert await rig.metric("would_refuse_requests_total", reason="tenant_token_quota") >= 1
    engine.port = 0
    async with gateway(engine, tenants=tenants, admission=ENFORCE) as rig:
        responses = [await rig.ask(chat(stream=False), headers={"x-api-key": "k"}) for _ in range(3)]
        assert [response.status for response in responses] == [200, 429, 429]
        assert await rig.metric("refused_requests_total", status="429", reason="tenant_token_quota") == 2


async def test_a_slow_reader_slows_only_itself() -> None:
    big = event_of("x" * 20_000)
    sent = 0

    async def pours(call: Call) -> None:
        nonlocal sent
        if not call.json.get("pour"):
            await says_hello(call)
            return
        call.stream()
        for _ in range(5000):
            call.chunk(big)
            await call.drain()
            sent += 1
            if call.is_closed.is_set():
                return

    async with gateway(StandIn(pours)) as rig:
        slow = await Connection.open(rig.port)
        slow.reader._limit = 1024  # type: ignore[attr-defined]
        slow.send(chat(pour=True, stream_options={"include_usage": True}))
        await slow.head()
        before = -1
        while sent > before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 1500  # it stands still: the engine is not read any more
        for _ in range(5):
            assert (await rig.ask(chat())).status == 200
        slow.reset()
        await rig.until_idle()


# What must never be seen


async def test_prompts_answers_and_keys_are_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "c0nf1dent1al"

    async def script(call: Call) -> None:
        if call.json["stream"]:
            call.stream()
            call.chunk(event_of(secret))
            call.reset()
        else:
            call.whole(json.dumps({"error": {"message": secret}}).encode(), "500 Internal Server Error")

    tenants = {"acme": {"keys": [key_of(secret)]}}
    async with gateway(StandIn(script), tenants=tenants) as rig:
        for body in (chat(), chat(stream=False), secret.encode(), b'{"model": "%b"}' % secret.encode()):
            if isinstance(body, dict):
                body["messages"][0]["content"] = secret
            await rig.ask(body, headers={"x-api-key": secret})
        await rig.ask(chat(), headers={"x-api-key": secret + "2"})
        page = await rig.ask(None, "/metrics", None, "GET", control=True)
        state = await rig.control("GET", "/control/v1/state")
        outcomes = await rig.control("GET", "/control/v1/outcomes?after=0")
    for text in (caplog.text, page.body.decode(), state.body.decode(), outcomes.body.decode()):
        assert secret not in text
        assert key_of(secret) not in text
