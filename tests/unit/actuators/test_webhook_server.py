"""The webhook against a server as a user would write it: aiohttp, TLS, the library of the standard."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from actuator_fakes import SNAPSHOT, decision
from aiohttp import web
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.actuators.webhook import Webhook
from controlplane.commands.actuators import sender
from controlplane.sections import WebhookSection
from controlplane.sources.fetch import Client

SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"


class Receiver:
    """Checks every signature, refuses what it has seen and what is older, shows what it holds."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.seen: set[str] = set()
        self.refused: list[str] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/limits", self.take)
        app.router.add_get("/limits/{target}", self.show)
        return app

    async def take(self, request: web.Request) -> web.Response:
        try:
            message: Any = Verifier(SECRET).verify(await request.read(), dict(request.headers))
        except WebhookVerificationError as error:
            self.refused.append(str(error))
            return web.Response(status=401)
        if message["sequence"] > self.sequences.get(message["target"], 0):
            self.sequences[message["target"]] = message["sequence"]
            self.limits[message["target"]] = message["value"]
        self.seen.add(request.headers["webhook-id"])
        return web.Response(status=204)

    async def show(self, request: web.Request) -> web.Response:
        Verifier(SECRET).verify(b"", dict(request.headers), json_parse=False)
        value = self.limits.get(request.match_info["target"])
        return web.Response(status=404) if value is None else web.json_response({"value": value})


@asynccontextmanager
async def serving(app: web.Application, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/limits"
    finally:
        await runner.cleanup()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return path


def webhook(client: Client, url: str, secret: Path, **changes: Any) -> Webhook:
    """Without a `timeout` it waits for each answer, however slow the machine."""
    settings = WebhookSection.model_validate({"url": url, "secret": {"file": secret}, **changes})
    send = sender(client, settings.tls)

    async def patient(call: Call) -> Reply:
        return await send(msgspec.structs.replace(call, timeout_seconds=60.0))

    chosen = send if "timeout" in changes else patient
    return Webhook(settings, chosen, settings.secret.read, lambda: SNAPSHOT)


async def test_over_tls_with_an_authority_and_a_certificate_of_our_own(tmp_path: Path, secret: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = authority.issue_cert("controlplane")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_REQUIRED
    tls = {
        "ca_file": tmp_path / "ca.pem",
        "cert_file": tmp_path / "cert.pem",
        "key_file": tmp_path / "key.pem",
    }
    receiver = Receiver()
    async with Client() as client, serving(receiver.app(), server) as url:
        read_back = f"{url}/{{target}}"
        await webhook(client, url, secret, read_back=read_back, tls=tls).apply(decision(58))
        assert receiver.limits == {"a:1": 58}
        assert receiver.refused == []
        with pytest.raises(CallFailedError, match="its certificate is not accepted"):
            await webhook(client, url, secret).apply(decision(57))
        assert receiver.limits == {"a:1": 58}


async def test_a_receiver_with_another_secret_takes_nothing(tmp_path: Path) -> None:
    other = tmp_path / "secret"
    other.write_text(base64.b64encode(b"x" * 32).decode())
    receiver = Receiver()
    async with Client() as client, serving(receiver.app()) as url:
        with pytest.raises(CallFailedError, match="HTTP status 401"):
            await webhook(client, url, other).apply(decision(58))
    assert receiver.limits == {}
    assert receiver.refused == ["No matching signature found"]


def answering(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", handler)
    return app


async def test_servers_that_are_slow_endless_or_send_us_elsewhere(secret: Path) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        match request.path:
            case "/limits/slow":
                await asyncio.sleep(600)
            case "/limits/endless":
                reply = web.StreamResponse()
                await reply.prepare(request)
                while True:
                    await reply.write(b"x" * 65536)
            case "/limits/away":
                raise web.HTTPTemporaryRedirect("/limits/evil")
        return web.Response(status=204)

    async with Client() as client, serving(answering(handle)) as url:
        for path, changes, sentence in (
            ("slow", {"timeout": "200ms"}, "no whole answer within 0.2 s"),
            ("endless", {}, "the body is over 65536 bytes"),
            ("away", {}, "HTTP status 307: redirects are not followed"),
        ):
            hook = webhook(client, f"{url}/{path}", secret, **changes)
            with pytest.raises(CallFailedError) as failed:
                await hook.apply(decision(58))
            assert str(failed.value) == f"{url}/{path}: {sentence}"
    assert asked == ["/limits/slow", "/limits/endless", "/limits/away"]


async def test_the_example_receiver_of_the_documentation_takes_limits(secret: Path) -> None:
    """What docs/webhook.md shows runs as it stands there."""
    page = (Path(__file__).parents[3] / "docs" / "webhook.md").read_text()
    source = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "example", "SECRET": SECRET}
    exec(compile(source, "webhook.md", "exec"), names)
    async with Client() as client, serving(names["app"]) as url:
        await webhook(client, url, secret, read_back=f"{url}/{{target}}").apply(decision(58))
        names["SECRET"] = base64.b64encode(b"y" * 32).decode()
        with pytest.raises(CallFailedError, match="HTTP status 401"):
            await webhook(client, url, secret).apply(decision(57))
    assert names["limits"] == {"a:1": 58}
