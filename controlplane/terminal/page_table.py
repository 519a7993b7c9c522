"""What `sources.inspect` read from a page, as tables."""

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.terminal.figures import count, moment, percent, plain, seconds, within

Json = Mapping[str, Any]
Edges = tuple[float, float]
"""The first and the last finite bucket edge of a histogram."""

_MOST_PARTS = 8  # of a signal that is split by a label
_NAMED_UNITS = {
    "running": "requests", "waiting": "requests", "waiting_by_reason": "requests", "swapped": "requests",
    "waiting_kv_fetch": "requests", "preempted_now": "requests", "finished_gauge": "requests",
    "finished_total": "requests", "received_total": "requests", "rejected_total": "requests",
    "failed_total": "requests", "aborted_total": "requests", "corrupted_total": "requests",
    "http_requests_total": "requests", "http_responses_total": "requests",
    "http_inference_requests": "requests", "param_n": "answers", "param_max_tokens": "tokens",
    "kv_usage": "ratio", "kv_usage_cpu": "ratio", "batch_occupancy": "ratio", "utilization": "ratio",
    "prefix_hits_total": "tokens", "prefix_queries_total": "tokens", "ext_prefix_hits_total": "tokens",
    "ext_prefix_queries_total": "tokens", "mm_cache_hits_total": "items", "mm_cache_queries_total": "items",
    "kv_block_size": "tokens", "kv_blocks": "blocks", "kv_used_blocks": "blocks",
    "generation_tps_gauge": "tokens/s", "prompt_tps_gauge": "tokens/s", "start_time": "Unix time",
}  # fmt: skip
_UNITS = (
    (r"_time$|_seconds_total$|^(ttft|tpot|itl|e2e)$|^http_duration|_lifetime$|_idle$|_reuse_gap$", "s"),
    (r"tokens|_len$|_length$", "tokens"),
    (r"ratio", "ratio"),
    (r"bytes", "bytes"),
)


def unit_of(signal: str) -> str:
    """The unit of a signal, "" where it is none of the known ones."""
    if signal in _NAMED_UNITS:
        return _NAMED_UNITS[signal]
    return next((unit for pattern, unit in _UNITS if re.search(pattern, signal)), "")


def figure(value: float | None, unit: str) -> str:
    """One value in its unit; a dash where there is none."""
    if value is None:
        return "–"
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return percent(value)
    return moment(value) if unit == "Unix time" else count(value)


def page(out: Json, name: str, edges: Mapping[str, Edges]) -> RenderableType:
    """The whole answer of `inspect` about the page called `name`; `edges` are those of its histograms."""
    parts: list[RenderableType] = [_title(out, name)]
    parts += [Text(f"! {plain(warning)}", style="yellow") for warning in out["warnings"]]
    numbers, distributions, unknown = _sorted(out["signals"])
    if numbers:
        parts += [Text(), _numbers(numbers)]
    if distributions:
        parts += [Text(), _distributions(distributions, edges)]
    if unknown:
        parts += [Text(), _unknown(unknown)]
    if len(out["engines"]) > 1:
        parts += [Text(), _engines(out["engines"])]
    return Group(*parts)


def _title(out: Json, name: str) -> Text:
    title = Text()
    title.append(f"{out['engine']} {out['version']}", style="bold")
    models = ", ".join(out["models"]) or "no model named"
    title.append(f"   {plain(models)}   ", style="cyan")
    title.append(plain(name), style="dim")
    return title


def _sorted(signals: Json) -> tuple[dict[str, Json], dict[str, Json], dict[str, Json]]:
    """Numbers, distributions and unknowns, each in the order of the page's table."""
    numbers: dict[str, Json] = {}
    distributions: dict[str, Json] = {}
    unknown: dict[str, Json] = {}
    for name, signal in signals.items():
        kind = unknown if "unknown" in signal else distributions if "count" in signal else numbers
        kind[name] = signal
    return numbers, distributions, unknown


def _table(*columns: str) -> Table:
    """A table whose first column is a name and whose other ones are numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table


def _numbers(signals: Mapping[str, Json]) -> Table:
    with_rates = any("rate" in signal for signal in signals.values())
    table = _table("signal", "value", *(["per second"] if with_rates else []))
    table.add_column("unit", style="dim", no_wrap=True)
    table.add_column("note", style="dim", ratio=1)
    for name, signal in signals.items():
        unit = unit_of(name)
        shown = Text(figure(signal.get("value"), unit), style="" if signal.get("value") else "dim")
        rate = [figure(signal.get("rate"), "") if "rate" in signal else ""] if with_rates else []
        table.add_row(plain(name), shown, *rate, unit, _note(signal, unit))
    return table


def _note(signal: Json, unit: str) -> str:
    notes = []
    if "mean" in signal:
        notes.append(f"the fullest engine; mean {figure(signal['mean'], unit)}")
    parts = signal.get("by", {})
    shown = [f"{plain(label)} {figure(value, unit)}" for label, value in parts.items() if value]
    notes += shown[:_MOST_PARTS]
    if len(shown) > _MOST_PARTS:
        notes.append(f"and {len(shown) - _MOST_PARTS} more")
    if parts and not shown:
        notes.append("all parts 0")
    return ", ".join(notes)


def _distributions(signals: Mapping[str, Json], edges: Mapping[str, Edges]) -> Table:
    windowed = any("window" in signal for signal in signals.values())
    over = "in between" if windowed else "since the start"
    quantiles = ("p50", "p90", "p95", "p99")
    table = _table(f"distribution {over}", "count", "mean", *quantiles)
    for name, whole in signals.items():
        signal = whole.get("window", whole) if windowed else whole
        unit = unit_of(name)
        label = plain(name) if windowed == ("window" in whole) else f"{plain(name)} (since the start)"
        row = [_quantile(signal.get(quantile), unit, edges.get(name)) for quantile in quantiles]
        cells = count(signal["count"]), figure(signal.get("mean"), unit), *row
        table.add_row(label, *cells, style="" if signal["count"] else "dim")
    return table


def _quantile(value: float | None, unit: str, edges: Edges | None) -> str:
    if value is None or edges is None:
        return figure(value, unit)
    return within(value, *edges, lambda known: figure(known, unit))


def _unknown(signals: Mapping[str, Json]) -> Table:
    table = _table("unknown signal")
    table.add_column("reason", no_wrap=True)
    for name, signal in signals.items():
        table.add_row(plain(name), signal["unknown"], style="dim")
    return table


def _engines(engines: Mapping[str, Json]) -> Table:
    names = ("running", "waiting", "kv_usage")
    table = _table("engine", *names)
    for engine, signals in engines.items():
        cells = []
        for name in names:
            signal = signals.get(name, {"unknown": "absent"})
            known = "value" in signal
            text = figure(signal["value"], unit_of(name)) if known else signal.get("unknown", "absent")
            cells.append(Text(text, style="" if known else "dim"))
        table.add_row(plain(engine), *cells)
    return table
