"""Pools with their charts, replicas and GPUs as markup."""

from collections.abc import Sequence
from typing import NamedTuple

from htpy import (
    Node,
    a,
    button,
    div,
    figcaption,
    figure,
    form,
    fragment,
    h2,
    input,  # noqa: A004 - its name in HTML
    label,
    option,
    p,
    section,
    select,
    span,
    strong,
)

from controlplane.api.page import chart
from controlplane.api.page.cells import Cell
from controlplane.api.page.history import Point
from controlplane.api.page.places import Kind, order
from controlplane.api.page.rows import NODE_COLUMNS, POOL_COLUMNS, REPLICA_COLUMNS, Part, Row, Wanted
from controlplane.api.page.table import pager, rows_table
from controlplane.signals.status import Objective
from controlplane.signals.units import duration_text
from controlplane.terminal.figures import age, percent, plain


class Chart(NamedTuple):
    """What is drawn of one pool: its goodput now, also in words, and the points of the last hour."""

    pool: str
    words: Cell
    now: Point
    points: tuple[Point, ...]
    objective: Objective | None


def pools(rows: Sequence[Row], boundary: str, charts: Sequence[Chart], now: float) -> Node:
    none = p(".dim")["There are no pools yet: discovery has found no target."]
    return section("#pools")[
        h2["Pools"],
        rows_table("pool", POOL_COLUMNS, rows, _pool_actions) if rows else none,
        p(".note")[plain(boundary)] if boundary else None,
        div(".charts")[[_chart(one, now) for one in charts]],
    ]


def replicas(part: Part[Row], wanted: Wanted, pool_names: Sequence[str]) -> Node:
    number = part.number
    none = p(".dim")["No replica is like that."]
    return section("#replicas")[
        h2[f"Replicas ({part.total:,})"],
        _filter(wanted, pool_names),
        rows_table("replica", REPLICA_COLUMNS, part.items, _replica_actions) if part.items else none,
        pager(part, "replicas", wanted._replace(page=number - 1), wanted._replace(page=number + 1)),
    ]


def nodes(part: Part[Row] | None, gpus: str, wanted: Wanted) -> Node:
    if part is None:
        return section("#GPUs")[h2["GPUs"], p(".dim")["No node agent and no DCGM page is watched."]]
    number = part.number
    return section("#GPUs")[
        h2["GPUs"],
        p(".note")[gpus],
        rows_table("node", NODE_COLUMNS, part.items, _node_actions),
        pager(part, "GPUs", wanted._replace(node_page=number - 1), wanted._replace(node_page=number + 1)),
    ]


def _chart(one: Chart, now: float) -> Node:
    goal = "" if one.objective is None else _goal(one.objective)
    words = (
        f"Goodput of pool {plain(one.pool)} over the last hour, from 0 to 100 %; now {one.words.text}. {goal}"
    )
    begun = f"the points begin {age(now - one.points[0].at)} ago" if one.points else "no point yet"
    return figure[
        figcaption[
            strong[plain(one.pool)],
            " ",
            span(class_=["now", one.words.tone or None])[one.words.text],
            " ",
            span(".dim")[goal],
        ],
        chart.bar(one.now, one.objective, f"Goodput of pool {plain(one.pool)} now: {one.words.text}"),
        div(".plot")[
            span(".top")["100%"],
            span(".foot")["0%"],
            chart.drawing(chart.shape(one.points, one.objective, now), words),
        ],
        div(".axis")[span["1 h ago"], span[begun], span["now"]],
    ]


def _goal(of: Objective) -> str:
    limits = f"TTFT ≤ {duration_text(of.ttft_seconds)}, TPOT ≤ {duration_text(of.tpot_seconds)}"
    return f"of {percent(of.ratio)} wanted with {limits}"


def _filter(wanted: Wanted, pool_names: Sequence[str]) -> Node:
    def choice(name: str) -> Node:
        return option(value=name, selected=name == wanted.pool)[plain(name) or "all"]

    return form(".filter", method="get", action="/#replicas")[
        label["name holds ", input(name="text", type="search", value=wanted.text, maxlength="100")],
        label["pool ", select(name="pool")[[choice(name) for name in ("", *pool_names)]]],
        label[
            input(name="troubled", type="checkbox", value="1", checked=wanted.troubled), " only with trouble"
        ],
        button["Show"],
    ]


def _pool_actions(name: str) -> Node:
    return fragment[_order("limit", "pool", name), " ", _order("mode", "pool", name)]


def _replica_actions(name: str) -> Node:
    return _order("limit", "replica", name)


def _node_actions(name: str) -> Node:
    return _order("node", "node", name)


def _order(kind: Kind, scope: str, name: str) -> Node:
    """A link to the form; none for a name that the API takes no orders about."""
    href = order(kind, scope=scope, name=name)
    return a(href=href)[f"{_VERBS[kind]}…"] if name.isprintable() else None


_VERBS: dict[Kind, str] = {"limit": "limit", "mode": "mode", "node": "healthy"}
