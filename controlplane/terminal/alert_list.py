"""What Alertmanager says fires: pages first, each with its sentence and its runbook."""

from rich.text import Text

from controlplane.api.shapes import Alert
from controlplane.terminal.figures import age, plain
from controlplane.terminal.listing import Column, Entry, listing, under
from controlplane.terminal.view import View

_COLUMNS = (
    Column("SEVERITY", left=True),
    Column("TEAM", left=True, spare=2),
    Column("ALERT", left=True),
    Column("FOR", spare=1),
)
SEVERITIES = {"page": "bold red", "ticket": "yellow"}


def alerts(view: View, width: int, room: int | None) -> list[Text]:
    if not view.alerts:
        words = "no alert fires, as far as Alertmanager has told (it posts to /api/v1/alerts)"
        return [Text(words, style="dim")]
    return listing(_COLUMNS, [_entry(alert, view.now, width) for alert in view.alerts], width, room, "WHAT")


def _entry(alert: Alert, now: float, width: int) -> Entry:
    cells = (
        Text(plain(alert.severity), style=SEVERITIES.get(alert.severity, "")),
        Text(plain(alert.team), style="dim"),
        Text(plain(alert.name)),
        Text(age(now - alert.since), style="dim"),
    )
    return Entry(cells, alert.summary, below=tuple(under(alert.runbook_url, width, "dim", "  ")))
