"""The page as markup. Every text goes through htpy, which escapes it; there is no markup in a string here."""

from collections.abc import Sequence
from typing import NamedTuple

from htpy import (
    Node,
    Renderable,
    a,
    body,
    dd,
    div,
    dl,
    dt,
    footer,
    h1,
    h2,
    head,
    header,
    html,
    li,
    link,
    main,
    meta,
    nav,
    noscript,
    p,
    script,
    section,
    span,
    title,
    ul,
)

from controlplane import __version__
from controlplane.api.page import fleet, record_list
from controlplane.api.page.headline import Headline, Stance
from controlplane.api.page.places import badge, order, place
from controlplane.api.page.records import Entry
from controlplane.api.page.rows import Part, Row, Wanted
from controlplane.api.page.static import address
from controlplane.api.shapes import Alert
from controlplane.signals.decision import Event, Orders, Override
from controlplane.terminal.figures import age, plain

POLL_SECONDS = 1
_OLD_TICK_SECONDS = 10.0
_HTMX = (
    '{"includeIndicatorCSS":false,"history":false,"extensions":"none","defaultTimeout":10000,'
    '"noSwap":[204,304,"4xx","5xx"],"morphIgnore":["data-htmx-powered","open"]}'
)
"""No style of its own, no extensions; what readers have unfolded stays so; an error changes nothing."""

_PARTS = ("pools", "decisions", "alerts", "replicas", "GPUs")
_ELSEWHERE = ("/api/v1/fleet", "/api/v1/decisions", "/api/v1/events", "/api/v1/alerts", "/metrics")
_MARKS = (
    "* of finished requests alone: refused and aborted ones are missing; ≥ a part is missing; ~ an estimate"
)


class Sight(NamedTuple):
    """All that one look at the page shows, at Unix time `now`."""

    now: float
    tick: int
    tick_age: float
    stance: Stance
    headline: Headline
    orders: Orders
    pools: Sequence[Row]
    boundary: str
    charts: Sequence[fleet.Chart]
    entries: Sequence[Entry]
    events: Sequence[Event]
    records_trouble: str
    alerts: Sequence[Alert]
    replicas: Part[Row]
    pool_names: Sequence[str]
    nodes: Part[Row] | None
    gpus: str
    wanted: Wanted


def whole(sight: Sight) -> Renderable:
    """The page as it is loaded."""
    lost = p(".lost", role="alert")["The daemon does not answer: what stands here is old."]
    return shell("controlplane", [lost, live(sight)], refreshes=True)


def shell(name: str, content: Node, *, refreshes: bool = False) -> Renderable:
    """A document around `content`. Without scripts the browser loads it anew every few seconds."""
    return html(lang="en")[
        head[
            meta(charset="utf-8"),
            meta(name="viewport", content="width=device-width, initial-scale=1"),
            meta(name="color-scheme", content="light dark"),
            meta(name="htmx-config", content=_HTMX),
            title[name],
            link(rel="icon", href=address("icon.svg"), type="image/svg+xml"),
            link(rel="stylesheet", href=address("style.css")),
            script(src=address("htmx.min.js"), defer=True),
            script(src=address("page.js"), defer=True),
            noscript[meta(http_equiv="refresh", content="5")] if refreshes else None,
        ],
        body[content],
    ]


def live(sight: Sight) -> Renderable:
    """What is asked for anew every POLL_SECONDS."""
    now = sight.now
    return div(
        "#live",
        hx_get=place(sight.wanted),
        hx_trigger=f"every {POLL_SECONDS}s",
        hx_swap="outerMorph",
        hx_sync="this:drop",
    )[
        _top(sight),
        main("#main", tabindex="-1")[
            _headline(sight.headline),
            _orders(sight.orders.overrides, now),
            fleet.pools(sight.pools, sight.boundary, sight.charts, now),
            div(".beside")[
                record_list.decisions(sight.entries, sight.records_trouble, now),
                div[record_list.alerts(sight.alerts, now), record_list.events(sight.events, now)],
            ],
            fleet.replicas(sight.replicas, sight.wanted, sight.pool_names),
            fleet.nodes(sight.nodes, sight.gpus, sight.wanted),
        ],
        footer[
            p[_MARKS], p[f"controlplane {__version__} ", [[a(href=path)[path], " "] for path in _ELSEWHERE]]
        ],
    ]


def _top(sight: Sight) -> Node:
    stance, old = sight.stance, sight.tick_age > _OLD_TICK_SECONDS
    hold = a(".button.stop", href=order("hold"))["Hold everything…"]
    release = a(".button", href=order("release"))["Release…"]
    return header[
        a(".skip", href="#main")["Skip to the state of the fleet"],
        div(".bar")[
            h1["controlplane"],
            span("#stance", class_=["badge", badge(stance.tone)])[stance.word],
            span(".stance")[plain(stance.sentence)],
            span("#tick", class_="bad" if old else "dim")[f"tick {sight.tick}, {age(sight.tick_age)} ago"],
            hold if sight.orders.hold is None else release,
        ],
        nav(aria_label="Parts of the page")[[a(href=f"#{name}")[name] for name in _PARTS]],
    ]


def _headline(of: Headline) -> Node:
    return section(class_=["headline", of.tone])[
        p("#headline", role="status")[plain(of.sentence)],
        dl[[(dt[line.question], dd(class_=line.tone or None)[plain(line.answer)]) for line in of.lines]],
    ]


def _orders(overrides: Sequence[Override], now: float) -> Node:
    if not overrides:
        return None
    return section("#orders")[h2["Orders that stand"], ul[[_override(one, now) for one in overrides]]]


def _override(one: Override, now: float) -> Node:
    end = "" if one.until is None else f", for {age(one.until - now)} more"
    words = f"{one.setting} of {one.scope} {one.name} is {one.value}: {one.reason} (by {one.by}{end})"
    back = order("clear", scope=one.scope, name=one.name, setting=one.setting)
    return li[span(".held")[plain(words)], " ", a(href=back)["take back…"]]
