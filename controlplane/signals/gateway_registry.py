"""Every metric that a gateway exports, in three layers: users, queue and admission, replicas.

Rules as in `registry.py`: names start with `controlplane_gateway_` and end with their unit; labels are
bounded: endpoints, classes, reasons and states are closed sets, tenants and pools come from the
configuration, replicas from discovery. Nothing of a request's content, and no name that a client chose, is
ever a label.

Of a gateway with several workers every sample is the sum over them, but for those in `LARGEST`.
"""

from controlplane.signals.registry import Kind, Metric

SECONDS = {
    "ttft": (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0),
    "tpot": (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0),
    "e2e": (0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
    "queue_time": (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    "engine_time": (0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
}
"""Finite bucket bounds of the histograms, by what is measured; +Inf comes on top."""


def _name(rest: str) -> str:
    return f"controlplane_gateway_{rest}"


def _gauge(rest: str, text: str, unit: str = "", *labels: str) -> Metric:
    return Metric(_name(rest), Kind.GAUGE, text, unit, labels)


def _counter(rest: str, text: str, *labels: str) -> Metric:
    return Metric(_name(f"{rest}_total"), Kind.COUNTER, text, "", labels)


def _seconds(what: str, text: str, *labels: str) -> Metric:
    return Metric(_name(f"{what}_seconds"), Kind.HISTOGRAM, text, "seconds", labels)


_USERS = (
    _counter("requests", "Requests by how they ended.", "endpoint", "tenant", "end"),
    _seconds("ttft", "From arrival to the first token of a stream.", "pool", "class"),
    _seconds("tpot", "Mean time per output token after the first, per stream.", "pool", "class"),
    _seconds("e2e", "From arrival to the end, of requests that finished.", "pool", "class"),
    _counter("finished_requests", "Requests that finished.", "pool"),
    _counter("good_requests", "Finished requests within the objective.", "pool"),
    _counter("failed_requests", "Requests that failed, cut ones included.", "pool"),
    _counter("gave_up_requests", "Requests whose client hung up.", "pool"),
    _counter("shed_requests", "Requests that admission refused, of those in goodput.", "pool", "reason"),
    _counter("tokens", "Prompt and output tokens of ended requests.", "pool"),
    _counter("good_tokens", "Prompt and output tokens of good requests.", "pool"),
)

_ADMISSION = (
    _gauge("enforcing", "1 where admission enforces, 0 where it observes."),
    _gauge("share_ratio", "This gateway's share of every replica.", "ratio"),
    _gauge("queued_requests", "Requests that wait in the gateway's queue.", "requests", "pool"),
    _gauge("queued_tokens", "Tokens (prompt and reserved output) of queued requests.", "tokens", "pool"),
    _gauge("queue_overloaded", "1 while the overload detector of a class says so.", "", "pool", "class"),
    _gauge(
        "queue_cap_requests",
        "Requests of a class that may wait at today's rate; none while that is not known.",
        "requests",
        *("pool", "class"),
    ),
    _gauge("queue_cap_tokens", "The same in tokens.", "tokens", "pool", "class"),
    _counter("spilled_requests", "Requests sent to the other of two pools."),
    _seconds("queue_time", "Time in the gateway's queue, of requests let in.", "pool", "class"),
    _seconds("engine_time", "From sending to the end, of requests that finished.", "pool", "class"),
    _counter("refused_requests", "Requests refused, by status and reason.", "status", "reason"),
    _counter(
        "would_refuse_requests",
        "Requests that observing let through and enforcing would have refused.",
        *("pool", "reason"),
    ),
    _counter("tenant_tokens", "Prompt and output tokens charged to a tenant.", "tenant"),
    _counter("retries", "Requests sent again, or not for want of budget.", "kind"),
)

_REPLICAS = (
    _gauge("replica_in_flight_sequences", "Sequences sent and not ended.", "sequences", "pool", "replica"),
    _gauge("replica_limit_sequences", "Most sequences at once, our share.", "sequences", "pool", "replica"),
    _gauge("replica_reserved_tokens", "KV tokens reserved.", "tokens", "pool", "replica"),
    _gauge(
        "replica_budget_tokens", "KV tokens that may be reserved, our share.", "tokens", "pool", "replica"
    ),
    _gauge(
        "replica_grown_tokens", "Reserved tokens that streams outgrew to.", "tokens", *("pool", "replica")
    ),
    _counter("replica_extensions", "Times that a stream outgrew its reservation.", "pool", "replica"),
    _gauge("replica_foreign_tokens", "KV tokens that others use.", "tokens", "pool", "replica"),
    _gauge("replica_breaker", "1 for the state of the breaker.", "", "pool", "replica", "state"),
    _gauge("replica_rotation", "1 for whether it gets anything new.", "", "pool", "replica", "rotation"),
)

_PROCESS = (
    _gauge("start_timestamp_seconds", "Unix time of the start.", "seconds"),
    _gauge("workers", "Worker processes that answered.", "workers"),
    _gauge("ready", "1 while new requests are welcome."),
    _gauge("open_streams", "Requests that are being answered.", "streams"),
    _gauge("client_connections", "Open connections of clients.", "connections"),
    _counter("accepted_connections", "Connections of clients accepted."),
    _gauge("engine_connections", "Open connections to engines, idle ones included.", "connections"),
    _counter("engine_connects", "Connections to engines opened."),
    _counter("engine_reuses", "Requests sent on a connection that was used before."),
    _gauge("limit_files", "Files that a process may have open.", "files"),
    _gauge("sharing_workers", "Workers whose counters and quotas are shared through Redis.", "workers"),
    _gauge("sharing_age_seconds", "Since the last exchange with Redis.", "seconds"),
    _counter("sharing_exchanges", "Exchanges with Redis."),
    _counter("sharing_failures", "Exchanges with Redis that failed."),
    _gauge("alone", "1 while nobody steers: own discovery, own law."),
    _gauge("control_age_seconds", "Age of the last control message; none before the first.", "seconds"),
    _gauge("control_term", "Term of the leader that steers."),
    _counter("control_refusals", "Control messages refused, by reason.", "reason"),
)

METRICS: tuple[Metric, ...] = (*_USERS, *_ADMISSION, *_REPLICAS, *_PROCESS)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
LARGEST = frozenset(
    _name(rest)
    for rest in (
        "enforcing",
        "queue_overloaded",
        "replica_breaker",
        "replica_rotation",
        "start_timestamp_seconds",
        "ready",
        "limit_files",
        "sharing_age_seconds",
        "alone",
        "control_age_seconds",
        "control_term",
    )
)
"""Names of which the largest value over the workers is the gateway's."""
