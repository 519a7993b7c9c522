"""The public address: which paths there are, who may use them, and what answers.

POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /v1/messages    an exchange
GET  /v1/models                the merged list
GET  /health, /ready           the process lives; new requests are welcome
GET  /metrics                  own metrics; where tenants have keys, with the control token only
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.exchange import Exchange
from controlplane.gateway.inbound import JSON, Answer, Header, Reply, Request, error_body, refuse
from controlplane.gateway.surroundings import Surroundings

if TYPE_CHECKING:
    from controlplane.gateway.worker import Worker

_ENDPOINTS = {endpoint.value.encode(): endpoint for endpoint in Endpoint}
_READ_PATHS = frozenset({b"/health", b"/ready", b"/metrics", b"/v1/models"})
_OPEN_PATHS = frozenset({b"/health", b"/ready"})
_COME_BACK: Header = (b"retry-after", b"5")


class Public:
    """Judges heads and answers requests (`inbound.Judge` and `inbound.Handler`)."""

    def __init__(self, around: Surroundings, worker: Worker) -> None:
        self._around = around
        self._worker = worker

    def judge(self, request: Request) -> Answer | None:
        path = request.path
        reads = path in _READ_PATHS
        if not reads and path not in _ENDPOINTS:
            return refuse(404, f"there is no {_shown(path)} here", code="unknown_path")
        allowed = (b"GET", b"HEAD") if reads else (b"POST",)
        if request.method not in allowed:
            text = f"{_shown(path)} takes {' and '.join(method.decode() for method in allowed)} only"
            answer = refuse(405, text, code="method_not_allowed")
            return msgspec.structs.replace(answer, headers=(JSON, (b"allow", b", ".join(allowed))))
        if path in _OPEN_PATHS:
            return None
        if path == b"/metrics":
            may_read = self._around.keyring.is_open or self._worker.has_control_token(request)
            return None if may_read else _UNAUTHORIZED
        return self._who(request) or (_STOPPING if self._worker.refuses and not reads else None)

    def _who(self, request: Request) -> Answer | None:
        tenant = self._around.keyring.tenant(request)
        if tenant is None:
            return _UNAUTHORIZED
        request.tenant = tenant
        return None

    async def handle(self, request: Request, reply: Reply) -> None:
        endpoint = _ENDPOINTS.get(request.path)
        if endpoint is not None:
            await Exchange(self._around, endpoint, request, reply, request.tenant).run()
        elif request.path == b"/v1/models":
            reply.send_whole(self._models(request.tenant))
        elif request.path == b"/metrics":
            reply.send_whole(await self._worker.metrics())
        elif request.path == b"/ready":
            reply.send_whole(self._worker.readiness())
        else:
            reply.send_whole(Answer(200, (JSON,), b'{"status":"ok"}'))

    def _models(self, tenant: str) -> Answer:
        around = self._around
        allowed = around.keyring.settings(tenant).models
        cards = around.fleet.model_list(allowed, around.door.now())
        if cards is None:
            body = error_body("no engine has said yet what it serves", "server_error", "no_ready_replica")
            return Answer(503, (JSON, _COME_BACK), body)
        return Answer(200, (JSON,), msgspec.json.encode({"object": "list", "data": cards}))


_UNAUTHORIZED = Answer(
    401,
    (JSON, (b"www-authenticate", b"Bearer")),
    error_body("this needs a valid API key", "authentication_error", "invalid_api_key"),
)
_STOPPING = Answer(
    503,
    (JSON, _COME_BACK),
    error_body("this gateway is shutting down", "server_error", "gateway_stopping"),
)


def _shown(path: bytes) -> str:
    return path[:100].decode("ascii", "replace")
