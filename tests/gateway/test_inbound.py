"""The client's side of HTTP: limits, order, broken requests, clients that hang up."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from rig import Connection, until

from controlplane.gateway.inbound import Answer, Limits, Reply, Request, Server, refuse
from controlplane.gateway.listening import listen

LIMITS = Limits(body_bytes=1000, receive_seconds=5.0, idle_seconds=5.0)


async def echo(request: Request, reply: Reply) -> None:
    reply.send_whole(Answer(200, ((b"x-path", request.path),), request.body))


RESET = b"(connection reset)"


class Shell:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    async def raw(self, sent: bytes, *, end: bool = False) -> bytes:
        """All that comes back for these bytes until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        if end:
            writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), 60)
        except ConnectionResetError:
            return RESET
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    handle: Callable[[Request, Reply], Awaitable[None]] = echo,
    judge: Callable[[Request], Answer | None] = lambda request: None,
    limits: Limits = LIMITS,
) -> AsyncIterator[Shell]:
    server = Server(judge, handle, limits)
    listener = await listen(server, "127.0.0.1", 0)
    try:
        yield Shell(server, listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        for connection in tuple(server.connections):
            connection.transport.abort()
        await until(lambda: not server.connections)


def post(body: bytes, *headers: bytes, path: bytes = b"/a", version: bytes = b"1.1") -> bytes:
    lines = [b"POST %b HTTP/%b" % (path, version), b"host: h", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CLOSE = b"connection: close"
POST = b"POST / HTTP/1.1\r\nhost: h\r\n"


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async def slow_first(request: Request, reply: Reply) -> None:
        await asyncio.sleep(0.05 if request.path == b"/1" else 0)
        await echo(request, reply)

    async with serving(slow_first) as shell:
        ahead = post(b"one", path=b"/1") + post(b"two", path=b"/2") + post(b"three", CLOSE, path=b"/3")
        back = await shell.raw(ahead)
    assert [back.index(b"x-path: /%d" % i) for i in (1, 2, 3)] == sorted(
        back.index(b"x-path: /%d" % i) for i in (1, 2, 3)
    )
    assert back.endswith(b"three")
    assert back.count(b"HTTP/1.1 200 OK") == 3


async def test_too_many_requests_ahead_end_the_connection() -> None:
    async def never(request: Request, reply: Reply) -> None:
        await asyncio.sleep(60)

    async with serving(never) as shell:
        assert await shell.raw(post(b"x") * 20) in (b"", RESET)


async def test_one_byte_at_a_time() -> None:
    async with serving() as shell:
        client = await Connection.open(shell.port)
        for byte in post(b"hello"):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).body == b"hello"
        client.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nbad header\r\n\r\n", 400),
        (POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 80_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 80_000, 431),
        (post(b"x" * 1001), 413),
        (post(b"x" * 500_000), 413),
        (POST + b"transfer-encoding: chunked\r\n\r\n400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5000\r\nexpect: 100-continue\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999\r\n\r\n", 413),
    ],
    ids=range(12),
)  # fmt: skip
async def test_bad_requests_get_an_answer_in_json(sent: bytes, status: int) -> None:
    seen: list[Request] = []

    async def handle(request: Request, reply: Reply) -> None:
        seen.append(request)
        reply.send_whole(Answer(200))

    async with serving(handle) as shell:
        back = await shell.raw(sent, end=True)
    assert back.startswith(b"HTTP/1.1 %d " % status)
    assert set(json.loads(back.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}
    assert not seen


async def test_a_body_that_will_not_be_read_is_refused_before_it_comes() -> None:
    async with serving() as shell:
        assert (await shell.raw(POST + b"content-length: 99999999999\r\n\r\n")).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT h:443 HTTP/1.1\r\nhost: h\r\n\r\n",
        b"GET /no HTTP/1.1\r\nhost: h\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=("connect", "upgrade"),
)
async def test_a_refused_wish_for_another_protocol_is_answered_once(sent: bytes) -> None:
    async with serving(judge=lambda request: None if request.path == b"/a" else refuse(404, "no")) as shell:
        back = await shell.raw(sent + post(b"next", CLOSE))
    assert [back.count(b"HTTP/1.1 404"), back.count(b"HTTP/1.1 200")] == [1, 1]
    assert back.endswith(b"next")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("length", [None, 2])
async def test_an_answer_that_has_no_body_sends_none(status: int, length: int | None) -> None:
    async def bare(request: Request, reply: Reply) -> None:
        if request.path == b"/bare":
            reply.start(status, [], length)
            reply.send(b"{}")
            reply.end()
        else:
            await echo(request, reply)

    async with serving(bare) as shell:
        back = await shell.raw(post(b"", path=b"/bare") + post(b"next", CLOSE))
    assert back.split(b"\r\n\r\n")[1].startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in back


async def test_a_refused_head_costs_no_body_and_the_connection_goes_on() -> None:
    def judge(request: Request) -> Answer | None:
        return refuse(401, "no") if request.path == b"/no" else None

    async with serving(judge=judge) as shell:
        back = await shell.raw(post(b"x" * 900, path=b"/no") + post(b"yes", CLOSE))
    assert back.startswith(b"HTTP/1.1 401 ")
    assert back.endswith(b"yes")


async def test_a_wish_for_another_protocol_is_passed_over() -> None:
    upgrade = (b"upgrade: h2c", b"connection: upgrade, http2-settings")
    async with serving() as shell:
        back = await shell.raw(post(b"", *upgrade, path=b"/one") + post(b"two", CLOSE))
        assert back.count(b"HTTP/1.1 200 OK") == 2
        assert b"/one" in back
        assert back.endswith(b"two")
        back = await shell.raw(post(b"one", *upgrade) + post(b"two", CLOSE))
        assert back.count(b"HTTP/1.1 200 OK") == 2
        assert b"\r\n\r\none" in back
        assert back.endswith(b"two")


