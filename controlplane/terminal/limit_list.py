"""The limit of each replica: what its law came to, what is in force, what is done about it, and why."""

from rich.text import Text

from controlplane.api.shapes import KnownNumber, Limit, Replica
from controlplane.signals.decision import Standing
from controlplane.terminal.figures import age, count, plain
from controlplane.terminal.listing import Column, Entry, cut, listing
from controlplane.terminal.standing import STYLES
from controlplane.terminal.view import View

_COLUMNS = (
    Column("REPLICA", left=True),
    Column("RUN", spare=2),
    Column("LIMIT"),
    Column("IN FORCE", spare=1),
    Column("", left=True),
    Column("FOR", spare=3),
)


def limits(view: View, width: int, room: int | None) -> list[Text]:
    """Those replicas first that are nearest to their limit."""
    found = [(replica, replica.limit) for replica in view.replicas if replica.limit is not None]
    if not found:
        return [Text("no replica has a limit: pools.NAME.limits says which law sets one", style="dim")]
    found.sort(key=lambda pair: (-_use(*pair), pair[0].name))
    entries = [_entry(replica, limit, view.now, width) for replica, limit in found]
    return listing(_COLUMNS, entries, width, room)


def _entry(replica: Replica, limit: Limit, now: float, width: int) -> Entry:
    running = _running(replica)
    in_force = Text("–", style="dim") if limit.in_force is None else Text(count(limit.in_force))
    if limit.in_force is not None and int(limit.in_force) != limit.slots:
        in_force.stylize("yellow")
    full = running is not None and running >= limit.slots
    standing = limit.standing or "nobody acts"
    cells = (
        cut(Text(plain(replica.name)), max(12, width // 3)),
        Text("–", style="dim") if running is None else Text(count(running), style="yellow" if full else ""),
        Text(count(limit.slots), style="bold" if limit.standing is Standing.ENFORCE else ""),
        in_force,
        Text(standing, style=STYLES[limit.standing]),
        Text(age(now - limit.since), style="dim"),
    )
    return Entry(cells, f"{limit.reason}: {limit.detail}" if limit.detail else limit.reason)


def _use(replica: Replica, limit: Limit) -> float:
    running = _running(replica)
    return -1.0 if running is None else round(running / max(1, limit.slots), 2)


def _running(replica: Replica) -> float | None:
    running = replica.load.running
    return running.value if isinstance(running, KnownNumber) else None
