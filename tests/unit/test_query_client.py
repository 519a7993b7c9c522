"""The client of the query API: one request to one host, for a bounded time and a bounded size."""

import asyncio
import base64
import gzip
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from loopback import Script, answer, ok, redirect, serving

from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.sources.prometheus_settings import PrometheusSettings
from controlplane.sources.query_answer import Answer, Retry
from controlplane.sources.query_client import QueryClient

PATH = "/api/v1/query"
BODY = b'{"status":"success","data":{"resultType":"scalar","result":[1764000600.0,"7"]}}'
SECRET = "a-secret-that-must-not-be-told"


def json_ok(body: bytes = BODY, *headers: str) -> bytes:
    return ok(body, *headers, kind="application/json")


async def ask(
    url: str, *, seconds: float = 60.0, limit: int = 1 << 20, at: float | None = None, **settings: object
) -> Answer:
    """One query in a thread, as the source asks."""
    client = QueryClient(PrometheusSettings.model_validate({"url": url, **settings}), limit_bytes=limit)
    try:
        return await asyncio.to_thread(client.query, "up", time.monotonic() + seconds, at)
    finally:
        client.close()


def failed(result: Answer, reason: Reason, *words: str) -> None:
    assert isinstance(result.failure, Unknown), result
    assert result.failure.reason is reason
    assert result.retry is Retry.BACKOFF
    for word in words:
        assert word in result.failure.detail
    assert SECRET not in repr(result)
    assert PATH not in result.failure.detail


async def test_the_query_its_time_and_its_limit_are_sent() -> None:
    async with serving({PATH: json_ok()}) as server:
        result = await ask(server.url(""), seconds=60.0, at=1764000600.25)
        assert isinstance(result.number, Known)
        assert result.number.value == 7
        query = parse_qs(urlsplit(server.requests[0].path).query)
        assert query["query"] == ["up"]
        assert query["time"] == ["1764000600.250"]
        assert 10.0 < float(query["timeout"][0]) <= 60.0
        await ask(server.url(""))
        assert "time" not in parse_qs(urlsplit(server.requests[1].path).query)


async def test_a_path_before_the_api_is_kept() -> None:
    async with serving({"/prom/api/v1/query": json_ok()}) as server:
        assert isinstance((await ask(server.url("/prom/"))).number, Known)


# --- credentials


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    return path


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Again", "308 For Ever"])
async def test_a_redirect_is_not_followed_and_no_other_host_sees_credentials(
    status: str, token: Path
) -> None:
    async with serving({PATH: json_ok()}) as other:
        elsewhere = redirect(other.url(PATH, "localhost"), status)
        async with serving({PATH: elsewhere}) as server:
            result = await ask(server.url(""), auth={"bearer": {"file": token}})
            failed(result, Reason.UNAVAILABLE, status[:3], "redirect")
            assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
            assert len(server.requests) == 1
            assert other.connections == 0


async def test_a_renewed_token_is_taken_up(token: Path) -> None:
    async with serving({PATH: json_ok()}) as server:
        settings = PrometheusSettings.model_validate(
            {"url": server.url(""), "auth": {"bearer": {"file": token}}}
        )
        client = QueryClient(settings)
        await asyncio.to_thread(client.query, "up", time.monotonic() + 60)
        await asyncio.to_thread(token.write_text, "renewed")
        await asyncio.to_thread(client.query, "up", time.monotonic() + 60)
        client.close()
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == [f"Bearer {SECRET}", "Bearer renewed"]
        assert SECRET not in repr(settings)


async def test_basic_credentials_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_PASSWORD", SECRET)
    basic = {"username": "controlplane", "password": {"env": "PROMETHEUS_PASSWORD"}}
    async with serving({PATH: json_ok()}) as server:
        await ask(server.url(""), auth={"basic": basic})
        kind, _, pair = server.requests[0].headers["authorization"].partition(" ")
        assert (kind, base64.b64decode(pair).decode()) == ("Basic", f"controlplane:{SECRET}")


