"""A run over time as a picture; needs matplotlib (the extra `charts`)."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from controlplane.simulator.scenario.faults import Restarted, Slowed, Started
from controlplane.simulator.scenario.gpu_faults import Xid
from controlplane.simulator.scenario.result import Result
from controlplane.simulator.scenario.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (11.0, 12.5)
_LEFT = 0.095
_NO_LIMIT = 100_000.0
_SMOOTHED_POINTS = 5
_LABEL_ROWS = 3
_LETTER = 0.011  # of the width, in labels
_INK, _FAINT, _GRID = "#2b2f36", "#8b93a1", "#e3e6ea"
_BLUE, _ORANGE, _PURPLE, _GREEN, _RED = "#2f6fb7", "#d9822b", "#8250a8", "#2f8f5b", "#c8403a"
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so the picture is the same everywhere
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.3,
}


class Incident(NamedTuple):
    """A fault as it is marked: what, from when, and until when if it ends, in seconds of the run."""

    label: str
    start: float
    end: float | None


def draw_chart(run: Run, result: Result, title: str, path: Path) -> None:
    """Draw limit, in-flight, waiting, KV, TTFT and goodput of a run that has ended into a PNG file.

    Raises ImportError without matplotlib, OSError where the file can't be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(_INCHES)
        rows = figure.subplots(6, 1, sharex=True, gridspec_kw={"height_ratios": [1.2, 1, 0.8, 1, 1, 1]})
        figure.text(_LEFT, 0.982, title, fontsize=13, fontweight="bold", va="top")
        figure.text(_LEFT, 0.96, _summary(result), linespacing=1.5, va="top")
        _fill(rows, run)
        labels = _mark(rows, run)
        top = 0.9 - 0.014 * max(0, labels - 1)
        figure.subplots_adjust(left=_LEFT, right=0.975, top=top, bottom=0.035, hspace=0.2)
        # Fixed metadata: the same run gives the same file.
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})


def _summary(result: Result) -> str:
    late = "no first token" if result.ttft_p95_seconds is None else f"{result.ttft_p95_seconds:.3g} s"
    return (
        f"policy {result.policy['law']}, load {result.load:g}x, seed {result.seed}\n"
        f"{result.offered:,} requests offered, {result.good:,} good, {result.refused:,} refused, "
        f"{result.token_goodput:,.0f} good tokens/s, TTFT p95 {late}, {result.preemptions:,} preemptions"
    )


