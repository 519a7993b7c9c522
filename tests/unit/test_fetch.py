"""Fetching from servers that are away, slow, lying or after our credentials."""

import asyncio
import gzip
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest
import pytest_asyncio
import trustme
import uvloop
from loopback import answer, ok, redirect, serving

from controlplane.sources.answer import Good, judge
from controlplane.sources.fetch import METRICS, Answer, Client, Errand, Failed, FailureKind
from controlplane.sources.secrets import Credentials
from controlplane.sources.settings import TlsSettings

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
LIMIT = 8 * 1024 * 1024
SECONDS = 60.0
"""For an answer that comes, however slow the machine."""
ERRAND = Errand("text/plain;version=0.0.4", SECONDS, LIMIT, "gzip")


def as_whom(token: Path) -> Errand:
    return Errand("text/plain", SECONDS, LIMIT, auth=Credentials.model_validate({"bearer": {"file": token}}))


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with Client() as client:
        yield client


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    return path


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def failed(result: Answer | Failed, kind: FailureKind, *words: str) -> None:
    assert isinstance(result, Failed), result
    assert (result.kind, [word for word in words if word not in result.detail]) == (kind, []), result
    assert "\n" not in result.detail


# --- good answers


async def test_a_page_is_asked_for_as_classic_text_and_read_whole(client: Client) -> None:
    async with serving({"/metrics": ok(PAGE)}) as server:
        result = await client.get(server.url("/metrics"), ERRAND)
        assert isinstance(result, Answer)
        assert (result.status, result.body) == (200, PAGE)
        assert judge(result.status, result.headers, result.body) == Good(PAGE)
        headers = server.requests[0].headers
        assert headers["accept"] == "text/plain;version=0.0.4"
        assert headers["accept-encoding"] == "gzip"
        assert "authorization" not in headers


async def test_the_connection_is_used_again_and_a_dead_one_is_replaced(client: Client) -> None:
    async with serving({"/metrics": ok(PAGE)}) as server:
        for _ in range(3):
            assert isinstance(await client.get(server.url("/metrics"), ERRAND), Answer)
        assert server.connections == 1
        port = server.port

        async def hang_up(writer: asyncio.StreamWriter) -> None:
            writer.write(ok(PAGE))

        server.answers["/metrics"] = hang_up  # answers properly, but ends the connection after each page
        for _ in range(3):
            assert isinstance(await client.get(f"http://127.0.0.1:{port}/metrics", ERRAND), Answer)


