"""Snapshots to show, a daemon to ask, and strategies for arbitrary ones of both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, nan

import msgspec
from hypothesis import strategies as st

from controlplane.api.state import TickListener
from controlplane.signals.decision import Decision, Event, Evidence, Hold, Mode, Orders, Override, Severity
from controlplane.signals.histogram import Histogram
from controlplane.signals.interval import Interval
from controlplane.signals.node import GpuVerdict, Mark, NodeHealth
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.snapshot import (
    Condition,
    Denominator,
    EngineLoad,
    FleetSnapshot,
    Goodput,
    Latency,
    Limit,
    Load,
    PoolSnapshot,
    Quantiles,
    ReplicaSnapshot,
    ReplicaState,
    Totals,
    Trend,
)
from controlplane.signals.status import Objective, Status

AT = 1_764_000_000.0
NO_LATENCY = Latency(*[Unknown(Reason.NO_TRAFFIC, AT)] * 8)


TOTALS = Totals(
    finished=900.0,
    good=Interval(800.0, 850.0),
    good_point=840.0,
    tokens=9e5,
    good_tokens=Interval(7e5, 8e5),
    good_tokens_point=7.5e5,
    rejected=3.0,
    prompt_tokens=8e5,
    generation_tokens=1e5,
    preemptions=12.0,
    restarts=2,
)


def known(value: float, quality: Quality = Quality.EXACT) -> Known[float]:
    return Known(value, AT, quality)


def distribution(scale: float) -> Known[Quantiles]:
    return Known(Quantiles(120.0, scale, 0.8 * scale, 1.4 * scale, 1.7 * scale, 2.6 * scale), AT)


def load(running: float = 12.0, waiting: float = 3.0, kv: float = 0.62) -> Load:
    return Load(
        running=known(running),
        waiting=known(waiting),
        waiting_tokens=known(waiting * 500, Quality.ESTIMATE),
        kv_usage=known(kv),
        kv_usage_mean=known(kv / 2),
        prompt_tokens_per_second=known(4200.0),
        generation_tokens_per_second=known(910.5),
        requests_per_second=known(3.5),
        preemptions_per_second=known(0.0),
        prefix_hit_ratio=Unknown(Reason.NO_TRAFFIC, AT),
    )


def latency(scale: float = 1.0) -> Latency:
    return Latency(*[distribution(scale * step) for step in (0.1, 3.0, 0.4, 2.6, 0.5, 0.03, 0.02, 3.1)])


def goodput(low: float = 80.0, high: float = 96.0, requests: float = 100.0) -> Goodput:
    return Goodput(
        window_seconds=60.0,
        denominator=Denominator.HTTP,
        requests=requests,
        finished=requests - 2,
        failed=2.0,
        tokens=requests * 700,
        good_requests=Interval(low, high),
        good_requests_point=(low + high) / 2,
        good_tokens=Interval(low * 700, high * 700),
        good_tokens_point=(low + high) * 350,
    )


def replica(name: str = "vllm-0:8000", pool: str = "chat", **changes: object) -> ReplicaSnapshot:
    base = ReplicaSnapshot(
        name=name,
        pool=pool,
        url=f"http://{name}/metrics",
        state=ReplicaState.UP,
        detail="",
        engine="vllm",
        version=">=0.20",
        models=("acme/tiny",),
        last_scrape_at=AT - 1.5,
        scrape_seconds=0.012,
        restarts=1,
        load=load(),
        latency=latency(),
        goodput=goodput(),
        preemption_trend=Trend.NONE,
        conditions=(),
        engines={"0": EngineLoad(known(12.0), known(3.0), known(0.62))},
        was_ready=True,
        ready_since=AT - 3600,
        kv_tokens=440_000.0,
        limit=Limit("slo-gradient", 137, "tpot-near", "a token takes 39 ms", AT - 4, 136.0),
    )
    return msgspec.structs.replace(base, **changes)


def fleet(*replicas: ReplicaSnapshot, **changes: object) -> FleetSnapshot:
    replicas = replicas or (replica(),)
    pools: dict[str, PoolSnapshot] = {}
    for name in {one.pool: None for one in replicas}:
        inside = [one for one in replicas if one.pool == name]
        up = sum(one.state is ReplicaState.UP for one in inside)
        pools[name] = PoolSnapshot(name, len(inside), up, load(), latency(), goodput(), TOTALS, ())
    base = FleetSnapshot(AT, 7, pools, {one.name: one for one in replicas}, Orders(), ())
    return msgspec.structs.replace(base, **changes)


def verdict(uuid: str = "GPU-5f3c", **changes: object) -> GpuVerdict:
    base = GpuVerdict(
        uuid,
        "xid",
        "hardware-fatal",
        "drain-and-reset",
        "held-down",
        AT - 20,
        "XID 79: the GPU has fallen off the bus",
    )
    return msgspec.structs.replace(base, **changes)


def node(name: str = "gpu-node-1", **changes: object) -> NodeHealth:
    return msgspec.structs.replace(NodeHealth(name, 8), **changes)


def mark(**changes: object) -> Mark:
    base = Mark("f-1", "xid", "GPU-5f3c", "drain-and-reset", "XID 79 on GPU-5f3c", AT - 600)
    return msgspec.structs.replace(base, **changes)


def decision(id_: str = "7-1", **changes: object) -> Decision:
    evidence = (Evidence("waiting", 3.0, 1.5), Evidence("kv_usage", None, 40.0, Reason.STALE))
    base = Decision(
        id_, AT, "assess", "pool/chat", "ok", "missing", "goodput-low", "goodput is low", evidence
    )
    return msgspec.structs.replace(base, **changes)


def event(**changes: object) -> Event:
    base = Event(AT, "restart", "replica/vllm-0:8000", Severity.WARNING, "the engine restarted")
    return msgspec.structs.replace(base, **changes)


def status(**changes: object) -> Status:
    base = Status(
        started_at=AT - 100,
        last_tick_at=AT,
        tick_interval_seconds=1.0,
        tick_seconds=Histogram((0.01, 0.1, inf), (5.0, 7.0, 7.0), 0.09),
        ticks=7,
        scrapes={"ok": 40, Reason.SCRAPE_FAILED: 2},
        decisions={("assess", "goodput-low"): 3},
        events={"restart": 1},
        objectives={"chat": Objective(2.5, 0.05, 0.95)},
    )
    return msgspec.structs.replace(base, **changes)


@dataclass
class FakeDaemon:
    """A `State` that answers with what the test put there."""

    seen: FleetSnapshot | None = field(default_factory=fleet)
    how: Status = field(default_factory=status)
    ordered: Orders = field(default_factory=Orders)
    clock: float = AT + 1
    journal: OSError | None = None
    told: tuple[Decision, ...] = (decision(),)
    happened: tuple[Event, ...] = (event(),)
    listeners: list[TickListener] = field(default_factory=list)
    asked: dict[str, object] = field(default_factory=dict)

    def now(self) -> float:
        return self.clock

    def snapshot(self) -> FleetSnapshot | None:
        return self.seen

    def status(self) -> Status:
        return self.how

    def orders(self) -> Orders:
        return self.ordered

    def subscribe(self, listener: TickListener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def tick(self, *decisions: Decision) -> None:
        assert self.seen is not None
        for listener in list(self.listeners):
            listener(self.seen, decisions)

    async def decisions(self, **asked: object) -> Sequence[Decision]:
        self._ask(asked)
        return self.told

    async def events(self, **asked: object) -> Sequence[Event]:
        self._ask(asked)
        return self.happened

    def _ask(self, asked: dict[str, object]) -> None:
        self.asked = asked
        if self.journal:
            raise self.journal

    async def hold(self, hold: Hold) -> None:
        self._ask({"hold": hold})
        self.ordered = Orders(hold, self.ordered.overrides)

    async def release(self, by: str) -> None:
        self._ask({"release": by})
        self.ordered = Orders(None, self.ordered.overrides)

    async def override(self, override: Override) -> None:
        self._ask({"override": override})
        if override.setting != "mode":
            raise ValueError(f"{override.setting!r} cannot be overridden (what can: mode)")
        self.ordered = Orders(self.ordered.hold, (override,))

    async def clear_override(self, scope: str, name: str, setting: str, by: str) -> bool:
        self._ask({"clear": (scope, name, setting, by)})
        was, self.ordered = self.ordered, Orders(self.ordered.hold, ())
        return bool(was.overrides)


# Values as they could come from a broken engine or a bug of ours: also NaN and infinities.
wild = st.floats()
times = st.floats(0.0, 4e9)
texts = st.text(max_size=200)
reasons = st.sampled_from(Reason)
unknowns = st.builds(Unknown, reasons, times, texts)
numbers = st.one_of(unknowns, st.builds(Known, wild, times, st.sampled_from(Quality)))
maybe = st.none() | wild
quantiles = st.builds(Quantiles, wild, *[maybe] * 5)
distributions = st.one_of(unknowns, st.builds(Known, quantiles, times, st.sampled_from(Quality)))
intervals = st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)).map(
    lambda pair: Interval(min(pair), max(pair))
)
loads = st.builds(Load, *[numbers] * 10)
latencies = st.builds(Latency, *[distributions] * 8)
goodputs = st.builds(
    Goodput,
    window_seconds=wild,
    denominator=st.sampled_from(Denominator),
    requests=wild,
    finished=wild,
    failed=wild,
    shed=wild,
    gave_up=wild,
    tokens=wild,
    good_requests=st.none() | intervals,
    good_requests_point=maybe,
    good_tokens=st.none() | intervals,
    good_tokens_point=maybe,
    unknown=st.none() | reasons,
)
conditions = st.lists(st.builds(Condition, texts, times, texts), max_size=3).map(tuple)
replicas = st.builds(
    ReplicaSnapshot,
    name=texts,
    pool=texts,
    url=texts,
    state=st.sampled_from(ReplicaState),
    detail=texts,
    engine=texts,
    version=texts,
    models=st.lists(texts, max_size=2).map(tuple),
    last_scrape_at=st.none() | times,
    scrape_seconds=maybe,
    restarts=st.integers(0, 9),
    load=loads,
    latency=latencies,
    goodput=goodputs,
    preemption_trend=st.sampled_from(Trend),
    conditions=conditions,
    engines=st.dictionaries(texts, st.builds(EngineLoad, *[numbers] * 3), max_size=2),
    limit=st.none()
    | st.builds(Limit, texts, st.integers(1, 10**6), texts, texts, times, in_force=st.none() | wild),
)
counts = st.floats(0.0) | st.just(nan)  # what a counter of ours could come to hold
grown = st.tuples(st.floats(0.0), st.floats(0.0)).map(lambda pair: Interval(min(pair), max(pair)))
totals = st.builds(
    Totals,
    finished=counts,
    good=grown,
    good_point=counts,
    tokens=counts,
    good_tokens=grown,
    good_tokens_point=counts,
    rejected=counts,
    prompt_tokens=counts,
    generation_tokens=counts,
    preemptions=counts,
    restarts=st.integers(0, 9),
)
pools = st.builds(
    PoolSnapshot,
    name=texts,
    replicas=st.integers(0, 9),
    replicas_up=st.integers(0, 9),
    load=loads,
    latency=latencies,
    goodput=goodputs,
    totals=totals,
    conditions=conditions,
)
events = st.builds(Event, times, texts, texts, st.sampled_from(Severity), texts)
decisions = st.builds(
    Decision,
    *[texts, times, texts, texts, texts, texts, texts, texts],
    st.lists(st.builds(Evidence, texts, maybe, wild, st.none() | reasons), max_size=2).map(tuple),
    st.sampled_from(Mode),
    texts,
)
orders = st.builds(
    Orders,
    st.none() | st.builds(Hold, times, texts, texts),
    st.lists(st.builds(Override, *[texts] * 6, since=times, until=st.none() | wild), max_size=2).map(tuple),
)
fleets = st.builds(
    FleetSnapshot,
    times,
    st.integers(0, 9),
    st.lists(pools, max_size=2).map(lambda found: {one.name: one for one in found}),
    st.lists(replicas, max_size=2).map(lambda found: {one.name: one for one in found}),
    orders,
    st.lists(events, max_size=2).map(tuple),
)
statuses = st.builds(
    Status,
    started_at=times,
    last_tick_at=times,
    tick_interval_seconds=st.just(5e9),
    tick_seconds=st.just(Histogram((0.01, inf), (1.0, 2.0), 0.5)) | st.just(Histogram((inf,), (0.0,), None)),
    ticks=st.integers(0),
    scrapes=st.dictionaries(texts, st.integers(0), max_size=2),
    decisions=st.dictionaries(st.tuples(texts, texts), st.integers(0), max_size=2),
    events=st.dictionaries(texts, st.integers(0), max_size=2),
    troubles=st.lists(texts, max_size=2).map(tuple),
)
