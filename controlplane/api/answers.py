"""From the vocabulary to the shapes of the API."""

from collections import Counter

from controlplane import __version__
from controlplane.api import shapes
from controlplane.api.finite import finite_reading
from controlplane.api.redact import without_secrets
from controlplane.signals.decision import Orders
from controlplane.signals.interval import Interval
from controlplane.signals.reading import Unknown
from controlplane.signals.snapshot import (
    Condition,
    Distribution,
    FleetSnapshot,
    Goodput,
    Latency,
    Load,
    Number,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    Scale,
)
from controlplane.signals.status import Status


def fleet_of(snapshot: FleetSnapshot, orders: Orders, status: Status, now: float) -> shapes.Fleet:
    states = Counter(replica.state for replica in snapshot.replicas.values())
    return shapes.Fleet(
        version=__version__,
        at=snapshot.at,
        age_seconds=_age(snapshot.at, now),
        tick=snapshot.tick,
        replicas={state: states[state] for state in ReplicaState},
        pools=[pool_of(pool, status, now) for pool in snapshot.pools.values()],
        orders=orders_of(orders),
        leads=status.leads,
        troubles=list(status.troubles),
    )


def pool_of(pool: PoolSnapshot, status: Status, now: float) -> shapes.Pool:
    objective = status.objectives.get(pool.name)
    return shapes.Pool(
        name=pool.name,
        replicas=pool.replicas,
        replicas_up=pool.replicas_up,
        objective=None if objective is None else shapes.Objective.model_validate(objective),
        load=_load(pool.load, now),
        latency=_latency(pool.latency, now),
        goodput=_goodput(pool.goodput),
        totals=shapes.Totals.model_validate(pool.totals),
        conditions=_conditions(pool.conditions),
        standings=status.pool_standings.get(pool.name, {}),
        scale=None if pool.scale is None else _scale(pool.scale, now),
    )


def _scale(scale: Scale, now: float) -> shapes.Scale:
    return shapes.Scale(
        law=scale.law,
        replicas=scale.replicas,
        ready=scale.ready,
        loading=scale.loading,
        need=_number(scale.need, now),
        reason=scale.reason,
        detail=scale.detail,
        since=scale.since,
        cold_start_seconds=scale.cold_start_seconds,
    )


def replica_of(replica: ReplicaSnapshot, status: Status, now: float) -> shapes.Replica:
    return shapes.Replica(
        name=replica.name,
        pool=replica.pool,
        url=without_secrets(replica.url),
        state=replica.state,
        detail=replica.detail,
        engine=replica.engine,
        version=replica.version,
        models=list(replica.models),
        last_scrape_at=replica.last_scrape_at,
        scrape_seconds=replica.scrape_seconds,
        restarts=replica.restarts,
        scrape_failures=status.scrape_failures.get(replica.name, 0),
        load=_load(replica.load, now),
        latency=_latency(replica.latency, now),
        goodput=_goodput(replica.goodput),
        preemption_trend=replica.preemption_trend,
        conditions=_conditions(replica.conditions),
        engines={
            name: shapes.EngineLoad(
                running=_number(engine.running, now),
                waiting=_number(engine.waiting, now),
                kv_usage=_number(engine.kv_usage, now),
            )
            for name, engine in replica.engines.items()
        },
        limit=_limit(replica, status),
        out=_out(replica, status),
    )


def _out(replica: ReplicaSnapshot, status: Status) -> shapes.Out | None:
    out = replica.out
    if out is None:
        return None
    in_force = replica.name in status.out
    return shapes.Out(since=out.since, reason=out.reason, detail=out.detail, in_force=in_force)


def _limit(replica: ReplicaSnapshot, status: Status) -> shapes.Limit | None:
    limit = replica.limit
    if limit is None:
        return None
    return shapes.Limit(
        law=limit.law,
        slots=limit.slots,
        reason=limit.reason,
        detail=limit.detail,
        since=limit.since,
        in_force=limit.in_force,
        standing=status.limit_standings.get(replica.name),
    )


