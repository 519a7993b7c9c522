"""Gateway and tenants: how requests end, who sends them, how long they wait, what is refused."""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    GREEN,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Query,
    Steps,
    heat,
    lines,
    number,
    row,
    states,
)
from controlplane.render.dashboards.queries import CLUSTER, POOL, QUEUED, RATE, rate, share

NO = "no gateway"


def quantiles(title: str, text: str, what: str) -> Any:
    return lines(
        title,
        text,
        "s",
        Query(
            f"histogram_quantile(0.95, sum by (le, class) "
            f"(rate(controlplane_gateway_{what}_bucket{{{POOL}}}{RATE}))) >= 0",
            "{{class}} p95",
        ),
        Query(
            f"histogram_quantile(0.5, sum by (le, class) "
            f"(rate(controlplane_gateway_{what}_bucket{{{POOL}}}{RATE}))) >= 0",
            "{{class}} p50",
        ),
        dashed=".* p50",
        empty="no traffic",
    )


def buckets(title: str, text: str, what: str) -> Any:
    return heat(
        title,
        text,
        "s",
        f"sum by (le) (rate(controlplane_gateway_{what}_bucket{{{POOL}}}{RATE}))",
        width=12,
        empty="no traffic",
    )


def dashboard() -> dict[str, Any]:
    ended = "controlplane_gateway_{}_requests_total"
    return board(
        "gateway",
        "Gateway and tenants",
        "The data plane: how requests end, who sends them, how long they wait, what is refused and why.",
        ("cluster", "pool"),
        row(
            "Now",
            number(
                "Gateways ready",
                "Gateways that welcome new requests.",
                "short",
                f"sum(controlplane_gateway_ready{{{CLUSTER}}})",
                Steps(RED, ((1, GREEN),)),
                empty=NO,
            ),
            number(
                "Mode",
                "Whether admission enforces, or observes and only counts.",
                "short",
                f"max(controlplane_gateway_enforcing{{{CLUSTER}}})",
                says={"0": ("observes", "blue"), "1": ("enforces", GREEN)},
                empty=NO,
            ),
            number(
                "Open streams",
                "Requests that are being answered.",
                "short",
                f"sum(controlplane_gateway_open_streams{{{CLUSTER}}})",
                PLAIN,
                empty=NO,
            ),
            number(
                "Queued",
                "Requests that wait in the gateways.",
                "short",
                QUEUED,
                PLAIN,
                empty=NO,
            ),
            number(
                "Refused",
                "Share of requests that were refused.",
                "percentunit",
                share(
                    f'sum(rate(controlplane_gateway_requests_total{{{CLUSTER},end="refused"}}{RATE})) or '
                    f"0 * sum(rate(controlplane_gateway_requests_total{{{CLUSTER}}}{RATE}))",
                    f"sum(rate(controlplane_gateway_requests_total{{{CLUSTER}}}{RATE}))",
                ),
                Steps(GREEN, ((0.01, YELLOW), (0.1, RED))),
                decimals=1,
                empty="no traffic",
            ),
            number(
                "Breakers open",
                "Replicas that a gateway sends only trials to.",
                "short",
                f'count(controlplane_gateway_replica_breaker{{{POOL},state="open"}}) or vector(0)',
                NONE_IS_GOOD,
            ),
        ),
        row(
            "Users",
            lines(
                "Requests by end",
                "Finished, failed, refused, cut, timed out, cancelled by the client, wrong by the client.",
                "reqps",
                Query(rate("controlplane_gateway_requests_total", CLUSTER, "end"), "{{end}}"),
                stacked=True,
                empty="no traffic",
            ),
            lines(
                "Requests by endpoint",
                "Which API is used.",
                "reqps",
                Query(rate("controlplane_gateway_requests_total", CLUSTER, "endpoint"), "{{endpoint}}"),
                stacked=True,
                empty="no traffic",
            ),
            lines(
                "Good of finished, by pool",
                "Finished requests within the objective over all that finished.",
                "percentunit",
                Query(
                    share(
                        rate(ended.format("good"), POOL, "pool"), rate(ended.format("finished"), POOL, "pool")
                    ),
                    "{{pool}}",
                ),
                most=1,
                empty="no traffic",
            ),
            quantiles(
                "TTFT by class", "From arrival at the gateway to the first token of a stream.", "ttft_seconds"
            ),
            quantiles("TPOT by class", "Mean time per output token of a stream.", "tpot_seconds"),
            quantiles("End to end by class", "From arrival to the end.", "e2e_seconds"),
            buckets("TTFT at the gateway", "By bucket.", "ttft_seconds"),
            buckets(
                "Queue time at the gateway",
                "By bucket. A band at the top is a queue that stands.",
                "queue_time_seconds",
            ),
        ),
        row(
            "Tenants",
            lines(
                "Requests by tenant",
                "As they came.",
                "reqps",
                Query(rate("controlplane_gateway_requests_total", CLUSTER, "tenant"), "{{tenant}}"),
                stacked=True,
                empty="no traffic",
            ),
            lines(
                "Tokens by tenant",
                "Prompt and output tokens charged, per second: what fairness goes by.",
                "short",
                Query(rate("controlplane_gateway_tenant_tokens_total", CLUSTER, "tenant"), "{{tenant}}"),
                stacked=True,
                empty="no traffic",
            ),
            lines(
                "Refused share by tenant",
                "Share of a tenant's requests that were refused.",
                "percentunit",
                Query(
                    share(
                        f"sum by (tenant) "
                        f'(rate(controlplane_gateway_requests_total{{{CLUSTER},end="refused"}}{RATE}))',
                        rate("controlplane_gateway_requests_total", CLUSTER, "tenant"),
                    ),
                    "{{tenant}}",
                ),
                most=1,
                empty="nothing refused",
            ),
        ),
        row(
            "Queue and refusals",
            lines(
                "Queued requests",
                "In the gateways, by pool.",
                "short",
                Query(f"sum by (pool) (controlplane_gateway_queued_requests{{{POOL}}})", "{{pool}}"),
                empty="nothing waits",
            ),
            lines(
                "Queued tokens",
                "Prompt and reserved output of what waits, by pool.",
                "short",
                Query(f"sum by (pool) (controlplane_gateway_queued_tokens{{{POOL}}})", "{{pool}}"),
                empty="nothing waits",
            ),
            quantiles("Queue time by class", "In the gateway, of requests let in.", "queue_time_seconds"),
            lines(
                "Refusals by reason",
                "And their status.",
                "reqps",
                Query(
                    rate("controlplane_gateway_refused_requests_total", CLUSTER, "status", "reason"),
                    "{{status}} {{reason}}",
                ),
                stacked=True,
                empty="nothing refused",
            ),
            lines(
                "Would refuse",
                "What observing let through and enforcing would have refused.",
                "reqps",
                Query(rate("controlplane_gateway_would_refuse_requests_total", POOL, "reason"), "{{reason}}"),
                stacked=True,
                empty="nothing",
            ),
            states(
                "Overload by class",
                "What the overload detector says of each queue.",
                {"0": ("no", GREEN), "1": ("overloaded", RED)},
                Query(
                    f"max by (pool, class) (controlplane_gateway_queue_overloaded{{{POOL}}})",
                    "{{pool}} {{class}}",
                ),
                width=8,
                empty="nothing waits",
            ),
        ),
        row(
            "Towards the replicas",
            lines(
                "In flight by replica",
                "Sequences sent and not ended.",
                "short",
                Query(
                    f"sum by (replica) (controlplane_gateway_replica_in_flight_sequences{{{POOL}}})",
                    "{{replica}}",
                ),
                empty=NO,
            ),
            lines(
                "Engine time by class",
                "From sending to the end: the engine's part of the answer.",
                "s",
                Query(
                    f"histogram_quantile(0.95, sum by (le, class) "
                    f"(rate(controlplane_gateway_engine_time_seconds_bucket{{{POOL}}}{RATE}))) >= 0",
                    "{{class}} p95",
                ),
                empty="no traffic",
            ),
            lines(
                "Retries",
                "Requests sent again, and those that were not for want of budget.",
                "reqps",
                Query(rate("controlplane_gateway_retries_total", CLUSTER, "kind"), "{{kind}}"),
                empty="none",
            ),
            states(
                "Breakers",
                "Of each replica: closed, trying, open.",
                {"0": ("closed", GREEN), "1": ("trying", ORANGE), "2": ("open", RED)},
                Query(
                    f"max by (pool, replica) (0 * "
                    f'controlplane_gateway_replica_breaker{{{POOL},state="closed"}} or 1 * '
                    f'controlplane_gateway_replica_breaker{{{POOL},state="half-open"}} or 2 * '
                    f'controlplane_gateway_replica_breaker{{{POOL},state="open"}})',
                    "{{replica}}",
                ),
                width=12,
                empty=NO,
            ),
            lines(
                "KV tokens of others",
                "KV tokens on our replicas that do not come from this gateway.",
                "short",
                Query(
                    f"sum by (replica) (controlplane_gateway_replica_foreign_tokens{{{POOL}}})", "{{replica}}"
                ),
                width=12,
                empty=NO,
            ),
        ),
        row(
            "Process",
            lines(
                "Connections",
                "Of clients, and to engines with idle ones, against the files that a process may open "
                "(dashed).",
                "short",
                Query(
                    f"sum by (instance) (controlplane_gateway_client_connections{{{CLUSTER}}})",
                    "{{instance}} clients",
                ),
                Query(
                    f"sum by (instance) (controlplane_gateway_engine_connections{{{CLUSTER}}})",
                    "{{instance}} engines",
                ),
                Query(
                    f"max by (instance) (controlplane_gateway_limit_files{{{CLUSTER}}})", "{{instance}} limit"
                ),
                dashed=".* limit",
                empty=NO,
            ),
            lines(
                "Connections opened",
                "Per second, and requests that found one open.",
                "ops",
                Query(
                    f"sum(rate(controlplane_gateway_accepted_connections_total{{{CLUSTER}}}{RATE}))",
                    "from clients",
                ),
                Query(
                    f"sum(rate(controlplane_gateway_engine_connects_total{{{CLUSTER}}}{RATE}))", "to engines"
                ),
                Query(f"sum(rate(controlplane_gateway_engine_reuses_total{{{CLUSTER}}}{RATE}))", "reused"),
                empty=NO,
            ),
            lines(
                "Share of the replicas",
                "Of each gateway; together they are at most 1.",
                "percentunit",
                Query(f"max by (instance) (controlplane_gateway_share_ratio{{{CLUSTER}}})", "{{instance}}"),
                stacked=True,
                most=1,
                empty=NO,
            ),
        ),
    )
