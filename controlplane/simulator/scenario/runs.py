"""Many runs on several cores; the results come in the order of what was asked, however they were run."""

import os
import signal
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
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
    others = set(active_children())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        size = max(1, len(cells) // (processes * 8))
        portions = [pool.submit(_run_portion, cells[i : i + size]) for i in range(0, len(cells), size)]
        try:
            return [result for portion in portions for result in portion.result()]
        except BaseException:  # Ctrl-C too: the pool would wait for runs that nobody wants any more
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _run_portion(cells: list[Cell]) -> list[Result]:
    return [run_cell(cell) for cell in cells]


def _begin_worker() -> None:
    """A Ctrl-C is for the parent to see; without a parent a worker would wait for work for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
