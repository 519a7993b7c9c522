"""The pages of `controlplane top`, each under the same head: the fleet, limits, GPUs, decisions, alerts."""

from collections.abc import Callable
from typing import NamedTuple

from rich.text import Text

from controlplane.signals.snapshot import ReplicaState
from controlplane.terminal.alert_list import SEVERITIES, alerts
from controlplane.terminal.decision_list import decisions
from controlplane.terminal.figures import age, plain
from controlplane.terminal.fleet_cells import OLD_SECONDS
from controlplane.terminal.fleet_table import fleet
from controlplane.terminal.limit_list import limits
from controlplane.terminal.node_list import nodes
from controlplane.terminal.standing import fleet_standing
from controlplane.terminal.view import View

_MOST_OVERRIDES = 4
_LEAST_ROOM = 4
_MOST_DECISIONS_OF_ALL_PAGES = 10


class Page(NamedTuple):
    """`body` has the lines for a width and, where one is given, a number of lines."""

    name: str
    body: Callable[[View, int, int | None], list[Text]]
    count: Callable[[View], int] = lambda view: 0  # of what needs a look
    has_some: Callable[[View], bool] = lambda view: True


PAGES = (
    Page("fleet", fleet),
    Page("limits", limits, has_some=lambda view: any(one.limit for one in view.replicas)),
    Page("GPUs", nodes, lambda view: sum(len(node.verdicts) for node in view.nodes), lambda v: bool(v.nodes)),
    Page("decisions", decisions, has_some=lambda view: bool(view.decisions)),
    Page("alerts", alerts, lambda view: len(view.alerts), lambda view: bool(view.alerts)),
)
"""In the order of their keys, from `1` on."""


def screen(
    view: View, width: int, height: int, page: Page, *, trouble: str = "", has_keys: bool = False
) -> list[Text]:
    """The lines of one page, none wider than `width` and at most `height` of them.

    `trouble` is what is wrong with the connection just now; with keys, the last line says which there are.
    """
    top = _head(view, width, trouble)
    bottom = [_keys(view, page)] if has_keys else []
    room = max(_LEAST_ROOM, height - len(top) - len(bottom))
    body = page.body(view, width, room)[:room]
    if bottom:
        body += [Text()] * (room - len(body))
    return _within([*top, *body, *bottom], width)[:height]


def whole(view: View, width: int) -> list[Text]:
    """All pages below each other, without those that have nothing to show; no line wider than `width`."""
    view = view._replace(decisions=view.decisions[:_MOST_DECISIONS_OF_ALL_PAGES])
    lines = _head(view, width, "")
    for page in PAGES:
        if not page.has_some(view):
            continue
        if page is not PAGES[0]:
            lines += [Text(), Text(page.name, style="bold")]
        lines += page.body(view, width, None)
    return _within(lines, width)


def _within(lines: list[Text], width: int) -> list[Text]:
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(view: View, width: int, trouble: str) -> list[Text]:
    seen = view.fleet
    up, there = seen.replicas.get(ReplicaState.UP, 0), sum(seen.replicas.values())
    since = view.now - seen.at
    state = Text.assemble(
        (f"{up}/{there} up", "green" if up == there else "yellow" if up else "bold red"),
        "  ",
        fleet_standing(seen),
        (f"  tick {seen.tick}, {age(since)} ago", "bold red" if since > OLD_SECONDS else "dim"),
    )
    name = Text.assemble(("controlplane ", "bold"), (f"{plain(seen.version)}  {plain(view.url)}  ", "dim"))
    # Where both have no room, how things are matters more than where.
    title = Text.assemble(name, state) if name.cell_len + state.cell_len <= width else state
    lines = [title, *_orders(view)]
    lines += [Text(f"! {plain(sentence)}", style="red") for sentence in seen.troubles]
    lines += [
        Text(f"! {plain(alert.name)} for {age(view.now - alert.since)}: {plain(alert.summary)}", style="red")
        for alert in view.alerts
        if alert.severity == "page"
    ][:3]
    if trouble:
        lines.append(Text(f"! {plain(trouble)}", style="bold red"))
    return [*lines, Text()]


def _orders(view: View) -> list[Text]:
    """What people have ordered."""
    orders = view.fleet.orders
    lines = []
    if orders.hold is not None:
        hold = orders.hold
        words = f" HOLD: nothing is acted on, for {age(view.now - hold.since)} (by {hold.by}: {hold.reason}) "
        lines.append(Text(plain(words), style="black on yellow"))
    for override in orders.overrides[:_MOST_OVERRIDES]:
        words = f"override: {override.setting} of {override.scope} {override.name} is {override.value}"
        lines.append(Text(plain(f"{words} (by {override.by}: {override.reason})"), style="yellow"))
    if (more := len(orders.overrides) - _MOST_OVERRIDES) > 0:
        lines.append(Text(f"and {more} more overrides", style="yellow"))
    return lines


def _keys(view: View, shown: Page) -> Text:
    """`1 fleet  2 limits  3 GPUs (2)`: what a key shows, and how much needs a look there."""
    line = Text()
    worst = SEVERITIES["page"] if any(alert.severity == "page" for alert in view.alerts) else "yellow"
    for number, page in enumerate(PAGES, 1):
        count = page.count(view)
        line.append(f" {number} {page.name}", style="reverse" if page is shown else "")
        line.append(f" ({count})" if count else "", style=worst)
        line.append(" ")
    return line.append(" tab next  q quit", style="dim")
