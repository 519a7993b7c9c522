"""The kinds of panel that the dashboards are made of, as grafanalib objects.

A panel says what it shows (title and description), in which unit, and what to ask; where it goes is worked
out by `board.py`, and what grafanalib does not know of today's Grafana is put in by `modern.py`.
"""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from grafanalib.core import Heatmap, Panel, RowPanel, Stat, StateTimeline, Table, Target, TimeSeries

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "#EAB839", "orange", "red", "blue", "#808080"
NOTHING = "no data"
SAME_VIEW = "${datasource:queryparam}&${__url_time_range}"
"""In a link: the same data source and time range."""


class Query(NamedTuple):
    """PromQL, and the legend of its series. `at_once` asks for the newest value only."""

    expr: str
    legend: str = ""
    at_once: bool = False


class Steps(NamedTuple):
    """Colours from values on: the first holds below all of them."""

    base: str
    steps: tuple[tuple[float, str], ...] = ()

    def json(self) -> dict[str, Any]:
        steps = [{"color": self.base, "value": None}, *({"color": c, "value": v} for v, c in self.steps)]
        return {"mode": "absolute", "steps": steps}


PLAIN = Steps(BLUE)
GOOD = Steps(RED, ((0.9, YELLOW), (0.95, GREEN)))
"""Of a goodput ratio; the objective itself is a line of its own, because pools differ."""
FULL = Steps(GREEN, ((0.85, YELLOW), (0.95, RED)))
NONE_IS_GOOD = Steps(GREEN, ((1, RED),))


class Placed(NamedTuple):
    """A panel and its size in grid units: the grid is 24 wide, a unit of height is about 30 pixels."""

    panel: Panel
    width: int
    height: int


def _targets(queries: Sequence[Query], kind: str = "time_series") -> list[Target]:
    return [
        Target(
            expr=query.expr,
            legendFormat=query.legend or "__auto",
            refId=ascii_uppercase[i],
            format=kind,
            instant=query.at_once,
        )
        for i, query in enumerate(queries)
    ]


