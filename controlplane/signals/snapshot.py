"""The world as one tick sees it: fleet, pools, replicas. Immutable, and complete enough to decide on."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from controlplane.signals.decision import Event, Orders
from controlplane.signals.interval import Interval
from controlplane.signals.node import NodeFacts, NodeHealth
from controlplane.signals.pod import PodFacts
from controlplane.signals.probe import Probe
from controlplane.signals.reading import Known, Reason, Unknown

Number: TypeAlias = Known[float] | Unknown


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution in a few numbers (seconds or tokens); None where `count` observations can't say.

    `lowest` and `highest` are the first and last finite bucket edge: a quantile at or under the one, or at
    the other, is only known to lie beyond it.
    """

    count: float
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    lowest: float | None = None
    highest: float | None = None


Distribution: TypeAlias = Known[Quantiles] | Unknown


class ReplicaState(StrEnum):
    UNSEEN = "unseen"  # not scraped yet
    UP = "up"
    ASLEEP = "asleep"  # the engine sleeps: up, but without capacity
    UNREACHABLE = "unreachable"
    NOT_AN_ENGINE = "not-an-engine"


class Denominator(StrEnum):
    """What the goodput ratio is divided by."""

    GATEWAY = "gateway"  # every request that reached a gateway
    HTTP = "http"  # every request that the engine's server answered
    FINISHED = "finished"  # only requests that the engine finished: aborts and refusals are missing


class Goodput(msgspec.Struct, frozen=True):
    """Requests and tokens within the objective over one window.

    `good_requests` and `good_tokens` are proven bounds, the points are named estimates inside them;
    both ratios are over `requests` and `tokens`. `unknown` says why there is nothing to say.
    """

    window_seconds: float
    denominator: Denominator
    requests: float = 0.0
    finished: float = 0.0
    failed: float = 0.0
    shed: float = 0.0
    gave_up: float = 0.0
    tokens: float | None = 0.0
    good_requests: Interval | None = None
    good_requests_point: float | None = None
    good_tokens: Interval | None = None
    good_tokens_point: float | None = None
    unknown: Reason | None = None

    @property
    def ratio(self) -> Interval | None:
        """Share of requests that were good, as a proven interval; None where there is nothing to say."""
        if self.unknown is not None or self.good_requests is None or self.requests <= 0:
            return None
        return Interval(self.good_requests.low / self.requests, self.good_requests.high / self.requests)

    @property
    def ratio_point(self) -> float | None:
        if self.unknown is not None or self.good_requests_point is None or self.requests <= 0:
            return None
        return self.good_requests_point / self.requests


class Trend(StrEnum):
    """How preemptions come: not at all, once in a lump, or again and again."""

    UNKNOWN = "unknown"
    NONE = "none"
    BURST = "burst"
    SUSTAINED = "sustained"


class Condition(msgspec.Struct, frozen=True):
    """Something that holds for a replica or a pool since `since` (Unix seconds)."""

    kind: str
    since: float
    sentence: str


class Load(msgspec.Struct, frozen=True):
    """Work in an engine, a replica or a pool. Never a sum of ratios: `kv_usage` is the fullest engine."""

    running: Number
    waiting: Number
    waiting_tokens: Number
    kv_usage: Number
    kv_usage_mean: Number
    prompt_tokens_per_second: Number
    generation_tokens_per_second: Number
    requests_per_second: Number
    preemptions_per_second: Number
    prefix_hit_ratio: Number


class Latency(msgspec.Struct, frozen=True):
    """Latency distributions over the latency window, in seconds; queue time apart from engine time.

    `engine_time` is prefill plus decode of finished requests.
    """

    queue_time: Distribution
    engine_time: Distribution
    prefill_time: Distribution
    decode_time: Distribution
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution


class EngineLoad(msgspec.Struct, frozen=True):
    """The gauges of one data-parallel engine of a replica."""

    running: Number
    waiting: Number
    kv_usage: Number


class Limit(msgspec.Struct, frozen=True):
    """How many sequences a replica may hold at once, and why.

    `slots` is what its law came to, `reason` the code of what moved it last (or held it), `detail` a clause
    for people; `since` is when `slots` last changed. `in_force` is what the gateways say they go by. `tokens`
    is how many they may reserve of its KV cache, None for all of it.
    """

    law: str
    slots: int
    reason: str
    detail: str
    since: float
    in_force: float | None = None
    tokens: float | None = None


