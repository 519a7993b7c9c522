"""Requests read from a CSV file `t_s,input_tokens,output_tokens`: arrival in seconds, prompt and answer in
tokens."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from numpy.random import Generator

MOST_ROWS = 5_000_000

_COLUMNS = ["t_s", "input_tokens", "output_tokens"]
_MOST_TOKENS = 10_000_000
_MOST_SHOWN = 80


class _Reader(Protocol):
    """What csv.reader makes, which has no name of its own."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class TraceRow(NamedTuple):
    """One request of a trace."""

    at: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """All rows, in order of time. Raises ValueError with file and line where a row can't be one, OSError
    where there is no file."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        try:
            rows = list(_rows(path, lines))
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text file") from None
        except csv.Error as error:
            raise ValueError(f"{path}:{lines.line_num}: not CSV ({error})") from None
    return sorted(rows)


def _rows(path: Path, lines: "_Reader") -> Iterator[TraceRow]:
    header = next(lines, [])
    if header != _COLUMNS:
        raise ValueError(f"{path}:1: the header must be {','.join(_COLUMNS)} (got {_shown(header)})")
    for number, line in enumerate(lines, 1):
        if number > MOST_ROWS:
            raise ValueError(f"{path}:{lines.line_num}: more than {MOST_ROWS:,} requests")
        try:
            at, prompt, output = line
            row = TraceRow(float(at), int(prompt), int(output))
        except ValueError:
            raise ValueError(
                f"{path}:{lines.line_num}: not a time and two numbers of tokens: {_shown(line)}"
            ) from None
        longest = max(row.prompt_tokens, row.output_tokens)
        shortest = min(row.prompt_tokens, row.output_tokens)
        if not 0 <= row.at < float("inf") or shortest < 1 or longest > _MOST_TOKENS:
            raise ValueError(f"{path}:{lines.line_num}: out of range: {_shown(line)}")
        yield row


def _shown(line: list[str]) -> str:
    """The beginning of a line, for a sentence."""
    text = ",".join(line)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


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
