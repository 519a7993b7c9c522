"""Cases E1, E2, E3, E4, E7, E8 and E10: each on loopback, with the bytes of the case's files."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig import Connection, Rig, chat, gateway, until
from standin import Call, StandIn, event_of, says_hello

DATA = Path(__file__).parents[1] / "cases" / "data"
E1 = yaml.safe_load((DATA / "E1" / "exchange.yaml").read_text())
E2 = {run["name"]: run for run in json.loads((DATA / "E2" / "chunks.json").read_text())["runs"]}
E3 = {file.stem: file.read_bytes() for file in (DATA / "E3").glob("*.sse")}
E4 = json.loads((DATA / "E4" / "rows.json").read_text())
E10 = json.loads((DATA / "E10" / "models.json").read_text())


# E1: the client hangs up in the middle


async def counts(call: Call) -> None:
    """The case's upstream: a token every 50 ms, ten times as fast here."""
    upstream = E1["upstream"]
    call.stream()
    await asyncio.sleep(upstream["first_token_after"] / 10)
    for number in range(upstream["tokens"]):
        if call.is_closed.is_set():
            return
        call.chunk(event_of(f" {number}"))
        await asyncio.sleep(upstream["token_every"] / 10)


async def test_E1_hang_up_ends_the_engines_work_and_releases_everything() -> None:
    engine, want = StandIn(counts), E1["want"]
    left_at = E1["client"][1]["t"]
    tokens_after_it = (want["upstream_closed_by"] - left_at) / E1["upstream"]["token_every"]
    async with gateway(engine, admission={"mode": "enforce"}) as rig:
        client = await Connection.open(rig.port)
        client.send(chat(max_tokens=4000))
        response = await client.head()
        await client.piece(response)
        await asyncio.sleep(0.13)
        call = engine.calls[0]
        written = call.written
        client.reset()
        await call.until_closed()
        assert call.written - written < tokens_after_it
        assert call.written <= want["tokens_written_at_most"]
        await rig.until_idle()
        replica = rig.replicas[engine.name]
        assert replica.open_sequences == want["in_flight_after"]["replica"]
        assert replica.reserved_tokens == want["reserved_kv_tokens_after"]
        assert replica.breaker == "closed"
        assert await rig.metric("requests_total", end=want["recorded_as"]["class"]) == 1
        assert await rig.metric("requests_total") == 1
        assert await rig.metric("retries_total") == 0
        windows = rig.windows()
        charged = sum(window.tokens_by_tenant["anybody"] for window in windows)
        estimated_prompt = 8  # "hi", a turn and a reply
        assert call.written - 3 <= charged <= call.written + estimated_prompt


async def test_E1_two_hundred_times_and_the_tenant_is_served_at_once() -> None:
    engine = StandIn(counts)
    tenants = {"acme": {"sequences": 4, "keys": [hashlib.sha256(b"k").hexdigest()]}}
    async with gateway(engine, admission={"mode": "enforce"}, tenants=tenants) as rig:
        key = {"authorization": "Bearer k"}
        for round_ in range(0, E1["repeat"]["times"], 4):
            clients = [await Connection.open(rig.port) for _ in range(4)]
            for client in clients:
                client.send(chat(max_tokens=4000), headers=key)
            for client in clients:
                response = await client.head()
                assert response.status == 200, (round_, await client.answer())
            for client in clients:
                client.reset()
            await rig.until_idle()
        assert rig.replicas[engine.name].open_sequences == 0
        assert rig.worker.around.pool.open <= 1
        engine.script = says_hello
        assert (await rig.ask(chat(stream=False), headers=key)).status == 200


# E2: bytes are bytes


def pieces_of(run: dict[str, Any]) -> list[bytes]:
    if "chunks_hex" in run:
        return [bytes.fromhex(piece) for piece in run["chunks_hex"]]
    whole, size = bytes.fromhex(run["bytes_hex"]), run["write_size"]
    return [whole[at : at + size] for at in range(0, len(whole), size)]


