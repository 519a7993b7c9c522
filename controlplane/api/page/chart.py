"""Goodput over the last hour as a drawing: the proven interval as a band, the point in it, the objective.

Where nothing can be said the band has a gap. The drawing has no words, so that it can be stretched to any
width; those stand around it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from htpy import Element, Renderable, svg

from controlplane.api.page.history import SPAN_SECONDS, STEP_SECONDS, Point
from controlplane.signals.status import Objective

WIDTH, HEIGHT, TOP = 360.0, 104.0, 4.0  # the line of 100 % must not be cut in half
_LONGEST_STEP = 3 * STEP_SECONDS  # what is further apart is a gap

_path, _line = Element("path"), Element("line")


class Shape(NamedTuple):
    """The path of the band, that of the point in it, and the height of the objective (None: there is none
    to draw)."""

    band: str
    line: str
    objective: float | None


def shape(points: Sequence[Point], objective: Objective | None, now: float) -> Shape:
    """The drawing of the hour before Unix time `now`, in a field of WIDTH times HEIGHT, 100 % at TOP."""
    runs = list(_runs(points, now - SPAN_SECONDS))
    band = " ".join(_band(run, now) for run in runs)
    line = " ".join(
        _along([(x(p.at, now), y(p.point if p.point is not None else p.low)) for p in run]) for run in runs
    )
    return Shape(band, line, None if objective is None else y(objective.ratio))


def drawing(of: Shape, label: str) -> Renderable:
    """The drawing as SVG; `label` says in words what it shows."""
    field = svg(
        ".chart",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    goal = of.objective
    return field[
        of.band and _path(".band", d=of.band),
        of.line and _path(".point", d=of.line),
        goal is not None and _line(".goal", x1="0", x2=f"{WIDTH:g}", y1=_text(goal), y2=_text(goal)),
    ]


def bar(now: Point, objective: Objective | None, label: str) -> Renderable:
    """Goodput now, from 0 to 100 % across: what is proven good, what may be, and the objective."""
    field = svg(".bar-now", viewBox="0 0 100 8", preserveAspectRatio="none", role="img", aria_label=label)
    low, high = (_text(100 * min(1.0, max(0.0, ratio or 0.0))) for ratio in (now.low, now.high))
    goal = None if objective is None else _text(100 * objective.ratio)
    return field[
        _path(".maybe", d=f"M0 1H{high}V7H0Z") if now.high is not None else None,
        _path(".proven", d=f"M0 1H{low}V7H0Z") if now.low is not None else None,
        _line(".goal", x1=goal, x2=goal, y1="0", y2="8") if goal is not None else None,
    ]


def x(at: float, now: float) -> float:
    return WIDTH * (1 - (now - at) / SPAN_SECONDS)


def y(ratio: float | None) -> float:
    return TOP + (HEIGHT - TOP) * (1 - min(1.0, max(0.0, ratio or 0.0)))


def _runs(points: Iterable[Point], start: float) -> Iterable[list[Point]]:
    """Stretches of known points without a gap."""
    run: list[Point] = []
    for point in points:
        if point.at < start:
            continue
        if run and (point.low is None or point.at - run[-1].at > _LONGEST_STEP):
            yield run
            run = []
        if point.low is not None:
            run.append(point)
    if run:
        yield run


def _band(run: Sequence[Point], now: float) -> str:
    """Around the interval; a single point is as wide as a step."""
    if len(run) == 1:
        run = (run[0]._replace(at=run[0].at - STEP_SECONDS), run[0])
    upper = [(x(p.at, now), y(p.high)) for p in run]
    lower = [(x(p.at, now), y(p.low)) for p in reversed(run)]
    return f"{_along([*upper, *lower])}Z"


def _along(places: Sequence[tuple[float, float]]) -> str:
    """Without those in the middle of a level stretch: an hour has hundreds, and most say nothing new."""
    kept = list(places[:1])
    for here, after in pairwise(places[1:]):
        if not kept[-1][1] == here[1] == after[1]:
            kept.append(here)
    kept += places[1:][-1:]
    return "M" + "L".join(f"{_text(across)} {_text(down)}" for across, down in kept)


def _text(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
