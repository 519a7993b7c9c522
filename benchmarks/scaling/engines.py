"""The same laws in the engine simulator: production gateway, limiter and tick around simulated engines, and
replicas that come after a cold start and go once they have finished what they had."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.pool import COLD_START_SECONDS, OBJECTIVE
from benchmarks.scaling.sight import Scaler, Sight, Turns
from controlplane.simulator.scenario.live import Live
from controlplane.simulator.scenario.model import Scenario
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.scenario.run import Run
from controlplane.simulator.scenario.truth import Truth

POOL = "default"
_POINT_SECONDS = 10
_SCENARIO = """\
title: replicas as they are asked for
duration: {seconds}s
warmup: 1s
seed: {seed}
fleet:
  - {{engine: h100-8b, replicas: {most}, started: {first}}}
slo: {{ttft: 1s, tpot: 50ms}}
policy: {{law: slo{scale}}}
workload:
  sources:
    - name: chat
      mix: azure-conv
      rate: {{kind: lines, points: {points}}}
"""


class Confirmed(NamedTuple):
    """What the engine simulator came to."""

    violation_minutes: int
    replica_hours: float
    turns: int
    good_ratio: float


class _Minutes(Truth):
    """Requests by the minute in which they were sent: those that ended, and the good ones of them."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario.admission_settings, scenario.warmup)
        self.ended: dict[int, int] = {}
        self.good_ones: dict[int, int] = {}

    def refused(self, live: Live, reason: str, now: float) -> None:
        super().refused(live, reason, now)
        self._end(live, good=False)

    def finished(self, live: Live, now: float) -> None:
        before = self.all_good
        super().finished(live, now)
        self._end(live, good=self.all_good > before)

    def _end(self, live: Live, *, good: bool) -> None:
        minute = int(live.sent_at // 60)
        self.ended[minute] = self.ended.get(minute, 0) + 1
        self.good_ones[minute] = self.good_ones.get(minute, 0) + good


class _Scaled(Run):
    """A run in which replicas are asked for by `scaler`; None: by the daemon."""

    def __init__(self, scenario: Scenario, scaler: Scaler | None, first: int) -> None:
        super().__init__(scenario)
        self.truth = self.minutes = _Minutes(scenario)
        self.turns = Turns(COLD_START_SECONDS)
        self.asked = first
        self._scaler = scaler
        self._sight = Sight(first)
        self._asked_at: list[float] = []

    def scale(self, now: float) -> None:
        if self._scaler is None:
            super().scale(now)
            snapshot = self.watch.snapshot
            scale = None if snapshot is None else snapshot.pools[POOL].scale
            wanted = self.asked if scale is None else scale.replicas
        else:
            wanted = self._ask(self._scaler, now)
        self.turns.change(self.asked, wanted, now)
        self.asked = wanted

    def _ask(self, scaler: Scaler, now: float) -> int:
        sight, series = self._sight, self.series
        while len(sight.concurrency) <= len(series.in_flight):
            i = len(sight.concurrency) - 1
            here = series.in_flight[i] + series.queued[i]
            sight.concurrency.append(sight.concurrency[-1] + here)
        sight.now = len(series.in_flight)
        if sight.now == 0 or sight.now % scaler.interval:
            return self.asked
        ready = [one for one in self.replicas if one.discovered and one.engine is not None]
        loading = [one for one in self.replicas if one.discovered and one.engine is None]
        sight.asked, sight.ready = self.asked, len(ready)
        sight.loading_since = [now] * len(loading)
        sight.in_flight = series.in_flight[-1]
        sight.queued = series.queued[-1] + series.waiting[-1]
        wanted = min(len(self.replicas), scaler.look(sight))
        self.elastic.ask(POOL, wanted, now)
        return wanted


def confirm(
    rate: NDArray[np.float64], scaler: Scaler | None, *, seed: int, first: int, most: int, assurance: float
) -> Confirmed:
    """A run at these rates (requests a second, each second); without a scaler the daemon's own law asks."""
    scale = f", scale: {{min: 1, max: {most}, law: {{assurance: {assurance}}}}}" if scaler is None else ""
    text = _SCENARIO.format(
        seconds=len(rate), seed=seed, most=most, first=first, scale=scale, points=_points(rate)
    )
    scenario = parse_scenario(text, "scaling", Path())
    run = _Scaled(scenario, scaler, first)
    run.go()
    minutes = run.minutes
    bad = sum(
        minutes.good_ones[minute] < OBJECTIVE * ended
        for minute, ended in minutes.ended.items()
        if minute < len(rate) // 60 - 1  # those of the last are not over
    )
    good = sum(minutes.good_ones.values()) / sum(minutes.ended.values())
    return Confirmed(bad, run.elastic.replica_seconds / 3600, run.turns.turns, good)


def steady(per_replica: float, seconds: int, seed: int) -> tuple[float, float, float]:
    """Two replicas at a constant rate each: requests a second that one finishes, how many it has in flight,
    and the share that is good."""
    rate = np.full(seconds, 2 * per_replica)
    text = _SCENARIO.format(seconds=seconds, seed=seed, most=2, first=2, scale="", points=_points(rate))
    run = _Scaled(parse_scenario(text, "scaling", Path()), None, 2)
    run.go()
    half = seconds // 2
    done = run.truth.e2e
    flight = float(np.mean(run.series.in_flight[half:])) / 2
    good = sum(run.minutes.good_ones.values()) / sum(run.minutes.ended.values())
    return len(done) / (seconds - 1) / 2, flight, good


def _points(rate: Sequence[float] | NDArray[np.float64]) -> str:
    chosen = [(at, float(rate[at])) for at in range(0, len(rate), _POINT_SECONDS)]
    return "[" + ", ".join(f"[{at}s, {value:.3f}]" for at, value in chosen) + "]"
