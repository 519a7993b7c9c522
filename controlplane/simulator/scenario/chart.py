"""A run over time as a picture; needs matplotlib (the extra `charts`)."""

from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.simulator.scenario.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = (11.0, 12.0)
_FIRST_TOKEN_TOP = 3.0  # objectives; what is above is late anyhow
_NO_LIMIT = 100_000.0
_SMOOTHED_POINTS = 5


def draw_chart(run: Run, title: str, path: Path) -> None:
    """Draw limit, in-flight, waiting, KV, TTFT and goodput of a run that has ended into a PNG file.

    Raises ImportError without matplotlib, OSError where the file can't be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to load

    scenario, series = run.scenario, run.series
    figure = Figure(_INCHES, layout="constrained")
    figure.suptitle(title)
    rows = figure.subplots(6, 1, sharex=True)
    limit = [value if value < _NO_LIMIT else float("nan") for value in series.limit]
    panels: tuple[tuple[str, dict[str, array[float] | list[float]]], ...] = (
        ("requests at engines", {"limit": limit, "in flight": series.in_flight}),
        ("waiting", {"before the engines": series.queued, "inside": series.waiting}),
        ("KV usage (fullest)", {"": series.kv_usage}),
        ("TTFT p95 (s)", {"": series.ttft_seconds}),
        ("good requests / s", {"": _smooth(series.request_goodput)}),
        ("good tokens / s", {"": _smooth(series.token_goodput)}),
    )
    for axes, (name, lines) in zip(rows, panels, strict=True):
        for label, values in lines.items():
            axes.plot(series.seconds, values, label=label, linewidth=1.0)
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(loc="upper right", fontsize="small")
        _mark(axes, run)
    rows[2].set_ylim(0, 1.05)
    rows[3].axhline(scenario.slo.ttft, color="tab:red", linestyle="--", linewidth=1.0)
    rows[3].set_ylim(0, _FIRST_TOKEN_TOP * scenario.slo.ttft)
    rows[-1].set_xlabel("seconds")
    rows[-1].set_xlim(0, scenario.duration)
    # Fixed metadata: the same run gives the same file.
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})


def _smooth(values: "array[float]") -> list[float]:
    """The mean of each point and the few before it."""
    starts = [max(0, i + 1 - _SMOOTHED_POINTS) for i in range(len(values))]
    return [sum(values[start : i + 1]) / (i + 1 - start) for i, start in enumerate(starts)]


def _mark(axes: "Axes", run: Run) -> None:
    """Shade the warm-up and the faults."""
    end = run.scenario.duration
    axes.axvspan(0, run.scenario.warmup, color="tab:gray", alpha=0.15, linewidth=0)
    for fault in run.scenario.faults:
        until = end if fault.lasts is None else fault.at + fault.lasts
        axes.axvspan(fault.at, until, color="tab:red", alpha=0.12, linewidth=0)
