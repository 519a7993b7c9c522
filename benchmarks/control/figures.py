"""One run, and what is kept of it."""

import time
from typing import NamedTuple

import msgspec

from controlplane.simulator.scenario.live import Live
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.policies import policy_named
from controlplane.simulator.scenario.result import Part, result_of
from controlplane.simulator.scenario.run import Run
from controlplane.simulator.scenario.truth import Truth


class Class(msgspec.Struct, frozen=True):
    """Requests of one length class or one tenant; goodput in tokens a second."""

    offered: int
    refused: int
    good: int
    token_goodput: float


class Harm(msgspec.Struct, frozen=True):
    """Of the requests that an uncontrolled engine serves within the objective: how many are refused, and how
    many are answered too late."""

    good_alone: int
    refused: int
    late: int

    @property
    def ratio(self) -> float:
        return (self.refused + self.late) / max(1, self.good_alone)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the measured part of a run; goodput is a second.

    `good_tokens` are those of every second of the whole run, the warm-up included; empty unless asked for, as
    `harm` is None.
    """

    seconds: float
    offered: int
    completed: int
    refused: int
    good: int
    request_goodput: float
    token_goodput: float
    ttft_p95_seconds: float | None
    tpot_p95_seconds: float | None
    preemptions: int
    jain_index: float | None
    limit_mean: float | None
    by_length: dict[str, Class]
    by_tenant: dict[str, Class]
    harm: Harm | None = None
    good_tokens: tuple[float, ...] = ()
    cpu_seconds: float = 0.0


class Job(NamedTuple):
    """A run to make; with `harm` it is made once more without control, with `series` its seconds are kept."""

    scenario: Scenario
    harm: bool = False
    series: bool = False


class _Fates(Truth):
    """The truth that also remembers what became of each request that was sent in the measured part."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.admission_settings, scenario.warmup)
        self.good: set[str] = set()
        self.late: set[str] = set()
        self.shed: set[str] = set()

    def refused(self, live: Live, reason: str, now: float) -> None:
        super().refused(live, reason, now)
        self._note(live, self.shed)

    def finished(self, live: Live, now: float) -> None:
        before = self.all_good
        super().finished(live, now)
        self._note(live, self.good if self.all_good > before else self.late)

    def _note(self, live: Live, fate: set[str]) -> None:
        if live.sent_at >= self.start:
            fate.add(live.request.id)


def run(job: Job) -> Figures:
    """Make it. AssertionError where a law of every run is broken."""
    began = time.process_time()
    scenario = job.scenario
    one, fates = _ran(scenario)
    harm = None
    if job.harm:
        _, alone = _ran(scenario.changed(policy=policy_named("none")))
        shed, late = (len(alone.good & bad) for bad in (fates.shed, fates.late))
        harm = Harm(len(alone.good), shed, late)
    result = result_of(one, scenario.title)
    return Figures(
        seconds=result.measured_seconds,
        offered=result.offered,
        completed=result.completed,
        refused=result.refused,
        good=result.good,
        request_goodput=result.request_goodput,
        token_goodput=result.token_goodput,
        ttft_p95_seconds=result.ttft_p95_seconds,
        tpot_p95_seconds=result.tpot_p95_seconds,
        preemptions=result.preemptions,
        jain_index=result.jain_index,
        limit_mean=result.limit_mean,
        by_length=_classes(result.by_length),
        by_tenant=_classes(result.by_tenant),
        harm=harm,
        good_tokens=tuple(one.series.token_goodput) if job.series else (),
        cpu_seconds=time.process_time() - began,
    )


def _ran(scenario: Scenario) -> tuple[Run, _Fates]:
    one = Run(scenario)
    fates = one.truth = _Fates(scenario)
    one.go()
    return one, fates


def _classes(parts: dict[str, Part]) -> dict[str, Class]:
    return {
        name: Class(part.offered, part.refused, part.good, part.token_goodput)
        for name, part in parts.items()
        if part.offered or part.completed
    }
