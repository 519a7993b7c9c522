"""Where 1x is: the load at which the token goodput of an uncontrolled engine peaks."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.control.cells import NONE, POLICIES
from benchmarks.control.figures import Job
from benchmarks.control.kept import Runs
from benchmarks.control.loads import Load
from benchmarks.control.statistic import mean
from controlplane.simulator.scenario.sweep import searched

_FLAT = 0.98
_STEP, _FROM, _TO = 1.04, 0.5, 2.0  # of the rate that is taken for 1x


class Peak(NamedTuple):
    """Requests a second: what is taken for 1x, where goodput peaks, and from where to where it is within 2 %
    of that. `tokens` is the best goodput, a second."""

    rate: float
    peak: float
    low: float
    high: float
    tokens: float

    @property
    def fits(self) -> bool:
        return self.low <= self.rate <= self.high


def find_peak(runs: Runs, load: Load, seeds: Sequence[int], length: tuple[float, float]) -> Peak:
    """The peak over half to twice the load's own 1x."""

    def goodput(values: Sequence[float]) -> dict[float, float]:
        jobs = [
            Job(load.scenario(times, seed, *length).changed(policy=POLICIES[NONE]))
            for times in values
            for seed in seeds
        ]
        found = [one.token_goodput for one in runs.results(jobs)]
        each = len(seeds)
        return {times: mean(found[i * each : (i + 1) * each]).value for i, times in enumerate(values)}

    grid = [_FROM]
    while grid[-1] < _TO:
        grid.append(round(grid[-1] * _STEP, 3))
    found = searched(goodput, grid, whole=False)
    best = max(found, key=found.__getitem__)
    flat = [times for times, tokens in found.items() if tokens >= _FLAT * found[best]]
    peak, low, high = (load.rate * times for times in (best, min(flat), max(flat)))
    return Peak(load.rate, peak, low, high, found[best])
