"""Every metric that the product exports of itself and of the fleet, in one place.

The exporter can write only what stands here, and dashboards, recording rules and alerts are generated
from here, so that a panel never asks for a name that nobody exports.

Rules of this file: a name starts with `controlplane_`, ends with its unit (`_total` or `_info` after
that), and labels are bounded: they come from the configuration, from discovery or from a closed set of
codes, never from a page of an engine or from a request. Pools and replicas have families of their own,
because a sum over a family that held both would count everything twice. A reading that is unknown has
no sample in its family; `controlplane_reading_unknown` then says why. Neither has one that is only a lower
bound, because whoever scales on it would take a part for the whole: its reason is `partial`, and
`controlplane_reading_lower_bound` has what is known of it.
"""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"  # always 1; the facts are the labels


class Metric(msgspec.Struct, frozen=True):
    """One family. `name` is as a query writes it (with `_total` or `_info`), `unit` "" where it has none."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The name without the suffix that OpenMetrics adds by the kind."""
        suffix = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)


QUANTILES = {"0.5": "p50", "0.9": "p90", "0.95": "p95", "0.99": "p99"}
"""Values of the label `quantile` and the fields of `Quantiles` that they show."""

LOAD = {
    "running": ("running_requests", "requests", "Requests in the engines' running batches"),
    "waiting": ("waiting_requests", "requests", "Requests that wait in the engines' queues"),
    "waiting_tokens": (
        "waiting_tokens",
        "tokens",
        "Prompt tokens of waiting requests; an estimate: waiting times the recent mean prompt",
    ),
    "kv_usage": ("kv_usage_ratio", "ratio", "Used share of the KV cache of the fullest engine"),
    "kv_usage_mean": ("kv_usage_mean_ratio", "ratio", "Used share of the KV cache, mean over the engines"),
    "prompt_tokens_per_second": ("prompt_tokens_per_second", "tokens_per_second", "Prompt tokens taken in"),
    "generation_tokens_per_second": (
        "generation_tokens_per_second",
        "tokens_per_second",
        "Output tokens made",
    ),
    "requests_per_second": ("finished_requests_per_second", "requests_per_second", "Requests finished"),
    "preemptions_per_second": (
        "preemptions_per_second",
        "preemptions_per_second",
        "Requests thrown out of the running batch for want of KV cache",
    ),
    "prefix_hit_ratio": (
        "prefix_hit_ratio",
        "ratio",
        "Share of prompt tokens looked up that the prefix cache held",
    ),
}
"""Field of `Load`: (rest of the metric's name, unit, help)."""

LATENCY = {
    "queue_time": "Time of a request in the engine's queue",
    "engine_time": "Prefill plus decode time of a finished request",
    "prefill_time": "Prefill time of a request",
    "decode_time": "Decode time of a request",
    "ttft": "Time to first token of a request",
    "tpot": "Mean time per output token after the first, per request",
    "itl": "Time between two output tokens, per gap",
    "e2e": "Time from arrival to the last token of a request",
}
"""Field of `Latency`: what it is. The metric's name is the field and `_seconds`."""


