"""Many runs on several cores; the results come in the order of what was asked, however they were run."""

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.result import Result, result_of
from controlplane.simulator.scenario.run import Run


class Cell(NamedTuple):
    """One run to make: a scenario and what it is called."""

    name: str
    scenario: Scenario


def run_cell(cell: Cell) -> Result:
    """Run a scenario to its end. AssertionError where a law of every run is broken."""
    run = Run(cell.scenario)
    run.go()
    return result_of(run, cell.name)


def run_cells(cells: Iterable[Cell], processes: int) -> list[Result]:
    """All results, in the order of `cells`."""
    cells = list(cells)
    processes = min(processes, len(cells))
    if processes <= 1:
        return [run_cell(cell) for cell in cells]
    # Long and short runs are mixed, so small portions; a fresh interpreter inherits no threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run_cell, cells, chunksize=max(1, len(cells) // (processes * 8))))
