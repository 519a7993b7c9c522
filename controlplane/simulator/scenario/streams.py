"""The sources of a scenario's workload, ready to send."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from controlplane.simulator.arrivals import GammaGaps
from controlplane.simulator.mixes import MixSource, mix
from controlplane.simulator.rate import RateCurve
from controlplane.simulator.scenario.workload import SourceModel, Trace, Workload
from controlplane.simulator.trace import TraceRow, read_trace
from controlplane.simulator.workload import Arrives, ClosedLoop, OpenLoop, Replay, Source


def build_sources(workload: Workload, until: float, rng: Generator) -> tuple[Source, ...]:
    """All sources for a run of `until` seconds. Raises ValueError for a trace that is none."""
    built: list[Source] = []
    for model, own in zip(workload.sources, rng.spawn(len(workload.sources)), strict=True):
        built += _build(model, workload.times, until, own)
    return tuple(built)


def _build(model: SourceModel, times: float, until: float, rng: Generator) -> list[Source]:
    curve = model.curve
    if curve is not None:
        curve = curve.times(times)
    if model.mix is not None:
        return _of_mix(model, model.mix, curve, until, rng)
    if model.trace is not None:
        assert curve is not None
        rows = _replayed(model.trace, curve, until, rng)
        return [_source(model, model.name, Replay(rows))]
    arrives = _open(model, curve) if curve is not None else _closed(model, 1.0)
    return [_source(model, model.name, arrives, model)]


def _of_mix(
    model: SourceModel, name: str, curve: RateCurve | None, until: float, rng: Generator
) -> list[Source]:
    wanted = mix(name)
    if model.uneven:
        assert curve is not None
        parts = wanted.build(curve.at(0.0), until, rng)
        return [_source(model, f"{model.name}-{part.name}", part.arrives, part) for part in parts]
    built = []
    for part in wanted.sources:
        arrives = _closed(model, part.share) if curve is None else OpenLoop(curve.times(part.share))
        built.append(_source(model, f"{model.name}-{part.name}", arrives, part))
    return built


def _open(model: SourceModel, curve: RateCurve) -> OpenLoop:
    return OpenLoop(curve, GammaGaps() if model.gaps is None else model.gaps)


def _closed(model: SourceModel, share: float) -> ClosedLoop:
    assert model.users is not None
    # A fleet of users who all send in second 0 is a burst of its own; think time spreads them anyway.
    return ClosedLoop(max(1, round(model.users * share)), model.think, start_seconds=max(model.think, 1.0))


def _source(
    model: SourceModel, name: str, arrives: Arrives, lengths: SourceModel | MixSource | Source | None = None
) -> Source:
    return Source(
        name,
        arrives,
        lengths.prompt if lengths is not None else None,
        lengths.output if lengths is not None else None,
        model.tenant,
        model.service_class,
        model.priority,
        model.max_tokens,
        model.shared_prefix_tokens,
        model.patience.build(),
        model.retry.build() if model.retry is not None else None,
        model.stream,
    )


def _replayed(trace: Trace, curve: RateCurve, until: float, rng: Generator) -> tuple[TraceRow, ...]:
    """The rows of a run: the trace's own time is stretched so that its mean rate follows `curve`."""
    why = shortfall(trace, curve, until)
    if why is not None:
        raise ValueError(f"{trace.file}: {why}")
    rows = trace_rows(trace)
    wanted = curve.arrivals_until(until)
    if trace.spread:
        rows = rows.copy()
        rows[:, 0] += rng.random(len(rows)) * trace.spread
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    start, end = _bounds(trace, rows)
    per_second = len(rows) / (end - start)
    if trace.resample is not None:
        latest = end - trace.resample
        begins = start + rng.random(int(wanted / per_second / trace.resample) + 1) * (latest - start)
        rows, start = _joined(rows, begins.tolist(), trace.resample), 0.0
    times = curve.when((rows[:, 0] - start) * per_second)
    kept = times < until
    lengths = rows[kept, 1:].astype(np.int64).tolist()
    return tuple(
        TraceRow(at, prompt, output)
        for at, (prompt, output) in zip(times[kept].tolist(), lengths, strict=True)
    )


def trace_rows(trace: Trace) -> NDArray[np.float64]:
    """The rows in the trace's window, as columns of time, prompt and output tokens. Raises ValueError."""
    stat = trace.file.stat()
    rows = _rows_of(trace.file, (stat.st_mtime_ns, stat.st_size))
    if trace.window is not None:
        rows = rows[(rows[:, 0] >= trace.window[0]) & (rows[:, 0] < trace.window[1])]
    if len(rows) < 2:
        raise ValueError(f"{trace.file}: {len(rows)} requests in the window are too few")
    return rows


def shortfall(trace: Trace, curve: RateCurve, until: float) -> str | None:
    """Why the trace cannot fill `until` seconds of `curve`, or None where it can."""
    rows = trace_rows(trace)
    wanted = curve.arrivals_until(until)
    if trace.resample is None:
        if wanted <= len(rows):
            return None
        return (
            f"{len(rows)} requests are too few for {until:g} s ({wanted:.0f}): set resample or a shorter run"
        )
    start, end = _bounds(trace, rows)
    if trace.resample > end - start:
        return f"resample ({trace.resample:g} s) is longer than what there is ({end - start:g} s)"
    return None


@lru_cache(maxsize=8)
def _rows_of(path: Path, version: tuple[int, int]) -> NDArray[np.float64]:
    """The rows of a file; `version` changes with what is in it."""
    return np.array(read_trace(path), dtype=np.float64).reshape(-1, 3)


def _bounds(trace: Trace, rows: NDArray[np.float64]) -> tuple[float, float]:
    """From when to when the rows reach, in trace time."""
    return trace.window or (float(rows[0, 0]), float(rows[-1, 0]))


def _joined(rows: NDArray[np.float64], begins: list[float], block: float) -> NDArray[np.float64]:
    """The blocks of the trace that begin at `begins`, one behind the other from second 0 on."""
    parts = []
    for i, begin in enumerate(begins):
        inside = rows[(rows[:, 0] >= begin) & (rows[:, 0] < begin + block)].copy()
        inside[:, 0] += i * block - begin
        parts.append(inside)
    return np.concatenate(parts)
