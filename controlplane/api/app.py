"""The routes: the reading half is open, the writing half is behind the guard.

`/openapi.json` describes all of them; there is no documentation page, because the usual ones load their
scripts from other people's servers.
"""

import asyncio
import logging
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client.exposition import choose_encoder
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from controlplane import __version__
from controlplane.api import answers, health, metrics, shapes
from controlplane.api.errors import ApiError, error_response, sentence
from controlplane.api.guard import Guard
from controlplane.api.settings import ApiSettings
from controlplane.api.state import State
from controlplane.api.stream import MOST_STREAMS, StreamResponse, Streams
from controlplane.signals.decision import Hold, Override
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.units import seconds

MOST_ITEMS = 1000

_INDEX = """controlplane

/healthz                  whether the loop runs
/readyz                   whether its answers can be relied on
/metrics                  own metrics (Prometheus text and OpenMetrics)
/api/v1/fleet             the whole in one page
/api/v1/pools             pools; /api/v1/pools/NAME for one
/api/v1/replicas          replicas; /api/v1/replicas/NAME for one
/api/v1/events            what happened
/api/v1/decisions         what was decided, and why
/api/v1/orders            the hold and the overrides of people
/api/v1/stream            all of it as server-sent events
/openapi.json             all shapes
"""

_log = logging.getLogger(__name__)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("control characters and line breaks have no place here")
    return text


Name = Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(_one_line)]
Words = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_one_line)]
By = Annotated[Name, Query(description="who orders it")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS)]
Since = Annotated[str | None, Query(description="Unix seconds, or how long ago: `15m`", max_length=40)]
Filter = Annotated[Name | None, Query()]


class HoldOrder(BaseModel):
    """Freeze every actuator."""

    model_config = ConfigDict(extra="forbid")

    reason: Words
    by: Name


class OverrideOrder(BaseModel):
    """A person's word on one thing; it wins over every law until it is taken back or `until`."""

    model_config = ConfigDict(extra="forbid")

    scope: Literal["pool", "replica", "node"]
    name: Name
    setting: Name
    value: Name
    reason: Words
    by: Name
    until: Annotated[float, Field(allow_inf_nan=False)] | None = Field(None, description="Unix seconds")


def create_app(state: State, settings: ApiSettings, streams: Streams | None = None) -> FastAPI:
    """The API of the daemon behind `state`. `streams` is given by who wants to end them."""
    app = FastAPI(
        title="controlplane",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": shapes.Error, "description": "a sentence about what went wrong"}},
    )
    _add_errors(app)
    _add_probes(app, state)
    streams = Streams(state) if streams is None else streams
    _add_metrics(app, state, streams)
    _add_fleet(app, state)
    _add_records(app, state)
    _add_stream(app, streams)
    _add_orders(app, state)
    app.add_middleware(Guard, settings=settings)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return error_response(error.status, error.code, error.message)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(422, "invalid", sentence(error))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}"
        if error.status_code == 404:
            return error_response(404, "not_found", f"there is no {request.url.path} here; / lists what is")
        if error.status_code == 405:
            return error_response(405, "method_not_allowed", f"{what} is not possible", error.headers)
        return error_response(error.status_code, "refused", f"{what}: {error.detail}", error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, _: Exception) -> Response:
        return error_response(500, "internal", f"{request.url.path} failed; the log says why")


def _add_probes(app: FastAPI, state: State) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return PlainTextResponse(_INDEX)

    def answer(trouble: str, code: str) -> shapes.Health:
        if trouble:
            raise ApiError(503, code, trouble)
        status = state.status()
        return shapes.Health(
            status="ok",
            last_tick_at=status.last_tick_at,
            tick_interval_seconds=status.tick_interval_seconds,
            hold=state.orders().hold is not None,
            troubles=list(status.troubles),
        )

    @app.get("/healthz", tags=["probes"])
    async def healthz() -> shapes.Health:
        """Whether the loop runs; 503 with the reason where it is stuck: restart it then."""
        return answer(health.stuck(state.status(), state.now()), "loop_stuck")

    @app.get("/readyz", tags=["probes"])
    async def readyz() -> shapes.Health:
        """Whether the answers can be relied on: a first tick has run, and the loop runs."""
        return answer(health.not_ready(state.status(), state.now()), "not_ready")


def _add_metrics(app: FastAPI, state: State, streams: Streams) -> None:
    @app.get("/metrics", response_class=PlainTextResponse, tags=["metrics"])
    async def own_metrics(request: Request) -> Response:
        """Own metrics as Prometheus text, or as OpenMetrics for who asks for that."""
        _, content_type = choose_encoder(request.headers.get("accept", ""))
        openmetrics = content_type.startswith("application/openmetrics-text")
        snapshot, status, orders, now = state.snapshot(), state.status(), state.orders(), state.now()

        def write() -> bytes:
            page = metrics.page(
                *(snapshot, status, orders, now), open_streams=len(streams), dropped_streams=streams.dropped
            )
            return page.text(openmetrics=openmetrics).encode()

        # A large fleet takes a while to write; the loop ticks meanwhile.
        return Response(await asyncio.to_thread(write), media_type=content_type)


