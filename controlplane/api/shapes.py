"""The shapes of the API's answers: what OpenAPI documents.

A number that can be missing is either `{"value", "at", "age_seconds", "quality"}` or `{"unknown",
"detail", "at", "age_seconds"}`; `null` stands only for "nothing to say" and for an open bound. Times
are Unix seconds. NaN and infinity never appear.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from controlplane.api.finite import finite
from controlplane.signals.decision import Mode, Severity, Standing
from controlplane.signals.reading import Quality, Reason
from controlplane.signals.snapshot import Denominator, ReplicaState, Trend

Finite = Annotated[float, Field(allow_inf_nan=False)]
FiniteOrNull = Annotated[float | None, BeforeValidator(finite)]


class Answer(BaseModel):
    """A part of an answer; fields may be added in later versions, never taken away."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class KnownNumber(Answer):
    value: Finite
    at: Finite = Field(description="Unix time of the measurement")
    age_seconds: Finite
    quality: Quality


class UnknownReading(Answer):
    """No value, which is never the same as 0."""

    unknown: Reason
    detail: str
    at: Finite = Field(description="Unix time at which this was learnt")
    age_seconds: Finite


Number = KnownNumber | UnknownReading


class Quantiles(Answer):
    """A distribution in a few numbers (seconds), read from a histogram.

    A quantile at or under `lowest`, the histogram's first bound, or at `highest`, its last finite one, says
    no more than that it lies under or over that bound.
    """

    count: FiniteOrNull
    mean: FiniteOrNull
    p50: FiniteOrNull
    p90: FiniteOrNull
    p95: FiniteOrNull
    p99: FiniteOrNull
    lowest: FiniteOrNull = None
    highest: FiniteOrNull = None


class KnownDistribution(Answer):
    value: Quantiles
    at: Finite
    age_seconds: Finite
    quality: Quality


Distribution = KnownDistribution | UnknownReading


class Bounds(Answer):
    """A proven interval; `null` is an open end."""

    low: FiniteOrNull
    high: FiniteOrNull


class Objective(Answer):
    """`ratio` of all requests within both limits."""

    ttft_seconds: Finite
    tpot_seconds: Finite
    ratio: Finite


class Goodput(Answer):
    """Requests and tokens within the objective over one window, each with its denominator.

    `denominator` says what `requests` holds: all that reached a gateway, all that the engine's server
    answered, or only those that finished (then aborts and refusals are missing and the ratio flatters).
    """

    window_seconds: FiniteOrNull
    denominator: Denominator
    requests: FiniteOrNull
    finished: FiniteOrNull
    failed: FiniteOrNull
    shed: FiniteOrNull
    gave_up: FiniteOrNull
    tokens: FiniteOrNull
    good_requests: Bounds | None
    good_requests_point: FiniteOrNull
    good_tokens: Bounds | None
    good_tokens_point: FiniteOrNull
    ratio: Bounds | None
    ratio_point: FiniteOrNull
    token_ratio: Bounds | None
    token_ratio_point: FiniteOrNull
    unknown: Reason | None


class Totals(Answer):
    """What a pool has done since the journal began."""

    finished: FiniteOrNull
    good: Bounds
    good_point: FiniteOrNull
    tokens: FiniteOrNull
    good_tokens: Bounds
    good_tokens_point: FiniteOrNull
    rejected: FiniteOrNull
    prompt_tokens: FiniteOrNull
    generation_tokens: FiniteOrNull
    preemptions: FiniteOrNull
    restarts: int


class Load(Answer):
    running: Number
    waiting: Number
    waiting_tokens: Number = Field(description="an estimate")
    kv_usage: Number = Field(description="the fullest engine, 0..1")
    kv_usage_mean: Number
    prompt_tokens_per_second: Number
    generation_tokens_per_second: Number
    requests_per_second: Number
    preemptions_per_second: Number
    prefix_hit_ratio: Number


class Latency(Answer):
    queue_time: Distribution
    engine_time: Distribution = Field(description="prefill plus decode")
    prefill_time: Distribution
    decode_time: Distribution
    ttft: Distribution
    tpot: Distribution = Field(description="mean time per output token, per request")
    itl: Distribution = Field(description="per gap between two tokens")
    e2e: Distribution


class Condition(Answer):
    kind: str
    since: Finite
    sentence: str


class EngineLoad(Answer):
    running: Number
    waiting: Number
    kv_usage: Number


class Limit(Answer):
    """How many sequences a replica may hold at once, and why."""

    law: str
    slots: int = Field(description="what the law came to")
    reason: str = Field(description="code of what moved it last, or held it")
    detail: str
    since: Finite = Field(description="Unix time at which `slots` last changed")
    in_force: FiniteOrNull = Field(description="what the gateways say they go by")
    standing: Standing | None = Field(description="what is done about it; null: nobody acts on it")


class Out(Answer):
    """A replica that should get no new requests."""

    since: Finite
    reason: str = Field(description="a code: gpu, wedged, unreachable, leaving, errors, overloaded, ...")
    detail: str
    in_force: bool = Field(description="whether it gets none; false: nothing may be enforced")


