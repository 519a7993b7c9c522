"""HTTP/2 with clients: real ones (httpx, curl), and one that misbehaves frame by frame."""

import asyncio
import json
import random
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from h2.errors import ErrorCodes
from h2_client import H2Client, Tls
from hyperframe.frame import PriorityFrame
from rig import Rig, chat, gateway, until
from skipping import in_skipping_time, skip
from standin import ANSWER, DONE, Call, StandIn, event_of, tokens
from test_case_c3 import DEADLINE, DRAIN, MARGIN, SETTLE, Streams

from controlplane.gateway.http2 import MOST_STREAMS


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@asynccontextmanager
async def connected(rig: Rig, tls: Tls, **options: Any) -> AsyncIterator[H2Client]:
    client = await H2Client.open(rig.port, tls, **options)
    try:
        yield client
    finally:
        await client.close()


async def test_a_real_client_and_the_bytes_of_a_stream(tls: Tls) -> None:
    sent: list[bytes] = []

    async def script(call: Call) -> None:
        if not call.json["stream"]:
            call.whole(ANSWER)
            return
        call.stream()
        for event in (*tokens("h\u00e9", "\U0001f600", "llo"), event_of(finish_reason="stop"), DONE):
            sent.append(event)
            call.chunk(event)
            await asyncio.sleep(0.01)
        call.last_chunk()

    async with gateway(StandIn(script), tls=tls.settings) as rig:
        url = f"https://localhost:{rig.port}/v1/chat/completions"
        async with httpx.AsyncClient(http2=True, http1=False, verify=tls.context()) as client:
            whole = await client.post(url, json=chat(False))
            assert (whole.status_code, whole.http_version, whole.content) == (200, "HTTP/2", ANSWER)
            async with client.stream(
                "POST", url, json=chat(stream_options={"include_usage": True})
            ) as stream:
                assert stream.headers["x-accel-buffering"] == "no"
                assert "transfer-encoding" not in stream.headers
                pieces = [piece async for piece in stream.aiter_bytes()]
            assert b"".join(pieces) == b"".join(sent)
            assert len(pieces) > 2, "as they come"
            missing = await client.get(f"https://localhost:{rig.port}/nothing")
            assert missing.status_code == 404
            head = await client.head(f"https://localhost:{rig.port}/health")
            assert (head.status_code, head.content) == (200, b"")
        assert rig.worker.server.accepted == 1, "all on one connection"
        async with httpx.AsyncClient(verify=tls.context()) as client:
            old = await client.post(url, json=chat(False))
            assert (old.status_code, old.http_version) == (200, "HTTP/1.1")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
