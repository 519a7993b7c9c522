"""Results of simulated runs and sweeps as tables; they take the JSON that the commands can print instead."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controlplane.terminal.figures import count, percent, plain, seconds

Json = Mapping[str, Any]

_MOST_TOLD = 12
_MOST_TENANTS = 12


def run_table(result: Json, title: str) -> RenderableType:
    """One run: what became of the requests, how long they took, and what the daemon made of it."""
    law = result["policy"]["law"]
    head = Text.assemble(
        (plain(result["scenario"]), "bold"),
        f" – {plain(title)}\n",
        f"load {result['load']:g}x, policy {law}, seed {result['seed']}, "
        f"{seconds(result['measured_seconds'])} measured",
    )
    parts: list[RenderableType] = [head, _ends(result), _latencies(result)]
    parts.append(_split("length", result["by_length"]))
    if len(result["by_tenant"]) > 1:
        parts.append(_split("tenant", dict(list(result["by_tenant"].items())[:_MOST_TENANTS])))
    if result["daemon"] is not None:
        parts.append(_as_reported(result["daemon"]))
    if result["gpus"] is not None:
        parts += _gpus(result["gpus"])
    parts += _told(result)
    return Group(*parts)


def sweep_table(sweep: Json, rates: Mapping[str, str]) -> RenderableType:
    """A sweep; `rates` says of each source what its rate is at the best factor (empty for limits)."""
    best = sweep["best"]
    table = Table(box=None, pad_edge=False)
    for name in (sweep["swept"], "tok/s good", "± 95 %", "of best", "req/s good", "refused", "preempted"):
        table.add_column(name, justify="right")
    for point in sweep["points"]:
        interval = point["token_goodput_interval"]
        share = point["token_goodput"] / best["token_goodput"] if best["token_goodput"] else 0.0
        table.add_row(
            f"{point['value']:g}",
            count(point["token_goodput"]),
            "–" if interval is None else count(interval),
            percent(share),
            count(point["request_goodput"]),
            percent(point["refused_ratio"]),
            count(point["preemptions"]),
            style="bold green" if point["value"] == best["value"] else "",
        )
    lines = [
        f"best {sweep['swept']}: {best['value']:g}",
        *(f"{name}: {rate}" for name, rate in rates.items()),
    ]
    return Group(table, Text("\n".join(lines), style="bold"))


def _ends(result: Json) -> Table:
    table = _plain_table(
        "offered", "completed", "good", "refused", "failed", "gave up", "inside", "good/s", "tok/s good"
    )
    counts = ("offered", "completed", "good", "refused", "failed", "gave_up", "in_system_at_end")
    rates = ("request_goodput", "token_goodput")
    table.add_row(*(count(result[name]) for name in (*counts, *rates)))
    return table


def _latencies(result: Json) -> Table:
    table = _plain_table("TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99", "preempted", "Jain", "limit")
    names = [f"{what}_{p}_seconds" for what in ("ttft", "tpot") for p in ("p50", "p95", "p99")]
    jain, limit = result["jain_index"], result["limit_mean"]
    table.add_row(
        *(_or_dash(result[name], seconds) for name in names),
        count(result["preemptions"]),
        _or_dash(jain, "{:.3f}".format),
        _or_dash(limit, count),
    )
    return table


def _split(what: str, parts: Mapping[str, Json]) -> Table:
    table = _plain_table(what, "offered", "completed", "good", "refused", "tok/s good")
    table.columns[0].justify = "left"
    for name, part in parts.items():
        if part["offered"]:
            table.add_row(
                plain(name),
                count(part["offered"]),
                count(part["completed"]),
                count(part["good"]),
                count(part["refused"]),
                count(part["token_goodput"]),
            )
    return table


def _as_reported(daemon: Json) -> Text:
    def line(what: str, unit: str) -> str:
        bounds = daemon[f"{what}_goodput"]
        return (
            f"{count(bounds['low'])} to {count(bounds['high'])} {unit} by the engines' pages, "
            f"{count(daemon[f'true_{what}_goodput'])} in truth"
        )

    return Text(f"goodput as the daemon sees it: {line('request', 'req/s')}; {line('token', 'tok/s')}")


def _gpus(gpus: Json) -> Sequence[RenderableType]:
    table = _plain_table("fault", "of", "at", "last new request", "node taken", "node back")
    for fault in gpus["faults"]:
        after = ("no_request_after_seconds", "node_taken_after_seconds", "node_back_after_seconds")
        table.add_row(
            plain(fault["kind"]),
            plain(fault["target"]),
            seconds(fault["at"]),
            *(_or_dash(fault[name], lambda value: f"+{seconds(value)}") for name in after),
        )
    wrong = [*gpus["nodes_taken_wrongly"], *gpus["replicas_out_wrongly"]]
    lost = gpus["goodput_lost_ratio"]
    sentence = (
        f"{count(gpus['nodes_taken'])} nodes taken; wrongly out: {', '.join(map(plain, wrong)) or 'none'}; "
        f"goodput lost since the first fault: {_or_dash(lost, percent)}"
    )
    return [table, Text(sentence)]


def _told(result: Json) -> Sequence[Text]:
    told = [one for one in result["told"] if one["kind"] != "replica-joined"]
    lines = [Text(f"{one['at']:6.0f} s  {plain(one['sentence'])}", style="dim") for one in told[:_MOST_TOLD]]
    more = len(told) - _MOST_TOLD + result["told_left_out"]
    return [*lines, Text(f"          and {more} more", style="dim")] if more > 0 else lines


def _plain_table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _or_dash(value: float | None, figure: Any) -> str:
    return "–" if value is None else str(figure(value))
