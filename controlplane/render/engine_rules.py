"""Recording rules over the engines' own series, made from the dialect tables.

One rule a signal and engine. It knows every name that the engine has had for the signal, in both spellings,
and takes the newest that a target prints; what a label means (data-parallel engines, ranks that repeat each
other, processes behind one page, copies by a router) is taken from the table as the daemon's own reader does.

Rates come first, sums after them. A ratio is never summed. Nothing without traffic is 0: it has no sample.
"""

from collections.abc import Iterable, Sequence

from controlplane.render.rule import POOL, TARGET, WINDOW, Group, Recording, by, first_of
from controlplane.sources.dialects import SERVER, Dialect, Row, dialect, engines

REPLICA = (*TARGET, "model_name")

GAUGES = {
    "running": ("running_requests", "requests", "Requests in the engine's running batch"),
    "waiting": ("waiting_requests", "requests", "Requests that wait in the engine's queue"),
    "kv_usage": ("kv_usage_ratio", "ratio", "Used share of the KV cache of a replica's fullest engine"),
    "sleep_state": ("engine_awake", "", "1 while the engine is awake, 0 while it sleeps"),
}
RATES = {
    "prompt_tokens_total": ("prompt_tokens", "tokens_per_second", "Prompt tokens taken in"),
    "generation_tokens_total": ("generation_tokens", "tokens_per_second", "Output tokens made"),
    "finished_total": ("finished_requests", "requests_per_second", "Requests finished"),
    "rejected_total": ("rejected_requests", "requests_per_second", "Requests that the engine refused"),
    "preemptions_total": (
        "preemptions",
        "preemptions_per_second",
        "Requests thrown out of the running batch",
    ),
    "prefix_hits_total": (
        "prefix_hit_tokens",
        "tokens_per_second",
        "Prompt tokens found in the prefix cache",
    ),
    "prefix_queries_total": ("prefix_query_tokens", "tokens_per_second", "Prompt tokens looked up in it"),
}
HISTOGRAMS = {
    "ttft": ("ttft_seconds", "seconds", "Time to first token"),
    "tpot": ("tpot_seconds", "seconds", "Mean time per output token after the first, per request"),
    "itl": ("itl_seconds", "seconds", "Time between two output tokens, per gap"),
    "e2e": ("e2e_seconds", "seconds", "Time from arrival to the last token"),
    "queue_time": ("queue_time_seconds", "seconds", "Time in the engine's queue"),
    "prefill_time": ("prefill_time_seconds", "seconds", "Prefill time"),
    "decode_time": ("decode_time_seconds", "seconds", "Decode time"),
    "prompt_len": ("prompt_length_tokens", "tokens", "Prompt tokens of a request"),
    "generation_len": ("output_length_tokens", "tokens", "Output tokens of a request"),
    "step_tokens": ("step_tokens", "tokens", "Tokens of one engine step"),
}
PER_REPLICA = ("ttft", "tpot", "e2e", "queue_time")
"""Histograms whose 95th percentile is recorded for each replica."""


def groups(engine_job: str) -> tuple[Group, ...]:
    """A group an engine, and one for what is the same for all: `engine_job` is a regex of job names."""
    tables = [table for table in engines() if table.metrics]
    return (
        Group("llm-targets", _targets(engine_job)),
        *(Group(f"llm-engine-{table.engine}", tuple(_rules(table))) for table in tables),
    )


def _targets(engine_job: str) -> tuple[Recording, ...]:
    """What Prometheus knows of the targets themselves, and the HTTP server's counts."""
    jobs = f'job=~"{engine_job}"'
    requests = next(row for row in dialect(SERVER).metrics if row.signal == "http_inference_requests")
    return (
        Recording(
            "llm:engine_up",
            f"max {by(*TARGET)} (up{{{jobs}}})",
            "1 while Prometheus reads the engine's metrics page",
            keeps=TARGET,
        ),
        Recording(
            "llm:http_requests:rate2m",
            f"sum {by(*TARGET, requests.by)} (rate({requests.name}{{{jobs},{_where(requests)}}}[{WINDOW}]))",
            "Requests that the engine's HTTP server answered, by status",
            "requests_per_second",
            (*TARGET, requests.by),
        ),
        Recording(
            "llm:engine_starts:changes30m",
            f"max {by(*TARGET)} (changes(process_start_time_seconds{{{jobs}}}[30m]))",
            "How often the engine's process has started anew in 30 minutes",
            keeps=TARGET,
        ),
    )


def _rules(table: Dialect) -> Iterable[Recording]:
    labels = {"engine": table.engine}
    for signal, (rest, unit, text) in GAUGES.items():
        if rows := _rows(table, signal, "gauge"):
            of = first_of(*(_folded(table, row, _each_process(table, row)) for row in rows))
            yield Recording(f"llm:{rest}", of, text, unit, (*REPLICA, "engine"), labels)
    for signal, (rest, unit, text) in RATES.items():
        if rows := _rows(table, signal, "counter"):
            keeps = (*REPLICA, rows[0].by) if rows[0].by in ("finished_reason",) else REPLICA
            of = first_of(*(_summed(keeps, _rates(table, row, row.name)) for row in rows))
            yield Recording(f"llm:{rest}:rate2m", of, text, unit, (*keeps, "engine"), labels)
    if rows := _rows(table, "generation_tokens_total", "counter"):
        names = [name for row in rows for name, _ in _series(table, row, row.name)]
        of = " or ".join(f"resets({name}[30m])" for name in names)
        text = "How often the engine's counters have started anew in 30 minutes"
        yield Recording(
            "llm:engine_resets:30m", f"max {by(*REPLICA)} ({of})", text, "", (*REPLICA, "engine"), labels
        )
    if rows := _rows(table, "prefix_hit_ratio", "gauge"):
        of = first_of(*(_folded(table, row, _each_process(table, row)) for row in rows))
        text = "Share of prompt tokens that the prefix cache held, as the engine itself says"
        yield Recording("llm:prefix_hit_ratio", of, text, "ratio", (*REPLICA, "engine"), labels)
    for signal in HISTOGRAMS:
        if rows := _rows(table, signal, "histogram", "mean"):
            yield from _histogram(table, rows, signal)


