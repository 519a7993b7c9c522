"""Replicas: which one is out of line?"""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    FULL,
    GREEN,
    GREY,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Query,
    Steps,
    lines,
    row,
    states,
    table,
)
from controlplane.render.dashboards.queries import MODEL, POOL, REPLICA, TARGET, mean, share
from controlplane.render.dashboards.shared import (
    POOL_NAME,
    kv_usage,
    preemptions,
    waiting,
)

STATE = {
    "0": ("not seen yet", GREY),
    "1": ("up", GREEN),
    "2": ("asleep", "blue"),
    "3": ("unreachable", RED),
    "4": ("not an engine", ORANGE),
}
STATES = ("unseen", "up", "asleep", "unreachable", "not-an-engine")


def state() -> str:
    """The state of each replica as a number: the place of the one that is 1."""
    parts = (
        f'{i} * (controlplane_replica_state{{{POOL},state="{name}"}} == 1)' for i, name in enumerate(STATES)
    )
    return f"max by (pool, replica) ({' or '.join(parts)})"


def dashboard() -> dict[str, Any]:
    spread = f"max by (pool) (llm:{{0}}{{{{{MODEL}}}}}) / (avg by (pool) (llm:{{0}}{{{{{MODEL}}}}}) > 0)"
    return board(
        "replicas",
        "Replicas",
        "Every replica beside its peers: state, load, latency, and who is out of line.",
        ("cluster", "pool", "model", "instance"),
        row(
            "State",
            states(
                "Answers Prometheus",
                "Whether the engine's metrics page is read. It needs no daemon.",
                {"0": ("down", RED), "1": ("up", GREEN)},
                Query(f"llm:engine_up{{{TARGET}}}", "{{pool}} {{instance}}"),
                width=12,
            ),
            states(
                "State by the daemon",
                "What the daemon holds each replica for.",
                STATE,
                Query(state(), "{{pool}} {{replica}}"),
                width=12,
                empty="daemon away",
            ),
            states(
                "Conditions",
                "What the daemon finds wrong with a replica, while it holds.",
                {"1": ("holds", RED)},
                Query(
                    f"max by (pool, replica, kind) (controlplane_replica_condition{{{POOL}}})",
                    "{{replica}}: {{kind}}",
                ),
                width=12,
                height=6,
                empty="no condition holds",
            ),
            states(
                "Rotation at the gateways",
                "Whether a replica gets anything new, and its breaker.",
                {"0": ("no", RED), "1": ("yes", GREEN)},
                Query(
                    f"max by (pool, replica) "
                    f'(controlplane_gateway_replica_rotation{{{POOL},rotation="in"}} or 0 * '
                    f"controlplane_gateway_replica_rotation{{{POOL}}})",
                    "{{replica}}: gets new requests",
                ),
                Query(
                    f"max by (pool, replica) (1 - "
                    f'(controlplane_gateway_replica_breaker{{{POOL},state="open"}} or 0 * '
                    f"controlplane_gateway_replica_breaker{{{POOL}}}))",
                    "{{replica}}: breaker closed",
                ),
                width=12,
                height=6,
                empty="no gateway",
            ),
        ),
        row(
            "Now",
            table(
                "Replicas now",
                "From the engines' own pages; the pool opens its dashboard.",
                ("pool", "instance"),
                (
                    POOL_NAME,
                    Column("Replica", label="instance"),
                    Column(
                        "Up",
                        f"max by (pool, instance) (llm:engine_up{{{TARGET}}})",
                        says={"0": ("down", RED), "1": ("up", GREEN)},
                    ),
                    Column(
                        "Running", f"sum by (pool, instance) (llm:running_requests{{{REPLICA}}})", decimals=0
                    ),
                    waiting(REPLICA, "pool, instance", many=20),
                    kv_usage(REPLICA, "pool, instance"),
                    Column(
                        "Output tokens/s",
                        f"sum by (pool, instance) (llm:generation_tokens:rate2m{{{REPLICA}}})",
                        decimals=0,
                    ),
                    Column(
                        "TTFT p95", f"max by (pool, instance) (llm:ttft_seconds:p95{{{REPLICA}}})", unit="s"
                    ),
                    Column(
                        "TPOT p95", f"max by (pool, instance) (llm:tpot_seconds:p95{{{REPLICA}}})", unit="s"
                    ),
                    preemptions(REPLICA, "pool, instance"),
                    Column(
                        "Starts in 30m",
                        f"max by (pool, instance) (llm:engine_starts:changes30m{{{TARGET}}} or "
                        f"llm:engine_resets:30m{{{TARGET}}})",
                        decimals=0,
                        steps=Steps(GREEN, ((1, YELLOW), (3, RED))),
                    ),
                ),
                height=11,
            ),
            table(
                "Replicas as the daemon knows them",
                "Engine and version as its page shows them, and the age of the last page.",
                ("pool", "replica"),
                (
                    POOL_NAME,
                    Column("Replica", label="replica"),
                    Column("Engine", label="engine"),
                    Column("Version", label="version"),
                    Column("Address", label="url"),
                    Column(
                        "State",
                        f"{state()} * on (pool, replica) group_left (engine, version, url) max by "
                        f"(pool, replica, engine, version, url) (controlplane_replica_info{{{POOL}}})",
                        says=STATE,
                    ),
                    Column(
                        "Page age",
                        f"max by (pool, replica) (time() - "
                        f"controlplane_replica_last_scrape_timestamp_seconds{{{POOL}}})",
                        unit="s",
                        decimals=0,
                        steps=Steps(GREEN, ((15, YELLOW), (30, RED))),
                    ),
                    Column(
                        "Failed pages",
                        f"max by (pool, replica) (controlplane_replica_scrape_failures_total{{{POOL}}})",
                        decimals=0,
                    ),
                    Column(
                        "Restarts",
                        f"max by (pool, replica) (controlplane_replica_restarts_total{{{POOL}}})",
                        decimals=0,
                    ),
                    Column(
                        "In flight",
                        f"sum by (pool, replica) (llm:replica_in_flight_sequences{{{POOL}}})",
                        decimals=0,
                    ),
                    Column(
                        "Limit", f"sum by (pool, replica) (llm:replica_limit_sequences{{{POOL}}})", decimals=0
                    ),
                ),
                height=9,
                empty="daemon away",
            ),
        ),
        row(
            "Out of line",
            lines(
                "Imbalance of running requests",
                "The busiest replica over the mean of its pool. 1 is even; over 2 somebody is starved.",
                "none",
                Query(spread.format("running_requests"), "{{pool}}"),
                steps=Steps(GREEN, ((1.5, YELLOW), (2, RED))),
                show_steps=True,
                empty="no traffic",
            ),
            lines(
                "Imbalance of KV usage",
                "The fullest replica over the mean of its pool.",
                "none",
                Query(spread.format("kv_usage_ratio"), "{{pool}}"),
                empty="no traffic",
            ),
            lines(
                "Slowest replica over the mean (TPOT)",
                "A replica that is slower than its peers at the same load has sick hardware.",
                "none",
                Query(
                    f"max by (pool) ({mean('tpot_seconds', MODEL, 'pool', 'instance')}) / (avg by "
                    f"(pool) ({mean('tpot_seconds', MODEL, 'pool', 'instance')}) > 0)",
                    "{{pool}}",
                ),
                steps=Steps(GREEN, ((1.3, YELLOW), (1.6, RED))),
                show_steps=True,
                empty="no traffic",
            ),
        ),
        row(
            "Each replica",
            lines(
                "Running",
                "Requests in the batch.",
                "short",
                Query(f"sum by (instance) (llm:running_requests{{{REPLICA}}})", "{{instance}}"),
            ),
            lines(
                "Waiting",
                "Requests in the engine's queue.",
                "short",
                Query(f"sum by (instance) (llm:waiting_requests{{{REPLICA}}})", "{{instance}}"),
            ),
            lines(
                "KV usage",
                "Used share of the KV cache.",
                "percentunit",
                Query(f"max by (instance) (llm:kv_usage_ratio{{{REPLICA}}})", "{{instance}}"),
                most=1,
                steps=FULL,
                show_steps=True,
            ),
            lines(
                "Output tokens per second",
                "Tokens made.",
                "short",
                Query(f"sum by (instance) (llm:generation_tokens:rate2m{{{REPLICA}}})", "{{instance}}"),
                empty="no traffic",
            ),
            lines(
                "TTFT p95 by replica",
                "Engine's own measure: from its arrival there.",
                "s",
                Query(f"llm:ttft_seconds:p95{{{REPLICA}}}", "{{instance}}"),
                empty="no traffic",
            ),
            lines(
                "TPOT p95 by replica",
                "Engine's own measure.",
                "s",
                Query(f"llm:tpot_seconds:p95{{{REPLICA}}}", "{{instance}}"),
                empty="no traffic",
            ),
            lines(
                "Preemptions",
                "Per second.",
                "ops",
                Query(f"sum by (instance) (llm:preemptions:rate2m{{{REPLICA}}})", "{{instance}}"),
            ),
            lines(
                "Errors by replica",
                "Share of 5xx among the answers of the engine's server.",
                "percentunit",
                Query(
                    share(
                        f'sum by (instance) (llm:http_requests:rate2m{{{TARGET},status=~"5.*"}})',
                        f"sum by (instance) (llm:http_requests:rate2m{{{TARGET}}})",
                    ),
                    "{{instance}}",
                ),
                most=1,
                empty="no errors",
            ),
            lines(
                "Prefix hits by replica",
                "Share of prompt tokens that the prefix cache held.",
                "percentunit",
                Query(
                    share(
                        f"sum by (instance) (llm:prefix_hit_tokens:rate2m{{{REPLICA}}})",
                        f"sum by (instance) (llm:prefix_query_tokens:rate2m{{{REPLICA}}})",
                    ),
                    "{{instance}}",
                ),
                most=1,
                empty="no traffic",
            ),
        ),
    )