def lines(
    title: str,
    text: str,
    unit: str,
    *queries: Query,
    steps: Steps = PLAIN,
    show_steps: bool = False,
    stacked: bool = False,
    least: float | None = 0,
    most: float | None = None,
    dashed: str = "",
    width: int = 8,
    height: int = 8,
    empty: str = NOTHING,
) -> Placed:
    """Values over time. `dashed` is a regex of series that are bounds or objectives, not measurements."""
    overrides: list[dict[str, Any]] = []
    if dashed:
        overrides.append(
            {
                "matcher": {"id": "byRegexp", "options": f"/{dashed}/"},
                "properties": [
                    {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
                    {"id": "custom.fillOpacity", "value": 0},
                    {"id": "custom.lineWidth", "value": 1},
                    {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
                ],
            }
        )
    panel = TimeSeries(
        title=title,
        description=text,
        unit=unit,
        targets=_targets(queries),
        fillOpacity=30 if stacked else 8,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none", "group": "A"},
        valueMin=least,
        valueMax=most,
        thresholdsStyleMode="dashed" if show_steps else "off",
        legendDisplayMode="table"
        if len(queries) > 1 or "{{" in "".join(q.legend for q in queries)
        else "list",
        legendCalcs=["lastNotNull", "max"],
        tooltipMode="multi",
        tooltipSort="desc",
        overrides=overrides,
        extraJson={"_steps": steps.json(), "_empty": empty},
    )
    return Placed(panel, width, height)


def number(
    title: str,
    text: str,
    unit: str,
    query: str,
    steps: Steps = PLAIN,
    *,
    legend: str = "",
    decimals: int | None = None,
    says: dict[str, tuple[str, str]] | None = None,
    width: int = 4,
    height: int = 4,
    empty: str = NOTHING,
    link: str = "",
) -> Placed:
    """The newest value, large. `says` are words and colours for values. `link` is the board to open."""
    panel = Stat(
        title=title,
        description=text,
        format=unit,
        targets=_targets([Query(query, legend)]),
        reduceCalc="lastNotNull",
        colorMode="background" if steps is not PLAIN or says else "value",
        graphMode="none" if says else "area",
        textMode="value_and_name" if legend else "auto",
        decimals=decimals,
        noValue=empty,
        extraJson={"_steps": steps.json(), "_says": _mappings(says or {}), "_link": link},
    )
    return Placed(panel, width, height)


def heat(
    title: str, text: str, unit: str, query: str, *, width: int = 8, height: int = 8, empty: str = NOTHING
) -> Placed:
    """How many fell into which bucket over time. The query gives bucket rates by `le`."""
    panel = Heatmap(
        title=title,
        description=text,
        targets=_targets([Query(query, "{{le}}")], "heatmap"),
        extraJson={"_unit": unit, "_empty": empty},
    )
    return Placed(panel, width, height)


def states(
    title: str,
    text: str,
    says: dict[str, tuple[str, str]],
    *queries: Query,
    width: int = 24,
    height: int = 8,
    empty: str = NOTHING,
) -> Placed:
    """A band for each series that changes colour with its value."""
    panel = StateTimeline(
        title=title,
        description=text,
        targets=_targets(queries),
        extraJson={"_steps": Steps(GREY).json(), "_says": _mappings(says), "_empty": empty},
    )
    return Placed(panel, width, height)


class Column(NamedTuple):
    """A column: its query, or the label that it shows. `board` makes its cells links to a dashboard."""

    title: str
    query: str = ""
    label: str = ""
    unit: str = "short"
    steps: Steps | None = None
    says: dict[str, tuple[str, str]] | None = None
    gauge: bool = False
    board: str = ""
    decimals: int | None = None


def table(
    title: str,
    text: str,
    key: Sequence[str],
    columns: Sequence[Column],
    *,
    width: int = 24,
    height: int = 10,
    empty: str = NOTHING,
) -> Placed:
    """A row for each value of the labels in `key`; numbers of all columns are joined by them."""
    asked = [column for column in columns if column.query]
    targets = _targets([Query(column.query, at_once=True) for column in asked], "table")
    named = {f"Value #{ascii_uppercase[i]}": column for i, column in enumerate(asked)}
    if len(asked) == 1:
        named = {"Value": asked[0], **named}
    labels = {column.label: column for column in columns if column.label}
    order = [column.label or next(n for n, c in named.items() if c is column) for column in columns]
    panel = Table(
        title=title,
        description=text,
        targets=targets,
        filterable=True,
        overrides=[_column(name, column, key) for name, column in {**labels, **named}.items()],
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "filterFieldsByName",
                "options": {"include": {"names": [*order, *(n for n in named if n not in order)]}},
            },
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "indexByName": {name: i for i, name in enumerate(order)},
                    "renameByName": {name: column.title for name, column in {**labels, **named}.items()},
                },
            },
        ],
        extraJson={"_empty": empty},
    )
    return Placed(panel, width, height)


def _column(name: str, column: Column, key: Sequence[str]) -> dict[str, Any]:
    properties: list[dict[str, Any]] = [{"id": "unit", "value": column.unit}]
    if column.decimals is not None:
        properties.append({"id": "decimals", "value": column.decimals})
    if column.steps is not None:
        properties.append({"id": "thresholds", "value": column.steps.json()})
    if column.gauge:
        properties += [
            {
                "id": "custom.cellOptions",
                "value": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
            },
            {"id": "min", "value": 0},
            {"id": "max", "value": 1},
        ]
    elif column.says:
        properties += [
            {"id": "mappings", "value": _mappings(column.says)},
            {"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}},
        ]
    elif column.steps is not None:
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    if column.board:
        variables = "&".join(
            f"var-{label}=${{__data.fields[{i}]:percentencode}}" for i, label in enumerate(key[:1])
        )
        link = {
            "title": f"Open {column.board}",
            "url": f"/d/controlplane-{column.board}?{variables}&{SAME_VIEW}",
        }
        properties.append({"id": "links", "value": [link]})
    # Overrides match the name that a column has in the end.
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


def row(title: str, *placed: Placed, closed: bool = False) -> tuple[RowPanel, tuple[Placed, ...], bool]:
    """Panels under a title; a closed one asks nothing until it is opened."""
    return RowPanel(title=title), placed, closed


def _mappings(says: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    """Words and colours for values."""
    if not says:
        return []
    options = {
        value: {"text": text, "color": color, "index": i}
        for i, (value, (text, color)) in enumerate(says.items())
    }
    return [{"type": "value", "options": options}]
