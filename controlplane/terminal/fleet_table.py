"""The fleet as a table for `controlplane top`: a line for each pool and its replicas, the worst first.

Goodput is an interval, and its bar shows it as one. A condition stands as a sentence below the line of
what it is about.
"""

import re
import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from rich.text import Text

from controlplane.api.shapes import Decision, Event, KnownNumber, Number, Objective, Pool, Replica
from controlplane.signals.decision import Severity
from controlplane.signals.snapshot import Denominator, ReplicaState
from controlplane.signals.units import duration_text
from controlplane.terminal.figures import age, percent, plain
from controlplane.terminal.fleet_cells import COLUMNS, Row
from controlplane.terminal.listing import cut
from controlplane.terminal.view import View

_SHORTEST_NAME = 12
_READABLE_NAME = 24  # as much of a name as columns give way for
_LEAST_ROOM = 4
_MOST_LINES_BELOW = 3  # of one sentence
_MOST_GOALS = 3
_WORST_STATE = (
    ReplicaState.UNREACHABLE,
    ReplicaState.NOT_AN_ENGINE,
    ReplicaState.UNSEEN,
    ReplicaState.ASLEEP,
    ReplicaState.UP,
)


def fleet(view: View, width: int, room: int | None) -> list[Text]:
    """Pools and replicas, what they are measured against, and what happened last; at most `room` lines."""
    bottom = [*_legend(view), *_records(view.records)]
    free = None if room is None else max(_LEAST_ROOM, room - len(bottom))
    return [*_table(view, width, free), *bottom]


# -- below -------------------------------------------------------------------------------


def _legend(view: View) -> list[Text]:
    """What the goodput bars are measured against, and what their mark means."""
    pools = view.fleet.pools
    goals: dict[Objective, list[str]] = {}
    for pool in pools:
        if pool.objective is not None:
            goals.setdefault(pool.objective, []).append(plain(pool.name))
    lines = []
    for goal, names in list(goals.items())[:_MOST_GOALS]:
        whose = f" of {', '.join(names)}" if len(goals) > 1 else ""
        limits = (
            f"TTFT up to {duration_text(goal.ttft_seconds)}, TPOT up to {duration_text(goal.tpot_seconds)}"
        )
        lines.append(f"goal{whose}: {percent(goal.ratio)} of requests with {limits}")
    if any(pool.goodput.denominator is Denominator.FINISHED for pool in pools):
        lines.append("* of finished requests alone: refused and aborted ones are missing")
    return [Text(), *(Text(line, style="dim") for line in lines)] if lines else []


def _records(records: Iterable[Event | Decision]) -> list[Text]:
    """What happened last, the newest at the bottom."""
    lines = []
    for record in sorted(records, key=lambda record: record.at):
        matters = isinstance(record, Decision) or record.severity is Severity.WARNING
        at = time.strftime("%H:%M:%S", time.localtime(record.at))
        lines.append(Text.assemble((f"{at}  ", "dim"), (plain(record.sentence), "" if matters else "dim")))
    return [Text(), *lines] if lines else []


# -- the table -------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """One line of the table, and the sentences under it. `short` is the name where `name` is too long."""

    name: Text
    short: Text
    cells: tuple[Text, ...]
    below: tuple[Text, ...]

    @property
    def height(self) -> int:
        return 1 + len(self.below)


class _Group(NamedTuple):
    """A pool and those of its replicas that there is room for."""

    head: _Line
    lines: list[_Line]
    replicas: int

    @property
    def lines_needed(self) -> int:
        """For its head, and for the word that there are more."""
        return self.head.height + (self.replicas > len(self.lines))


def _table(view: View, width: int, room: int | None) -> list[Text]:
    groups = _groups(view, width, room)
    if not groups:
        return [Text("there are no pools yet: discovery has found no target", style="dim")]
    lines = [line for group in groups for line in (group.head, *group.lines)]
    longest = max(line.name.cell_len for line in lines)
    shown, widths = _fitting(lines, width)
    columns = [COLUMNS[i] for i in shown]
    name_width = max(_SHORTEST_NAME, min(longest, width - sum(widths) - len(widths)))

    def laid_out(name: Text, cells: Sequence[Text]) -> Text:
        out = cut(name, name_width)
        out.pad_right(name_width - out.cell_len)
        for column, cell, cell_width in zip(columns, cells, widths, strict=True):
            pad = " " * (cell_width - cell.cell_len)
            out = Text.assemble(out, " ", cell, pad) if column.left else Text.assemble(out, " ", pad, cell)
        return out

    titles = laid_out(Text("POOL"), [Text(column.title) for column in columns])
    titles.stylize("dim")
    out = [titles]
    for group in groups:
        for line in (group.head, *group.lines):
            name = line.name if longest <= name_width else line.short
            out += [laid_out(name, [line.cells[i] for i in shown]), *line.below]
        if hidden := group.replicas - len(group.lines):
            words = f" … {hidden} more, none worse" if group.lines else f" … {hidden} replicas"
            out.append(Text(words, style="dim"))
    if view.total > len(view.replicas):
        left_out = view.total - len(view.replicas)
        out.append(Text(f"{left_out} more replicas were not asked for", style="yellow"))
    return out


