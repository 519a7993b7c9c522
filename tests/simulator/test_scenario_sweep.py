"""Sweeps: the grid, and that running a part of it finds the same best as running all of it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp

import pytest

from controlplane.simulator.scenario import sweep as sweeps
from controlplane.simulator.scenario.policies import policy_named
from controlplane.simulator.scenario.sweep import Point, limit_grid, sweep_limit, sweep_rate
from tests.simulator.scenarios import SLOWER, ran, scenario


@pytest.mark.parametrize("most", [2, 3, 100, 256, 1024])
def test_the_grid_goes_from_2_to_the_most_in_steps_of_at_most_8_percent(most: int) -> None:
    grid = limit_grid(most)
    assert (grid[0], grid[-1]) == (2, most)
    assert all(after - before == 1 or after <= 1.08 * before for before, after in pairwise(grid))
    assert list(grid) == sorted(set(grid))


def point(value: float, goodput: float) -> Point:
    return Point(value, goodput, None, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("peak", [2, 3, 12, 47, 160, 256])
@pytest.mark.parametrize("width", [0.15, 0.6, 5.0])
def test_the_best_of_a_hill_is_found_wherever_it_is(peak: int, width: float) -> None:
    runs: list[float] = []

    def hill(values: Sequence[float]) -> Mapping[float, Point]:
        runs.extend(values)
        return {value: point(value, exp(-(((value - peak) / peak / width) ** 2))) for value in values}

    grid = [float(limit) for limit in limit_grid(256)]
    found = sweeps._swept("s", "limit", hill, grid, (1,), whole=False)
    assert found.best.value == min(grid, key=lambda value: abs(value - peak))
    assert len(runs) == len(set(runs)) == len(found.points)
    if width < 1:
        assert len(runs) < 0.75 * len(grid)


def test_a_part_of_the_grid_finds_the_same_best_limit_as_all_of_it() -> None:
    given = scenario(times=2, duration="60s", warmup="25s", **SLOWER)
    whole = sweep_limit("test", given, (1, 2), 2, whole=True)
    by_value = {one.value: one for one in whole.points}
    assert tuple(by_value) == limit_grid(128)

    def known(values: Sequence[float]) -> Mapping[float, Point]:
        return {value: by_value[value] for value in values}

    part = sweeps._swept("test", "limit", known, tuple(by_value), (1, 2), whole=False)
    assert part.best == whole.best
    assert len(part.points) < 0.75 * len(whole.points)
    assert 40 <= part.best.value <= 90
    best = given.changed(policy=policy_named(f"fixed:{part.best.value:.0f}"))
    goodputs = [ran(best.changed(seed=seed))[1].token_goodput for seed in (1, 2)]
    assert part.best.token_goodput == pytest.approx(sum(goodputs) / 2)
    assert part.best.token_goodput_interval == pytest.approx(12.71 * abs(goodputs[0] - goodputs[1]) / 2)


def test_the_load_at_which_goodput_peaks_is_found() -> None:
    """The rate is 1x, so the factor is near 1."""
    found = sweep_rate("test", scenario(duration="120s", warmup="30s", **SLOWER), (1,), 1)
    assert 0.85 <= found.best.value <= 1.15
    beyond = [one for one in found.points if one.value > 1.5]
    assert all(one.token_goodput < 0.2 * found.best.token_goodput for one in beyond)
