"""Own metrics: the last snapshot and the daemon's status as samples of the registered families."""

import platform
from collections.abc import Iterable, Sequence
from itertools import islice

from controlplane import __version__
from controlplane.api.exposition import Page, label_text, label_value
from controlplane.api.finite import finite_reading
from controlplane.api.health import stuck
from controlplane.api.redact import without_secrets
from controlplane.signals.decision import Orders
from controlplane.signals.interval import Interval
from controlplane.signals.reading import Quality, Unknown
from controlplane.signals.registry import BOUNDED_TOTALS, LATENCY, LOAD, QUANTILES, TOTALS
from controlplane.signals.snapshot import (
    Condition,
    FleetSnapshot,
    Goodput,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    Totals,
    Trend,
)
from controlplane.signals.status import Objective, Status

MOST_POOLS = 1_000
MOST_REPLICAS = 10_000


def page(
    snapshot: FleetSnapshot | None,
    status: Status,
    orders: Orders,
    now: float,
    *,
    open_streams: int = 0,
    dropped_streams: int = 0,
) -> Page:
    """All own metrics at Unix time `now`.

    While the loop is stuck the fleet has no samples: old numbers would look like present ones.
    """
    out = Page()
    _add_self(out, status, orders)
    out.add("controlplane_open_streams", open_streams)
    out.add("controlplane_dropped_streams_total", dropped_streams)
    if snapshot is None or stuck(status, now):
        return out
    for pool in islice(snapshot.pools.values(), MOST_POOLS):
        _add_pool(out, pool, status.objectives.get(pool.name))
    for replica in islice(snapshot.replicas.values(), MOST_REPLICAS):
        _add_replica(out, replica, status.scrape_failures.get(replica.name, 0))
    out.add("controlplane_omitted_pools", max(0, len(snapshot.pools) - MOST_POOLS))
    out.add("controlplane_omitted_replicas", max(0, len(snapshot.replicas) - MOST_REPLICAS))
    return out


def _add_self(out: Page, status: Status, orders: Orders) -> None:
    build = label_text(version=__version__, python_version=platform.python_version())
    out.add("controlplane_build_info", 1, build)
    out.add("controlplane_start_timestamp_seconds", status.started_at)
    out.add("controlplane_last_tick_timestamp_seconds", status.last_tick_at)
    out.add("controlplane_tick_interval_seconds", status.tick_interval_seconds)
    out.add_histogram("controlplane_tick_duration_seconds", status.tick_seconds)
    out.add("controlplane_ticks_total", status.ticks)
    out.add("controlplane_misfires_total", status.misfires)
    out.add("controlplane_missed_scrapes_total", status.missed_scrapes)
    for outcome, count in status.scrapes.items():
        result, reason = ("ok", "") if outcome == "ok" else ("failed", outcome)
        out.add("controlplane_scrapes_total", count, label_text(result=result, reason=reason))
    out.add("controlplane_dropped_samples_total", status.dropped_samples)
    out.add("controlplane_journal_writes_total", status.journal_writes)
    out.add("controlplane_journal_failures_total", status.journal_failures)
    out.add("controlplane_journal_queue_ticks", status.journal_queue)
    for (action, reason), count in status.decisions.items():
        out.add("controlplane_decisions_total", count, label_text(action=action, reason=reason))
    for kind, count in status.events.items():
        out.add("controlplane_events_total", count, label_text(kind=kind))
    out.add("controlplane_hold_active", orders.hold is not None)
    out.add("controlplane_active_overrides", len(orders.overrides))


def _add_pool(out: Page, pool: PoolSnapshot, objective: Objective | None) -> None:
    labels = label_text(pool=pool.name)
    out.add("controlplane_pool_replicas", pool.replicas, labels)
    out.add("controlplane_pool_up_replicas", pool.replicas_up, labels)
    if objective is not None:
        out.add("controlplane_pool_objective_ratio", objective.ratio, labels)
        out.add("controlplane_pool_objective_ttft_seconds", objective.ttft_seconds, labels)
        out.add("controlplane_pool_objective_tpot_seconds", objective.tpot_seconds, labels)
    _add_totals(out, labels, pool.totals)
    unknown = label_text(pool=pool.name, replica="")
    _add_work(out, "controlplane_pool_", labels, unknown, pool)
    _add_conditions(out, "controlplane_pool_condition", labels, pool.conditions)


def _add_totals(out: Page, labels: str, totals: Totals) -> None:
    for field, (rest, _, _) in TOTALS.items():
        name, total = f"controlplane_pool_{rest}_total", getattr(totals, field)
        if field in BOUNDED_TOTALS:
            _add_bounds(out, name, labels, total, getattr(totals, BOUNDED_TOTALS[field]))
        else:
            out.add(name, total, labels)


