"""The routes of the page: itself, whole or what is asked for anew, the forms of orders, its own files."""

import gzip
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse, Response

from controlplane.api.alerts import Board
from controlplane.api.errors import ApiError
from controlplane.api.page import form, static
from controlplane.api.page.desk import Desk
from controlplane.api.page.history import History
from controlplane.api.page.places import Kind
from controlplane.api.page.rows import Wanted
from controlplane.api.settings import ApiSettings, TokenError
from controlplane.api.state import State
from controlplane.api.words import Name
from controlplane.signals.snapshot import FleetSnapshot

SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Asked(BaseModel):
    """What of the fleet a reader asks to see."""

    text: str = Field("", max_length=100)
    pool: str = Field("", max_length=253)
    troubled: bool = False
    page: int = Field(1, ge=1, le=1_000_000)
    node_page: int = Field(1, ge=1, le=1_000_000)


def routes(state: State, board: Board, history: History, settings: ApiSettings, index: str) -> APIRouter:
    """`index` is what those get who ask for no page."""
    router = APIRouter(include_in_schema=False)
    desk = Desk(state, board, history)

    @router.get("/")
    async def page(request: Request, asked: Annotated[Asked, Query()]) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(index)
        wanted = Wanted(**asked.model_dump())
        is_part = request.headers.get("hx-request") == "true"
        return _answer(request, await desk.page(wanted, is_part=is_part), "text/html; charset=utf-8")

    @router.get("/order")
    async def order(
        request: Request,
        kind: Kind,
        scope: Annotated[str, Query(pattern="^(pool|replica|node|)$")] = "",
        name: Name = "",
        setting: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        if kind not in ("hold", "release") and not (scope and name):
            raise ApiError(422, "invalid", f"an order of kind {kind} needs a scope and a name")
        about = form.About(scope, name, setting, _limit(state.snapshot(), scope, name))
        made = form.page(kind, about, state.now(), may_write=_may_write(settings))
        return _answer(request, str(made).encode(), "text/html; charset=utf-8")

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in static.KINDS:
            raise ApiError(404, "not_found", f"there is no /page/{name[:100]} here")
        answer = _answer(request, static.content(name), static.KINDS[name])
        answer.headers["cache-control"] = "public, max-age=31536000, immutable"
        return answer

    return router


def _answer(request: Request, content: bytes, kind: str) -> Response:
    headers = {"content-type": kind, "vary": "accept-encoding, hx-request"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        # Nothing secret is in it that a guess of its size could give away.
        content, headers["content-encoding"] = gzip.compress(content, 1), "gzip"
    headers["content-security-policy"] = SECURITY_POLICY
    return Response(content, headers=headers)


def _may_write(settings: ApiSettings) -> bool:
    try:
        return settings.token() is not None
    except TokenError:
        return True  # there is one; what is wrong with it is told to whoever shows it


def _limit(snapshot: FleetSnapshot | None, scope: str, name: str) -> str:
    """The limit of a replica now, to begin with in the form."""
    replica = snapshot.replicas.get(name) if snapshot is not None and scope == "replica" else None
    return "" if replica is None or replica.limit is None else str(replica.limit.slots)