@pytest.mark.parametrize(
    "raw",
    [
        answer(b"", "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE),
        b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + PAGE,
        answer(PAGE, "Connection: close"),
    ],
    ids=["chunked", "http-1.0-close", "http-1.1-close"],
)
async def test_each_way_to_end_a_body(client: Client, raw: bytes) -> None:
    async with serving({"/metrics": raw}) as server:
        result = await client.get(server.url("/metrics"), ERRAND)
        assert isinstance(result, Answer)
        assert result.body == PAGE


async def test_gzip_is_left_to_the_judge_who_bounds_it(client: Client) -> None:
    bomb = gzip.compress(bytes(LIMIT + 1))
    async with serving(
        {
            "/packed": ok(gzip.compress(PAGE), "Content-Encoding: gzip"),
            "/bomb": ok(bomb, "Content-Encoding: gzip"),
            "/garbage": ok(PAGE, "Content-Encoding: gzip"),
        }
    ) as server:
        packed = await client.get(server.url("/packed"), ERRAND)
        assert isinstance(packed, Answer)
        assert judge(packed.status, packed.headers, packed.body) == Good(PAGE)
        result = await client.get(server.url("/bomb"), ERRAND)
        assert isinstance(result, Answer)
        assert len(result.body) < 20_000
        judged = judge(result.status, result.headers, result.body, limit_bytes=LIMIT)
        assert f"over {LIMIT} bytes" in getattr(judged, "detail", "")
        assert isinstance(await client.get(server.url("/garbage"), ERRAND), Answer)


# --- away


async def test_a_closed_port_is_named(client: Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        result = await client.get(f"http://127.0.0.1:{port}/metrics", ERRAND)
    failed(result, FailureKind.CONNECTION)
    assert result == Failed(FailureKind.CONNECTION, f"http://127.0.0.1:{port}/metrics: connection refused")


async def test_a_name_without_address_is_named(client: Client) -> None:
    result = await client.get("http://no-such-host.invalid:8000/metrics", ERRAND)
    failed(result, FailureKind.NAME, "http://no-such-host.invalid:8000/metrics: no-such-host.invalid")


async def test_a_flapping_target_fails_and_recovers(client: Client) -> None:
    async with serving({}) as server:  # accepts, then closes
        port = server.port
        failed(await client.get(server.url("/metrics"), ERRAND), FailureKind.CONNECTION, "without an answer")
        server.answers["/metrics"] = ok(PAGE)
        assert isinstance(await client.get(server.url("/metrics"), ERRAND), Answer)
    async with serving({"/metrics": ok(PAGE)}, port=port) as server:  # a new process on the old port
        assert isinstance(await client.get(server.url("/metrics"), ERRAND), Answer)


# --- slow


async def test_headers_and_then_a_drip_is_a_timeout_for_the_whole(client: Client) -> None:
    dripped = asyncio.Event()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", "Content-Length: 100000"))
        while True:
            writer.write(b"#")
            await writer.drain()
            dripped.set()
            await asyncio.sleep(0.01)

    async with serving({"/metrics": drip}) as server:
        short = Errand("text/plain", 0.3, LIMIT)
        told = f"127.0.0.1:{server.port}/metrics: no whole answer within 0.3 s"
        while not dripped.is_set():  # a slow machine may need all of it before the first drop
            failed(await client.get(server.url("/metrics"), short), FailureKind.TIMEOUT, told)


async def test_no_answer_at_all_is_a_timeout(client: Client) -> None:
    async def silence(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving({"/metrics": silence}) as server:
        result = await client.get(server.url("/metrics"), Errand("text/plain", 0.2, LIMIT))
        failed(result, FailureKind.TIMEOUT, "within 0.2 s")


# --- lying


CHUNK = b"%x\r\n%s\r\n" % (len(PAGE), PAGE)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (answer(PAGE, f"Content-Length: {len(PAGE) + 9}", "Connection: close"), FailureKind.CUT),
        (answer(CHUNK, "Transfer-Encoding: chunked", "Connection: close"), FailureKind.CUT),
        (answer(CHUNK[:20], "Transfer-Encoding: chunked", "Connection: close"), FailureKind.CUT),
        (answer(PAGE, f"Content-Length: {len(PAGE) - 9}"), FailureKind.PROTOCOL),
        (answer(PAGE, "Content-Length: -5"), FailureKind.PROTOCOL),
        (answer(PAGE, f"Content-Length: {len(PAGE)}", "Content-Length: 5"), FailureKind.PROTOCOL),
        (answer(CHUNK, "Transfer-Encoding: chunked", "Content-Length: 5"), FailureKind.PROTOCOL),
        (answer(b"zz\r\nrubbish", "Transfer-Encoding: chunked"), FailureKind.PROTOCOL),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", FailureKind.PROTOCOL),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", FailureKind.PROTOCOL),
    ],
    ids=[
        "body-shorter-than-length",
        "chunks-without-end",
        "chunk-cut",
        "body-longer-than-length",
        "negative-length",
        "two-lengths",
        "length-and-chunks",
        "no-chunk-size",
        "not-http",
        "endless-header",
    ],
)
async def test_a_lying_answer_is_a_failed_scrape_and_never_half_a_page(
    client: Client, raw: bytes, kind: FailureKind
) -> None:
    async with serving({"/metrics": raw}) as server:
        result = await client.get(server.url("/metrics"), ERRAND)
        failed(result, kind, f"http://127.0.0.1:{server.port}/metrics: ")
        assert "num_requests" not in result.detail, "a message quotes no body"


async def test_no_mutated_answer_raises_or_is_quoted(client: Client) -> None:
    rng = random.Random(1)
    whole = ok(gzip.compress(PAGE), "Content-Encoding: gzip", "Connection: close")
    kinds = set()
    async with serving({}) as server:
        for _ in range(400):
            mutated = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.randrange(256)
            raw = bytes(mutated[: rng.randrange(len(mutated) + 1)]) if rng.random() < 0.3 else bytes(mutated)

            async def send(writer: asyncio.StreamWriter, raw: bytes = raw) -> None:
                writer.write(raw)

            server.answers["/metrics"] = send
            result = await client.get(server.url("/metrics"), ERRAND)
            if isinstance(result, Failed):
                kinds.add(result.kind)
                assert result.detail.startswith(server.url("/metrics"))
                assert result.detail.isprintable()
            else:
                judged = judge(result.status, result.headers, result.body)
                assert not isinstance(judged, Good) or judged.body == PAGE
    assert {FailureKind.PROTOCOL, FailureKind.CUT, FailureKind.CONNECTION} <= kinds
    assert FailureKind.OWN_FAULT not in kinds


