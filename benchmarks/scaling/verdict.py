"""What must hold of a law of scaling, and whether it does: bounds, figures, and how sure they are.

Days differ more than laws do, so a figure comes with the interval in which 95 of 100 lie when the days are
drawn again (with replacement, the same ones for all laws; bootstrap, percentiles).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.scaling.curves import Advantage, Point, advantages

_DRAWS = 1000


class Must(NamedTuple):
    """A figure should be `sense` ("at most" or "at least") `bound`."""

    what: str
    sense: str
    bound: float

    def within(self, figure: float) -> bool:
        return figure <= self.bound if self.sense == "at most" else figure >= self.bound


_MINUTES = Must("violation minutes at equal hours, times", "at most", 0.5)
_HOURS = Must("share of hours saved at equal minutes", "at least", 0.15)
_TURNS = Must("turns within a cold start, worst day", "at most", 0)


class Verdict(NamedTuple):
    """`low` to `high` is the interval of `figure`, None where a draw had none. `holds` says yes or no, and
    "on average" where not all of the interval is on that side."""

    what: str
    sense: str
    bound: float
    figure: float | None
    low: float | None
    high: float | None
    holds: str

    @property
    def shown(self) -> str:
        """The figure and its interval."""
        if self.figure is None:
            return "-"
        if self.low is None or self.high is None:
            return f"{self.figure:.3g}"
        return f"{self.figure:.3g} ({self.low:.3g} to {self.high:.3g})"


def verdicts(ours: Point, rivals: Sequence[Sequence[Point]]) -> list[Verdict]:
    """All that must hold, for one of our points."""
    (here,) = advantages([ours], rivals)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        chosen = rng.integers(len(ours.days), size=len(ours.days)).tolist()
        again = [[point.on(chosen) for point in rival] for rival in rivals]
        drawn += advantages([ours.on(chosen)], again)
    turns = max(day.turns for day in ours.days)
    return [
        _judged(_MINUTES, here, drawn, lambda one: one.minutes_ratio),
        _judged(_HOURS, here, drawn, lambda one: one.hours_saved),
        Verdict(*_TURNS, turns, None, None, _word(_TURNS.within(turns))),
    ]


def _judged(
    must: Must,
    here: Advantage,
    drawn: Sequence[Advantage],
    figure: Callable[[Advantage], float | None],
) -> Verdict:
    value = figure(here)
    if value is None:
        return Verdict(*must, None, None, None, "no rival goes so far")
    word = _word(must.within(value))
    values = [one for one in map(figure, drawn) if one is not None]
    if len(values) < len(drawn):
        return Verdict(*must, value, None, None, f"{word}, on average")
    low, high = (float(one) for one in np.percentile(values, (2.5, 97.5)))
    sure = must.within(low) == must.within(high) == must.within(value)
    return Verdict(*must, value, low, high, word if sure else f"{word}, on average")


def _word(holds: bool) -> str:
    return "yes" if holds else "no"