@pytest.mark.parametrize("hold", ["0", "1s"])
@pytest.mark.parametrize("name", E2)
async def test_E2_the_client_gets_the_same_bytes(name: str, hold: str) -> None:
    pieces = pieces_of(E2[name])
    pause = 0.02 if len(pieces) < 20 else 0.002
    sent_last = 0.0

    async def script(call: Call) -> None:
        nonlocal sent_last
        call.stream()
        for piece in pieces:
            await asyncio.sleep(pause)
            sent_last = asyncio.get_running_loop().time()
            call.chunk(piece)
        call.last_chunk()

    # Asked for by the client, so that nothing has to be cut and every piece may go on at once.
    body = chat(stream_options={"include_usage": True})
    async with gateway(StandIn(script), hold_headers=0 if hold == "0" else hold) as rig:
        response = await rig.ask(body)
    assert hashlib.sha256(response.body).hexdigest() == E2[name]["sha256_of_all"]
    if hold == "0":
        assert response.pieces[0][0] < sent_last
        assert len(response.pieces) > len(pieces) / 2


@pytest.mark.parametrize("name", E2)
async def test_E2_also_where_the_gateway_asked_for_usage(name: str) -> None:
    async def script(call: Call) -> None:
        call.stream()
        for piece in pieces_of(E2[name]):
            call.chunk(piece)
            await asyncio.sleep(0)
        call.last_chunk()

    async with gateway(StandIn(script)) as rig:
        response = await rig.ask(chat())
    assert hashlib.sha256(response.body).hexdigest() == E2[name]["sha256_of_all"]


# E3: failure inside a 200 stream


def streams(body: bytes, *, cut: bool = False) -> Any:
    async def script(call: Call) -> None:
        call.stream()
        for line in body.splitlines(keepends=True):
            call.chunk(line)
            await call.drain()
        if cut:
            await asyncio.sleep(0.05)
            call.reset()
        else:
            call.last_chunk()

    return script


@pytest.mark.parametrize("name", [*E3])
async def test_E3_a_failure_inside_a_200_is_a_failure(name: str) -> None:
    cut = name == "cut_in_the_middle"
    engine = StandIn(streams(E3[name], cut=cut))
    breaker = {"in_a_row": 1, "open_for": "60s"}
    async with gateway(engine, hold_headers=0, admission={"breaker": breaker}) as rig:
        response = await rig.ask(chat(stream_options={"include_usage": True}))
        assert response.status == 200
        assert response.body == E3[name]
        assert response.cut == cut
        await rig.until_idle()
        assert rig.replicas[engine.name].breaker == "open"
        assert len(engine.calls) == 1
        assert await rig.metric("requests_total", end="failed") == 1
        seen = E3[name].count(b'"content"')
        assert await rig.metric("ttft_seconds_count") == (1 if seen else 0)
        windows = rig.windows()
        assert sum(window.failed for window in windows) == 1
        assert sum(window.good + window.finished for window in windows) == 0
        # The tokens that were seen are charged, with the prompt they came from.
        assert (sum(window.tokens for window in windows) > 0) == (seen > 0)


async def test_E3_error_first_is_retried_elsewhere_or_becomes_a_real_error() -> None:
    bad, good = StandIn(streams(E3["error_first"])), StandIn()
    async with gateway(bad, good) as rig:
        for number in range(50):
            answer = await rig.ask(chat(messages=[{"role": "user", "content": f"question {number}"}]))
            assert answer.status == 200
            assert b"hello" in answer.body
            if bad.calls:
                break
        assert await rig.metric("retries_total", kind="retries") == len(bad.calls) > 0
    async with gateway(StandIn(streams(E3["error_first"]))) as rig:
        answer = await rig.ask(chat())
        assert answer.status == 500
        assert answer.headers["content-type"] == "application/json"
        assert answer.error["message"] == "engine step failed"


# E4: usage asked for by us, not by the client


