"""Where 1x is: the load at which the token goodput of an uncontrolled engine peaks, for each mix.

    python benchmarks/calibrate_scenarios.py [--seeds N] [--processes N] [--json PATH]

The scenarios' rates are multiples of it. For each mix the scenario that has it alone is run without control
from half to twice its rate, in steps of 2 % near the peak, on the same seeds. A peak is flat, and which of
its points is highest depends on the seeds; so it is told from where to where goodput is within 2 % of the
best. Ends with 1 if the rate in a file lies outside. A run of twenty minutes instead of the scenario's own
five or ten moves the peak by less than 4 %. Takes about five minutes.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from controlplane.simulator.scenario.reading import load_scenario
from controlplane.simulator.scenario.sweep import sweep_rate

RESULTS = Path(__file__).parent / "results" / "calibrate_scenarios.json"
SCENARIOS = {
    "azure-conv": "steady-1x",
    "azure-code": "code-2x",
    "r1-reasoning": "heavy-tail",
    "m-small": "small-2x",
}
FLAT = 0.98
LINE = "{:<14}{:<12}{:>14}{:>16}{:>22}{:>18}{:>8}"


class Peak(NamedTuple):
    """Requests a second of one engine: what the scenario's file says, and where goodput peaks."""

    scenario: str
    rate: float
    peak: float
    flat_from: float
    flat_until: float
    tokens_per_second: float
    tokens_interval: float | None

    @property
    def fits(self) -> bool:
        return self.flat_from <= self.rate <= self.flat_until


def find_peak(name: str, seeds: int, processes: int) -> Peak:
    scenario = load_scenario(name)
    (source,) = scenario.workload.sources
    assert isinstance(source.rate, float)
    found = sweep_rate(name, scenario, range(1, seeds + 1), processes)
    best = found.best
    flat = [p.value for p in found.points if p.token_goodput >= FLAT * best.token_goodput]
    peak, low, high = (source.rate * times for times in (best.value, min(flat), max(flat)))
    return Peak(name, source.rate, peak, low, high, best.token_goodput, best.token_goodput_interval)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(f"Without control, {options.seeds} seeds: requests/s of one engine at which token goodput peaks")
    print(
        LINE.format("mix", "scenario", "its 1x", "peak", f"within {1 - FLAT:.0%} of it", "good tokens/s", "")
    )
    peaks = {}
    for mix, name in SCENARIOS.items():
        one = peaks[mix] = find_peak(name, options.seeds, options.processes)
        interval = "" if one.tokens_interval is None else f" ± {one.tokens_interval:,.0f}"
        print(
            LINE.format(
                mix,
                name,
                f"{one.rate:g}",
                f"{one.peak:.4g}",
                f"{one.flat_from:.4g} to {one.flat_until:.4g}",
                f"{one.tokens_per_second:,.0f}{interval}",
                "fits" if one.fits else "MOVE",
            ),
            flush=True,
        )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({mix: one._asdict() for mix, one in peaks.items()}, indent=1))
    if not all(one.fits for one in peaks.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
