"""Fleet overview: what users get, what waits, what the engines and the GPUs do. Open it first."""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    FULL,
    GOOD,
    GREEN,
    NONE_IS_GOOD,
    ORANGE,
    PLAIN,
    RED,
    YELLOW,
    Column,
    Query,
    Steps,
    lines,
    number,
    row,
    table,
)
from controlplane.render.dashboards.queries import (
    CLUSTER,
    GOODPUT,
    MODEL,
    OBJECTIVE,
    POOL,
    QUEUED,
    RATE,
    mean,
    rate,
    user_quantile,
)
from controlplane.render.dashboards.shared import (
    POOL_NAME,
    budget_left,
    kv_usage,
    replicas_missing,
    shed,
    waiting,
)


def burn(window: str) -> str:
    return f"max(llm:pool_bad_ratio:{window}{{{POOL}}} / (1 - {OBJECTIVE}))"


def dashboard() -> dict[str, Any]:
    return board(
        "fleet",
        "Fleet overview",
        "What users get, what waits, what engines and GPUs do: three layers, from the symptom to the cause.",
        ("cluster", "pool", "model"),
        row(
            "Now",
            number(
                "Goodput now",
                "Share of all finished, failed and shed requests that were within the objective, over "
                "2 minutes.",
                "percentunit",
                GOODPUT,
                GOOD,
                decimals=1,
                empty="no traffic",
            ),
            number(
                "Worst pool",
                "The pool with the least goodput over 5 minutes.",
                "percentunit",
                f"bottomk(1, 1 - llm:pool_bad_ratio:5m{{{POOL}}})",
                GOOD,
                legend="{{pool}}",
                decimals=1,
                empty="no traffic",
                link="pool",
            ),
            budget_left(
                "Error budget left",
                "What is left of the worst pool's error budget of the last 3 days; negative: overspent.",
            ),
            replicas_missing("Replicas missing"),
            number(
                "Pages firing",
                "Alerts that would wake somebody.",
                "short",
                'count(ALERTS{layer!="",alertstate="firing",severity="page"}) or vector(0)',
                NONE_IS_GOOD,
            ),
            number(
                "Control",
                "Whether the daemon runs, and whether somebody holds it.",
                "short",
                "max(controlplane_hold_active) or vector(-1)",
                says={"-1": ("daemon away", RED), "0": ("running", GREEN), "1": ("held", ORANGE)},
                link="control",
            ),
        ),
        row(
            "What fires",
            table(
                "Firing alerts",
                "Pages and tickets that fire now. Each has a page in docs/runbooks: what it means, how "
                "to confirm it, what to do.",
                ("alertname",),
                (
                    Column("Alert", label="alertname"),
                    Column("Severity", label="severity"),
                    Column("Team", label="team"),
                    Column("Pool", label="pool"),
                    Column("Node", label="node"),
                    Column("Replica", label="instance"),
                    Column(
                        "For",
                        "time() - max by (alertname, severity, team, pool, node, instance) "
                        '(ALERTS_FOR_STATE{layer!=""}'
                        " and on (alertname, severity, team, pool, node, instance) "
                        'ALERTS{layer!="",alertstate="firing",severity!="info"})',
                        unit="s",
                        decimals=0,
                    ),
                ),
                height=5,
                empty="nothing fires",
            ),
        ),
        row(
            "Users",
            lines(
                "Goodput by pool",
                "Share of requests within the objective (dashed), of all that finished, failed or were "
                "shed; over 5 minutes.",
                "percentunit",
                Query(f"1 - llm:pool_bad_ratio:5m{{{POOL}}}", "{{pool}}"),
                Query(f"llm:pool_objective_ratio{{{POOL}}}", "{{pool}} objective"),
                most=1,
                dashed=".* objective",
                empty="no traffic",
            ),
            lines(
                "Requests offered and good",
                "All requests that goodput is about, and those within the objective. The gap is what "
                "users miss.",
                "reqps",
                Query(f"sum(llm:pool_offered_requests:rate2m{{{POOL}}})", "offered"),
                Query(f"sum(llm:pool_good_requests:rate2m{{{POOL}}})", "good"),
                empty="no traffic",
            ),
            lines(
                "Budget burn of the worst pool",
                "How many times faster than it lasts the error budget burns. 1 spends it exactly.",
                "none",
                Query(burn("5m"), "5 minutes"),
                Query(burn("1h"), "1 hour"),
                Query(burn("6h"), "6 hours"),
                steps=Steps(GREEN, ((1, YELLOW), (6, ORANGE), (14.4, RED))),
                show_steps=True,
                empty="no traffic",
            ),
            lines(
                "TTFT p95 by pool",
                "Time to first token as the gateway measures it, else as the engines do.",
                "s",
                Query(user_quantile(0.95, "ttft_seconds", POOL, "pool"), "{{pool}}"),
                Query(
                    f"max by (pool) (controlplane_pool_objective_ttft_seconds{{{POOL}}})",
                    "{{pool}} objective",
                ),
                dashed=".* objective",
                empty="no traffic",
            ),
            lines(
                "TPOT p95 by pool",
                "Mean time per output token of a request, as the gateway measures it, else as the "
                "engines do.",
                "s",
                Query(user_quantile(0.95, "tpot_seconds", POOL, "pool"), "{{pool}}"),
                Query(
                    f"max by (pool) (controlplane_pool_objective_tpot_seconds{{{POOL}}})",
                    "{{pool}} objective",
                ),
                dashed=".* objective",
                empty="no traffic",
            ),
            lines(
                "How requests end",
                "At the gateways: finished, failed, refused, given up by the client.",
                "reqps",
                Query(rate("controlplane_gateway_requests_total", CLUSTER, "end"), "{{end}}"),
                stacked=True,
                empty="no gateway",
            ),
        ),
        row(
            "Queue and admission",
            lines(
                "Waiting requests",
                "In the gateways' queues, where they can be ordered and refused, and in the engines', "
                "where they cannot.",
                "short",
                Query(QUEUED, "gateways"),
                Query(f"sum(llm:waiting_requests{{{MODEL}}})", "engines"),
                stacked=True,
            ),
            lines(
                "Queue time",
                "Of requests let in by the gateways (95th percentile), and in the engines' own queues "
                "(mean: their histograms begin at 0.3 s, so a quantile of an idle engine reads 0.29 s).",
                "s",
                Query(
                    f"histogram_quantile(0.95, sum by (le) "
                    f"(rate(controlplane_gateway_queue_time_seconds_bucket{{{POOL}}}{RATE}))) >= 0",
                    "gateways, p95",
                ),
                Query(
                    mean("queue_time_seconds", MODEL),
                    "engines, mean",
                ),
                empty="no traffic",
            ),
            lines(
                "In flight against the limit",
                "Sequences that the gateways have sent, and the most that they may send.",
                "short",
                Query(f"sum(llm:replica_in_flight_sequences{{{POOL}}})", "in flight"),
                Query(f"sum(llm:replica_limit_sequences{{{POOL}}})", "limit"),
                dashed="limit",
                empty="no gateway",
                width=8,
            ),
            shed(
                "Shed by reason",
                "Requests that admission refused. `would` are those that observing let through.",
            ),
            lines(
                "Clients that hang up",
                "Share of requests whose client closed the connection before the answer ended.",
                "percentunit",
                Query(f"llm:pool_gave_up_ratio:30m{{{POOL}}}", "{{pool}}"),
                most=1,
                empty="no gateway",
                width=12,
            ),
        ),
        row(
            "Engines",
            lines(
                "Running requests by pool",
                "In the engines' batches.",
                "short",
                Query(f"sum by (pool) (llm:running_requests{{{MODEL}}})", "{{pool}}"),
                width=6,
            ),
            lines(
                "KV usage, fullest replica",
                "Used share of the KV cache of the fullest replica of each pool. Near 100 % engines "
                "throw requests out.",
                "percentunit",
                Query(f"max by (pool) (llm:kv_usage_ratio{{{MODEL}}})", "{{pool}}"),
                steps=FULL,
                show_steps=True,
                most=1,
                width=6,
            ),
            lines(
                "Tokens per second",
                "Output tokens made and prompt tokens taken in.",
                "short",
                Query(f"sum(llm:generation_tokens:rate2m{{{MODEL}}})", "output"),
                Query(f"sum(llm:prompt_tokens:rate2m{{{MODEL}}})", "prompt"),
                width=6,
                empty="no traffic",
            ),
            lines(
                "Preemptions per second",
                "Requests thrown out of the batch for want of KV cache, to be computed again. Anything "
                "but 0 is waste.",
                "ops",
                Query(f"sum by (pool) (llm:preemptions:rate2m{{{MODEL}}})", "{{pool}}"),
                width=6,
            ),
            table(
                "Pools",
                "One line a pool; the name opens its dashboard.",
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
                        "Objective",
                        f"max by (pool) (llm:pool_objective_ratio{{{POOL}}})",
                        unit="percentunit",
                        decimals=1,
                    ),
                    Column(
                        "Offered",
                        f"max by (pool) (llm:pool_offered_requests:rate2m{{{POOL}}})",
                        unit="reqps",
                        decimals=1,
                    ),
                    Column("Replicas up", f"sum by (pool) (llm:engine_up{{{POOL}}})", decimals=0),
                    Column("Running", f"sum by (pool) (llm:running_requests{{{MODEL}}})", decimals=0),
                    waiting(MODEL, "pool", many=50),
                    kv_usage(MODEL, "pool"),
                    Column(
                        "Output tokens/s",
                        f"sum by (pool) (llm:generation_tokens:rate2m{{{MODEL}}})",
                        decimals=0,
                    ),
                ),
                height=7,
            ),
        ),
        row(
            "GPUs",
            lines(
                "GPU activity",
                "Share of time in which the GPUs compute, and of cycles in which their tensor pipes "
                "and memory work; means.",
                "percentunit",
                Query('avg(llm:gpu_active_ratio{cluster=~"$cluster"})', "computing"),
                Query('avg(llm:gpu_tensor_active_ratio{cluster=~"$cluster"})', "tensor pipes"),
                Query('avg(llm:gpu_dram_active_ratio{cluster=~"$cluster"})', "memory"),
                most=1,
                empty="no GPU exporter",
            ),
            lines(
                "Power",
                "Power draw of all GPUs.",
                "watt",
                Query('sum(llm:gpu_power_watts{cluster=~"$cluster"})', "draw"),
                empty="no GPU exporter",
            ),
            lines(
                "Output tokens per joule",
                "What the fleet makes of its power.",
                "none",
                Query(
                    'sum(llm:generation_tokens:rate2m{cluster=~"$cluster"}) / '
                    '(sum(llm:gpu_power_watts{cluster=~"$cluster"}) > 0)',
                    "tokens per joule",
                ),
                empty="no GPU exporter",
            ),
            number(
                "GPUs seen",
                "GPUs on the exporters' pages.",
                "short",
                'sum(llm:gpu_count{cluster=~"$cluster"})',
                PLAIN,
                width=6,
                empty="no GPU exporter",
                link="gpus",
            ),
            number(
                "Hottest GPU",
                "Temperature of the hottest GPU.",
                "celsius",
                'max(llm:gpu_temperature_celsius{cluster=~"$cluster"})',
                Steps(GREEN, ((80, YELLOW), (90, RED))),
                width=6,
                empty="no GPU exporter",
                link="gpus",
            ),
            number(
                "GPUs with an XID",
                "GPUs whose last error code is not 0. The code stays until the driver is loaded anew.",
                "short",
                'count(llm:gpu_xid{cluster=~"$cluster"} > 0) or vector(0)',
                NONE_IS_GOOD,
                width=6,
                link="gpus",
            ),
            number(
                "GPUs held down by heat",
                "GPUs whose hardware lowers the clock because of heat.",
                "short",
                'sum(llm:gpu_hw_thermal{cluster=~"$cluster"})',
                NONE_IS_GOOD,
                width=6,
                empty="no GPU exporter",
                link="gpus",
            ),
        ),
    )
