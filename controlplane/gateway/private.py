"""The control address, where the daemon and Prometheus talk to the gateway.

    GET  /health, /ready                    as on the public address
    GET  /metrics                           own metrics
    GET  /control/v1/outcomes?after=UNIX    outcome windows that ended after then (`sources/gateways.py`)
    GET  /control/v1/state                  what it was told, and how it stands
    PUT  /control/v1/state                  a control message (`signals/control.py`)

All of /control needs the token; without one configured it is shut.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec

from controlplane.gateway.admission.steering import Judgement
from controlplane.gateway.inbound import JSON, Answer, Reply, Request, refuse
from controlplane.same_secret import same_secret
from controlplane.signals.control import UnreadableError

if TYPE_CHECKING:
    from controlplane.gateway.worker import Worker

_OPEN_PATHS = frozenset({b"/health", b"/ready", b"/metrics"})
_METHODS = {
    b"/control/v1/outcomes": (b"GET",),
    b"/control/v1/state": (b"GET", b"PUT"),
}


class Private:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def judge(self, request: Request) -> Answer | None:
        methods = (b"GET", b"HEAD") if request.path in _OPEN_PATHS else _METHODS.get(request.path)
        if methods is None:
            return refuse(404, "there is nothing here", code="unknown_path")
        if request.method not in methods:
            return refuse(
                405, f"{request.path.decode()} does not take this method", code="method_not_allowed"
            )
        if request.path in _OPEN_PATHS or self._worker.has_control_token(request):
            return None
        return refuse(401, "this needs the control token", "authentication_error", "invalid_token")

    async def handle(self, request: Request, reply: Reply) -> None:
        worker, path = self._worker, request.path
        match path, request.method:
            case b"/metrics", _:
                answer = await worker.metrics()
            case b"/ready", _:
                answer = worker.readiness()
            case b"/control/v1/outcomes", _:
                answer = await self._outcomes(request)
            case b"/control/v1/state", b"PUT":
                answer = await self._order(request)
            case b"/control/v1/state", _:
                answer = Answer(200, (JSON,), msgspec.json.encode(worker.state()))
            case _:
                answer = Answer(200, (JSON,), b'{"status":"ok"}')
        reply.send_whole(answer)

    async def _outcomes(self, request: Request) -> Answer:
        text = parse_qs(request.query.decode("latin-1")).get("after", ["0"])[-1]
        try:
            after = float(text)
        except ValueError:
            after = math.nan
        if not math.isfinite(after):
            return refuse(400, f"after is a time in Unix seconds (got {text[:50]!r})")
        return Answer(200, (JSON,), msgspec.json.encode(await self._worker.outcomes(after)))

    async def _order(self, request: Request) -> Answer:
        try:
            judgement, message = await self._worker.order(request.body)
        except UnreadableError as error:
            return refuse(400, str(error))
        status = 200 if judgement in (Judgement.TAKEN, Judgement.KNOWN) else 409
        said = {"judgement": judgement.value, "term": message.term, "version": message.version}
        return Answer(status, (JSON,), msgspec.json.encode(said))


def bearer_is(request: Request, token: str) -> bool:
    """Whether a request shows this token."""
    scheme, _, shown = (request.header(b"authorization") or b"").partition(b" ")
    return scheme.lower() == b"bearer" and same_secret(shown.strip(), token.encode())