async def test_curl(tls: Tls) -> None:
    async with gateway(StandIn(), tls=tls.settings) as rig:
        url = f"https://localhost:{rig.port}/v1/chat/completions"
        command = [
            "curl",
            "-sS",
            "--http2",
            "--cacert",
            str(tls.ca_file),
            "-w",
            "\n%{http_version} %{http_code}",
        ]
        body = json.dumps(chat()) + " " * 300_000  # more than a window
        run = await asyncio.to_thread(
            subprocess.run, [*command, "-d", "@-", url], input=body.encode(), capture_output=True, timeout=60
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.endswith(b"\n2 200")
        assert DONE in run.stdout


async def test_many_streams_at_once_on_one_connection(tls: Tls) -> None:
    streams = Streams()
    async with gateway(StandIn(streams), tls=tls.settings) as rig, connected(rig, tls) as client:
        begun = {}
        for i in range(100):
            begun[client.ask(chat(messages=[{"role": "user", "content": f"s{i}"}]))] = f"s{i}"
        await client.until(lambda: len(client.heads) == 100)
        assert rig.worker.server.busy == 100
        order = list(begun.items())
        random.Random(1).shuffle(order)
        for stream, name in order:
            streams.ends[name].set()
            body = await client.answer(stream)
            assert f'"{name}"'.encode() in body
            assert body.endswith(DONE)
        await rig.until_idle()
        assert rig.worker.server.accepted == 1


async def test_a_stream_that_is_reset_is_a_client_that_hung_up(tls: Tls) -> None:
    streams = Streams()
    engine = StandIn(streams)
    async with gateway(engine, tls=tls.settings) as rig, connected(rig, tls) as client:
        first, second = (
            client.ask(chat(messages=[{"role": "user", "content": name}])) for name in ("first", "second")
        )
        await client.until(lambda: first in client.heads and second in client.heads)
        client.reset(first)
        gone = next(call for call in engine.calls if b"first" in call.body)
        await gone.until_closed()
        streams.ends["second"].set()
        assert (await client.answer(second)).endswith(DONE)
        await rig.until_idle()
        assert await rig.metric("requests_total", end="client_cancelled") == 1
        assert all(replica.open_sequences == 0 for replica in rig.replicas.values())


async def test_a_connection_that_is_lost_ends_all_its_streams(tls: Tls) -> None:
    engine = StandIn(Streams())
    async with gateway(engine, tls=tls.settings) as rig:
        async with connected(rig, tls) as client:
            for i in range(10):
                client.ask(chat(messages=[{"role": "user", "content": f"s{i}"}]))
            await client.until(lambda: len(client.heads) == 10)
            client.writer.transport.abort()
        await asyncio.gather(*(call.until_closed() for call in engine.calls))
        await rig.until_idle()
        assert await rig.metric("requests_total", end="client_cancelled") == 10


async def test_a_slow_reader_slows_only_itself(tls: Tls) -> None:
    """One stream's window stays shut: its engine is stopped, and its neighbour flows."""
    big = event_of("x" * 50_000)

    async def script(call: Call) -> None:
        call.stream()
        if b"slow" not in call.body:
            for event in (*tokens(*"abc"), event_of(finish_reason="stop"), DONE):
                call.chunk(event)
            call.last_chunk()
            return
        for _ in range(400):
            call.chunk(big)
            await call.drain()
        call.chunk(event_of(finish_reason="stop") + DONE)
        call.last_chunk()

    engine = StandIn(script)
    async with gateway(engine, tls=tls.settings) as rig:
        async with connected(rig, tls, windows=False, window=100_000) as client:
            slow = client.ask(chat(messages=[{"role": "user", "content": "slow"}]))
            await client.until(lambda: len(client.bodies[slow]) == 100_000)
            await asyncio.sleep(0.3)
            assert engine.calls[0].written < 400, "the engine is held back"
            assert len(client.bodies[slow]) == 100_000
            fast = client.ask(chat())
            assert (await client.answer(fast)).endswith(DONE)
            while slow not in client.ended:
                client.h2.increment_flow_control_window(1_000_000, slow)
                client.flush()
                seen = len(client.bodies[slow])
                await client.until(lambda seen=seen: len(client.bodies[slow]) > seen or slow in client.ended)
            assert client.bodies[slow].count(b"x" * 50_000) == 400
        await rig.until_idle()


async def test_an_answer_that_waits_for_its_window_outlives_its_engine(tls: Tls) -> None:
    async def script(call: Call) -> None:
        call.whole(b'{"a": "' + b"x" * 300_000 + b'", "choices": [{"finish_reason": "stop"}]}')

    async with (
        gateway(StandIn(script), tls=tls.settings) as rig,
        connected(rig, tls, windows=False, window=1000) as client,
    ):
        stream = client.ask(chat(False))
        await client.until(lambda: len(client.bodies[stream]) == 1000)
        client.h2.increment_flow_control_window(1_000_000, stream)
        client.flush()
        assert len(await client.answer(stream)) > 300_000
        stalled = client.ask(chat(False))
        await client.until(lambda: len(client.bodies[stalled]) == 1000)
        await rig.until_idle()
        connection = next(iter(rig.worker.server.connections))
        connection.sweep(asyncio.get_running_loop().time() + 1000)
        await client.until(lambda: stalled in client.resets)


async def test_errors_inside_a_stream(tls: Tls) -> None:
    """Between events: an error event and a proper end. Inside one: the stream is reset, and nothing else."""

    breaks = asyncio.Event()

    async def script(call: Call) -> None:
        call.stream()
        call.chunk(event_of("a") if b"between" in call.body else event_of("a")[:-1])
        await breaks.wait()
        breaks.clear()
        call.reset()

    async with (
        gateway(StandIn(script), tls=tls.settings, hold_headers="10ms") as rig,
        connected(rig, tls) as client,
    ):
        between = client.ask(chat(messages=[{"role": "user", "content": "between"}]))
        await client.until(lambda: client.bodies[between])
        breaks.set()
        body = await client.answer(between)
        assert json.loads(body.split(b"data: ")[-1])["error"]["code"] == "upstream_cut"
        inside = client.ask(chat())
        await client.until(lambda: inside in client.heads)
        breaks.set()
        await client.until(lambda: inside in client.resets)
        assert client.resets[inside] == ErrorCodes.INTERNAL_ERROR
        assert client.status(client.ask(None, "/health", method="GET") - 4) == 200


async def test_what_is_refused_at_its_head_is_not_read(tls: Tls) -> None:
    engine = StandIn()
    settings = {"most_body": 10_000, "tenants": {"acme": {"keys": ["0" * 64]}}, "tls": tls.settings}
    async with gateway(engine, **settings) as rig, connected(rig, tls) as client:
        stream = client.ask(b"{", end=False)
        await client.until(lambda: stream in client.resets)
        assert client.status(stream) == 401
        assert json.loads(client.bodies[stream])["error"]["code"] == "invalid_api_key"
        assert client.resets[stream] == ErrorCodes.NO_ERROR
        assert not engine.calls


async def test_bodies_are_bounded_one_by_one_and_together(tls: Tls) -> None:
    async with gateway(StandIn(), tls=tls.settings, most_body=10_000) as rig, connected(rig, tls) as client:
        told = client.ask(b"{", "/v1/completions", ("content-length", "20000"), end=False)
        await client.until(lambda: told in client.heads)
        assert client.status(told) == 413
        untold = client.ask(b" " * 12_000, end=False)
        await client.until(lambda: untold in client.heads)
        assert client.status(untold) == 413
        half = client.ask(b" " * 6_000, end=False)
        other = client.ask(b" " * 6_000, end=False)
        await client.until(lambda: other in client.resets)
        assert client.resets[other] == ErrorCodes.REFUSED_STREAM
        client.h2.send_data(half, json.dumps(chat()).encode(), end_stream=True)
        client.flush()
        assert (await client.answer(half)).endswith(DONE)
        again = client.ask(chat())
        assert (await client.answer(again)).endswith(DONE)


async def test_a_body_that_never_ends_is_given_up(tls: Tls) -> None:
    async with gateway(StandIn(), tls=tls.settings) as rig, connected(rig, tls) as client:
        stream = client.ask(b"{", end=False)
        connection = await one_connection(rig)
        connection.sweep(asyncio.get_running_loop().time() + 30)
        await asyncio.sleep(0.05)
        assert stream not in client.resets
        connection.sweep(asyncio.get_running_loop().time() + 61)
        await client.until(lambda: stream in client.resets)
        connection.sweep(asyncio.get_running_loop().time() + 700)
        await client.until(lambda: client.is_closed)
        assert client.goaway is not None
        assert client.goaway.error_code == ErrorCodes.NO_ERROR


async def one_connection(rig: Rig) -> Any:
    await until(lambda: rig.worker.server.connections)
    (connection,) = rig.worker.server.connections
    await until(lambda: getattr(connection, "_streams", True))
    return connection


async def test_rapid_resets_end_the_connection(tls: Tls) -> None:
    engine = StandIn(Streams())
    async with gateway(engine, tls=tls.settings) as rig:
        async with connected(rig, tls) as client:
            for _ in range(1000):
                if client.is_closed or client.goaway is not None:
                    break
                stream = client.ask(chat())
                client.reset(stream)
                await asyncio.sleep(0)
            await client.until(lambda: client.is_closed)
            assert client.goaway is not None
            assert client.goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await rig.until_idle()
        assert all(replica.open_sequences == 0 for replica in rig.replicas.values())
        async with connected(rig, tls) as client:  # others are served
            health = client.ask(None, "/health", method="GET")
            assert b"ok" in await client.answer(health)


@pytest.mark.parametrize("kind", ["ping", "settings", "priority", "empty data"])
async def test_floods_of_idle_frames_end_the_connection(tls: Tls, kind: str) -> None:
    async with gateway(StandIn(Streams()), tls=tls.settings) as rig, connected(rig, tls) as client:
        upload = client.ask(b"{", end=False)
        for _ in range(4000):
            if client.is_closed or client.goaway is not None:
                break
            match kind:
                case "ping":
                    client.h2.ping(b"12345678")
                case "settings":
                    client.h2.update_settings({4: 65_535})
                case "priority":
                    client.writer.write(PriorityFrame(upload, depends_on=0, stream_weight=1).serialize())
                case "empty data":
                    client.h2.send_data(upload, b"")
            client.flush()
            await asyncio.sleep(0)
        await client.until(lambda: client.is_closed)
        assert client.goaway is not None
        assert client.goaway.error_code == ErrorCodes.ENHANCE_YOUR_CALM


async def test_more_streams_than_allowed_and_other_nonsense(tls: Tls) -> None:
    async with gateway(StandIn(Streams()), tls=tls.settings) as rig:
        async with connected(rig, tls) as client:
            await client.until(lambda: client.h2.remote_settings.max_concurrent_streams == MOST_STREAMS)
            client.h2.remote_settings.acknowledge()
            client.h2.remote_settings[3] = 10_000
            client.h2.remote_settings.acknowledge()
            for _ in range(MOST_STREAMS + 1):
                client.ask(chat())
            await client.until(lambda: client.is_closed)
            assert client.goaway is not None
        await rig.until_idle()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, preface + b"\xff" * 3_000_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=tls.context("h2"))
            writer.write(garbage)
            await asyncio.wait_for(reader.read(), 60)
            writer.close()
        assert not rig.worker.server.busy


