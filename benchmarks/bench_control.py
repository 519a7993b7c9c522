"""Limit laws against each other, and against the best constant there is; prints tables, writes JSON and
Markdown.

    python -m benchmarks.bench_control [--quick] [--seeds N] [--processes N] [--full-sweep] [--cells TEXT]
                                       [--laws NAME,...] [--trust-kept]

Every law and baseline on the same requests, in virtual time, with the production code around the engine:

1. Published traces (../shared/reference/traces; where they are not, mixes of our own) on one H100 from 0.8x
   to 10x, where 1x is the load at which the token goodput of an uncontrolled engine peaks.
2. The built-in scenarios in which something happens.
3. What must hold, a line each.

The oracle of a cell is the fixed limit with the best mean token goodput over the seeds: first every fourth
limit of a grid in steps of 8 % is run, then every one near the best; `--full-sweep` runs all of them, and
tells whether the part would have been enough.

Runs are kept in benchmarks/results/control-runs.jsonl and not made again while scenario and code are the
same, so an interrupted bench goes on where it was. The code must stand still meanwhile: run it from a clean
checkout. `--cells` takes those whose name has the text in it, `--laws` only some. For work on the default
law, `--trust-kept` takes what is kept of the others even if code that they share has changed; such figures
are not for publication. `--quick` takes two seeds and half of the time, at 0.8x and 2x.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.control import incidents, report, verdicts
from benchmarks.control.cells import (
    LAW,
    POLICIES,
    TIMES,
    Cell,
    Measured,
    fixed,
    incident_cells,
    load_cells,
    measure,
)
from benchmarks.control.kept import Runs
from benchmarks.control.loads import Load, loads
from benchmarks.control.peaks import Peak, find_peak
from benchmarks.control.verdicts import Verdict

RESULTS = Path(__file__).parent / "results"
_SWEPT = 28  # limits that a sweep runs, about


class Scale(NamedTuple):
    """How much is run: seeds, loads, the share of a run's length, and whether 1x is looked for and scenarios
    are run."""

    seeds: tuple[int, ...]
    times: tuple[float, ...]
    length: float
    whole: bool

    def run_length(self, load: Load) -> tuple[float, float]:
        """Seconds of a run, and of its warm-up."""
        return load.seconds * self.length, load.warmup * self.length


def scale_of(options: argparse.Namespace) -> Scale:
    if options.quick:
        return Scale((1, 2), (0.8, 2.0), 0.5, whole=False)
    return Scale(tuple(range(1, options.seeds + 1)), TIMES, 1.0, whole=True)


def main() -> None:
    options = _options()
    scale = scale_of(options)
    began = time.monotonic()
    with Runs(options.runs, options.processes, trust=options.trust_kept) as runs:
        cells = load_cells(loads(), scale.times, scale.run_length) + (incident_cells() if scale.whole else [])
        cells = [cell for cell in cells if options.cells in cell.name]
        policies = [name for name in POLICIES if name in options.laws]
        _foretell(runs, cells, scale, policies)
        peaks = _peaks(runs, scale) if scale.whole and not options.cells else {}
        measured = _measured(runs, cells, scale.seeds, policies, whole=options.full_sweep)
        held = _verdicts(runs, measured, peaks, scale) if LAW in policies else []
        print("\nToken goodput as a share of the best fixed limit's")
        print(report.text(report.summary(measured)))
        print("\nWhat must hold")
        for verdict in held:
            print(f"  {verdict.text()}")
        minutes = (time.monotonic() - began) / 60
        told = [
            f"{len(scale.seeds)} seeds. {runs.made} runs were made, in {minutes:.0f} minutes on "
            f"{runs.processes} processes; the others were kept from before. Again: `make bench-control`."
        ]
        if options.trust_kept:
            told.append("Runs of laws but the default one are kept from before; not for publication.")
        print(f"\n{told[0]}")
    raw = {name: peak._asdict() for name, peak in peaks.items()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report.to_json(measured, raw, held), indent=1))
    options.json.with_suffix(".md").write_text(report.markdown(measured, raw, held, told))


def _measured(
    runs: Runs, cells: Sequence[Cell], seeds: Sequence[int], policies: Sequence[str], *, whole: bool
) -> list[Measured]:
    """All cells, printed as they are done. A thread each keeps the processes busy while another waits for the
    last run of its sweep."""

    def one(cell: Cell) -> Measured:
        return measure(runs, cell, seeds, policies, whole=whole)

    found = []
    with ThreadPoolExecutor(runs.processes) as threads:
        for measured in threads.map(one, cells):
            print(f"\n{measured.cell.name}")
            print(report.text(report.cell_table(measured)), flush=True)
            found.append(measured)
    return found


def _peaks(runs: Runs, scale: Scale) -> dict[str, Peak]:
    print("1x, requests/s: where the token goodput of an uncontrolled engine peaks")
    found = {}
    for load in loads():
        peak = found[load.name] = find_peak(runs, load, scale.seeds, scale.run_length(load))
        print(
            f"  {load.name:<12} is taken as {load.rate:g}, is {peak.peak:.3g}, "
            f"within 2 % from {peak.low:.3g} to {peak.high:.3g}: {peak.tokens:,.0f} tokens/s",
            flush=True,
        )
    return found


def _verdicts(
    runs: Runs, measured: Sequence[Measured], peaks: dict[str, Peak], scale: Scale
) -> list[Verdict]:
    steady = [cell for cell in measured if cell.cell.times is not None]
    others = [cell for cell in measured if cell.cell.times is None]
    best = {name: peak.tokens for name, peak in peaks.items()}
    found = [
        Verdict(f"1x of {name} is where goodput peaks", peak.fits, f"{peak.rate:g} and {peak.peak:.3g}")
        for name, peak in peaks.items()
    ]
    found += [*verdicts.of_sweeps(measured), *verdicts.of_loads(steady, best)]
    if others:
        found.append(verdicts.preemptions(others))
    if scale.whole and len(others) == len(incident_cells()):
        oracles = {cell.cell.name: cell.oracle for cell in others}
        found += incidents.all_verdicts(runs, scale.seeds, oracles)
    return found


def _foretell(runs: Runs, cells: Iterable[Cell], scale: Scale, policies: Sequence[str]) -> None:
    """About how long it takes, as far as that can be known: a sweep decides as it goes what it runs."""
    seconds = 0.0
    for cell in cells:
        scenario = cell.scenario(1)
        requests = scenario.expected_requests
        each = 0.2 + 70e-6 * requests + 1e-3 * scenario.duration * len(scenario.replica_names)
        first = [not runs.has(cell.job(POLICIES[name], seed)) for name in policies for seed in scale.seeds]
        seconds += each * sum(first)
        if not runs.has(cell.job(fixed(2), scale.seeds[0])):
            seconds += each * _SWEPT * len(scale.seeds)
    print(f"About {seconds / 60 / runs.processes:.0f} minutes on {runs.processes} free cores.", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--full-sweep", action="store_true")
    parser.add_argument("--cells", default="")
    parser.add_argument("--laws", type=_laws, default=tuple(POLICIES))
    parser.add_argument("--trust-kept", action="store_true")
    parser.add_argument("--json", type=Path, default=RESULTS / "control.json")
    parser.add_argument("--runs", type=Path, default=RESULTS / "control-runs.jsonl")
    return parser.parse_args()


def _laws(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"no law is called {name!r}; there are {', '.join(POLICIES)}")
    return names


if __name__ == "__main__":
    main()
