"""What must hold in scenarios in which something happens, under the default law."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.control import verdicts
from benchmarks.control.cells import LAW, POLICIES
from benchmarks.control.figures import Figures, Job
from benchmarks.control.kept import Runs
from benchmarks.control.verdicts import Verdict
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.reading import load_scenario

_SETTLED_SECONDS = 60.0  # after a change; what is from then on is its steady state
_TOLD_SECONDS = 20.0  # how long after an outage its damage is still counted


def all_verdicts(
    runs: Runs, seeds: Sequence[int], oracles: Mapping[str, Sequence[Figures]]
) -> Iterator[Verdict]:
    """Each with the seeds of its scenario; `oracles` are the runs of the best fixed limits, by scenario."""
    yield _mix_shift(runs, seeds)
    step = load_scenario("step-to-3x")
    curve = step.workload.sources[0].curve
    assert curve is not None
    span = curve.points[-1][0], step.duration
    yield _recovered("step to 3x", _made(runs, step, seeds), oracles["step-to-3x"], span, 20.0)
    for name, what, within in (
        ("replica-lost", "replica lost", 15.0),
        ("thermal-slow-down", "slow-down to 60 %", 30.0),
    ):
        scenario = load_scenario(name)
        (fault,) = scenario.faults
        assert fault.lasts is not None
        span = fault.at, fault.at + fault.lasts
        yield _recovered(what, _made(runs, scenario, seeds), oracles[name], span, within)
    yield _outage(runs, seeds)
    yield from _noisy(runs, seeds)


def _mix_shift(runs: Runs, seeds: Sequence[int]) -> Verdict:
    scenario = load_scenario("mix-shift")
    curve = scenario.workload.sources[0].curve
    assert curve is not None
    begins = curve.points[1][0]
    later = scenario.model_copy(update={"warmup": begins + 30.0})
    return verdicts.unrefused("mix shift under capacity, from 30 s on", _made(runs, later, seeds))


def _recovered(
    what: str,
    figures: Sequence[Figures],
    oracle: Sequence[Figures],
    span: tuple[float, float],
    within: float,
) -> Verdict:
    begin, end = span
    return verdicts.recovery(what, figures, oracle, begin, (begin + _SETTLED_SECONDS, end), within=within)


def _outage(runs: Runs, seeds: Sequence[int]) -> Verdict:
    scenario = load_scenario("scrape-outage")
    (fault,) = scenario.faults
    assert fault.lasts is not None
    figures = _made(runs, scenario, seeds)
    without = _made(runs, scenario.model_copy(update={"faults": ()}), seeds)
    span = int(fault.at), int(fault.at + fault.lasts + _TOLD_SECONDS)
    return verdicts.lost(f"scrape outage of {fault.lasts:g} s", figures, without, span)


def _noisy(runs: Runs, seeds: Sequence[int]) -> Iterator[Verdict]:
    scenario = load_scenario("noisy-tenant")
    sources = tuple(
        source.model_copy(update={"rate": 0.0}) if source.tenant == "noisy" else source
        for source in scenario.workload.sources
    )
    workload = scenario.workload.model_copy(update={"sources": sources})
    alone = _made(runs, scenario.model_copy(update={"workload": workload}), seeds)
    others = [source.tenant for source in scenario.workload.sources if source.tenant != "noisy"]
    yield from verdicts.fairness(_made(runs, scenario, seeds), alone, others)


def _made(runs: Runs, scenario: Scenario, seeds: Sequence[int]) -> list[Figures]:
    policy = POLICIES[LAW]
    return runs.results([Job(scenario.changed(policy=policy, seed=seed), series=True) for seed in seeds])