def _gauge(rest: str, text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(f"controlplane_{rest}", Kind.GAUGE, text, unit, labels)


def _counter(rest: str, text: str, *labels: str) -> Metric:
    return Metric(f"controlplane_{rest}_total", Kind.COUNTER, text, "", labels)


def _info(rest: str, text: str, *labels: str) -> Metric:
    return Metric(f"controlplane_{rest}_info", Kind.INFO, text, "", labels)


def _both(rest: str, text: str, unit: str = "", *labels: str) -> tuple[Metric, Metric]:
    """The same gauge for a pool and for a replica."""
    return (
        _gauge(f"pool_{rest}", f"{text}, of a pool.", unit, "pool", *labels),
        _gauge(f"replica_{rest}", f"{text}, of a replica.", unit, "pool", "replica", *labels),
    )


_SELF = (
    _info("build", "The running controlplane.", "version", "python_version"),
    _gauge("start_timestamp_seconds", "Unix time of the start.", "seconds"),
    _counter("ticks", "Ticks done."),
    Metric("controlplane_tick_duration_seconds", Kind.HISTOGRAM, "Time of one tick.", "seconds"),
    _gauge("tick_interval_seconds", "Time from tick to tick, as configured.", "seconds"),
    _gauge("last_tick_timestamp_seconds", "Unix time of the last tick.", "seconds"),
    _counter("probes", "Probes of replicas that ended, by what was asked and what came.", "kind", "result"),
    _counter("misfires", "Ticks that came too late and were left out."),
    _counter("missed_scrapes", "Scrapes left out because the one before had not ended."),
    _counter("scrapes", "Scrapes by result; reason is empty where the page was read.", "result", "reason"),
    _counter("dropped_samples", "Samples of engines that were dropped: NaN or infinite."),
    _counter("journal_writes", "Ticks that the journal has kept."),
    _counter("journal_failures", "Ticks that the journal could not keep."),
    _gauge("journal_queue_ticks", "Ticks that wait to be written.", "ticks"),
    _counter("decisions", "Decisions by action and reason code.", "action", "reason"),
    _counter("events", "Events by kind.", "kind"),
    _gauge("hold_active", "1 while a hold freezes every actuator."),
    _gauge("leading", "1 while this daemon is the one that acts, 0 while it follows another."),
    _gauge("active_overrides", "Overrides that stand.", "overrides"),
    _gauge("open_streams", "Clients of the event stream.", "streams"),
    _counter("dropped_streams", "Clients of the event stream dropped because they read too slowly."),
)

_FLEET = (
    _gauge(
        "reading_unknown",
        "1 for a signal without a value, and why; replica is empty for a signal of a pool.",
        "",
        *("pool", "replica", "signal", "reason"),
    ),
    _gauge(
        "reading_lower_bound",
        "At least this much, in the unit of the signal: a part of what it is made of is missing.",
        "",
        *("pool", "replica", "signal"),
    ),
    _gauge("omitted_pools", "Pools without series of their own: there are too many.", "pools"),
    _gauge("omitted_replicas", "Replicas without series of their own: there are too many.", "replicas"),
    _gauge(
        "omitted_latency_replicas",
        "Replicas without latency quantiles of their own: there are too many.",
        "replicas",
    ),
    _gauge("omitted_nodes", "Nodes without series of their own: there are too many.", "nodes"),
)

_POOL = (
    _gauge("pool_replicas", "Replicas that should be there.", "replicas", "pool"),
    _gauge("pool_up_replicas", "Replicas that are up.", "replicas", "pool"),
    _gauge(
        "pool_desired_replicas",
        "Replicas that the pool should have, for whoever scales it.",
        "replicas",
        "pool",
    ),
    _gauge(
        "pool_needed_replicas", "Replicas that are needed by the law, fractions included.", "replicas", "pool"
    ),
    _gauge(
        "pool_autoscaler_replicas",
        "What an HPA with the target AverageValue 1 is told: a value past its tolerance of 10 %; in observe "
        "the count that is there. No sample where nobody can say.",
        "replicas",
        "pool",
    ),
    _gauge("pool_ready_replicas", "Replicas that serve, as scaling counts them.", "replicas", "pool"),
    _gauge("pool_loading_replicas", "Replicas that load: they will serve.", "replicas", "pool"),
    _gauge(
        "pool_cold_start_seconds",
        "From creating a replica until it serves: learned, until then configured.",
        "seconds",
        "pool",
    ),
    _info("pool_scaling", "What moved or held the replica count last.", "pool", "law", "reason"),
    _gauge("pool_objective_ratio", "Share of requests that should be good.", "ratio", "pool"),
    _gauge("pool_objective_ttft_seconds", "Most TTFT that a good request may have.", "seconds", "pool"),
    _gauge("pool_objective_tpot_seconds", "Most TPOT that a good request may have.", "seconds", "pool"),
    _info(
        "pool_goodput_denominator",
        "What goodput is divided by: all requests (gateway), all answered (http) or only finished ones.",
        *("pool", "denominator"),
    ),
)

_BOUNDARY = (
    _gauge(
        "pool_boundary_tokens",
        "Longest request (prompt and answer) for this pool, as its law has it; long_pool gets the others.",
        "tokens",
        *("pool", "long_pool"),
    ),
    _gauge(
        "pool_boundary_in_force_tokens",
        "The same as the gateways go by.",
        "tokens",
        *("pool", "long_pool"),
    ),
    _info(
        "pool_boundary",
        "What moved or held the boundary last, and what is done about it (empty: nobody acts on it).",
        *("pool", "long_pool", "reason", "standing"),
    ),
)

TOTALS = {
    "finished": ("finished_requests", "requests", "Requests that the engines finished"),
    "good": ("good_requests", "requests", "Finished requests within the objective"),
    "tokens": ("finished_tokens", "tokens", "Prompt and output tokens of finished requests"),
    "good_tokens": ("good_tokens", "tokens", "Prompt and output tokens of good requests"),
    "rejected": ("rejected_requests", "requests", "Requests that the engines refused"),
    "prompt_tokens": ("prompt_tokens", "tokens", "Prompt tokens taken in"),
    "generation_tokens": ("generation_tokens", "tokens", "Output tokens made"),
    "preemptions": ("preemptions", "", "Requests thrown out of the running batch"),
    "restarts": ("restarts", "", "Restarts of engines"),
}
"""Field of `Totals`: (rest of the metric's name without `_total`, unit, help)."""

BOUNDED_TOTALS = {"good": "good_point", "good_tokens": "good_tokens_point"}
"""Fields of `Totals` that are intervals, and the field of the point inside."""

_REPLICA = (
    _info(
        "replica",
        "The endpoint, and the engine and the version range that its page shows.",
        *("pool", "replica", "url", "engine", "version"),
    ),
    _info(
        "replica_goodput_denominator",
        "What the goodput of a replica is divided by, as for its pool.",
        *("pool", "replica", "denominator"),
    ),
    _gauge(
        "replica_state",
        "1 for the state that the replica is in, 0 for all others.",
        "",
        *("pool", "replica", "state"),
    ),
    _gauge(
        "replica_preemption_trend",
        "1 for the way in which preemptions come, 0 for all others.",
        "",
        *("pool", "replica", "trend"),
    ),
    _counter("replica_restarts", "Restarts of the engine since the journal began.", "pool", "replica"),
    _counter(
        "replica_scrape_failures",
        "Pages that were not read since the daemon's start.",
        *("pool", "replica"),
    ),
    _gauge(
        "replica_last_scrape_timestamp_seconds",
        "Unix time of the last page that was read; its age is time() minus this.",
        "seconds",
        *("pool", "replica"),
    ),
    _gauge(
        "replica_scrape_duration_seconds", "Time that the last page took.", "seconds", *("pool", "replica")
    ),
    _gauge(
        "replica_limit_sequences",
        "Most sequences at once, as the law came to them.",
        "sequences",
        *("pool", "replica"),
    ),
    _gauge(
        "replica_limit_in_force_sequences",
        "Most sequences at once that the gateways go by, of the whole replica.",
        "sequences",
        *("pool", "replica"),
    ),
    _info(
        "replica_limit",
        "The law of the limit, what moved it last, and what is done about it (empty: nobody acts on it).",
        *("pool", "replica", "law", "reason", "standing"),
    ),
    _gauge(
        "replica_out_of_rotation",
        "1 while the replica should get no new request, and why; in_force: it gets none, else that is only "
        "observed.",
        "",
        *("pool", "replica", "reason", "in_force"),
    ),
    _gauge("replica_failed_health_probes", "Bad health probes in a row.", "probes", *("pool", "replica")),
    _gauge(
        "replica_probe_duration_seconds",
        "Time that the last probe took, of its health page or for one token; a bad one as well.",
        "seconds",
        *("pool", "replica", "kind"),
    ),
    _gauge(
        "replica_quarantined", "1 while a fault of its GPUs keeps requests away.", "", *("pool", "replica")
    ),
)

_NODE = (
    _gauge("node_gpus", "GPUs that are known on a node.", "gpus", "node"),
    _gauge("node_blind", "1 while nobody sees the GPUs of a node: that is no verdict.", "", "node"),
    _gauge("node_quarantined", "1 while a node bears our mark, 0 for all others.", "", "node"),
    _gauge(
        "gpu_fault",
        "1 for the worst fault held against a GPU, how far it has come and what would mend it.",
        "",
        *("node", "UUID", "check", "fault_class", "remedy", "stage"),
    ),
)


def _work() -> tuple[Metric, ...]:
    """Load, latency and goodput: the same for pools and replicas."""
    metrics: list[Metric] = []
    for rest, unit, text in LOAD.values():
        metrics += _both(rest, text, unit)
    for name, text in LATENCY.items():
        metrics += _both(f"{name}_seconds", f"{text}: quantiles over the window", "seconds", "quantile")
        metrics += _both(f"{name}_mean_seconds", f"{text}: mean over the window", "seconds")
    metrics += _both("goodput_window_seconds", "Time over which goodput is told", "seconds")
    metrics += _both("window_judged_requests", "Requests of the window that are good or not", "requests")
    metrics += _both("window_judged_tokens", "Prompt and output tokens of judged requests", "tokens")
    metrics += _both(
        "window_ended_requests", "Requests of the window by how they ended", "requests", "outcome"
    )
    metrics += _both("window_good_requests", "Judged requests within the objective", "requests", "bound")
    metrics += _both("window_good_tokens", "Judged tokens of good requests", "tokens", "bound")
    metrics += _both("goodput_ratio", "Share of judged requests that were good", "ratio", "bound")
    metrics += _both("token_goodput_ratio", "Share of judged tokens of good requests", "ratio", "bound")
    metrics += _both("condition", "1 while a condition of this kind holds", "", "kind")
    return tuple(metrics)


def _totals() -> tuple[Metric, ...]:
    """What a pool has done: counters, so that rates over any time can be made of them."""
    return tuple(
        Metric(
            f"controlplane_pool_{rest}_total",
            Kind.COUNTER,
            f"{text}, of a pool since the journal began.",
            unit,
            ("pool", "bound") if field in BOUNDED_TOTALS else ("pool",),
        )
        for field, (rest, unit, text) in TOTALS.items()
    )


METRICS: tuple[Metric, ...] = (*_SELF, *_FLEET, *_POOL, *_BOUNDARY, *_totals(), *_REPLICA, *_NODE, *_work())
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
