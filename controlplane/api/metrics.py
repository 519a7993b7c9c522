"""Own metrics: the last snapshot and the daemon's status as samples of the registered families."""

import contextlib
import platform
from collections.abc import Iterable, Sequence
from itertools import islice

from controlplane import __version__
from controlplane.api.autoscaling import CannotSayError, advice_at
from controlplane.api.exposition import Page, label_text, label_value
from controlplane.api.finite import finite_reading
from controlplane.api.health import stuck
from controlplane.api.redact import without_secrets
from controlplane.api.settings import MetricsSettings
from controlplane.signals.decision import Orders, Standing
from controlplane.signals.interval import Interval
from controlplane.signals.node import NodeHealth
from controlplane.signals.reading import Quality, Unknown, known
from controlplane.signals.registry import BOUNDED_TOTALS, LATENCY, LOAD, QUANTILES, TOTALS
from controlplane.signals.snapshot import (
    Condition,
    FleetSnapshot,
    Goodput,
    PoolBoundary,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    Scale,
    Totals,
    Trend,
)
from controlplane.signals.status import Objective, Status

STARTING = "starting"
"""The reason of a replica that has not answered yet."""

MOST_POOLS = 1_000
MOST_NODES = 5_000

_USUAL = MetricsSettings()


def page(
    snapshot: FleetSnapshot | None,
    status: Status,
    orders: Orders,
    now: float,
    *,
    open_streams: int = 0,
    dropped_streams: int = 0,
    bounds: MetricsSettings = _USUAL,
) -> Page:
    """All own metrics at Unix time `now`.

    While the loop is stuck the fleet has no samples: old numbers would look like present ones. Nor has it
    where another daemon leads, which exports them: everything would count twice. Where nobody can lead,
    because the cluster's API is away, the last leader goes on exporting.
    """
    out = Page()
    _add_self(out, status, orders)
    out.add("controlplane_open_streams", open_streams)
    out.add("controlplane_dropped_streams_total", dropped_streams)
    if snapshot is None or stuck(status, now) or status.follows:
        return out
    for pool in islice(snapshot.pools.values(), MOST_POOLS):
        _add_pool(out, pool, status.objectives.get(pool.name))
        if pool.scale is not None:
            with contextlib.suppress(CannotSayError):
                told = advice_at(snapshot, status, now, pool.name).value
                out.add("controlplane_pool_autoscaler_replicas", told, label_text(pool=pool.name))
    if snapshot.boundary is not None:
        _add_boundary(out, snapshot.boundary, status.boundary_standing)
    replicas = len(snapshot.replicas)
    has_latency = replicas <= bounds.latency_replicas
    for replica in islice(snapshot.replicas.values(), bounds.replicas):
        _add_replica(out, replica, status.scrape_failures.get(replica.name, 0), has_latency=has_latency)
        _add_limit(out, replica, status.limit_standings.get(replica.name))
        _add_rotation(out, replica, in_force=replica.name in status.out)
    for node in islice(snapshot.nodes.values(), MOST_NODES):
        _add_node(out, node)
    out.add("controlplane_omitted_nodes", max(0, len(snapshot.nodes) - MOST_NODES))
    out.add("controlplane_omitted_pools", max(0, len(snapshot.pools) - MOST_POOLS))
    out.add("controlplane_omitted_replicas", max(0, replicas - bounds.replicas))
    out.add("controlplane_omitted_latency_replicas", 0 if has_latency else replicas)
    return out


def _add_self(out: Page, status: Status, orders: Orders) -> None:
    build = label_text(version=__version__, python_version=platform.python_version())
    out.add("controlplane_build_info", 1, build)
    out.add("controlplane_start_timestamp_seconds", status.started_at)
    out.add("controlplane_last_tick_timestamp_seconds", status.last_tick_at)
    out.add("controlplane_tick_interval_seconds", status.tick_interval_seconds)
    out.add_histogram("controlplane_tick_duration_seconds", status.tick_seconds)
    out.add("controlplane_ticks_total", status.ticks)
    for (asked, came), count in status.probes.items():
        out.add("controlplane_probes_total", count, label_text(kind=asked, result=came))
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
    out.add("controlplane_leading", status.leads)
    out.add("controlplane_active_overrides", len(orders.overrides))


def _add_pool(out: Page, pool: PoolSnapshot, objective: Objective | None) -> None:
    labels = label_text(pool=pool.name)
    out.add("controlplane_pool_replicas", pool.replicas, labels)
    out.add("controlplane_pool_up_replicas", pool.replicas_up, labels)
    if pool.scale is not None:
        _add_scale(out, pool.name, pool.scale)
    if objective is not None:
        out.add("controlplane_pool_objective_ratio", objective.ratio, labels)
        out.add("controlplane_pool_objective_ttft_seconds", objective.ttft_seconds, labels)
        out.add("controlplane_pool_objective_tpot_seconds", objective.tpot_seconds, labels)
    _add_totals(out, labels, pool.totals)
    unknown = label_text(pool=pool.name, replica="")
    _add_work(out, "controlplane_pool_", labels, unknown, pool)
    _add_conditions(out, "controlplane_pool_condition", labels, pool.conditions)


