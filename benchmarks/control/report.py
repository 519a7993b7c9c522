"""What was measured, as tables for people and as JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.control.cells import Measured
from benchmarks.control.figures import Figures
from benchmarks.control.statistic import Mean, mean, share
from benchmarks.control.verdicts import Verdict, shares
from controlplane.simulator.scenario.live import LENGTH_CLASSES

Json = dict[str, Any]
Row = tuple[str, ...]

_HEAD = (
    "policy",
    "tokens/s",
    "of oracle",
    "requests/s",
    "of oracle",
    "shed",
    "shed by length",
    "TTFT p95",
    "TPOT p95",
    "preempted",
    "Jain",
    "limit",
)


def cell_table(measured: Measured) -> list[Row]:
    """A row for the oracle and each policy. `shed by length` is in percent, of requests of under 256, 1k, 4k,
    16k tokens, and of longer ones."""
    rows = [_HEAD, _row(f"best fixed ({measured.limit})", measured.oracle, measured)]
    return rows + [_row(name, figures, measured) for name, figures in measured.by_policy.items()]


def _row(name: str, figures: Sequence[Figures], measured: Measured) -> Row:
    requests, shed = _requests(figures, measured.oracle), dict(_shed_by_length(figures))
    return (
        name,
        f"{_over(figures, lambda one: one.token_goodput):,.0f}",
        shares(figures, measured.oracle).text(),
        f"{_over(figures, lambda one: one.request_goodput):,.2f}",
        requests.text(),
        f"{_ratio(figures, 'refused', 'offered'):.1%}",
        " ".join(f"{100 * shed[name]:.0f}" if name in shed else "-" for name in LENGTH_CLASSES),
        _seconds(figures, lambda one: one.ttft_p95_seconds),
        _seconds(figures, lambda one: one.tpot_p95_seconds),
        f"{_ratio(figures, 'preemptions', 'completed'):.2%}",
        _known(figures, lambda one: one.jain_index, ".3f"),
        _known(figures, lambda one: one.limit_mean, ".0f"),
    )


def _requests(figures: Sequence[Figures], oracle: Sequence[Figures]) -> Mean:
    """Request goodput as a share of the oracle's."""
    return mean(
        share(one.request_goodput, best.request_goodput) for one, best in zip(figures, oracle, strict=True)
    )


def _ratio(figures: Sequence[Figures], part: str, of: str) -> float:
    whole = sum(getattr(one, of) for one in figures)
    return sum(getattr(one, part) for one in figures) / whole if whole else 0.0


def _over(figures: Sequence[Figures], what: Callable[[Figures], float]) -> float:
    return mean(map(what, figures)).value


def _known(figures: Sequence[Figures], what: Callable[[Figures], float | None], form: str) -> str:
    values = [value for one in figures if (value := what(one)) is not None]
    return f"{mean(values).value:{form}}" if values else "-"


def _seconds(figures: Sequence[Figures], what: Callable[[Figures], float | None]) -> str:
    values = [value for one in figures if (value := what(one)) is not None]
    if not values:
        return "-"
    value = mean(values).value
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def summary(cells: Sequence[Measured]) -> list[Row]:
    """Token goodput as a share of the oracle's: a row a cell, a column a policy."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.by_policy))
    rows = [("cell", "best fixed", *names)]
    for cell in cells:
        row = [
            shares(cell.by_policy[name], cell.oracle).text() if name in cell.by_policy else "-"
            for name in names
        ]
        rows.append((cell.cell.name, str(cell.limit), *row))
    return rows


def text(rows: Sequence[Row]) -> str:
    """Columns side by side."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            value.rjust(width) if i else value.ljust(width)
            for i, (value, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def markdown(
    cells: Sequence[Measured], peaks: Mapping[str, Json], verdicts: Sequence[Verdict], told: Sequence[str]
) -> str:
    """Everything, as a page; `told` are sentences on how it was made."""
    parts = ["# Limits by law", "\n".join(told)]
    parts.append(
        "\n".join(f"- {'holds' if v.holds else '**fails**'}: {v.what}: {v.figure}" for v in verdicts)
    )
    parts.append("## Token goodput as a share of the best fixed limit's, mean over seeds with 95 % interval")
    parts.append(_table(summary(cells)))
    if peaks:
        parts.append("## 1x: where the token goodput of an uncontrolled engine peaks")
        rows = [("load", "1x, requests/s", "peaks at", "within 2 % of it", "tokens/s")]
        rows += [
            (
                name,
                f"{p['rate']:g}",
                f"{p['peak']:.3g}",
                f"{p['low']:.3g} to {p['high']:.3g}",
                f"{p['tokens']:,.0f}",
            )
            for name, p in peaks.items()
        ]
        parts.append(_table(rows))
    for cell in cells:
        parts += [f"## {cell.cell.name}", _table(cell_table(cell))]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> str:
    def line(values: Row) -> str:
        return f"| {' | '.join(values)} |"

    return "\n".join([line(rows[0]), line(("---",) * len(rows[0])), *map(line, rows[1:])])


def to_json(cells: Sequence[Measured], peaks: Mapping[str, Json], verdicts: Sequence[Verdict]) -> Json:
    """The same as numbers: each figure as [mean, half of the 95 % interval]."""
    return {
        "verdicts": [verdict._asdict() for verdict in verdicts],
        "peaks": dict(peaks),
        "cells": {cell.cell.name: _cell_json(cell) for cell in cells},
    }


def _cell_json(cell: Measured) -> Json:
    return {
        "best_limit": cell.limit,
        "oracle": _policy_json(cell.oracle, cell),
        **{name: _policy_json(figures, cell) for name, figures in cell.by_policy.items()},
    }


def _policy_json(figures: Sequence[Figures], cell: Measured) -> Json:
    names = ("request_goodput", "token_goodput", "ttft_p95_seconds", "tpot_p95_seconds", "preemptions")
    means = {name: _mean_of(figures, name) for name in (*names, "jain_index", "limit_mean")}
    return {
        "token_goodput_of_oracle": shares(figures, cell.oracle),
        "request_goodput_of_oracle": _requests(figures, cell.oracle),
        **means,
        "shed_ratio": _ratio(figures, "refused", "offered"),
        "shed_ratio_by_length": dict(_shed_by_length(figures)),
    }


def _mean_of(figures: Sequence[Figures], name: str) -> Mean | None:
    values = [value for one in figures if (value := getattr(one, name)) is not None]
    return mean(values) if values else None


def _shed_by_length(figures: Sequence[Figures]) -> Iterator[tuple[str, float]]:
    for name in LENGTH_CLASSES:
        parts = [one.by_length[name] for one in figures if name in one.by_length]
        if offered := sum(part.offered for part in parts):
            yield name, sum(part.refused for part in parts) / offered