async def test_a_missing_secret_is_told_and_nothing_is_sent_without_it(tmp_path: Path) -> None:
    async with serving({PATH: json_ok()}) as server:
        result = await ask(server.url(""), auth={"bearer": {"file": tmp_path / "none"}})
        failed(result, Reason.CONFIGURATION_ERROR, str(tmp_path / "none"), "No such file")
        assert server.connections == 0


async def test_netrc_and_proxy_variables_of_the_user_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"default login someone password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving({}) as proxy, serving({PATH: json_ok()}) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert isinstance((await ask(server.url(""))).number, Known)
        assert "authorization" not in server.requests[0].headers
        assert proxy.connections == 0


# --- time


async def test_a_server_that_hangs() -> None:
    never = asyncio.Event()

    async def hang(_: asyncio.StreamWriter) -> None:
        await never.wait()

    async with serving({PATH: hang}) as server, asyncio.timeout(60):
        failed(await ask(server.url(""), seconds=0.3), Reason.UNAVAILABLE, "no whole answer within 0.3 s")
        never.set()


async def test_a_server_that_drips() -> None:
    """Each byte comes well within the timeout of one read; there is no end to them."""
    sent = 0

    async def drip(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(answer(b"", "Content-Length: 1000000", kind="application/json"))
        while True:
            writer.write(b" ")
            await writer.drain()
            sent += 1
            await asyncio.sleep(0.05)

    async with serving({PATH: drip}) as server:
        while not sent:  # a slow machine may need all of it before the first drop
            failed(await ask(server.url(""), seconds=0.4), Reason.UNAVAILABLE, "no whole answer within 0.4 s")


async def test_without_time_left_nothing_is_asked() -> None:
    async with serving({PATH: json_ok()}) as server:
        failed(await ask(server.url(""), seconds=-1.0), Reason.UNAVAILABLE, "longer than its timeout")
        assert server.connections == 0


@pytest.mark.parametrize("status", ["429 Slow Down", "500 Oh", "502 Bad", "503 Busy", "504 Late"])
async def test_a_failure_is_not_tried_again_at_once(status: str) -> None:
    async with serving({PATH: answer(b"", "Content-Length: 0", "Retry-After: 0", status=status)}) as server:
        failed(await ask(server.url("")), Reason.UNAVAILABLE, status[:3])
        assert len(server.requests) == 1


# --- size


def endless(*headers: str) -> tuple[Script, list[int]]:
    """A server that would send a gigabyte, and how many bytes it has sent."""
    sent = [0]

    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", *headers, kind="application/json"))
        chunk = b" " * 65536
        while sent[0] < 1 << 30:
            writer.write(chunk)
            await writer.drain()
            sent[0] += len(chunk)

    return pour, sent


@pytest.mark.parametrize("headers", [(f"Content-Length: {1 << 30}",), ()], ids=["with-length", "until-close"])
async def test_a_body_of_a_gigabyte_is_not_read(headers: tuple[str, ...]) -> None:
    pour, sent = endless(*headers)
    async with serving({PATH: pour}) as server:
        failed(await ask(server.url(""), limit=1 << 20), Reason.UNAVAILABLE, "over 1048576 bytes")
    assert sent[0] < 64 << 20, "what lies in buffers of both ends"


async def test_a_redirect_with_a_body_of_a_gigabyte_is_not_read() -> None:
    sent = [0]

    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 1073741824\r\n\r\n")
        while sent[0] < 1 << 30:
            writer.write(b" " * 65536)
            await writer.drain()
            sent[0] += 65536

    async with serving({PATH: pour}) as server:
        failed(await ask(server.url(""), limit=1 << 20), Reason.UNAVAILABLE, "over 1048576 bytes")
    assert sent[0] < 64 << 20


async def test_a_small_gzip_of_a_large_body_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * (64 << 20), 9)
    assert len(bomb) < 1 << 17
    async with serving({PATH: json_ok(bomb, "Content-Encoding: gzip")}) as server:
        failed(await ask(server.url(""), limit=1 << 20), Reason.UNAVAILABLE, "over 1048576 bytes")