@pytest.mark.parametrize("told", [True, False], ids=["told-length", "only-closing-tells"])
async def test_one_byte_over_the_limit_is_refused(client: Client, told: bool) -> None:
    body = b"#" * LIMIT + b"\n"
    raw = ok(body) if told else answer(body, "Connection: close")
    async with serving({"/metrics": raw, "/fits": ok(body[1:])}) as server:
        result = await client.get(server.url("/metrics"), ERRAND)
        failed(result, FailureKind.TOO_LARGE, "the body is over 8388608 bytes")
        assert isinstance(await client.get(server.url("/fits"), ERRAND), Answer)


async def test_an_endless_body_is_given_up_at_the_limit(client: Client) -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(answer(b"", "Connection: close"))
        while True:
            writer.write(b"#" * 65536)
            await writer.drain()
            sent += 65536

    async with serving({"/metrics": endless}) as server:
        result = await client.get(server.url("/metrics"), Errand("text/plain", SECONDS, LIMIT))
        failed(result, FailureKind.TOO_LARGE)
        assert sent < 4 * LIMIT


@pytest.mark.parametrize(
    "status", ["401 Unauthorized", "403 Forbidden", "404 Not Found", "500 Oops", "204 No"]
)
async def test_any_status_but_200_is_a_failure_whatever_the_body(client: Client, status: str) -> None:
    body = b"" if status.startswith("204") else PAGE
    length = [] if status.startswith("204") else [f"Content-Length: {len(PAGE)}"]
    async with serving({"/metrics": answer(body, *length, status=status)}) as server:
        result = await client.get(server.url("/metrics"), ERRAND)
        failed(result, FailureKind.STATUS, f"HTTP status {status[:3]}")


async def test_only_who_asked_for_metrics_is_told_how_an_engine_has_them(client: Client) -> None:
    async with serving({"/none": answer(b"", "Content-Length: 0", status="404 Not Found")}) as server:
        for accept, told in ((METRICS, True), ("application/json", False)):
            result = await client.get(server.url("/none"), Errand(accept, SECONDS, LIMIT))
            assert isinstance(result, Failed)
            assert "HTTP status 404" in result.detail
            assert ("--enable-metrics" in result.detail) == told


# --- redirects


async def test_a_redirect_on_the_same_origin_keeps_the_credentials(client: Client, token: Path) -> None:
    answers = {"/metrics": redirect("/metrics/", "307 Temporary Redirect"), "/metrics/": ok(PAGE)}
    async with serving(answers) as server:
        assert isinstance(await client.get(server.url("/metrics"), as_whom(token)), Answer)
        sent = [request.headers.get("authorization") for request in server.requests]
        assert sent == ["Bearer s3cret", "Bearer s3cret"]


async def test_credentials_never_leave_the_origin_and_never_come_back(client: Client, token: Path) -> None:
    async with serving({}) as home, serving({}) as away:
        home.answers |= {"/metrics": redirect(away.url("/a")), "/back": ok(PAGE)}
        away.answers |= {"/a": redirect(home.url("/back"))}
        assert isinstance(await client.get(home.url("/metrics"), as_whom(token)), Answer)
        assert [request.headers.get("authorization") for request in home.requests] == ["Bearer s3cret", None]
        assert [request.headers.get("authorization") for request in away.requests] == [None]


async def test_another_name_of_the_same_host_is_another_host(client: Client, token: Path) -> None:
    async with serving({"/there": ok(PAGE)}) as server:
        server.answers["/metrics"] = redirect(server.url("/there", host="localhost"))
        assert isinstance(await client.get(server.url("/metrics"), as_whom(token)), Answer)
        assert [request.headers.get("authorization") for request in server.requests] == [
            "Bearer s3cret",
            None,
        ]


async def test_credentials_in_a_location_are_neither_used_nor_told(client: Client) -> None:
    async with serving({"/there": answer(b"", "Content-Length: 0", status="401 Unauthorized")}) as server:
        server.answers["/metrics"] = redirect(f"http://eve:pw123@127.0.0.1:{server.port}/there")
        result = await client.get(server.url("/metrics"), ERRAND)
        failed(result, FailureKind.STATUS, "HTTP status 401")
        assert "pw123" not in result.detail
        assert server.requests[1].headers.get("authorization") is None