def _histogram(table: Dialect, rows: Sequence[Row], signal: str) -> Iterable[Recording]:
    """Buckets of the pool; sum and count, and of some a quantile, of each replica."""
    rest, unit, text = HISTOGRAMS[signal]
    labels = {"engine": table.engine}
    buckets = _newest(table, [row for row in rows if row.kind == "histogram"], (*REPLICA, "le"), "_bucket")
    if buckets:
        yield Recording(
            f"llm:{rest}_bucket:rate2m",
            f"sum {by(*POOL, 'le')} (\n{_indented(buckets)}\n)",
            f"{text}: buckets of the pool, observations per second",
            "",
            (*POOL, "le", "engine"),
            labels,
        )
    for part in ("sum", "count"):
        yield Recording(
            f"llm:{rest}_{part}:rate2m",
            _newest(table, rows, REPLICA, f"_{part}"),
            f"{text}: growth of the {part} per second",
            "",
            (*REPLICA, "engine"),
            labels,
        )
    if buckets and signal in PER_REPLICA:
        # A comparison drops what is NaN: no traffic has no quantile.
        yield Recording(
            f"llm:{rest}:p95",
            f"histogram_quantile(0.95,\n{_indented(buckets)}\n) >= 0",
            f"{text}: 95th percentile of a replica",
            unit,
            (*REPLICA, "engine"),
            labels,
        )


def _newest(table: Dialect, rows: Sequence[Row], keeps: Sequence[str], suffix: str) -> str:
    """Each target's histogram under the newest of its names; never a mixture of two."""
    expressions: list[str] = []
    for row in rows:
        name = row.per if row.kind == "mean" and suffix == "_count" else row.name
        name += "" if row.kind == "mean" else suffix
        expressions.append(_summed(keeps, _rates(table, row, name)))
    if len(expressions) < 2 or "le" not in keeps:
        return first_of(*expressions)
    newest, *older = expressions
    return "\nor\n".join(
        (
            newest,
            *(f"(\n{_indented(one)}\nunless on (job, instance)\n{_indented(newest)}\n)" for one in older),
        )
    )


def _rows(table: Dialect, signal: str, *kinds: str) -> list[Row]:
    return [row for row in table.metrics if row.signal == signal and row.kind in kinds]


def _summed(keeps: Sequence[str], series: str) -> str:
    return f"sum {by(*keeps)} (\n{_indented(series)}\n)"


def _folded(table: Dialect, row: Row, series: str) -> str:
    fold = {"mean": "avg"}.get(row.over, row.over)
    if row.value_of:  # of states only one is meant; a replica is as awake as its sleepiest engine
        fold = "min"
    return f"{fold} {by(*REPLICA)} (\n{_indented(series)}\n)"


def _each_process(table: Dialect, row: Row) -> str:
    """A gauge; processes behind one page (label `pid`) repeat it. A value for "not measured" is none."""
    series = [
        f"{name}{{{matchers}}}" if matchers else name for name, matchers in _series(table, row, row.name)
    ]
    scale = f" * {row.scale:g}" if row.scale != 1 else ""
    measured = f" != {row.disabled:g}" if row.disabled is not None else ""
    return f"max without (pid) ({' or '.join(series)}){measured}{scale}"


def _rates(table: Dialect, row: Row, name: str) -> str:
    """The rate of a counter, or of a part of a histogram, in every spelling."""
    parts = [
        f"rate({spelled}{{{matchers}}}[{WINDOW}])" if matchers else f"rate({spelled}[{WINDOW}])"
        for spelled, matchers in _series(table, row, name)
    ]
    return " or ".join(parts)


def _series(table: Dialect, row: Row, name: str) -> list[tuple[str, str]]:
    """The name in each spelling, and what its labels must be."""
    matchers = [_where(row)] if row.where else []
    if row.value_of:
        matchers.append(f'{row.by}="{row.value_of}"')
    if table.copied_by is not None:
        matchers.append(f'{table.copied_by.label}=""')
    if table.total_where_empty and row.kind == "gauge":
        matchers.append(f'{table.total_where_empty}=""')
    if table.engine_label.endswith("_rank"):
        # Ranks of one engine repeat each other's series: those of the first count, and those without ranks.
        matchers += [f'{rank}=~"0?"' for rank in ("tp_rank", "pp_rank", "moe_ep_rank")]
    found = []
    for spelling in table.spellings:
        bare = [] if spelling else [f'{label}!=""' for label in table.bare_needs_labels]
        found.append((spelling + name, ",".join([*bare, *matchers])))
    return found


def _where(row: Row) -> str:
    return ",".join(
        f'{label}="{values[0]}"' if len(values) == 1 else f'{label}=~"{"|".join(values)}"'
        for label, values in row.where.items()
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
