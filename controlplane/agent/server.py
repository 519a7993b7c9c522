"""The agent's endpoint: what it knows as JSON, and as metrics. It answers while the driver hangs.

    GET /v1/report?after=VERSION&wait=SECONDS   {"version": .., "now": .., "sample": NodeReport or NodeBlind}
    GET /metrics                                for Prometheus
    GET /healthz                                200 while the agent runs; a hang of the driver is none of ours

The first two want `Authorization: Bearer TOKEN` where there is a token. `after` and `wait` hold the answer
back until there is something newer than that version, so that an XID is known as soon as it is told.
"""

import ssl
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from controlplane.agent import metrics
from controlplane.agent.watch import Watch
from controlplane.same_secret import same_secret
from controlplane.signals.gpu import NodeSample

LONGEST_WAIT_SECONDS = 30.0
_CLIENT_MAX_BYTES = 4096
_HIGHEST_VERSION = 1 << 53


class Answer(msgspec.Struct, frozen=True):
    """What `/v1/report` answers. `now` is the agent's clock (Unix seconds), so that ours need not agree."""

    version: int
    now: float
    sample: NodeSample


def application(watch: Watch, token: str | None, wall: Callable[[], float]) -> web.Application:
    """The endpoint of one watch; without a token everybody may ask."""
    encoder = msgspec.json.Encoder()

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if token is not None and request.path != "/healthz":
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not same_secret(given, f"Bearer {token}".encode()):
                headers = {"WWW-Authenticate": "Bearer"}
                return web.json_response({"error": "a bearer token is needed"}, status=401, headers=headers)
        return await handler(request)

    async def report(request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "-1"))
            wait = float(request.query.get("wait", "0"))
        except ValueError:
            return _bad("after is a version and wait a number of seconds")
        if not (-1 <= after <= _HIGHEST_VERSION and 0 <= wait <= LONGEST_WAIT_SECONDS):
            return _bad(f"after must be -1 or a version, and wait at most {LONGEST_WAIT_SECONDS:g} s")
        if wait:
            await watch.changed(after, wait)
        answer = Answer(watch.version, wall(), watch.sample())
        return web.Response(body=encoder.encode(answer), content_type="application/json")

    async def metrics_page(request: web.Request) -> web.Response:
        return web.Response(body=metrics.page(watch), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(middlewares=[guard], client_max_size=_CLIENT_MAX_BYTES)
    app.router.add_get("/v1/report", report)
    app.router.add_get("/metrics", metrics_page)
    app.router.add_get("/healthz", healthz)
    return app


async def start(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Listen; the runner to be cleaned up, and the port. OSError where that cannot be."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    return runner, int(runner.addresses[0][1])


def _bad(sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=400)
