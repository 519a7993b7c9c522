"""What is measured: each load at each height, and each built-in scenario in which something happens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.control.figures import Figures, Job
from benchmarks.control.kept import Runs
from benchmarks.control.loads import Load
from benchmarks.control.statistic import share
from controlplane.policy.limits.fixed import Fixed
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.policies import Policy, policy_named
from controlplane.simulator.scenario.reading import built_in_names, load_scenario
from controlplane.simulator.scenario.sweep import limit_grid, searched

TIMES = (0.8, 1.0, 1.5, 2.0, 3.0, 10.0)
OVERLOADED = 1.5
"""From this load on there is too much."""

NONE, LAW, SCRAPED = "none", "slo", "slo-scrapes"
BASELINES = ("aimd", "vegas", "gradient", "gradient2", "gradient2-windowed", "gradient2-ttft", "envoy")
THRESHOLDS = "thresholds"
POLICIES: dict[str, Policy] = {
    LAW: policy_named("slo"),
    SCRAPED: Policy.model_validate({"law": "slo", "sees": "scrapes"}),
    **{name: policy_named(name) for name in BASELINES if name != "gradient2-ttft"},
    "gradient2-ttft": Policy.model_validate({"law": "gradient2", "round_trip": "first-token"}),
    THRESHOLDS: policy_named("thresholds"),
    NONE: policy_named("none"),
}
"""By name; "gradient2-ttft" is told of the time to first token instead of the whole round trip."""

_SAME_AS_LOADS = ("steady-", "code-", "small-", "heavy-", "uneven-")
_IDLE = ("gpu-", "driver-", "rack-")
"""What is asked of these is which GPU leaves: they have so little load that no limit ever binds."""


class Cell(NamedTuple):
    """A load or scenario. `times` is the load of the former, None of a scenario."""

    name: str
    load: str
    times: float | None
    scenario: Callable[[int], Scenario]

    @property
    def is_overloaded(self) -> bool:
        return self.times is not None and self.times >= OVERLOADED

    @property
    def is_light(self) -> bool:
        return self.times is not None and self.times < 1

    def job(self, policy: Policy, seed: int) -> Job:
        return Job(
            self.scenario(seed).changed(policy=policy, seed=seed),
            harm=self.is_light and isinstance(policy.law, type(POLICIES[LAW].law)),
            series=self.times is None,
        )


class Measured(NamedTuple):
    """The runs of a cell by policy, one a seed; those of the best fixed limit apart. After a whole sweep
    `part_of_best` is what the limit that a part of it finds is worth, as a share of the best."""

    cell: Cell
    limit: int
    oracle: list[Figures]
    by_policy: dict[str, list[Figures]]
    part_of_best: float | None = None


def fixed(limit: int) -> Policy:
    """A constant, for the oracle: queue and deadlines are those of every other law."""
    return Policy(law=Fixed(limit=limit))


def load_cells(
    loads: Sequence[Load], times: Sequence[float], length: Callable[[Load], tuple[float, float]]
) -> list[Cell]:
    """Every load at each of `times`; `length` says how long it runs, and how long it warms up."""
    return [
        Cell(
            f"{load.name} at {height:g}x",
            load.name,
            height,
            lambda seed, load=load, height=height: load.scenario(height, seed, *length(load)),  # type: ignore[misc]
        )
        for load in loads
        for height in times
    ]


def incident_cells() -> list[Cell]:
    """The built-in scenarios, without those that are nothing but a load and those that have next to none."""
    names = [name for name in built_in_names() if not name.startswith(_SAME_AS_LOADS + _IDLE)]
    return [Cell(name, name, None, lambda seed, name=name: load_scenario(name)) for name in names]  # type: ignore[misc]


def measure(
    runs: Runs, cell: Cell, seeds: Sequence[int], policies: Sequence[str], *, whole: bool
) -> Measured:
    """All runs of a cell; `whole` sweeps every limit of the grid."""
    jobs = [cell.job(POLICIES[name], seed) for name in policies for seed in seeds]
    limits: dict[float, list[Figures]] = {}

    def at(values: Sequence[float]) -> dict[float, float]:
        asked = [cell.job(fixed(int(value)), seed) for value in values for seed in seeds]
        found = _by(len(seeds), runs.results(asked))
        limits.update(zip(values, found, strict=True))
        return {
            value: sum(one.token_goodput for one in figures)
            for value, figures in zip(values, found, strict=True)
        }

    most = max(group.settings.max_num_seqs for group in cell.scenario(seeds[0]).fleet)
    grid = [float(limit) for limit in limit_grid(most)]
    goodput = searched(at, grid, whole=whole)
    best = max(goodput, key=goodput.__getitem__)
    part_of_best = None
    if whole:
        part = searched(lambda values: {value: goodput[value] for value in values}, grid, whole=False)
        part_of_best = share(max(part.values()), goodput[best])
    by_policy = dict(zip(policies, _by(len(seeds), runs.results(jobs)), strict=True))
    return Measured(cell, int(best), limits[best], by_policy, part_of_best)


def _by(size: int, figures: list[Figures]) -> list[list[Figures]]:
    return [figures[i : i + size] for i in range(0, len(figures), size)]
