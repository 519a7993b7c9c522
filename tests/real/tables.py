"""What was measured, as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.goodput import EngineCell

from .history import Objective
from .witness import ROUNDING, Held, Judged, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """What the daemon said of one goodput cell, beside the truth."""

    phase: str
    said: EngineCell
    good: Judged
    tokens: Judged

    @property
    def verdict(self) -> Verdict:
        """On the good requests."""
        return self.good.against(self.said.good)

    @property
    def token_verdict(self) -> Verdict:
        """On the tokens of good requests."""
        assert self.said.good_tokens is not None
        return self.tokens.against(self.said.good_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeLook:
    """The gauges of one page, beside what clients had open (`seen`) and what the engine can have held."""

    seen: int
    held: Held
    running: float
    waiting: float
    blocks: float

    @property
    def requests_right(self) -> bool:
        """Whether running and waiting together are what was open."""
        return self.running + self.waiting in self.held.requests

    @property
    def running_right(self) -> bool:
        """Whether no more run than can; those that were preempted wait, which no client sees."""
        return self.running <= self.held.running_most

    @property
    def blocks_right(self) -> bool:
        """Whether no more KV blocks are in use than the tokens of all that can run need, but for one.

        Answers do not grow quite evenly, so the estimate of one may be a block behind.
        """
        return self.blocks <= self.held.blocks.high + 1 + ROUNDING


_CELL_HEAD = (
    "cells", "finished", "good", "proven", "width", "point", "off by", "inside", "in doubt", "outside"
)  # fmt: skip


def phase_table(objective: Objective, cells: Sequence[JudgedCell]) -> str:
    """Goodput by phase."""
    phases = dict.fromkeys(cell.phase for cell in cells)
    rows = [[name, *_cells([cell for cell in cells if cell.phase == name])] for name in phases]
    return _table(f"goodput: {_words(objective)}", ("phase", *_CELL_HEAD), [*rows, ["all", *_cells(cells)]])


def objective_table(judged: Mapping[Objective, Sequence[JudgedCell]]) -> str:
    """Goodput of the whole run by objective, with the verdicts on tokens."""
    rows = []
    for objective, cells in judged.items():
        verdicts = Counter(cell.token_verdict for cell in cells)
        rows.append([_words(objective), *_cells(cells), *_verdicts(verdicts, len(cells))])
    everything = [cell for cells in judged.values() for cell in cells]
    verdicts = Counter(cell.token_verdict for cell in everything)
    rows.append(["all", *_cells(everything), *_verdicts(verdicts, len(everything))])
    head = ("objective", *_CELL_HEAD, "tokens inside", "in doubt", "outside")
    return _table("goodput of the same run by other objectives", head, rows)


def counter_table(grown: Mapping[str, Mapping[str, float]]) -> str:
    """Growth of the counters by phase, beside what clients saw."""
    head = {
        "finished": "finished",
        "answered": "answered",
        "hung_up": "hung up",
        "preemptions": "preemptions",
        "prompt_tokens": "prompt tokens",
        "prompts_seen": "clients saw",
        "generation_tokens": "answer tokens",
        "answers_seen": "clients saw",
    }
    rows = [[phase, *(f"{values[name]:.0f}" for name in head)] for phase, values in grown.items()]
    return _table("counters of each phase, from rest to rest", ("phase", *head.values()), rows)


def gauge_table(looks: Mapping[str, Sequence[GaugeLook]], late: Mapping[str, float | None]) -> str:
    """Gauges by phase, means over the pages; and how late (seconds) the clients saw what the engine did."""
    head = (
        "phase", "clients late", "pages", "in flight", "off by", "doubt", "within", "running", "within",
        "KV blocks", "within",
    )  # fmt: skip
    rows = [
        [
            phase,
            "-" if (seconds := late[phase]) is None else f"{seconds * 1000:.0f} ms",
            f"{len(pages)}",
            _mean(look.seen for look in pages),
            _mean(abs(look.running + look.waiting - look.seen) for look in pages),
            _mean(look.held.requests.width for look in pages),
            _share(sum(look.requests_right for look in pages), len(pages)),
            _mean(look.running for look in pages),
            _share(sum(look.running_right for look in pages), len(pages)),
            _mean(look.blocks for look in pages),
            _share(sum(look.blocks_right for look in pages), len(pages)),
        ]
        for phase, pages in looks.items()
        if pages
    ]
    return _table("gauges of each page beside what clients had open", head, rows)


def _cells(cells: Sequence[JudgedCell]) -> list[str]:
    finished = sum(cell.said.requests for cell in cells)
    off = sum(abs(cell.said.good_point - cell.good.seen) for cell in cells)
    width = sum(cell.said.good.width for cell in cells)
    low, high = (sum(getattr(cell.said.good, end) for cell in cells) for end in ("low", "high"))
    return [
        f"{len(cells)}",
        f"{finished:.0f}",
        f"{sum(cell.good.seen for cell in cells):.0f}",
        f"{low:.0f}-{high:.0f}",
        _share(width, finished),
        f"{sum(cell.said.good_point for cell in cells):.0f}",
        _share(off, finished),
        *_verdicts(Counter(cell.verdict for cell in cells), len(cells)),
    ]


def _verdicts(verdicts: Counter[Verdict], of: int) -> list[str]:
    return [_share(verdicts[one], of) for one in Verdict]


def _words(objective: Objective) -> str:
    limits = f"TTFT {objective.ttft_seconds:g} s, TPOT {objective.tpot_seconds * 1000:g} ms"
    return f"{limits}, {objective.cell_seconds:g} s cells"


def _share(part: float, of: float) -> str:
    return f"{part / of:.1%}" if of else "-"


def _mean(values: Iterable[float]) -> str:
    known = list(values)
    return f"{sum(known) / len(known):.1f}"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = (
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in (head, *rows))
    )
    return "\n".join((title, *lines))