@pytest.mark.parametrize(
    "row", E4["rows"], ids=lambda row: json.dumps(row["request"].get("stream_options", "-"))
)
async def test_E4_the_usage_chunk_is_ours_alone(row: dict[str, Any]) -> None:
    asked: list[dict[str, Any]] = []

    async def script(call: Call) -> None:
        asked.append(call.json)
        options = call.json.get("stream_options") or {}
        if not call.json["stream"]:
            await says_hello(call)
            return
        call.stream()
        name = "upstream_with_usage" if options.get("include_usage") else "client_without_usage"
        body = (DATA / "E4" / f"{name}.sse").read_bytes()
        if options.get("continuous_usage_stats") and options.get("include_usage"):
            # What a real vLLM does then: usage in every chunk.
            usage = b', "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}}\n'
            body = body.replace(b"null}]}\n", b"null}]" + usage).replace(b'"stop"}]}\n', b'"stop"}]' + usage)
        for at in range(0, len(body), 33):
            call.chunk(body[at : at + 33])
        call.last_chunk()

    engine = StandIn(script)
    async with gateway(engine) as rig:
        response = await rig.ask(row["request"])
        await rig.until_idle()
        if row["request"]["stream"]:
            assert response.body == (DATA / "E4" / row["client_must_get"]).read_bytes()
            theirs = row["request"].get("stream_options") or {}
            assert asked[0]["stream_options"] == {**theirs, "include_usage": True}
        else:
            assert response.json["object"] == "chat.completion"
            assert asked[0] == row["request"]
        windows = rig.windows()
        charged = sum(window.tokens for window in windows)
        assert charged == E4["always"]["tenant_charged_tokens"]


# E7: compressed answers


@pytest.mark.parametrize("accepts", ["gzip", "identity", "gzip;q=0", None])
@pytest.mark.parametrize("name", ["ok_gzip", "error_gzip"])
async def test_E7_compressed_answers(name: str, accepts: str | None) -> None:
    raw = (DATA / "E7" / f"{name}.http").read_bytes()
    packed = raw.partition(b"\r\n\r\n")[2]

    async def script(call: Call) -> None:
        assert call.headers["accept-encoding"] == ("gzip" if accepts == "gzip" else "identity")
        call.send(raw)

    async with gateway(StandIn(script)) as rig:
        headers = {} if accepts is None else {"accept-encoding": accepts}
        response = await rig.ask(chat(stream=False), headers=headers)
        await rig.until_idle()
        assert response.status == (200 if name == "ok_gzip" else 400)
        if accepts == "gzip":
            assert response.headers["content-encoding"] == "gzip"
            assert response.body == packed
        else:
            assert "content-encoding" not in response.headers
            if name == "ok_gzip":
                assert response.body == (DATA / "E7" / "ok_plain_expected_body.json").read_bytes()
            assert response.json
        windows = rig.windows()
        assert sum(window.tokens for window in windows) == (6 if name == "ok_gzip" else 0)


# E8: the idle connection that just closed


async def test_E8_closed_just_before_send_is_sent_once_more_on_a_new_connection() -> None:
    async def resets(call: Call) -> None:
        if call.connection == first_connection:
            engine.calls.pop()  # an engine that resets has not handled it
            call.reset()
        else:
            await says_hello(call)

    engine = StandIn()
    async with gateway(engine) as rig:
        assert (await rig.ask(chat(stream=False))).status == 200
        first_connection = engine.calls[0].connection
        engine.script = resets
        assert (await rig.ask(chat(stream=False))).status == 200
        assert await rig.metric("retries_total", kind="stale_connection") == 1
        assert len(engine.calls) == 2
        assert rig.replicas[engine.name].breaker == "closed"
        assert await rig.metric("requests_total", end="finished") == 2


async def test_E8_never_a_second_resend() -> None:
    engine = StandIn()
    async with gateway(engine) as rig:
        assert (await rig.ask(chat(stream=False))).status == 200
        seen = 0

        async def dies(call: Call) -> None:
            nonlocal seen
            seen += 1
            call.reset()

        engine.script = dies
        answer = await rig.ask(chat(stream=False))
        assert answer.status == 502
        assert answer.error["code"] == "upstream_failure"
        assert seen == 2


async def test_E8_a_fresh_connection_that_is_reset_is_no_stale_one() -> None:
    async def dies(call: Call) -> None:
        call.reset()

    bad, good = StandIn(dies), StandIn()
    async with gateway(bad, good) as rig:
        for number in range(50):
            messages = [{"role": "user", "content": f"question {number}"}]
            assert (await rig.ask(chat(stream=False, messages=messages))).status == 200
            if bad.calls:
                break
        assert await rig.metric("retries_total", kind="stale_connection") == 0
        assert await rig.metric("retries_total", kind="retries") == len(bad.calls) > 0