async def test_three_redirects_are_followed_a_loop_is_not(client: Client) -> None:
    async with serving(
        {
            "/1": redirect("/2"),
            "/2": redirect("/3"),
            "/3": redirect("/4"),
            "/4": ok(PAGE),
            "/0": redirect("/1"),
            "/loop": redirect("/loop"),
        }
    ) as server:
        assert isinstance(await client.get(server.url("/1"), ERRAND), Answer)
        server.requests.clear()
        failed(await client.get(server.url("/0"), ERRAND), FailureKind.REDIRECT, "more than 3 redirects")
        assert [request.path for request in server.requests] == ["/0", "/1", "/2", "/3"]
        failed(await client.get(server.url("/loop"), ERRAND), FailureKind.REDIRECT, "/loop: more than 3")


@pytest.mark.parametrize(
    "location",
    ["ftp://127.0.0.1/x", "file:///etc/passwd", "", "http://[oops/", "data:,vllm:num_requests_running"],
)
async def test_a_redirect_to_no_http_address_is_refused(client: Client, location: str) -> None:
    async with serving({"/metrics": redirect(location)}) as server:
        failed(await client.get(server.url("/metrics"), ERRAND), FailureKind.REDIRECT, "no address")
        assert len(server.requests) == 1


async def test_a_failure_behind_a_redirect_blames_the_right_host(client: Client) -> None:
    async with serving({}) as home, serving({}) as away:
        home.answers["/metrics"] = redirect(f"http://eve:pw123@127.0.0.1:{away.port}/a?key=abc")
        result = await client.get(home.url("/metrics"), ERRAND)
        where = f"{home.url('/metrics')} (redirected to {away.url('/a')})"
        detail = f"{where}: it closed the connection without an answer"
        assert result == Failed(FailureKind.CONNECTION, detail)


# --- credentials


async def test_user_and_password_are_sent_as_basic_auth(client: Client, token: Path) -> None:
    auth = Credentials.model_validate({"basic": {"username": "scraper", "password": {"file": token}}})
    async with serving({"/metrics": ok(PAGE)}) as server:
        await client.get(server.url("/metrics"), Errand("text/plain", SECONDS, LIMIT, auth=auth))
        await client.get(f"http://ann:pw@127.0.0.1:{server.port}/metrics", ERRAND)
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Basic c2NyYXBlcjpzM2NyZXQ=", "Basic YW5uOnB3"]


async def test_a_token_is_read_anew_when_its_file_changes(client: Client, token: Path) -> None:
    async with serving({"/metrics": ok(PAGE)}) as server:
        await client.get(server.url("/metrics"), as_whom(token))
        write(token, b"rotated")
        await client.get(server.url("/metrics"), as_whom(token))
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Bearer s3cret", "Bearer rotated"]


async def test_a_missing_token_is_a_failure_that_names_the_file(client: Client, tmp_path: Path) -> None:
    async with serving({"/metrics": ok(PAGE)}) as server:
        result = await client.get(server.url("/metrics"), as_whom(tmp_path / "gone"))
        failed(result, FailureKind.CREDENTIALS, str(tmp_path / "gone"))
        assert server.requests == []