@in_skipping_time
async def test_C3_with_http2(tls: Tls) -> None:
    """Not ready; still answered; refused; streams go on; an error event at the deadline; GOAWAY at last."""
    streams = Streams()
    async with gateway(StandIn(streams), tls=tls.settings, drain=DRAIN) as rig, connected(rig, tls) as client:

        def begin(name: str) -> int:
            return client.ask(chat(messages=[{"role": "user", "content": name}]))

        s1, s3 = begin("s1"), begin("s3")
        await client.until(lambda: s1 in client.bodies and s3 in client.bodies)
        rig.worker.stop()
        await asyncio.sleep(0)
        ready = client.ask(None, "/ready", method="GET")
        await client.answer(ready)
        assert client.status(ready) == 503
        s2 = begin("s2")
        await client.until(lambda: s2 in client.bodies)
        skip(SETTLE)
        await until(lambda: rig.worker.refuses)
        on_the_old = begin("s4")
        assert json.loads(await client.answer(on_the_old))["error"]["code"] == "gateway_stopping"
        async with connected(rig, tls) as late:
            refused = late.ask(chat())
            assert json.loads(await late.answer(refused))["error"]["code"] == "gateway_stopping"
            assert late.status(refused) == 503
            assert int(late.heads[refused]["retry-after"]) >= 1
            await late.until(lambda: late.is_closed)
        for stream, name in ((s1, "s1"), (s2, "s2")):
            streams.ends[name].set()
            assert (await client.answer(stream)).endswith(DONE)
        assert client.goaway is None, "a client built on h2 would lose what is open"
        skip(DEADLINE - SETTLE - MARGIN)
        await asyncio.sleep(0.05)
        assert s3 not in client.ended
        skip(MARGIN)
        cut = await client.answer(s3)
        assert "shutting down" in json.loads(cut.split(b"data: ")[-1])["error"]["message"]
        await client.until(lambda: client.is_closed)
        assert client.goaway is not None
        assert (client.goaway.error_code, client.goaway.last_stream_id) == (ErrorCodes.NO_ERROR, on_the_old)
        await asyncio.wait_for(rig.worker.is_stopped.wait(), 60)