def _fill(rows: Sequence["Axes"], run: Run) -> None:
    """The lines and areas of all panels."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, PercentFormatter  # noqa: PLC0415

    series, slo, seconds = run.series, run.scenario.slo, run.series.seconds
    engines, waiting, memory, first, requests, tokens = rows

    engines.fill_between(seconds, series.in_flight, color=_BLUE, alpha=0.25, linewidth=0)
    engines.plot(seconds, series.in_flight, color=_BLUE, label="in flight")
    limit = [value if value < _NO_LIMIT else float("nan") for value in series.limit]
    if run.controls:
        engines.plot(seconds, limit, color=_INK, drawstyle="steps-post", label="limit")
    engines.set_ylabel("requests\nat engines")

    waiting.stackplot(
        seconds, series.queued, series.waiting, colors=[_ORANGE, _PURPLE], alpha=0.75, linewidth=0
    )
    waiting.plot([], [], color=_ORANGE, linewidth=5, alpha=0.75, label="before the engines")
    waiting.plot([], [], color=_PURPLE, linewidth=5, alpha=0.75, label="inside the engines")
    waiting.set_ylabel("requests\nwaiting")
    waiting.set_ylim(0, max(10.0, 1.1 * max(map(sum, zip(series.queued, series.waiting, strict=True)))))

    memory.fill_between(seconds, series.kv_usage, color=_GREEN, alpha=0.25, linewidth=0)
    memory.plot(seconds, series.kv_usage, color=_GREEN)
    memory.set_ylabel("KV cache\n(fullest)")
    memory.set_ylim(0, 1.02)
    memory.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    first.plot(seconds, series.ttft_seconds, color=_BLUE)
    first.axhline(slo.ttft, color=_RED, linestyle="--", linewidth=1.1, label=f"objective {slo.ttft:g} s")
    known = [value for value in series.ttft_seconds if value == value] or [slo.ttft]  # noqa: PLR0124 - NaN
    bottom, top = min(*known, slo.ttft) / 1.5, max(*known, slo.ttft) * 1.8
    first.axhspan(slo.ttft, top, color=_RED, alpha=0.05, linewidth=0)
    first.set_yscale("log")
    first.set_ylim(bottom, top)
    first.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0)))
    first.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    first.yaxis.set_minor_locator(LogLocator(base=10, subs=()))
    first.set_ylabel("TTFT p95\n(log)")

    requests.plot(seconds, _smooth(series.offered), color=_FAINT, label="offered")
    requests.fill_between(seconds, _smooth(series.request_goodput), color=_GREEN, alpha=0.25, linewidth=0)
    requests.plot(seconds, _smooth(series.request_goodput), color=_GREEN, label="good")
    requests.set_ylabel("requests/s")

    tokens.fill_between(seconds, _smooth(series.token_goodput), color=_GREEN, alpha=0.25, linewidth=0)
    tokens.plot(seconds, _smooth(series.token_goodput), color=_GREEN)
    tokens.set_ylabel("good\ntokens/s")
    tokens.yaxis.set_major_formatter(EngFormatter(sep=""))
    tokens.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _clock(value)))
    tokens.set_xticks(_ticks(run.scenario.duration))
    tokens.set_xlim(0, run.scenario.duration)

    for axes in (engines, requests, tokens):
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    for axes in (engines, waiting, first, requests):
        # Above the panel, where no line is under it.
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.96), ncols=2, borderaxespad=0.0)
    rows[0].figure.align_ylabels(list(rows))


def _mark(rows: Sequence["Axes"], run: Run) -> int:
    """Shade the warm-up and the faults, name them above the first panel. Returns how many rows that takes."""
    scenario = run.scenario
    for axes in rows:
        axes.axvspan(0, scenario.warmup, color="#000000", alpha=0.05, linewidth=0)
    found = sorted(_incidents(run), key=lambda one: one.start)
    free_from = [0.0] * _LABEL_ROWS  # by row of labels, in shares of the width
    if scenario.warmup:
        free_from[0] = _LETTER * len("warm-up")
        rows[0].text(
            0.0, 1.03, "warm-up", color=_FAINT, ha="left", va="bottom", fontsize=8.5,
            transform=rows[0].get_xaxis_transform(),
        )  # fmt: skip
    for axes in rows:
        for start, end in _merged(found):
            axes.axvspan(start, end, color=_RED, alpha=0.07, linewidth=0)
    for one in found:
        for axes in rows:
            axes.axvline(one.start, color=_RED, alpha=0.55, linewidth=0.9)
        place = one.start / scenario.duration
        row = next((i for i, free in enumerate(free_from) if free <= place), _LABEL_ROWS - 1)
        free_from[row] = place + _LETTER * len(one.label)
        rows[0].text(
            one.start, 1.03 + 0.1 * row, one.label, color=_RED, fontsize=8.5, ha="left", va="bottom",
            transform=rows[0].get_xaxis_transform(),
        )  # fmt: skip
    return sum(free > 0 for free in free_from)


def _merged(incidents: Sequence[Incident]) -> list[tuple[float, float]]:
    """The times in which any of the incidents lasts, so that none is shaded twice."""
    merged: list[tuple[float, float]] = []
    for one in incidents:
        if one.end is None:
            continue
        if merged and one.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], one.end))
        else:
            merged.append((one.start, one.end))
    return merged


def _incidents(run: Run) -> list[Incident]:
    by_name = {replica.name: replica for replica in run.replicas}
    incidents = []
    for fault in run.scenario.faults:
        end = None if fault.lasts is None else fault.at + fault.lasts
        label = str(fault.kind)
        replica = getattr(fault, "replica", None)
        if isinstance(fault, Xid):
            label = f"XID {fault.code} on {fault.replica or fault.node}"
        elif replica is not None:
            label = f"{replica} {label}"
        if isinstance(fault, Slowed):
            label = f"{label} to {fault.to:.0%}"
        if isinstance(fault, Started | Restarted):
            end = fault.at + by_name[fault.replica].cold_start_seconds
        incidents.append(Incident(label, fault.at, end))
    return incidents


def _smooth(values: "array[float]") -> list[float]:
    """The mean of each point and the few before it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - _SMOOTHED_POINTS, 0)
    return list(map(float, (total[ends] - total[starts]) / (ends - starts)))


def _ticks(duration: float) -> list[float]:
    """About ten times, all of whole units that people count in."""
    steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]
    step = next((step for step in steps if duration / step <= 12), steps[-1])
    return [float(i * step) for i in range(int(duration / step) + 1)]


def _clock(seconds: float) -> str:
    """A time of the run as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