async def test_gzip_and_chunks_are_read() -> None:
    packed = gzip.compress(BODY)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:9], packed[9:])) + b"0\r\n\r\n"
    headers = ("Content-Encoding: gzip", "Transfer-Encoding: chunked")
    async with serving({PATH: answer(chunks, *headers, kind="application/json")}) as server:
        assert isinstance((await ask(server.url(""))).number, Known)


# --- not an answer


async def test_a_cut_answer_is_none() -> None:
    cut = answer(BODY[:-5], f"Content-Length: {len(BODY)}", "Connection: close", kind="application/json")
    chunked = answer(b"50\r\n" + BODY[:40], "Transfer-Encoding: chunked", kind="application/json")
    for body in (cut, chunked):
        async with serving({PATH: body}) as server:
            failed(await ask(server.url("")), Reason.UNAVAILABLE)


async def test_a_cut_answer_that_would_be_json_is_none() -> None:
    """Half an answer must not pass for a whole one, even if it parses."""
    long = answer(BODY, f"Content-Length: {len(BODY) + 10}", "Connection: close", kind="application/json")
    async with serving({PATH: long}) as server:
        failed(await ask(server.url("")), Reason.UNAVAILABLE, "cut")


async def test_what_is_no_http() -> None:
    async with serving({PATH: b"SSH-2.0-OpenSSH\r\n\r\n"}) as server:
        failed(await ask(server.url("")), Reason.UNAVAILABLE)


async def test_nobody_there_and_no_such_name() -> None:
    with socket.socket() as silent:  # nobody else gets its port, and it does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        failed(await ask(f"http://127.0.0.1:{port}"), Reason.UNAVAILABLE, "Connection refused")
    failed(await ask("http://prometheus.invalid:9090"), Reason.UNAVAILABLE, "cannot connect")


async def test_the_connection_is_kept() -> None:
    async with serving({PATH: json_ok()}) as server:
        client = QueryClient(PrometheusSettings(url=server.url("")))
        for _ in range(3):
            await asyncio.to_thread(client.query, "up", time.monotonic() + 60)
        client.close()
        assert (len(server.requests), server.connections) == (3, 1)


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def tls_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
async def test_tls_trusts_the_given_authority_and_no_other(authority: trustme.CA, ca_file: Path) -> None:
    async with serving({PATH: json_ok()}, tls=tls_context(authority, "127.0.0.1")) as server:
        assert isinstance((await ask(server.url(""), tls={"ca_file": ca_file})).number, Known)
        failed(await ask(server.url("")), Reason.UNAVAILABLE, "certificate is not accepted")
        another = ca_file.with_name("another.pem")
        trustme.CA().cert_pem.write_to_path(another)
        failed(await ask(server.url(""), tls={"ca_file": another}), Reason.UNAVAILABLE, "not accepted")
        skipped = await ask(server.url(""), tls={"insecure_skip_verify": True})
        assert isinstance(skipped.number, Known)


async def test_tls_checks_the_name(authority: trustme.CA, ca_file: Path) -> None:
    async with serving({PATH: json_ok()}, tls=tls_context(authority, "prometheus.test")) as server:
        failed(await ask(server.url(""), tls={"ca_file": ca_file}), Reason.UNAVAILABLE, "127.0.0.1")
        named = {"ca_file": ca_file, "server_name": "prometheus.test"}
        assert isinstance((await ask(server.url(""), tls=named)).number, Known)


async def test_a_missing_authority_file_is_told(tmp_path: Path) -> None:
    result = await ask("https://127.0.0.1:1", tls={"ca_file": tmp_path / "none.pem"})
    failed(result, Reason.CONFIGURATION_ERROR, "none.pem")