async def test_C3_loses_nothing_of_a_real_client(tls: Tls) -> None:
    streams = Streams()
    drain = {"settle": 0, "deadline": "60s"}
    async with gateway(StandIn(streams), tls=tls.settings, drain=drain) as rig:
        url = f"https://localhost:{rig.port}/v1/chat/completions"
        async with httpx.AsyncClient(http2=True, http1=False, verify=tls.context()) as client:
            body = chat(messages=[{"role": "user", "content": "s1"}])
            async with client.stream("POST", url, json=body) as stream:
                pieces = stream.aiter_bytes()
                first = await anext(pieces)
                rig.worker.stop()
                await until(lambda: rig.worker.refuses)
                refused = await client.post(url, json=body)
                assert (refused.status_code, refused.http_version) == (503, "HTTP/2")
                streams.ends["s1"].set()
                rest = b"".join([piece async for piece in pieces])
            assert (first + rest).endswith(DONE)


async def test_random_hangups_leave_nothing(tls: Tls) -> None:
    """Streams that are reset at any moment, connections that are cut: nothing is in flight in the end."""
    dice = random.Random(7)

    async def script(call: Call) -> None:
        call.stream()
        for text in "abcdef":
            call.chunk(event_of(text))
            await asyncio.sleep(dice.uniform(0, 0.01))
        call.chunk(event_of(finish_reason="stop") + DONE)
        call.last_chunk()

    async def one(rig: Rig, seed: int) -> None:
        rng = random.Random(seed)
        async with connected(rig, tls, windows=rng.random() < 0.8) as client:
            for _ in range(25):
                stream = client.ask(chat(), end=rng.random() < 0.9)
                await asyncio.sleep(rng.uniform(0, 0.02))
                if rng.random() < 0.5 and stream not in client.ended and not client.is_closed:
                    client.reset(stream)
            assert client.goaway is None, "what is wrong with one stream is no matter of the others"
            assert not client.is_closed
            if rng.random() < 0.5:
                client.writer.transport.abort()

    async with gateway(StandIn(script), tls=tls.settings) as rig:
        for batch in range(4):
            await asyncio.gather(*(one(rig, 10 * batch + i) for i in range(10)))
        await until(lambda: not rig.worker.server.connections)
        await rig.until_idle()
        assert all(replica.open_sequences == 0 for replica in rig.replicas.values())
        # Observing, what would have been let in later is on the books for a while.
        await until(lambda: not any(replica.reserved_tokens for replica in rig.replicas.values()))