async def test_a_url_with_secrets_is_shown_without_them(client: Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        result = await client.get(f"http://ann:pw@127.0.0.1:{port}/m?key=abc", ERRAND)
    assert result == Failed(FailureKind.CONNECTION, f"http://127.0.0.1:{port}/m: connection refused")


@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "http://[::1", "nonsense", "http://h:99999/"])
async def test_what_is_no_url_is_a_failure_too(client: Client, url: str) -> None:
    result = await client.get(url, ERRAND)
    assert isinstance(result, Failed)
    assert result.kind is FailureKind.OWN_FAULT


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def server_context(authority: trustme.CA, name: str, *, ask_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if ask_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def over_tls(**tls: object) -> Errand:
    return Errand("text/plain", SECONDS, LIMIT, tls=TlsSettings.model_validate(tls))


async def test_tls_with_our_own_authority(client: Client, authority: trustme.CA, ca_file: Path) -> None:
    async with serving({"/metrics": ok(PAGE)}, tls=server_context(authority, "127.0.0.1")) as server:
        assert isinstance(await client.get(server.url("/metrics"), over_tls(ca_file=ca_file)), Answer)
        result = await client.get(server.url("/metrics"), over_tls())
        failed(result, FailureKind.TLS, "its certificate is not accepted", "local issuer")


async def test_tls_with_a_wrong_name(client: Client, authority: trustme.CA, ca_file: Path) -> None:
    async with serving({"/metrics": ok(PAGE)}, tls=server_context(authority, "vllm.chat.svc")) as server:
        url = server.url("/metrics")
        failed(await client.get(url, over_tls(ca_file=ca_file)), FailureKind.TLS, "'127.0.0.1'")
        named = over_tls(ca_file=ca_file, server_name="vllm.chat.svc")
        assert isinstance(await client.get(url, named), Answer)
        assert isinstance(await client.get(url, over_tls(insecure_skip_verify=True)), Answer)


async def test_plain_http_behind_an_https_url(client: Client) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", "Content-Length: 0", status="400 Bad Request"))
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        result = await client.get(f"https://127.0.0.1:{port}/metrics", over_tls())
        failed(result, FailureKind.TLS, "no TLS")


async def test_a_broken_ca_file_is_named_and_a_mended_one_is_used(
    client: Client, authority: trustme.CA, tmp_path: Path
) -> None:
    async with serving({"/metrics": ok(PAGE)}, tls=server_context(authority, "127.0.0.1")) as server:
        mended = tmp_path / "mended.pem"
        errand = over_tls(ca_file=mended)
        failed(await client.get(server.url("/metrics"), errand), FailureKind.CREDENTIALS, "no such file")
        write(mended, b"nonsense")
        failed(await client.get(server.url("/metrics"), errand), FailureKind.CREDENTIALS, str(mended))
        write(mended, authority.cert_pem.bytes())
        assert isinstance(await client.get(server.url("/metrics"), errand), Answer)


async def test_our_certificate_is_shown_to_the_origin_only(
    client: Client, authority: trustme.CA, ca_file: Path, tmp_path: Path
) -> None:
    ours = authority.issue_cert("controlplane")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    ours.cert_chain_pems[0].write_to_path(cert)
    ours.private_key_pem.write_to_path(key)
    errand = over_tls(ca_file=ca_file, cert_file=cert, key_file=key)
    context = server_context(authority, "127.0.0.1", ask_client=True)
    async with serving({"/a": ok(PAGE)}, tls=context) as away, serving({}, tls=context) as home:
        home.answers |= {"/metrics": redirect(away.url("/a"))}
        assert isinstance(await client.get(home.url("/metrics"), errand), Answer)
        assert [request.client_certificate for request in home.requests] == [True]
        assert [request.client_certificate for request in away.requests] == [False]


async def test_https_to_http_is_a_downgrade_that_loses_the_credentials(
    client: Client, authority: trustme.CA, ca_file: Path, token: Path
) -> None:
    context = server_context(authority, "127.0.0.1")
    async with serving({"/a": ok(PAGE)}) as plain, serving({}, tls=context) as home:
        home.answers["/metrics"] = redirect(plain.url("/a"))
        errand = Errand(
            "text/plain",
            SECONDS,
            LIMIT,
            auth=Credentials.model_validate({"bearer": {"file": token}}),
            tls=TlsSettings(ca_file=ca_file),
        )
        assert isinstance(await client.get(home.url("/metrics"), errand), Answer)
        assert home.requests[0].headers["authorization"] == "Bearer s3cret"
        assert "authorization" not in plain.requests[0].headers


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_both_event_loops_tell_the_same_trouble(
    run: Callable[[Coroutine[None, None, None]], None], authority: trustme.CA, ca_file: Path
) -> None:
    """The loops raise different exceptions for the same thing; the other tests use asyncio's."""

    async def troubles() -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        context = server_context(authority, "vllm.chat.svc")
        trusting = over_tls(ca_file=ca_file)
        async with (
            Client() as client,
            serving({"/cut": answer(PAGE, "Content-Length: 999", "Connection: close")}) as server,
            serving({"/metrics": ok(PAGE)}, tls=context) as secure,
            await asyncio.start_server(plain, "127.0.0.1") as listener,
        ):
            unused = socket.socket()
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            result = await client.get(f"http://127.0.0.1:{port}/", ERRAND)
            failed(result, FailureKind.CONNECTION, "connection refused")
            unused.close()
            failed(await client.get("http://no-such-host.invalid/", ERRAND), FailureKind.NAME, "no address")
            failed(await client.get(server.url("/cut"), ERRAND), FailureKind.CUT, "cut short")
            failed(await client.get(server.url("/none"), ERRAND), FailureKind.CONNECTION, "without an answer")
            failed(await client.get(secure.url("/metrics"), trusting), FailureKind.TLS, "ip address mismatch")
            port = listener.sockets[0].getsockname()[1]
            failed(await client.get(f"https://127.0.0.1:{port}/", trusting), FailureKind.TLS, "no TLS")

    run(troubles())
