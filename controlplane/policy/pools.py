"""Pools put together from their replicas. What is not known of one replica makes a sum a lower bound."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from controlplane.policy import goodput, view
from controlplane.policy.memory import PoolMemory, ReplicaMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.histogram import merge
from controlplane.signals.interval import exactly
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import (
    Denominator,
    Goodput,
    Latency,
    Load,
    Number,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
)

Fold: TypeAlias = Callable[[Sequence[float]], float]

_SUMS = (
    "running",
    "waiting",
    "waiting_tokens",
    "prompt_tokens_per_second",
    "generation_tokens_per_second",
    "requests_per_second",
    "preemptions_per_second",
)


def pool(
    name: str,
    replicas: Sequence[ReplicaMemory],
    memory: PoolMemory,
    settings: PolicySettings,
    now: float,
    *,
    unchanged: bool = False,
) -> PoolSnapshot:
    """The snapshot of one pool from its replicas' memories (each with its view) at `now`.

    Where all views are `unchanged` since the snapshot before, so are load and latency.
    """
    views = [r.view for r in replicas if r.view is not None]
    up = [r for r in replicas if r.view is not None and r.view.state is ReplicaState.UP]
    before = memory.view if unchanged else None
    return PoolSnapshot(
        name=name,
        replicas=len(replicas),
        replicas_up=len(up),
        load=_load(views, now) if before is None else before.load,
        latency=_latency(up, now) if before is None else before.latency,
        goodput=_goodput(replicas, memory, settings, now),
        totals=memory.totals,
        conditions=view.active(w.active for w in memory.watches.values()),
    )


def in_flight(memory: PoolMemory, settings: PolicySettings, now: float) -> float | None:
    """Requests that the gateways have open towards the pool; None where no gateway has spoken lately."""
    newest: dict[str, OutcomeWindow] = {window.gateway: window for window in memory.outcomes}
    lately = [w.in_flight for w in newest.values() if now - w.end <= settings.stale_after]
    return float(sum(lately)) if lately else None


def _load(views: Sequence[ReplicaSnapshot], now: float) -> Load:
    parts: dict[str, Number] = {name: _sum([getattr(v.load, name) for v in views], now) for name in _SUMS}
    usages = [v.load.kv_usage for v in views if isinstance(v.load.kv_usage, Known)]
    means = [v.load.kv_usage_mean for v in views if isinstance(v.load.kv_usage_mean, Known)]
    ratios = [v.load.prefix_hit_ratio for v in views if isinstance(v.load.prefix_hit_ratio, Known)]
    return Load(
        kv_usage=_of(usages, max, now, complete=len(usages) == len(views)),
        kv_usage_mean=_mean(means, now, complete=len(means) == len(views)),
        prefix_hit_ratio=_mean(ratios, now, complete=len(ratios) == len(views)),
        **parts,
    )


def _sum(readings: Sequence[Number], now: float) -> Number:
    known = [r for r in readings if isinstance(r, Known)]
    if not known and readings:
        first = readings[0]
        assert isinstance(first, Unknown)
        return first
    return _of(known, sum, now, complete=len(known) == len(readings))


def _of(known: Sequence[Known[float]], fold: Fold, now: float, *, complete: bool) -> Number:
    """The fold of all known readings; as old as the oldest, a lower bound unless all were known."""
    if not known:
        return Unknown(Reason.NO_DATA, now, "no replica says")
    worst = Quality.EXACT
    for reading in known:
        if reading.quality is not Quality.EXACT:
            worst = reading.quality
    quality = worst if complete else Quality.LOWER_BOUND
    return Known(float(fold([r.value for r in known])), min(r.at for r in known), quality)


def _mean(known: Sequence[Known[float]], now: float, *, complete: bool) -> Number:
    """The mean of all known readings; over some of the replicas it is no bound of the whole, only a guess."""
    found = _of(known, lambda values: sum(values) / len(values), now, complete=True)
    return found if complete or isinstance(found, Unknown) else Known(found.value, found.at, Quality.ESTIMATE)


def _latency(up: Sequence[ReplicaMemory], now: float) -> Latency:
    parts = [r.window for r in up]
    merged = {n: merge(p[n] for p in parts if n in p) for n in view.LATENCIES}
    oldest = min((r.latest.at for r in up if r.latest is not None), default=now)
    return Latency(**{n: view.distribution(h, oldest, Reason.NO_DATA) for n, h in merged.items()})


def _goodput(
    replicas: Sequence[ReplicaMemory], memory: PoolMemory, settings: PolicySettings, now: float
) -> Goodput:
    """Goodput of the window, with the cells of replicas that are away now but were not all the time."""
    lately = [w for w in memory.outcomes if now - w.end <= settings.window]
    if lately and now - max(w.end for w in lately) <= settings.stale_after:
        return _from_gateways(lately, settings)
    measured = [r for r in replicas if view.unmeasured(r) is None]
    oldest = now - settings.window - settings.goodput_cell
    cells = [cell for r in measured for cell in r.cells if cell.start >= oldest]
    why = None if measured else (view.unmeasured(replicas[0]) if replicas else Reason.NO_DATA)
    return goodput.summarize(cells, settings.window, settings.enough_requests, why)


def _from_gateways(windows: Sequence[OutcomeWindow], settings: PolicySettings) -> Goodput:
    """Exact goodput: a gateway sees both latencies of each request, and those that the engines never saw.

    What a tenant was refused for its own quota is in no count, as in the recording rules.
    """
    finished = float(sum(w.finished for w in windows))
    failed = float(sum(w.failed for w in windows))
    shed = float(sum(w.refused for w in windows))
    good = float(sum(w.good for w in windows))
    good_tokens = float(sum(w.good_tokens for w in windows))
    requests = finished + failed + shed
    few = Reason.TOO_FEW if requests < settings.enough_requests else None
    return Goodput(
        window_seconds=settings.window,
        denominator=Denominator.GATEWAY,
        requests=requests,
        finished=finished,
        failed=failed,
        shed=shed,
        gave_up=float(sum(w.gave_up for w in windows)),
        tokens=float(sum(w.tokens for w in windows)),
        good_requests=exactly(good),
        good_requests_point=good,
        good_tokens=exactly(good_tokens),
        good_tokens_point=good_tokens,
        unknown=Reason.NO_TRAFFIC if requests <= 0 else few,
    )
