"""The best that a constant can do: one number is swept, everything else stays.

The **oracle** of a scenario is the fixed limit with the highest mean token goodput, with the same queue, the
same deadline rule and, by seed, the very same arrivals. **1x** is the load at which the token goodput of the
uncontrolled fleet peaks.

The grid's steps are at most 8 % (or 1, for limits). Not all of it has to be run: first every fourth point is,
then all points beside those that come within a twentieth of the best, until nothing new comes near. The best
is missed only if goodput rises by more than a twentieth and falls again between two limits that lie a third
apart; `tests/simulator/test_scenario_sweep.py` compares with the whole grid.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec

from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.limits.none import NoLimit
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.result import Result
from controlplane.simulator.scenario.runs import Cell, run_cells

_LARGEST_STEP = 1.08
_COARSE = 4
_NEAR = 0.95
_RATE_STEP = 1.02
_RATES = (0.5, 2.0)
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t, 1 to 9 degrees of freedom


class Point(msgspec.Struct, frozen=True):
    """The means over all seeds at one value of what is swept; goodput per second.

    `token_goodput_interval` is half of the 95 % confidence interval of the mean; None of one seed.
    """

    value: float
    token_goodput: float
    token_goodput_interval: float | None
    request_goodput: float
    refused_ratio: float
    preemptions: float


class Sweep(msgspec.Struct, frozen=True):
    """All points that were run, in order of their values, and the best of them."""

    scenario: str
    swept: str
    seeds: tuple[int, ...]
    best: Point
    points: tuple[Point, ...]


def limit_grid(most: int) -> tuple[int, ...]:
    """Limits from 2 to `most`."""
    grid = [2]
    while grid[-1] < most:
        grid.append(min(most, max(grid[-1] + 1, int(grid[-1] * _LARGEST_STEP))))
    return tuple(grid)


def sweep_limit(
    name: str, scenario: Scenario, seeds: Sequence[int], processes: int, *, whole: bool = False
) -> Sweep:
    """The best fixed limit of a replica; `whole` runs every point of the grid."""
    most = max(group.settings.max_num_seqs for group in scenario.fleet)

    def at(limit: float) -> Scenario:
        law = Fixed(limit=int(limit))
        return scenario.changed(policy=scenario.policy.model_copy(update={"law": law, "enforce": True}))

    grid = [float(limit) for limit in limit_grid(most)]
    return _swept(name, "limit", _means(name, at, seeds, processes), grid, tuple(seeds), whole=whole)


def sweep_rate(
    name: str, scenario: Scenario, seeds: Sequence[int], processes: int, *, whole: bool = False
) -> Sweep:
    """The factor on all rates at which the uncontrolled fleet's token goodput peaks, between 1/2 and 2."""

    def at(times: float) -> Scenario:
        policy = scenario.policy.model_copy(update={"law": NoLimit()})
        return scenario.changed(policy=policy, times=times)

    grid = [_RATES[0]]
    while grid[-1] < _RATES[1]:
        grid.append(round(grid[-1] * _RATE_STEP, 4))
    return _swept(name, "times", _means(name, at, seeds, processes), grid, tuple(seeds), whole=whole)


def _means(
    name: str, at: Callable[[float], Scenario], seeds: Sequence[int], processes: int
) -> Callable[[Sequence[float]], dict[float, Point]]:
    """A function that runs all seeds at several values."""

    def run(values: Sequence[float]) -> dict[float, Point]:
        cells = [Cell(name, at(value).changed(seed=seed)) for value in values for seed in seeds]
        results = run_cells(cells, processes)
        each = len(seeds)
        return {value: _point(value, results[i * each : (i + 1) * each]) for i, value in enumerate(values)}

    return run


def _swept(
    name: str,
    what: str,
    run: Callable[[Sequence[float]], Mapping[float, Point]],
    grid: Sequence[float],
    seeds: tuple[int, ...],
    *,
    whole: bool,
) -> Sweep:
    known: dict[float, Point] = {}

    def goodput(values: Sequence[float]) -> dict[float, float]:
        known.update(run(values))
        return {value: known[value].token_goodput for value in values}

    searched(goodput, grid, whole=whole)
    points = tuple(known[value] for value in grid if value in known)
    return Sweep(name, what, seeds, max(points, key=_by_goodput), points)


def searched(
    goodput: Callable[[Sequence[float]], Mapping[float, float]], grid: Sequence[float], *, whole: bool
) -> dict[float, float]:
    """Goodput at as many values of the grid as it takes to find the best; `whole` takes them all."""
    coarse = {*range(0, len(grid), _COARSE), len(grid) - 1}
    known: dict[float, float] = {}
    wanted = list(grid) if whole else [grid[i] for i in sorted(coarse)]
    while wanted:
        known.update(goodput(wanted))
        best = max(known.values())
        near = {value for value, found in known.items() if found >= _NEAR * best}
        wanted = [value for value in _beside(grid, near) if value not in known]
    return known


def _beside(grid: Sequence[float], near: set[float]) -> list[float]:
    """All points of the grid up to the next coarse ones on both sides of those in `near`."""
    places = [i for i, value in enumerate(grid) if value in near]
    return [value for i, value in enumerate(grid) if any(abs(i - place) < _COARSE for place in places)]


def _by_goodput(point: Point) -> float:
    return point.token_goodput


def _point(value: float, results: Sequence[Result]) -> Point:
    goodputs = [result.token_goodput for result in results]
    n = len(goodputs)
    interval = _T_95[min(n, 10) - 2] * stdev(goodputs) / sqrt(n) if n > 1 else None
    offered = sum(result.offered for result in results)
    return Point(
        value=value,
        token_goodput=fmean(goodputs),
        token_goodput_interval=interval,
        request_goodput=fmean(result.request_goodput for result in results),
        refused_ratio=sum(result.refused for result in results) / offered if offered else 0.0,
        preemptions=fmean(result.preemptions for result in results),
    )