def _add_fleet(app: FastAPI, state: State) -> None:
    def seen() -> FleetSnapshot:
        snapshot = state.snapshot()
        if snapshot is None:
            raise ApiError(503, "not_ready", "the first tick has not run yet")
        return snapshot

    @app.get("/api/v1/fleet", tags=["fleet"])
    async def fleet() -> shapes.Fleet:
        """Pools, orders and troubles as of the last tick."""
        return answers.fleet_of(seen(), state.orders(), state.status(), state.now())

    @app.get("/api/v1/pools", tags=["fleet"])
    async def pools() -> shapes.Pools:
        objectives, now = state.status().objectives, state.now()
        return shapes.Pools(
            items=[answers.pool_of(pool, objectives.get(pool.name), now) for pool in seen().pools.values()]
        )

    @app.get("/api/v1/pools/{name:path}", tags=["fleet"])
    async def pool(name: str) -> shapes.Pool:
        found = seen().pools.get(name)
        if found is None:
            raise ApiError(404, "no_such_pool", f"there is no pool {name[:100]!r}")
        return answers.pool_of(found, state.status().objectives.get(name), state.now())

    @app.get("/api/v1/replicas", tags=["fleet"])
    async def replicas(
        pool: Filter = None, limit: Limit = 100, offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0
    ) -> shapes.Replicas:
        """Replicas in the order of their discovery, a page at a time; of one pool where it is named."""
        chosen = [replica for replica in seen().replicas.values() if pool in (None, replica.pool)]
        now = state.now()
        return shapes.Replicas(
            items=[answers.replica_of(replica, now) for replica in chosen[offset : offset + limit]],
            total=len(chosen),
            limit=limit,
            offset=offset,
        )

    @app.get("/api/v1/replicas/{name:path}", tags=["fleet"])
    async def replica(name: str) -> shapes.Replica:
        found = seen().replicas.get(name)
        if found is None:
            raise ApiError(404, "no_such_replica", f"there is no replica {name[:100]!r}")
        return answers.replica_of(found, state.now())


def _add_records(app: FastAPI, state: State) -> None:
    def start(since: str | None) -> float | None:
        if since is None:
            return None
        try:
            return float(int(since)) if since.isdecimal() else _start(since, state.now())
        except ValueError:
            raise ApiError(
                422, "invalid", f"since is Unix seconds or a duration like 15m (got {since!r})"
            ) from None

    @app.get("/api/v1/events", tags=["records"])
    async def events(
        since: Since = None, target: Filter = None, kind: Filter = None, limit: Limit = 100
    ) -> shapes.Events:
        """What happened, newest first."""
        found = await state.events(since=start(since), target=target, kind=kind, limit=limit)
        return shapes.Events(items=[shapes.Event.model_validate(event) for event in found])

    @app.get("/api/v1/decisions", tags=["records"])
    async def decisions(
        since: Since = None, target: Filter = None, action: Filter = None, limit: Limit = 100
    ) -> shapes.Decisions:
        """What was decided, newest first, each with the readings that it rests on."""
        found = await state.decisions(since=start(since), target=target, action=action, limit=limit)
        return shapes.Decisions(items=[shapes.Decision.model_validate(decision) for decision in found])


def _start(since: str, now: float) -> float:
    """The Unix time meant by `1764000000.5` or by `15m`. Raises ValueError."""
    return float(since) if since.replace(".", "", 1).isdecimal() else now - seconds(since)


def _add_stream(app: FastAPI, streams: Streams) -> None:
    @app.get(
        "/api/v1/stream",
        tags=["records"],
        response_class=StreamResponse,
        responses={200: {"description": "`snapshot`, `decision` and `event`; `dropped` or `end` is the last"}},
    )
    async def stream() -> Response:
        """Server-sent events: after each tick its summary, its decisions and its events."""
        opened = streams.open()
        if opened is None:
            raise ApiError(503, "too_many_streams", f"there are {MOST_STREAMS} streams already")
        return StreamResponse(streams, opened)


def _add_orders(app: FastAPI, state: State) -> None:
    token = [Depends(HTTPBearer(auto_error=False))]  # for OpenAPI; the guard has checked it already

    @app.get("/api/v1/orders", tags=["orders"])
    async def orders() -> shapes.Orders:
        """The hold and the overrides that stand."""
        return answers.orders_of(state.orders())

    @app.post("/api/v1/hold", tags=["orders"], dependencies=token)
    async def hold(order: HoldOrder) -> shapes.Orders:
        """Freeze every actuator until the hold is ended."""
        await _kept(state.hold(Hold(state.now(), order.by, order.reason)))
        return answers.orders_of(state.orders())

    @app.delete("/api/v1/hold", tags=["orders"], dependencies=token)
    async def release(by: By) -> shapes.Orders:
        """End the hold; nothing happens where there is none."""
        await _kept(state.release(by))
        return answers.orders_of(state.orders())
