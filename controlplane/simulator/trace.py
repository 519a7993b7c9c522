"""Requests read from a CSV file `t_s,input_tokens,output_tokens`: arrival in seconds, prompt and answer in
tokens."""

import csv
from pathlib import Path
from typing import NamedTuple

from numpy.random import Generator

_COLUMNS = ["t_s", "input_tokens", "output_tokens"]


class TraceRow(NamedTuple):
    """One request of a trace."""

    at: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """All rows, in order of time. Raises ValueError with file and line where a row can't be one."""
    with path.open(newline="") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        if header != _COLUMNS:
            raise ValueError(f"{path}:1: the header must be {','.join(_COLUMNS)} (got {','.join(header)})")
        rows = []
        for line in lines:
            try:
                at, prompt, output = line
                row = TraceRow(float(at), int(prompt), int(output))
            except ValueError:
                raise ValueError(
                    f"{path}:{lines.line_num}: not a time and two numbers of tokens: {','.join(line)}"
                ) from None
            if not 0 <= row.at < float("inf") or row.prompt_tokens < 1 or row.output_tokens < 1:
                raise ValueError(f"{path}:{lines.line_num}: out of range: {','.join(line)}")
            rows.append(row)
    return sorted(rows)


def window(rows: list[TraceRow], start: float, end: float) -> list[TraceRow]:
    """The requests from second `start` to before `end`, with `start` as second 0."""
    return [row._replace(at=row.at - start) for row in rows if start <= row.at < end]


def faster(rows: list[TraceRow], factor: float) -> list[TraceRow]:
    """The same requests `factor` times as fast: the rate changes, the burstiness stays."""
    if not factor > 0:
        raise ValueError(f"a trace can be replayed only at a rate over 0 (got {factor})")
    return [row._replace(at=row.at / factor) for row in rows]


def spread(rows: list[TraceRow], seconds: float, rng: Generator) -> list[TraceRow]:
    """Each arrival moved back by a random part of `seconds`, for traces whose times are in steps of so
    long."""
    moved = rng.random(len(rows)) * seconds
    return sorted(row._replace(at=row.at + delay) for row, delay in zip(rows, moved.tolist(), strict=True))
