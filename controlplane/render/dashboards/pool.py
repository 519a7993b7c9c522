"""Pool: one model's latency, load and capacity; queue time beside engine time, KV beside GPU compute."""

from typing import Any

from controlplane.render.dashboards.board import board
from controlplane.render.dashboards.panels import (
    FULL,
    GOOD,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Query,
    Steps,
    heat,
    lines,
    number,
    row,
)
from controlplane.render.dashboards.queries import (
    GOODPUT,
    MODEL,
    OBJECTIVE,
    POOL,
    mean,
    of_pool,
    quantile,
    rate,
    share,
    user_quantile,
)
from controlplane.render.dashboards.shared import (
    budget_left,
    replicas_missing,
)


def latency(title: str, text: str, what: str) -> Any:
    where = POOL
    return lines(
        title,
        text,
        "s",
        *(Query(user_quantile(q, what, where), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
        Query(mean(what, MODEL), "mean (engines)"),
        width=6,
        empty="no traffic",
    )


def lengths(title: str, text: str, what: str) -> Any:
    return lines(
        title,
        text,
        "short",
        *(Query(quantile(q, what, MODEL), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
        Query(mean(what, MODEL), "mean"),
        width=6,
        empty="no traffic",
    )


def buckets(title: str, text: str, what: str, unit: str, width: int = 6) -> Any:
    return heat(
        title,
        text,
        unit,
        f"sum by (le) (llm:{what}_bucket:rate2m{{{MODEL}}})",
        width=width,
        empty="no traffic",
    )


def dashboard() -> dict[str, Any]:
    bad = f"llm:pool_bad_ratio:{{}}{{{{{POOL}}}}}"
    return board(
        "pool",
        "Pool",
        "One pool: does it meet its objective, and if not, where does the time go?",
        ("cluster", "pool", "model"),
        row(
            "Objective",
            number(
                "Goodput",
                "Share of requests within the objective, over 2 minutes.",
                "percentunit",
                GOODPUT,
                GOOD,
                decimals=1,
                empty="no traffic",
            ),
            number(
                "Objective (share)",
                "Share of requests that should be good.",
                "percentunit",
                f"min({OBJECTIVE})",
                decimals=1,
                empty="daemon away",
            ),
            number(
                "TTFT p95 now",
                "Time to first token as clients see it.",
                "s",
                user_quantile(0.95, "ttft_seconds", POOL),
                empty="no traffic",
            ),
            number(
                "TPOT p95 now",
                "Mean time per output token of a request as clients see it.",
                "s",
                user_quantile(0.95, "tpot_seconds", POOL),
                empty="no traffic",
            ),
            budget_left("Budget left (3 days)", "What is left of the error budget of the last 3 days."),
            replicas_missing("Replicas missing here"),
            lines(
                "Goodput and its proof",
                "The daemon's window: proven bounds (dashed) and the point between them. Without a "
                "gateway an engine hides which request missed which limit, so there is an interval.",
                "percentunit",
                Query(f'max by (pool) (llm:pool_goodput_ratio{{{POOL},bound="point"}})', "{{pool}} point"),
                Query(f'max by (pool) (llm:pool_goodput_ratio{{{POOL},bound="low"}})', "{{pool}} at least"),
                Query(f'max by (pool) (llm:pool_goodput_ratio{{{POOL},bound="high"}})', "{{pool}} at most"),
                Query(OBJECTIVE, "{{pool}} objective"),
                dashed=".* (at least|at most|objective)",
                most=1,
                empty="no traffic, or daemon away",
            ),
            lines(
                "Requests offered, finished, good",
                "Offered are all that goodput is about.",
                "reqps",
                Query(f"sum(llm:pool_offered_requests:rate2m{{{POOL}}})", "offered"),
                Query(f"sum(llm:finished_requests:rate2m{{{MODEL}}})", "finished by engines"),
                Query(f"sum(llm:pool_good_requests:rate2m{{{POOL}}})", "good"),
                empty="no traffic",
            ),
            lines(
                "Budget burn",
                "How many times faster than it lasts the error budget burns; the lines are where "
                "alerts begin.",
                "none",
                *(
                    Query(f"max({bad.format(w)} / (1 - {OBJECTIVE}))", text)
                    for w, text in (
                        ("5m", "5 minutes"),
                        ("1h", "1 hour"),
                        ("6h", "6 hours"),
                        ("3d", "3 days"),
                    )
                ),
                steps=Steps(GREEN, ((1, YELLOW), (6, ORANGE), (14.4, RED))),
                show_steps=True,
                empty="no traffic",
            ),
        ),
        row(
            "Latency",
            latency(
                "TTFT",
                "Time to first token. Quantiles by the gateway where there is one, else by the engines.",
                "ttft_seconds",
            ),
            latency("TPOT", "Mean time per output token after the first, per request.", "tpot_seconds"),
            lines(
                "ITL",
                "Time between two output tokens, per gap: a stall of one stream shows here and not in TPOT.",
                "s",
                *(Query(quantile(q, "itl_seconds", MODEL), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
                width=6,
                empty="no traffic",
            ),
            latency("End to end", "From arrival to the last token.", "e2e_seconds"),
            buckets(
                "TTFT distribution",
                "Each column is 2 minutes of first tokens by bucket. Two bands are two kinds of requests.",
                "ttft_seconds",
                "s",
            ),
            buckets("TPOT distribution", "By bucket.", "tpot_seconds", "s"),
            buckets("ITL distribution", "By bucket.", "itl_seconds", "s"),
            buckets("End to end distribution", "By bucket.", "e2e_seconds", "s"),
            lines(
                "Where the time goes",
                "Means of a finished request: in the gateway's queue, the engine's queue, prefill, "
                "decode. Queue time grows with load, engine time with batch size and sick hardware.",
                "s",
                Query(
                    share(
                        rate("controlplane_gateway_queue_time_seconds_sum", POOL),
                        rate("controlplane_gateway_queue_time_seconds_count", POOL),
                    ),
                    "gateway queue",
                ),
                Query(mean("queue_time_seconds", MODEL), "engine queue"),
                Query(mean("prefill_time_seconds", MODEL), "prefill"),
                Query(mean("decode_time_seconds", MODEL), "decode"),
                stacked=True,
                width=12,
                empty="no traffic",
            ),
            lines(
                "Queue time",
                "In the engines' own queues. vLLM's buckets begin at 0.3 s: what reads under that may "
                "be nothing at all; the mean is exact.",
                "s",
                *(Query(quantile(q, "queue_time_seconds", MODEL), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
                Query(mean("queue_time_seconds", MODEL), "mean"),
                width=12,
                empty="no traffic",
            ),
        ),
        row(
            "Capacity",
            lines(
                "Running and waiting",
                "In the engines of the pool.",
                "short",
                Query(f"sum(llm:running_requests{{{MODEL}}})", "running"),
                Query(f"sum(llm:waiting_requests{{{MODEL}}})", "waiting"),
                stacked=True,
                width=8,
            ),
            lines(
                "KV cache",
                "Used share, mean and fullest replica. A mean far under the fullest is imbalance.",
                "percentunit",
                Query(f"avg(llm:kv_usage_ratio{{{MODEL}}})", "mean"),
                Query(f"max(llm:kv_usage_ratio{{{MODEL}}})", "fullest"),
                steps=FULL,
                show_steps=True,
                most=1,
                width=8,
            ),
            lines(
                "GPU compute",
                "Of the pool's GPUs: KV full while the GPU idles means that memory binds, and the "
                "other way round.",
                "percentunit",
                Query(f"avg({of_pool('llm:gpu_active_ratio')})", "computing"),
                Query(f"avg({of_pool('llm:gpu_tensor_active_ratio')})", "tensor pipes"),
                Query(f"avg({of_pool('llm:gpu_dram_active_ratio')})", "memory"),
                most=1,
                width=8,
                empty="no GPU exporter with this pool's GPUs",
            ),
            lines(
                "Output and prompt tokens",
                "Tokens made and taken in per second, all replicas together.",
                "short",
                Query(f"sum(llm:generation_tokens:rate2m{{{MODEL}}})", "output"),
                Query(f"sum(llm:prompt_tokens:rate2m{{{MODEL}}})", "prompt"),
                width=8,
                empty="no traffic",
            ),
            lines(
                "Preemptions per finished request",
                "Over 1 % the pool does much of its work twice.",
                "percentunit",
                Query(
                    share(
                        f"sum(llm:preemptions:rate2m{{{MODEL}}})",
                        f"sum(llm:finished_requests:rate2m{{{MODEL}}})",
                    ),
                    "preemptions",
                ),
                steps=Steps(GREEN, ((0.01, RED),)),
                show_steps=True,
                width=8,
                empty="no traffic",
            ),
            lines(
                "Prefix cache hits",
                "Share of prompt tokens that need not be computed.",
                "percentunit",
                Query(f"llm:pool_prefix_hit_ratio{{{MODEL}}}", "{{pool}} {{model_name}}"),
                most=1,
                width=8,
                empty="no traffic, or no prefix cache",
            ),
            lines(
                "Tokens per engine step",
                "Mean batch of a step: more is better use of the GPU, until TPOT suffers.",
                "short",
                Query(mean("step_tokens", MODEL), "mean"),
                width=8,
                empty="no traffic, or the engine does not tell",
            ),
            lines(
                "Finished by reason",
                "As the engines count it; requests that clients gave up are mostly missing here.",
                "reqps",
                Query(
                    f"sum by (finished_reason) (llm:finished_requests:rate2m{{{MODEL}}})",
                    "{{finished_reason}}",
                ),
                stacked=True,
                width=8,
                empty="no traffic",
            ),
            lines(
                "HTTP answers",
                "As the engines' servers count them, by status.",
                "reqps",
                Query(f"sum by (status) (llm:http_requests:rate2m{{{POOL}}})", "{{status}}"),
                stacked=True,
                width=8,
                empty="no traffic, or the engine does not tell",
            ),
        ),
        row(
            "Workload",
            lengths(
                "Prompt length",
                "Tokens of finished requests' prompts. Buckets are coarse: 1, 2, 5, 10.",
                "prompt_length_tokens",
            ),
            lengths(
                "Output length",
                "Tokens of finished requests' answers.",
                "output_length_tokens",
            ),
            buckets("Prompt length distribution", "By bucket.", "prompt_length_tokens", "short"),
            buckets("Output length distribution", "By bucket.", "output_length_tokens", "short"),
        ),
    )
