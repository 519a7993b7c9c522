"""Cost curves: violation minutes against replica hours as a law's setting is swept; what parts two laws."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.scaling.ours import Ours
from benchmarks.scaling.pool import Outcome, run
from benchmarks.scaling.rivals import AibrixKpa, HpaOnWaiting, KedaOnWaiting, Kpa, Wva
from benchmarks.scaling.sight import Scaler

MOST_REPLICAS = 32
FIRST_REPLICAS = 4


class Law(NamedTuple):
    """A law, what its main setting is called, and what it is swept over; `usual` is its makers' value, None
    where they leave it to the user."""

    name: str
    setting: str
    make: Callable[[float], Scaler]
    values: tuple[float, ...]
    usual: float | None = None


OURS = Law(
    "tokens of work",
    "assurance",
    lambda assurance: Ours(assurance, MOST_REPLICAS),
    (0.55, 0.7, 0.8, 0.9, 0.95, 0.98),
    0.9,
)
RIVALS = (
    Law("HPA on waiting", "target", HpaOnWaiting, (0.2, 0.5, 1.0, 2.0, 3.5)),
    Law("KEDA on waiting", "threshold", KedaOnWaiting, (0.5, 1.0, 2.0, 3.5, 5.0), 5.0),
    Law("KPA (Knative)", "target", Kpa, (20, 25, 30, 34, 38, 42, 46, 52, 60, 70, 85), 70),
    Law("KPA (AIBrix)", "target", AibrixKpa, (20, 30, 40, 50, 65, 85)),
    Law("WVA", "utilisation", Wva, (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85), 0.85),
)


class Point(NamedTuple):
    """One value of a setting: what it came to on each day."""

    value: float
    days: tuple[Outcome, ...]

    @property
    def outcome(self) -> Outcome:
        """The mean of all days."""
        return Outcome(*map(fmean, zip(*self.days, strict=True)))

    def on(self, chosen: Sequence[int]) -> "Point":
        """The same on some of the days, some of them more than once."""
        return Point(self.value, tuple(self.days[i] for i in chosen))


class Advantage(NamedTuple):
    """A point against the best of the rivals: its violation minutes over theirs at equal hours, and the
    share of their hours that it saves at equal minutes. None where no rival's curve goes so far."""

    value: float
    minutes_ratio: float | None
    hours_saved: float | None


def curve(law: Law, counts: Mapping[int, Sequence[int]], values: Sequence[float] = ()) -> list[Point]:
    """The points of a law over the days of all seeds."""
    return points(lambda value, _: law.make(value), values or law.values, counts)


def points(
    make: Callable[[float, int], Scaler], values: Iterable[float], counts: Mapping[int, Sequence[int]]
) -> list[Point]:
    """A law made anew for each value and seed, on the day of that seed."""

    def on(value: float, seed: int) -> Outcome:
        return run(make(value, seed), counts[seed], seed, FIRST_REPLICAS, MOST_REPLICAS)

    return [Point(value, tuple(on(value, seed) for seed in counts)) for value in values]


def advantages(ours: Sequence[Point], rivals: Sequence[Sequence[Point]]) -> list[Advantage]:
    """Each of our points against all the curves."""
    return [Advantage(point.value, *_advantage(point.outcome, rivals)) for point in ours]


def _advantage(one: Outcome, rivals: Sequence[Sequence[Point]]) -> tuple[float | None, float | None]:
    minutes, hours = [], []
    for rival in rivals:
        outcomes = [point.outcome for point in rival]
        at, bad = np.array(sorted((one.replica_hours, one.violation_minutes) for one in outcomes)).T
        if at[0] <= one.replica_hours <= at[-1]:
            minutes.append(float(np.exp(np.interp(one.replica_hours, at, np.log(bad + 0.5)))) - 0.5)
        if bad.min() <= one.violation_minutes <= bad.max():
            hours.append(float(np.interp(-one.violation_minutes, -bad, at)))
    ratio = one.violation_minutes / max(min(minutes), 1e-9) if minutes else None
    saved = 1 - one.replica_hours / min(hours) if hours else None
    return ratio, saved


def fields(curve: Sequence[Point]) -> list[dict[str, Any]]:
    """A curve as JSON knows it."""
    return [{"value": point.value, **point.outcome._asdict()} for point in curve]