def _fitting(lines: Sequence[_Line], width: int) -> tuple[list[int], list[int]]:
    """Which of COLUMNS there is room for beside the names, and their widths: a readable name comes first."""
    widths = [
        max(len(column.title), *(line.cells[i].cell_len for line in lines))
        for i, column in enumerate(COLUMNS)
    ]
    whole, short = (
        max(names) for names in zip(*((x.name.cell_len, x.short.cell_len) for x in lines), strict=True)
    )
    names = max(_SHORTEST_NAME, whole if whole <= _READABLE_NAME else min(short, _READABLE_NAME))
    shown = list(range(len(COLUMNS)))
    for i in sorted((i for i in shown if COLUMNS[i].spare), key=lambda i: -COLUMNS[i].spare):
        if names + sum(widths[i] + 1 for i in shown) <= width:
            break
        shown.remove(i)
    return shown, [widths[i] for i in shown]


def _groups(view: View, width: int, room: int | None) -> list[_Group]:
    """The pools, the worst first, with as many of the worst replicas as `room` lines hold."""
    inside = {
        pool.name: [replica for replica in view.replicas if replica.pool == pool.name]
        for pool in view.fleet.pools
    }
    ends = {name: _common_end([replica.name for replica in replicas]) for name, replicas in inside.items()}
    groups = {
        pool.name: _Group(_line(Row(pool, pool.objective, view.now), width), [], len(inside[pool.name]))
        for pool in sorted(view.fleet.pools, key=_pool_badness)
    }
    objectives = {pool.name: pool.objective for pool in view.fleet.pools}
    free = None if room is None else room - 1 - sum(group.lines_needed for group in groups.values())
    for replica in sorted((one for replicas in inside.values() for one in replicas), key=_badness):
        group = groups[replica.pool]
        line = _line(Row(replica, objectives[replica.pool], view.now), width, ends[replica.pool])
        if free is not None:
            last = len(group.lines) + 1 == group.replicas  # then nobody needs to be told of more
            if free + last < 1:
                break
            line = line._replace(below=line.below[: free + last - 1])
            free += last - line.height
        group.lines.append(line)
    return list(groups.values())


def _line(row: Row, width: int, common_end: str = "") -> _Line:
    of = row.of
    if isinstance(of, Pool):
        style = "green" if of.replicas_up == of.replicas else "yellow" if of.replicas_up else "red"
        name = short = Text.assemble(
            (f"{plain(of.name)} ", "bold"), (f"{of.replicas_up}/{of.replicas}", style)
        )
    else:
        name = Text.assemble(" ", _dot(of), " ", plain(of.name))
        short = Text.assemble(" ", _dot(of), " ", plain(of.name.removesuffix(common_end)))
    return _Line(name, short, tuple(column.cell(row) for column in COLUMNS), _below(row, width))


def _dot(replica: Replica) -> tuple[str, str]:
    if replica.state is ReplicaState.UP:
        return "●", "yellow" if replica.conditions else "green"
    return ("◐", "cyan") if replica.state is ReplicaState.ASLEEP else ("○", "red")


def _below(row: Row, width: int) -> tuple[Text, ...]:
    """The sentences under a line: its conditions, and why a replica is not up where none of them says so."""
    of = row.of
    indent, style, sentences = "", "yellow", []
    if isinstance(of, Replica):
        indent = "   "
        style = "cyan" if of.state is ReplicaState.ASLEEP else "yellow"
        told = any(of.detail in condition.sentence for condition in of.conditions)
        if of.state is not ReplicaState.UP and of.detail and not told:
            sentences.append(of.detail)
    elif of.scale is not None and of.scale.replicas != of.scale.ready:
        coming = f" and {of.scale.loading} loading" if of.scale.loading else ""
        sentences.append(
            f"{of.scale.replicas} replicas wanted, {of.scale.ready} ready{coming}: {of.scale.detail}"
        )
    sentences += [f"{c.kind} for {age(row.now - c.since)}: {c.sentence}" for c in of.conditions]
    lines = []
    for sentence in sentences:
        first, after = f"{indent}└ ", f"{indent}  "
        wrapped = textwrap.wrap(plain(sentence), width, initial_indent=first, subsequent_indent=after)
        lines += [Text(line, style=style) for line in wrapped[:_MOST_LINES_BELOW]]
    return tuple(lines)


# -- order and names -------------------------------------------------------------------------------


def _badness(replica: Replica) -> tuple[object, ...]:
    """The sorting key of a replica: the worst is the smallest."""
    kv, waiting = _known(replica.load.kv_usage), _known(replica.load.waiting)
    state = _WORST_STATE.index(replica.state)
    return state, not replica.conditions, _low(replica), -round(kv, 2), -waiting, replica.name


def _pool_badness(pool: Pool) -> tuple[object, ...]:
    return not pool.conditions, pool.replicas_up == pool.replicas, _low(pool), pool.name


def _low(of: Pool | Replica) -> float:
    """What is proven of goodput, in whole percent; what is not known comes after all that is."""
    ratio = of.goodput.ratio
    return 2.0 if ratio is None or ratio.low is None else round(ratio.low, 2)


def _known(number: Number) -> float:
    return number.value if isinstance(number, KnownNumber) else 0.0


def _common_end(names: Sequence[str]) -> str:
    """What all names of a pool end with: a domain, a port. Nothing where there is only one."""
    if len(names) < 2:
        return ""
    backwards = zip(*(reversed(name) for name in names), strict=False)
    same = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, backwards))
    shared = names[0][len(names[0]) - same :]
    start = re.search(r"\.(?=[A-Za-z])|:", shared)  # never a part of an IP address
    return shared[start.start() :] if start else ""
