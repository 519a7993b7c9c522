"""Two pools: short requests apart from long ones. Are both used, and is each within its objective?"""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    FULL,
    GOOD,
    Column,
    Query,
    heat,
    lines,
    row,
    table,
)
from controlplane.render.dashboards.queries import MODEL, POOL, mean, quantile, user_quantile
from controlplane.render.dashboards.shared import (
    POOL_NAME,
    kv_usage,
    preemptions,
    waiting,
)


def each(title: str, text: str, unit: str, expr: str, **more: Any) -> Any:
    return lines(title, text, unit, Query(expr, "{{pool}}"), **{"empty": "no traffic", **more})


def dashboard() -> dict[str, Any]:
    return board(
        "two-pools",
        "Two pools",
        "Pools beside each other: is the boundary right, are both used, does each meet its objective? "
        "Choose the two under Pool.",
        ("cluster", "pool", "model"),
        row(
            "Beside each other",
            table(
                "Pools compared",
                "A pool with a short queue, low KV usage and no preemptions has room: move the "
                "boundary towards it.",
                ("pool",),
                (
                    POOL_NAME,
                    Column(
                        "Goodput 5m",
                        f"1 - max by (pool) (llm:pool_bad_ratio:5m{{{POOL}}})",
                        unit="percentunit",
                        steps=GOOD,
                        decimals=1,
                    ),
                    Column(
                        "Offered",
                        f"max by (pool) (llm:pool_offered_requests:rate2m{{{POOL}}})",
                        unit="reqps",
                        decimals=1,
                    ),
                    Column("Replicas", f"sum by (pool) (llm:engine_up{{{POOL}}})", decimals=0),
                    Column("Mean prompt", mean("prompt_length_tokens", MODEL, "pool"), decimals=0),
                    Column("Mean output", mean("output_length_tokens", MODEL, "pool"), decimals=0),
                    kv_usage(MODEL, "pool"),
                    waiting(MODEL, "pool", many=50),
                    preemptions(MODEL, "pool"),
                    Column(
                        "Output tokens/s per replica",
                        f"sum by (pool) (llm:generation_tokens:rate2m{{{MODEL}}}) / sum by (pool) "
                        f"(llm:engine_up{{{POOL}}})",
                        decimals=0,
                    ),
                ),
                height=6,
            ),
        ),
        row(
            "Objective of each",
            each(
                "Goodput of each",
                "Share of requests within the objective, over 5 minutes.",
                "percentunit",
                f"1 - llm:pool_bad_ratio:5m{{{POOL}}}",
                most=1,
            ),
            each(
                "TTFT p99 of each",
                "What the boundary is for: short requests no longer wait behind long ones.",
                "s",
                user_quantile(0.99, "ttft_seconds", POOL, "pool"),
            ),
            each(
                "TPOT p95 of each",
                "Mean time per output token of a request.",
                "s",
                user_quantile(0.95, "tpot_seconds", POOL, "pool"),
            ),
        ),
        row(
            "Load of each",
            each("Requests offered", "To each pool.", "reqps", f"llm:pool_offered_requests:rate2m{{{POOL}}}"),
            each(
                "Share of the traffic",
                "Of all requests that the chosen pools get.",
                "percentunit",
                f"llm:pool_offered_requests:rate2m{{{POOL}}}"
                f" / scalar(sum(llm:pool_offered_requests:rate2m{{{POOL}}})) >= 0",
                most=1,
                stacked=True,
            ),
            each(
                "KV usage of each",
                "Fullest replica.",
                "percentunit",
                f"max by (pool) (llm:kv_usage_ratio{{{MODEL}}})",
                most=1,
                steps=FULL,
                show_steps=True,
            ),
            each(
                "Waiting in the engines",
                "Requests in the engines' queues.",
                "short",
                f"sum by (pool) (llm:waiting_requests{{{MODEL}}})",
            ),
            each(
                "Preemptions of each",
                "Per second.",
                "ops",
                f"sum by (pool) (llm:preemptions:rate2m{{{MODEL}}})",
            ),
            each(
                "Queue time of each",
                "Mean, in the engines' queues: their buckets begin too high for quantiles of short waits.",
                "s",
                mean("queue_time_seconds", MODEL, "pool"),
            ),
        ),
        row(
            "What parts them",
            lines(
                "Boundary",
                "Longest request (prompt and answer) for the short pool: what the law came to, and what the "
                "gateways go by (dashed). They part where nobody acts on the law.",
                "short",
                Query(
                    f"max by (pool, long_pool) (controlplane_pool_boundary_tokens{{{POOL}}})",
                    "{{pool}}/{{long_pool}}",
                ),
                Query(
                    f"max by (pool, long_pool) (controlplane_pool_boundary_in_force_tokens{{{POOL}}})",
                    "{{pool}}/{{long_pool}} in force",
                ),
                dashed=".* in force",
                width=16,
                empty="no two pools are parted",
            ),
            lines(
                "What moves or holds it",
                "The law's reason, and what is done about it.",
                "short",
                Query(
                    f"max by (reason, standing) (controlplane_pool_boundary_info{{{POOL}}})",
                    "{{reason}} {{standing}}",
                ),
                empty="no two pools are parted",
            ),
        ),
        row(
            "Sizes",
            each(
                "Prompt length p95",
                "Of finished requests.",
                "short",
                quantile(0.95, "prompt_length_tokens", MODEL, "pool"),
            ),
            each(
                "Output length p95",
                "Of finished requests.",
                "short",
                quantile(0.95, "output_length_tokens", MODEL, "pool"),
            ),
            each(
                "Tokens per request",
                "Mean prompt and output of finished requests.",
                "short",
                f"{mean('prompt_length_tokens', MODEL, 'pool')} + "
                f"{mean('output_length_tokens', MODEL, 'pool')}",
            ),
            heat(
                "Prompt lengths of all",
                "By bucket: the boundary belongs where the two humps part.",
                "short",
                f"sum by (le) (llm:prompt_length_tokens_bucket:rate2m{{{MODEL}}})",
                width=12,
                empty="no traffic",
            ),
            heat(
                "Output lengths of all",
                "By bucket.",
                "short",
                f"sum by (le) (llm:output_length_tokens_bucket:rate2m{{{MODEL}}})",
                width=12,
                empty="no traffic",
            ),
        ),
    )