class Out(msgspec.Struct, frozen=True):
    """A replica should get nothing new since then (Unix seconds): `reason` is a code, `detail` a clause."""

    since: float
    reason: str
    detail: str


class Probed(msgspec.Struct, frozen=True):
    """How the probes of a replica went: the last of each kind, None where there was none, and so many bad
    ones of its health page in a row. It is on trial while there is a `doubt`, which says why."""

    health: Probe | None = None
    trial: Probe | None = None
    failures: int = 0
    doubt: str = ""


class ReplicaSnapshot(msgspec.Struct, frozen=True):
    """One engine endpoint.

    `ready_since` is when it became ready, None where that is longer ago than we know, or where it has not yet
    (`was_ready` tells which; one that is restarted becomes so again). `kv_tokens` is the size of its whole KV
    cache, None where not known, and `limit` None where no law limits it. `out` is None while it should get
    requests. `pod` is the key of its pod among the fleet's, empty where no cluster told of it.
    """

    name: str
    pool: str
    url: str
    state: ReplicaState
    detail: str
    engine: str
    version: str
    models: tuple[str, ...]
    last_scrape_at: float | None
    scrape_seconds: float | None
    restarts: int
    load: Load
    latency: Latency
    goodput: Goodput
    preemption_trend: Trend
    conditions: tuple[Condition, ...]
    engines: dict[str, EngineLoad]
    was_ready: bool = False
    ready_since: float | None = None
    kv_tokens: float | None = None
    limit: Limit | None = None
    quarantined_since: float | None = None
    pod: str = ""
    out: Out | None = None
    probed: Probed = Probed()


class Totals(msgspec.Struct, frozen=True):
    """What a pool has done since the journal began. Counters: they grow when a goodput cell closes."""

    finished: float = 0.0
    good: Interval = Interval(0.0, 0.0)
    good_point: float = 0.0
    tokens: float = 0.0
    good_tokens: Interval = Interval(0.0, 0.0)
    good_tokens_point: float = 0.0
    rejected: float = 0.0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    preemptions: float = 0.0
    restarts: int = 0


class Scale(msgspec.Struct, frozen=True):
    """How many replicas a pool should have, and why.

    `replicas` is what its law and prudence came to, and has been `since` then; `need` what the pool needs,
    fractions included. `ready` ones serve, `loading` ones will. `reason` is the code of what moved or held it
    last, `detail` a sentence for people. `cold_start_seconds` is how long a replica is expected to take to
    start, None before the first look.
    """

    law: str
    replicas: int
    ready: int
    loading: int
    need: Number
    reason: str
    detail: str
    since: float
    cold_start_seconds: float | None = None


class PoolSnapshot(msgspec.Struct, frozen=True):
    """All replicas that serve one purpose, with the totals since the journal began. `scale` is None where the
    pool is not scaled, or was not looked at yet."""

    name: str
    replicas: int
    replicas_up: int
    load: Load
    latency: Latency
    goodput: Goodput
    totals: Totals
    conditions: tuple[Condition, ...]
    scale: Scale | None = None


class PoolBoundary(msgspec.Struct, frozen=True):
    """What parts a short pool from a long one, and why.

    `tokens` is what the law came to, `reason` the code of what moved or held it last, `detail` a sentence for
    people; `since` is when `tokens` last changed. `in_force` is what all gateways say they go by.
    """

    short: str
    long: str
    tokens: int
    reason: str
    detail: str
    since: float
    in_force: int | None = None

    @property
    def name(self) -> str:
        """The target of decisions on it: no pool and no replica is called so."""
        return f"{self.short}/{self.long}"


class FleetSnapshot(msgspec.Struct, frozen=True):
    """The whole. `events` are those of this very tick; `boundary` is None where no two pools are parted.

    `pods` (by "namespace/name") are those of the pools, also the ones that have no address yet, `node_facts`
    all nodes, both as the cluster has them. `nodes` are those with GPUs.
    """

    at: float
    tick: int
    pools: dict[str, PoolSnapshot]
    replicas: dict[str, ReplicaSnapshot]
    orders: Orders
    events: tuple[Event, ...]
    nodes: dict[str, NodeHealth] = {}
    boundary: PoolBoundary | None = None
    pods: dict[str, PodFacts] = {}
    node_facts: dict[str, NodeFacts] = {}