class Replica(Answer):
    name: str
    pool: str
    url: str
    state: ReplicaState
    detail: str
    engine: str
    version: str
    models: list[str]
    last_scrape_at: FiniteOrNull
    scrape_seconds: FiniteOrNull
    restarts: int
    scrape_failures: int = Field(description="pages that were not read since the daemon's start")
    load: Load
    latency: Latency
    goodput: Goodput
    preemption_trend: Trend
    conditions: list[Condition]
    engines: dict[str, EngineLoad]
    limit: Limit | None = Field(description="null: no law limits it")
    out: Out | None = Field(None, description="null: it should get requests")


class Scale(Answer):
    """How many replicas a pool should have, and why."""

    law: str
    replicas: int = Field(description="what its law and prudence came to")
    ready: int
    loading: int
    need: Number = Field(description="replicas that its work needs, fractions included")
    reason: str = Field(description="code of what moved or held the count last")
    detail: str
    since: Finite = Field(description="Unix time at which `replicas` last changed")
    cold_start_seconds: Finite | None = Field(description="how long a replica is expected to take to start")


class Pool(Answer):
    name: str
    replicas: int
    replicas_up: int
    objective: Objective | None
    load: Load
    latency: Latency
    goodput: Goodput
    totals: Totals
    conditions: list[Condition]
    standings: dict[str, Standing] = Field(
        {}, description="what may be done in it now, by actuator; empty: nobody acts on it"
    )
    scale: Scale | None = Field(None, description="null: nobody says how many replicas it should have")


class GpuVerdict(Answer):
    """What is held against one GPU: its worst fault."""

    uuid: str
    check: str
    fault_class: str
    remedy: str
    stage: str = Field(description="noted, suspected, held-down, withheld, wanted or placed")
    since: Finite
    sentence: str
    why: str = Field(description="what stands against acting on it")


class Mark(Answer):
    """Our mark on a node that we took."""

    fault: str
    check: str
    uuid: str
    remedy: str
    reason: str
    since: FiniteOrNull
    kind: str = Field(description="taint, cordon or both")


class Node(Answer):
    """A node with GPUs; without verdicts all of them look well, unless nobody sees them."""

    name: str
    gpus: int = Field(description="how many GPUs are known on it")
    blind_since: FiniteOrNull = Field(description="Unix time from which nobody sees its GPUs")
    verdicts: list[GpuVerdict]
    quarantined: Mark | None = Field(description="our mark on it; null: there is none")


class Hold(Answer):
    since: Finite
    by: str
    reason: str


class Override(Answer):
    scope: str
    name: str
    setting: str
    value: str
    by: str
    reason: str
    since: Finite
    until: FiniteOrNull


class Orders(Answer):
    """What people have ordered: it binds every law."""

    hold: Hold | None
    overrides: list[Override]


class Event(Answer):
    at: Finite
    kind: str
    target: str
    severity: Severity
    sentence: str


class Evidence(Answer):
    name: str
    value: FiniteOrNull
    age_seconds: FiniteOrNull
    unknown: Reason | None


class Decision(Answer):
    id: str
    at: Finite
    action: str
    target: str
    old: str
    new: str
    reason: str
    sentence: str
    evidence: list[Evidence]
    mode: Mode
    outcome: str


class Alert(Answer):
    """An alert that fires."""

    name: str
    severity: str
    team: str
    summary: str
    runbook_url: str
    labels: dict[str, str]
    since: Finite = Field(description="Unix time from which it holds")
    heard_at: Finite = Field(description="Unix time of Alertmanager's last word on it")


class Alerts(Answer):
    items: list[Alert] = Field(description="pages first, then by age")
    truncated: int = Field(description="alerts that Alertmanager left out of its last word")


class Fleet(Answer):
    """The whole, without its replicas: those are a list of their own."""

    version: str
    at: Finite = Field(description="Unix time of the last tick")
    age_seconds: Finite
    tick: int
    replicas: dict[ReplicaState, int] = Field(description="number of replicas by state")
    pools: list[Pool]
    orders: Orders
    leads: bool = Field(True, description="false: another daemon leads and acts")
    troubles: list[str] = Field(description="sentences about the daemon itself; empty when all is well")


class Pools(Answer):
    items: list[Pool]


class Replicas(Answer):
    items: list[Replica]
    total: int = Field(description="how many there are in all")
    limit: int
    offset: int


class Nodes(Answer):
    items: list[Node] = Field(description="by name")
    total: int
    limit: int
    offset: int


class Events(Answer):
    items: list[Event] = Field(description="newest first")


class Decisions(Answer):
    items: list[Decision] = Field(description="newest first")


class PoolSummary(Answer):
    name: str
    replicas: int
    replicas_up: int
    running: Number
    waiting: Number
    kv_usage: Number
    goodput: Goodput
    conditions: list[str]


class Summary(Answer):
    """One tick in a few numbers, for the stream."""

    at: Finite
    tick: int
    hold: bool
    pools: list[PoolSummary]


class Autoscaling(Answer):
    """What an autoscaler is told of a pool."""

    pool: str
    active: bool = Field(description="whether the pool should have any replica")
    value: Finite = Field(description="for an HPA with target 1; it moves past its tolerance")
    desired: int = Field(description="how many replicas it should have")
    current: int = Field(description="how many it has, those that load included")
    why: str


class Health(Answer):
    status: Literal["ok"]
    last_tick_at: FiniteOrNull
    tick_interval_seconds: Finite
    hold: bool
    troubles: list[str]


class ErrorDetail(Answer):
    code: str
    message: str = Field(description="a sentence that names the thing concerned")


class Error(Answer):
    error: ErrorDetail