async def test_E8_after_the_first_byte_nothing_is_resent() -> None:
    async def breaks(call: Call) -> None:
        call.stream()
        call.chunk(event_of("one"))
        await call.drain()
        await asyncio.sleep(0.02)
        call.reset()

    bad = StandIn(breaks)
    async with gateway(bad, StandIn(breaks)) as rig:
        response = await rig.ask(chat())
        assert response.status == 200
        assert not response.cut
        *_, last = response.body.decode().strip().split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "upstream_cut"
        assert await rig.metric("retries_total", kind="retries") == 0


async def test_E8_a_chunked_body_is_kept_so_it_may_be_sent_again() -> None:
    async def resets(call: Call) -> None:
        if call.connection == first_connection:
            call.reset()
        else:
            await says_hello(call)

    engine = StandIn()
    async with gateway(engine) as rig:
        assert (await rig.ask(chat(stream=False))).status == 200
        first_connection = engine.calls[0].connection
        engine.script = resets
        client = await Connection.open(rig.port)
        body = json.dumps(chat(stream=False)).encode()
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for at in range(0, len(body), 20):
            part = body[at : at + 20]
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await asyncio.sleep(0)
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        client.close()
        assert engine.calls[-1].body == body


async def test_E8_idle_connections_go_before_the_engines_own_limit() -> None:
    engine = StandIn()
    async with gateway(engine, upstream={"idle": "300ms"}) as rig:
        assert (await rig.ask(chat(stream=False))).status == 200
        assert rig.worker.around.pool.connected == 1
        await until(lambda: rig.worker.around.pool.open == 0)


# E10: the model list


def served() -> tuple[list[StandIn], StandIn]:
    engines = {row["id"]: StandIn(models=row["models"]) for row in E10["replicas"]}
    engines["chat-2"].models = []
    engines["old-0"].is_silent = True
    return list(engines.values()), engines["chat-0"]


async def merged(rig: Rig, **headers: str) -> tuple[int, list[str]]:
    response = await rig.get("/v1/models", headers)
    return response.status, [card["id"] for card in response.json.get("data", [])]


async def test_E10_one_list_of_all_that_is_ready() -> None:
    engines, chat_0 = served()
    wanted = E10["want"][0]
    async with gateway(*engines, wait_ready=False) as rig:
        await until(lambda: sum(r.rotation == "in" for r in rig.replicas.values()) == 3)
        for _ in range(5):
            assert await merged(rig) == (wanted["status"], wanted["ids"])
        cards = (await rig.get("/v1/models")).json["data"]
        assert next(card for card in cards if card["id"] == "acme/chat-8b")["max_model_len"] == 16384
        for _ in range(6):
            assert (await rig.ask(chat(stream=False, model="sql-adapter"))).status == 200
        assert len(chat_0.calls) == 6
        unknown = await rig.ask(chat(stream=False, model="acme/none"))
        assert unknown.status == 404
        assert "retry-after" not in unknown.headers


async def test_E10_a_list_that_is_not_known_is_not_empty() -> None:
    engine = StandIn()
    engine.is_silent = True
    async with gateway(engine, wait_ready=False) as rig:
        response = await rig.get("/v1/models")
        assert response.status == E10["want"][2]["status"]
        assert int(response.headers["retry-after"]) >= 1
        assert (await rig.get("/ready")).status == 503
        refused = await rig.ask(chat())
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1


async def test_E10_a_tenant_sees_what_it_may_use() -> None:
    engines, _ = served()
    wanted = E10["want"][4]
    key = hashlib.sha256(b"k").hexdigest()
    tenants = {"acme": {"models": ["acme/embed"], "keys": [key]}}
    async with gateway(*engines, wait_ready=False, tenants=tenants) as rig:
        await until(lambda: sum(r.rotation == "in" for r in rig.replicas.values()) == 3)
        assert await merged(rig, authorization="Bearer k") == (wanted["status"], wanted["ids"])
        refused = await rig.ask(chat(), headers={"authorization": "Bearer k"})
        assert refused.status == 404
        assert refused.error["code"] == "unknown_model"