def orders_of(orders: Orders) -> shapes.Orders:
    return shapes.Orders.model_validate(orders)


def summary_of(snapshot: FleetSnapshot, now: float) -> shapes.Summary:
    return shapes.Summary(
        at=snapshot.at,
        tick=snapshot.tick,
        hold=snapshot.orders.hold is not None,
        pools=[
            shapes.PoolSummary(
                name=pool.name,
                replicas=pool.replicas,
                replicas_up=pool.replicas_up,
                running=_number(pool.load.running, now),
                waiting=_number(pool.load.waiting, now),
                kv_usage=_number(pool.load.kv_usage, now),
                goodput=_goodput(pool.goodput),
                conditions=sorted({condition.kind for condition in pool.conditions}),
            )
            for pool in snapshot.pools.values()
        ],
    )


def _number(reading: Number, now: float) -> shapes.Number:
    reading = finite_reading(reading)
    if isinstance(reading, Unknown):
        return _unknown(reading, now)
    return shapes.KnownNumber(
        value=reading.value, at=reading.at, age_seconds=_age(reading.at, now), quality=reading.quality
    )


def _distribution(reading: Distribution, now: float) -> shapes.Distribution:
    if isinstance(reading, Unknown):
        return _unknown(reading, now)
    return shapes.KnownDistribution(
        value=shapes.Quantiles.model_validate(reading.value),
        at=reading.at,
        age_seconds=_age(reading.at, now),
        quality=reading.quality,
    )


def _unknown(reading: Unknown, now: float) -> shapes.UnknownReading:
    return shapes.UnknownReading(
        unknown=reading.reason, detail=reading.detail, at=reading.at, age_seconds=_age(reading.at, now)
    )


def _load(load: Load, now: float) -> shapes.Load:
    return shapes.Load(**{field: _number(getattr(load, field), now) for field in shapes.Load.model_fields})


def _latency(latency: Latency, now: float) -> shapes.Latency:
    return shapes.Latency(
        **{field: _distribution(getattr(latency, field), now) for field in shapes.Latency.model_fields}
    )


def _goodput(goodput: Goodput) -> shapes.Goodput:
    told = goodput.unknown is None
    requests, tokens = (goodput.requests, goodput.tokens or 0.0) if told else (0.0, 0.0)
    return shapes.Goodput(
        window_seconds=goodput.window_seconds,
        denominator=goodput.denominator,
        requests=goodput.requests,
        finished=goodput.finished,
        failed=goodput.failed,
        shed=goodput.shed,
        gave_up=goodput.gave_up,
        tokens=goodput.tokens,
        good_requests=_bounds(goodput.good_requests),
        good_requests_point=goodput.good_requests_point,
        good_tokens=_bounds(goodput.good_tokens),
        good_tokens_point=goodput.good_tokens_point,
        ratio=_bounds(goodput.good_requests, over=requests),
        ratio_point=_point(goodput.good_requests_point, over=requests),
        token_ratio=_bounds(goodput.good_tokens, over=tokens),
        token_ratio_point=_point(goodput.good_tokens_point, over=tokens),
        unknown=goodput.unknown,
    )


def _bounds(bounds: Interval | None, *, over: float = 1.0) -> shapes.Bounds | None:
    """The bounds, each divided by `over`; None of nothing."""
    if bounds is None or not over > 0:
        return None
    return shapes.Bounds(low=bounds.low / over, high=bounds.high / over)


def _point(point: float | None, *, over: float) -> float | None:
    return None if point is None or not over > 0 else point / over


def _conditions(conditions: tuple[Condition, ...]) -> list[shapes.Condition]:
    return [shapes.Condition.model_validate(condition) for condition in conditions]


def _age(at: float, now: float) -> float:
    return max(0.0, now - at)
