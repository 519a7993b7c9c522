"""The reading half: probes, own metrics, the fleet, the records, the stream."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from controlplane.api import answers, health, metrics, shapes
from controlplane.api.errors import ApiError
from controlplane.api.guard import STREAM_PATH
from controlplane.api.settings import MetricsSettings
from controlplane.api.state import State
from controlplane.api.stream import MOST_STREAMS, StreamResponse, Streams
from controlplane.api.words import Name
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.signals.units import seconds

T = TypeVar("T")

MOST_ITEMS = 1000

Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]
Since = Annotated[str | None, Query(description="Unix seconds, or how long ago: `15m`", max_length=40)]
Filter = Annotated[Name | None, Query()]

INDEX = """controlplane

/                   this, or in a browser the status page
/healthz            whether the loop runs
/readyz             whether the answers can be relied on
/metrics            own metrics, as Prometheus text or OpenMetrics
/readiness/NAME     whether a replica gets requests: 200 in, 503 out
/api/v1/fleet       the whole on one page
/api/v1/pools       pools; /api/v1/pools/NAME is one
/api/v1/replicas    replicas; /api/v1/replicas/NAME is one
/api/v1/nodes       nodes with GPUs, and what is held against them
/api/v1/events      what happened
/api/v1/decisions   what was decided, and why
/api/v1/orders      the hold and the overrides of people
/api/v1/alerts      what Alertmanager says fires
/api/v1/autoscaling/NAME  how many replicas a pool should have, for KEDA; needs a token
/api/v1/stream      each tick as server-sent events
/openapi.json       the shapes of all these
"""


def routes(state: State, streams: Streams, bounds: MetricsSettings) -> APIRouter:
    """`bounds` are those of the metrics page."""
    router = APIRouter()
    _add_probes(router, state)
    _add_metrics(router, state, streams, bounds)
    _add_fleet(router, state)
    _add_records(router, state)
    _add_stream(router, streams)
    return router


def _add_probes(router: APIRouter, state: State) -> None:
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

    @router.get("/healthz", tags=["probes"])
    async def healthz() -> shapes.Health:
        """Whether the loop runs; 503 with the reason where it is stuck: restart it then."""
        return answer(health.stuck(state.status(), state.now()), "loop_stuck")

    @router.get("/readyz", tags=["probes"])
    async def readyz() -> shapes.Health:
        """Whether the answers can be relied on: a first tick has run, and the loop runs."""
        return answer(health.not_ready(state.status(), state.now()), "not_ready")

    @router.get("/readiness/{name:path}", tags=["probes"], response_class=PlainTextResponse)
    async def readiness(name: Annotated[Name, Path(description="of a replica")]) -> Response:
        """Whether a replica should get new requests, for load balancers and probes: 200 in, 503 out.

        Where nothing may be enforced it is in. It is open like the rest of the reading half: it reveals no
        more than that does, and kubelets and load balancers bear no token.
        """
        seen = state.snapshot()
        if seen is None:
            return PlainTextResponse("in: nothing is known yet\n")  # a daemon that starts takes nobody out
        there = seen.replicas.get(name)
        if there is None:
            raise ApiError(404, "not_found", f"there is no replica {name!r}")
        if there.out is None or name not in state.status().out:
            return PlainTextResponse("in\n")
        return PlainTextResponse(f"out: {there.out.reason}\n", status_code=503)


def _add_metrics(router: APIRouter, state: State, streams: Streams, bounds: MetricsSettings) -> None:
    @router.get("/metrics", response_class=PlainTextResponse, tags=["metrics"])
    async def own_metrics(request: Request) -> Response:
        """Own metrics as Prometheus text, or as OpenMetrics for whoever asks for that."""
        _, content_type = choose_encoder(request.headers.get("accept", ""))
        openmetrics = content_type.startswith("application/openmetrics-text")
        snapshot, status, orders, now = state.snapshot(), state.status(), state.orders(), state.now()
        is_open, dropped = streams.count, streams.dropped

        def write() -> bytes:
            page = metrics.page(
                snapshot,
                status,
                orders,
                now,
                open_streams=is_open,
                dropped_streams=dropped,
                bounds=bounds,
            )
            return page.text(openmetrics=openmetrics).encode()

        # A large fleet takes a while to write; the loop ticks meanwhile.
        return Response(await asyncio.to_thread(write), headers={"content-type": content_type})


def _add_fleet(router: APIRouter, state: State) -> None:
    def seen() -> FleetSnapshot:
        snapshot = state.snapshot()
        if snapshot is None:
            raise ApiError(503, "not_ready", "the first tick has not run yet")
        return snapshot

    @router.get("/api/v1/fleet", tags=["fleet"])
    async def fleet() -> shapes.Fleet:
        """Pools, orders and troubles as of the last tick."""
        return answers.fleet_of(seen(), state.orders(), state.status(), state.now())

    @router.get("/api/v1/pools", tags=["fleet"])
    async def pools() -> shapes.Pools:
        """All pools."""
        status, now = state.status(), state.now()
        return shapes.Pools(items=[answers.pool_of(pool, status, now) for pool in seen().pools.values()])

    @router.get("/api/v1/pools/{name:path}", tags=["fleet"])
    async def pool(name: str) -> shapes.Pool:
        """One pool."""
        found = seen().pools.get(name)
        if found is None:
            raise ApiError(404, "no_such_pool", f"there is no pool {name[:100]!r}")
        return answers.pool_of(found, state.status(), state.now())

    @router.get("/api/v1/replicas", tags=["fleet"])
    async def replicas(pool: Filter = None, limit: Limit = 100, offset: Offset = 0) -> shapes.Replicas:
        """Replicas, a page at a time; those of one pool where it is named."""
        chosen = [replica for replica in seen().replicas.values() if pool in (None, replica.pool)]
        page, status, now = chosen[offset : offset + limit], state.status(), state.now()
        # A full page takes a while to make; the loop ticks meanwhile.
        items = await asyncio.to_thread(
            lambda: [answers.replica_of(replica, status, now) for replica in page]
        )
        return shapes.Replicas(items=items, total=len(chosen), limit=limit, offset=offset)

    @router.get("/api/v1/replicas/{name:path}", tags=["fleet"])
    async def replica(name: str) -> shapes.Replica:
        """One replica."""
        found = seen().replicas.get(name)
        if found is None:
            raise ApiError(404, "no_such_replica", f"there is no replica {name[:100]!r}")
        return answers.replica_of(found, state.status(), state.now())

    @router.get("/api/v1/nodes", tags=["fleet"])
    async def nodes(limit: Limit = 100, offset: Offset = 0) -> shapes.Nodes:
        """Nodes with GPUs, a page at a time, each with what is held against its GPUs."""
        every = seen().nodes
        items = [shapes.Node.model_validate(every[name]) for name in sorted(every)[offset : offset + limit]]
        return shapes.Nodes(items=items, total=len(every), limit=limit, offset=offset)


def _add_records(router: APIRouter, state: State) -> None:
    @router.get("/api/v1/events", tags=["records"])
    async def events(
        since: Since = None, target: Filter = None, kind: Filter = None, limit: Limit = 100
    ) -> shapes.Events:
        """What happened, newest first."""
        start = _start(since, state.now())
        found = await _read(state.events(since=start, target=target, kind=kind, limit=limit))
        return shapes.Events(items=[shapes.Event.model_validate(event) for event in found])

    @router.get("/api/v1/decisions", tags=["records"])
    async def decisions(
        since: Since = None, target: Filter = None, action: Filter = None, limit: Limit = 100
    ) -> shapes.Decisions:
        """What was decided, newest first, each with the readings that it rests on."""
        start = _start(since, state.now())
        found = await _read(state.decisions(since=start, target=target, action=action, limit=limit))
        return shapes.Decisions(items=[shapes.Decision.model_validate(decision) for decision in found])

    @router.get("/api/v1/orders", tags=["orders"])
    async def orders() -> shapes.Orders:
        """The hold and the overrides that stand."""
        return answers.orders_of(state.orders())


async def _read(records: Awaitable[Sequence[T]]) -> Sequence[T]:
    try:
        return await records
    except OSError as error:
        raise ApiError(503, "journal_unreadable", str(error)) from None


def _start(since: str | None, now: float) -> float | None:
    """The Unix time meant by `1764000000.5` or by `15m` (ago)."""
    if since is None:
        return None
    try:
        return float(since) if since.replace(".", "", 1).isdecimal() else now - seconds(since)
    except ValueError:
        message = f"since is Unix seconds, or a duration like 15m (got {since!r})"
        raise ApiError(422, "invalid", message) from None


def _add_stream(router: APIRouter, streams: Streams) -> None:
    @router.get(
        STREAM_PATH,
        tags=["records"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "events `snapshot`, `decision`, `event`; the last is `dropped` or `end`",
                "content": {"text/event-stream": {}},
            }
        },
    )
    async def stream() -> Response:
        """Server-sent events: after each tick its summary, its decisions and its events."""
        opened = streams.open()
        if opened is None:
            raise ApiError(503, "too_many_streams", f"there are {MOST_STREAMS} streams already")
        return StreamResponse(streams, opened)