def _add_replica(out: Page, replica: ReplicaSnapshot, scrape_failures: int) -> None:
    labels = label_text(pool=replica.pool, replica=replica.name)
    facts = label_text(url=without_secrets(replica.url), engine=replica.engine, version=replica.version)
    out.add("controlplane_replica_info", 1, f"{labels},{facts}")
    _add_one_of(out, "controlplane_replica_state", f"{labels},state=", ReplicaState, replica.state)
    _add_one_of(
        out, "controlplane_replica_preemption_trend", f"{labels},trend=", Trend, replica.preemption_trend
    )
    out.add("controlplane_replica_restarts_total", replica.restarts, labels)
    out.add("controlplane_replica_scrape_failures_total", scrape_failures, labels)
    out.add("controlplane_replica_last_scrape_timestamp_seconds", replica.last_scrape_at, labels)
    out.add("controlplane_replica_scrape_duration_seconds", replica.scrape_seconds, labels)
    _add_work(out, "controlplane_replica_", labels, labels, replica)
    _add_conditions(out, "controlplane_replica_condition", labels, replica.conditions)


def _add_one_of(out: Page, name: str, labels: str, states: Iterable[str], current: str) -> None:
    for state in states:
        out.add(name, state == current, f'{labels}"{state}"')


def _add_conditions(out: Page, name: str, labels: str, conditions: Sequence[Condition]) -> None:
    for kind in {condition.kind: None for condition in conditions}:
        out.add(name, 1, f"{labels},kind={label_value(kind)}")


def _add_work(out: Page, prefix: str, labels: str, owner: str, of: PoolSnapshot | ReplicaSnapshot) -> None:
    """Load, latency and goodput; `owner` is the pool and the replica that an unknown signal belongs to.

    What is only a lower bound never stands under the signal's own name: see the registry.
    """
    for field, (rest, _, _) in LOAD.items():
        reading = finite_reading(getattr(of.load, field))
        if isinstance(reading, Unknown):
            _add_unknown(out, owner, field, reading.reason)
        elif reading.quality is Quality.LOWER_BOUND:
            _add_unknown(out, owner, field, "partial")
            out.add("controlplane_reading_lower_bound", reading.value, f'{owner},signal="{field}"')
        else:
            out.add(prefix + rest, reading.value, labels)
    for field in LATENCY:
        distribution = getattr(of.latency, field)
        if isinstance(distribution, Unknown):
            _add_unknown(out, owner, field, distribution.reason)
            continue
        name = f"{prefix}{field}_seconds"
        for quantile, key in QUANTILES.items():
            out.add(name, getattr(distribution.value, key), f'{labels},quantile="{quantile}"')
        out.add(f"{prefix}{field}_mean_seconds", distribution.value.mean, labels)
    if of.goodput.unknown is not None:
        _add_unknown(out, owner, "goodput", of.goodput.unknown)
    _add_goodput(out, prefix, labels, of.goodput)


def _add_unknown(out: Page, owner: str, signal: str, reason: str) -> None:
    out.add("controlplane_reading_unknown", 1, f'{owner},signal="{signal}",reason="{reason}"')


def _add_goodput(out: Page, prefix: str, labels: str, goodput: Goodput) -> None:
    denominator = f'{labels},denominator="{goodput.denominator}"'
    out.add(f"{prefix}goodput_denominator_info", 1, denominator)
    out.add(f"{prefix}goodput_window_seconds", goodput.window_seconds, labels)
    out.add(f"{prefix}window_judged_requests", goodput.requests, labels)
    out.add(f"{prefix}window_judged_tokens", goodput.tokens, labels)
    for outcome in ("finished", "failed", "shed", "gave_up"):
        out.add(f"{prefix}window_ended_requests", getattr(goodput, outcome), f'{labels},outcome="{outcome}"')
    requests = goodput.good_requests, goodput.good_requests_point
    tokens = goodput.good_tokens, goodput.good_tokens_point
    _add_bounds(out, f"{prefix}window_good_requests", labels, *requests)
    _add_bounds(out, f"{prefix}window_good_tokens", labels, *tokens)
    if goodput.unknown is None and goodput.requests > 0:
        _add_bounds(out, f"{prefix}goodput_ratio", labels, *requests, over=goodput.requests)
    if goodput.unknown is None and goodput.tokens:
        _add_bounds(out, f"{prefix}token_goodput_ratio", labels, *tokens, over=goodput.tokens)


def _add_bounds(
    out: Page, name: str, labels: str, bounds: Interval | None, point: float | None, *, over: float = 1.0
) -> None:
    """Bounds and point, each divided by `over`; nothing where nothing is proven."""
    if bounds is None:
        return
    out.add(name, bounds.low / over, f'{labels},bound="low"')
    out.add(name, bounds.high / over, f'{labels},bound="high"')
    if point is not None:
        out.add(name, point / over, f'{labels},bound="point"')
