"""What the daemon knew at each tick, read from its journal by running it through `policy.tick` again.

The tick is pure, so the journal can also be asked what it would have said with other objectives: one run
against a real engine then tests as many of them as we like.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from controlplane.daemon import journal_file
from controlplane.policy.goodput import Cell
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PoolPolicy, Slo
from controlplane.policy.tick import tick
from controlplane.signals.samples import Scrape
from controlplane.signals.snapshot import PoolSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Limits that one request must keep, in seconds, and how long a goodput cell is."""

    ttft_seconds: float
    tpot_seconds: float
    cell_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was known after one tick: the pool, and the spans of its goodput cells and latency window.

    A span is (start, end] in Unix seconds, both the times of pages; None where there is none yet.
    """

    number: int
    pool: PoolSnapshot
    goodput_span: tuple[float, float] | None
    latency_span: tuple[float, float] | None


class History:
    """The ticks of a journal of one replica in one pool."""

    def __init__(self, journal: Path) -> None:
        with closing(journal_file.connect_to_read(journal)) as connection:
            self._ticks = list(journal_file.read_ticks(connection, after=0))
        samples = [sample for row in self._ticks for sample in row.samples.scrapes]
        self.pages = [sample for sample in samples if isinstance(sample, Scrape)]
        self.failures = [sample for sample in samples if not isinstance(sample, Scrape)]
        self._page_times = [page.at for page in self.pages]

    def page_before(self, at: float) -> Scrape:
        """The newest page that had arrived at Unix time `at`."""
        return self.pages[bisect_right(self._page_times, at) - 1]

    def known(self, objective: Objective) -> tuple[list[Known], list[Cell]]:
        """What each tick knew, and all closed cells, with that objective."""
        memory, known, cells = Memory(), list[Known](), list[Cell]()
        pools: dict[str, PoolPolicy] = {}
        for row in self._ticks:
            if not pools and row.samples.targets:
                slo = Slo(ttft=f"{objective.ttft_seconds}s", tpot=f"{objective.tpot_seconds}s")
                pools = {target.pool: PoolPolicy(slo=slo) for target in row.samples.targets}
            settings = row.settings.model_copy(
                update={"pools": pools, "goodput_cell": objective.cell_seconds}
            )
            snapshot, _, memory = tick(row.samples, memory, settings, row.at)
            for pool in snapshot.pools.values():
                (replica,) = memory.replicas.values()
                cells += [cell for cell in replica.cells if not cells or cell.end > cells[-1].end]
                marks = [mark.at for mark in replica.marks]
                known.append(
                    Known(
                        number=snapshot.tick,
                        pool=pool,
                        goodput_span=_span(
                            replica.cells, after=row.at - settings.window - settings.goodput_cell
                        ),
                        latency_span=(marks[0], replica.latest.at) if marks and replica.latest else None,
                    )
                )
        return known, cells


def _span(cells: Sequence[Cell], after: float) -> tuple[float, float] | None:
    """The window that a pool speaks of: while a replica is away its cells grow old, and go."""
    kept = [cell for cell in cells if cell.start >= after]
    return (kept[0].start, kept[-1].end) if kept else None
