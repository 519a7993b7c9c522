"""The last decisions, the newest first: when, what became of it, its sentence, the readings it rests on."""

import time

from rich.text import Text

from controlplane.api.shapes import Decision, Evidence
from controlplane.terminal.figures import age, count, plain
from controlplane.terminal.listing import Column, Entry, listing, under
from controlplane.terminal.view import View

_COLUMNS = (Column("TIME", left=True), Column("OUTCOME", left=True, spare=1))
_OUTCOMES = {"done": "bold", "observed": "dim", "recorded": "dim", "held": "cyan", "superseded": "dim"}
_MOST_READINGS = 6
_WORTH_TELLING_SECONDS = 3.0


def decisions(view: View, width: int, room: int | None) -> list[Text]:
    if not view.decisions:
        return [Text("nothing was decided in the last hour", style="dim")]
    newest = sorted(view.decisions, key=lambda decision: -decision.at)
    return listing(_COLUMNS, [_entry(decision, width) for decision in newest], width, room, "WHAT AND WHY")


def _entry(decision: Decision, width: int) -> Entry:
    outcome, _, why = plain(decision.outcome).partition(": ")
    at = time.strftime("%H:%M:%S", time.localtime(decision.at))
    cells = Text(at, style="dim"), Text(outcome, style=_OUTCOMES.get(outcome, "red"))
    readings = ", ".join(_reading(one) for one in decision.evidence[:_MOST_READINGS])
    sentence = f"{decision.sentence} ({why})" if why else decision.sentence
    return Entry(cells, sentence, below=tuple(under(readings, width, "dim", "  ")))


def _reading(evidence: Evidence) -> str:
    value = f"unknown, {evidence.unknown}" if evidence.value is None else count(evidence.value)
    seconds = evidence.age_seconds or 0.0
    old = f" ({age(seconds)} old)" if seconds >= _WORTH_TELLING_SECONDS else ""
    return f"{plain(evidence.name)} {value}{old}"