def _add_scale(out: Page, pool: str, scale: Scale) -> None:
    labels = label_text(pool=pool)
    out.add("controlplane_pool_desired_replicas", scale.replicas, labels)
    out.add("controlplane_pool_needed_replicas", known(scale.need), labels)
    out.add("controlplane_pool_ready_replicas", scale.ready, labels)
    out.add("controlplane_pool_loading_replicas", scale.loading, labels)
    out.add("controlplane_pool_cold_start_seconds", scale.cold_start_seconds, labels)
    why = label_text(law=scale.law, reason=scale.reason)
    out.add("controlplane_pool_scaling_info", 1, f"{labels},{why}")


def _add_totals(out: Page, labels: str, totals: Totals) -> None:
    for field, (rest, _, _) in TOTALS.items():
        name, total = f"controlplane_pool_{rest}_total", getattr(totals, field)
        if field in BOUNDED_TOTALS:
            _add_bounds(out, name, labels, total, getattr(totals, BOUNDED_TOTALS[field]))
        else:
            out.add(name, total, labels)


def _add_replica(out: Page, replica: ReplicaSnapshot, scrape_failures: int, *, has_latency: bool) -> None:
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
    out.add("controlplane_replica_quarantined", replica.quarantined_since is not None, labels)
    _add_work(out, "controlplane_replica_", labels, labels, replica, has_latency=has_latency)
    _add_conditions(out, "controlplane_replica_condition", labels, replica.conditions)


def _add_limit(out: Page, replica: ReplicaSnapshot, standing: Standing | None) -> None:
    limit = replica.limit
    if limit is None:
        return
    labels = label_text(pool=replica.pool, replica=replica.name)
    out.add("controlplane_replica_limit_sequences", limit.slots, labels)
    out.add("controlplane_replica_limit_in_force_sequences", limit.in_force, labels)
    why = label_text(law=limit.law, reason=limit.reason, standing=standing or "")
    out.add("controlplane_replica_limit_info", 1, f"{labels},{why}")


def _add_rotation(out: Page, replica: ReplicaSnapshot, *, in_force: bool) -> None:
    """Why it should get nothing new. One that is starting gets nothing in any mode: that is no decision."""
    labels = label_text(pool=replica.pool, replica=replica.name)
    reason = STARTING if replica.out is None else replica.out.reason
    if replica.out is not None or not replica.was_ready:
        is_kept = in_force or replica.out is None
        why = label_text(reason=reason, in_force="true" if is_kept else "false")
        out.add("controlplane_replica_out_of_rotation", 1, f"{labels},{why}")
    probed = replica.probed
    if probed.health is not None:
        out.add("controlplane_replica_failed_health_probes", probed.failures, labels)
    for probe in (probed.health, probed.trial):
        if probe is not None:
            kind = label_text(kind=probe.kind)
            out.add("controlplane_replica_probe_duration_seconds", probe.seconds, f"{labels},{kind}")


def _add_node(out: Page, node: NodeHealth) -> None:
    labels = label_text(node=node.name)
    out.add("controlplane_node_gpus", node.gpus, labels)
    out.add("controlplane_node_blind", node.blind_since is not None, labels)
    out.add("controlplane_node_quarantined", node.quarantined is not None, labels)
    for held in node.verdicts:
        what = label_text(
            UUID=held.uuid,
            check=held.check,
            fault_class=held.fault_class,
            remedy=held.remedy,
            stage=held.stage,
        )
        out.add("controlplane_gpu_fault", 1, f"{labels},{what}")


def _add_boundary(out: Page, boundary: PoolBoundary, standing: Standing | None) -> None:
    labels = label_text(pool=boundary.short, long_pool=boundary.long)
    out.add("controlplane_pool_boundary_tokens", boundary.tokens, labels)
    out.add("controlplane_pool_boundary_in_force_tokens", boundary.in_force, labels)
    why = label_text(reason=boundary.reason, standing=standing or "")
    out.add("controlplane_pool_boundary_info", 1, f"{labels},{why}")


def _add_one_of(out: Page, name: str, labels: str, states: Iterable[str], current: str) -> None:
    for state in states:
        out.add(name, state == current, f'{labels}"{state}"')


def _add_conditions(out: Page, name: str, labels: str, conditions: Sequence[Condition]) -> None:
    for kind in {condition.kind: None for condition in conditions}:
        out.add(name, 1, f"{labels},kind={label_value(kind)}")


def _add_work(
    out: Page,
    prefix: str,
    labels: str,
    owner: str,
    of: PoolSnapshot | ReplicaSnapshot,
    *,
    has_latency: bool = True,
) -> None:
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
    for field in LATENCY if has_latency else ():
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