async def test_java_asks_for_h2c_and_sends_a_body_in_pieces() -> None:
    """langchain4j#3682: java.net.http does so with the first request of each connection."""
    chunked = (
        POST
        + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    sent = chunked + chunked + post(b"last", CLOSE)
    async with serving() as shell:
        for step in (len(sent), 7, 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", shell.port)
            for start in range(0, len(sent), step):
                writer.write(sent[start : start + step])
                await asyncio.sleep(0)
            back = await reader.read()
            writer.close()
            assert back.count(b"HTTP/1.1 200 OK") == 3
            assert back.count(b"abcde") == 2
            assert back.endswith(b"last")


async def test_a_connect_with_a_body_is_refused() -> None:
    async with serving() as shell:
        back = await shell.raw(b"CONNECT h:443 HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nok")
    assert back.startswith(b"HTTP/1.1 400 ")
    assert back.count(b"HTTP/1.1 ") == 1


async def test_expect_100_continue() -> None:
    async with serving() as shell:
        reader, writer = await asyncio.open_connection("127.0.0.1", shell.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_http_1_0_and_head() -> None:
    async def chunks(request: Request, reply: Reply) -> None:
        reply.start(200, (), None)
        reply.send(b"all ")
        reply.send(b"of it")
        reply.end()

    async with serving(chunks) as shell:
        back = await shell.raw(post(b"", version=b"1.0"))
        assert b"chunked" not in back
        assert back.endswith(b"\r\n\r\nall of it")
        back = await shell.raw(b"HEAD / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
        assert back.endswith(b"\r\n\r\n")
        back = await shell.raw(post(b"", CLOSE))
        assert back.endswith(b"4\r\nall \r\n5\r\nof it\r\n0\r\n\r\n")


async def test_a_handler_that_fails_answers_500_or_cuts(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: Request, reply: Reply) -> None:
        if request.path == b"/late":
            reply.start(200, (), 100)
            reply.send(b"half")
        raise ValueError(f"could not handle {request.body!r}")

    async with serving(fails) as shell:
        back = await shell.raw(post(b"a secret", CLOSE))
        assert back.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in back
        back = await shell.raw(post(b"a secret", path=b"/late"))
        assert back == RESET or back.endswith(b"half")
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


@pytest.mark.parametrize("way", ["close", "reset", "half close"])
async def test_a_client_that_goes_cancels_its_handler_at_once(way: str) -> None:
    ended = asyncio.Event()

    async def waits(request: Request, reply: Reply) -> None:
        try:
            reply.start(200, (), None)
            reply.send(b"first")
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with serving(waits) as shell:
        client = await Connection.open(shell.port)
        client.send(b"x")
        await client.head()
        assert shell.server.busy == 1
        if way == "close":
            client.close()
        elif way == "reset":
            client.reset()
        else:
            client.writer.write_eof()
        await asyncio.wait_for(ended.wait(), 60)
        await until(lambda: not shell.server.connections)


async def test_time_is_bounded() -> None:
    limits = Limits(body_bytes=1000, receive_seconds=1000.0, idle_seconds=2000.0)
    async with serving(limits=limits) as shell:
        now = asyncio.get_running_loop().time()
        slow_head, slow_body, idle = [await Connection.open(shell.port) for _ in range(3)]
        slow_head.writer.write(b"POST / HT")
        slow_body.writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc")
        idle.send(b"x")
        assert (await idle.answer()).status == 200  # by now the others' bytes have been read, too
        shell.server.sweep(now + 900)
        await asyncio.sleep(0.02)
        assert len(shell.server.connections) == 3
        shell.server.sweep(now + 1500)
        await until(lambda: len(shell.server.connections) == 1)
        idle.send(b"y")
        assert (await idle.answer()).body == b"y"
        shell.server.sweep(now + 3000)
        await until(lambda: not shell.server.connections)
        for client in (slow_head, slow_body, idle):
            client.close()


async def test_a_client_that_reads_slowly_is_told_to_the_handler() -> None:
    flow: list[bool] = []
    goes_on = asyncio.Event()

    async def pours(request: Request, reply: Reply) -> None:
        def on_flow(flows: bool) -> None:
            flow.append(flows)
            if flows:
                goes_on.set()

        reply.on_flow = on_flow
        reply.start(200, (), None)
        while reply.flows:
            reply.send(bytes(65536))
        await goes_on.wait()
        reply.end()

    async with serving(pours) as shell:
        reader, writer = await asyncio.open_connection("127.0.0.1", shell.port, limit=1024)
        writer.write(post(b""))
        await until(lambda: flow)
        assert flow == [False]
        while not (await reader.read(65536)).endswith(b"0\r\n\r\n"):
            pass
        assert flow == [False, True]
        writer.close()


async def test_winding_down_closes_idle_connections_and_others_after_their_answer() -> None:
    go = asyncio.Event()

    async def waits(request: Request, reply: Reply) -> None:
        await go.wait()
        reply.send_whole(Answer(200))

    async with serving(waits) as shell:
        idle, busy = await Connection.open(shell.port), await Connection.open(shell.port)
        busy.send(b"x")
        await until(lambda: shell.server.busy == 1)
        shell.server.wind_down()
        assert await asyncio.wait_for(idle.reader.read(), 60) == b""
        go.set()
        response = await busy.answer()
        assert response.headers["connection"] == "close"
        assert await asyncio.wait_for(busy.reader.read(), 60) == b""
