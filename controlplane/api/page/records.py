"""What was decided, as lines: many decisions of one kind make one line."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from controlplane.api.page.cells import Tone
from controlplane.signals.decision import LASTING, Decision, Evidence
from controlplane.terminal.figures import age, count

Told: TypeAlias = Literal["did", "doing", "would", "held", "failed", "superseded", "noted"]
DID: Told = "did"
WOULD: Told = "would"
TONES: dict[Told, Tone] = {
    "did": "good",
    "doing": "",
    "would": "dim",
    "held": "held",
    "failed": "bad",
    "superseded": "dim",
    "noted": "warn",
}
_OUTCOMES: dict[str, Told] = {
    "done": "did",
    "pending": "doing",
    "observed": "would",
    "held": "held",
    "superseded": "superseded",
    "recorded": "noted",
}
_MOST_ALONE = 2  # decisions of one kind in a row that each have a line


class Entry(NamedTuple):
    """One line of the list: one decision, or several of the same kind of which `first` is the newest."""

    label: Told
    first: Decision
    others: tuple[Decision, ...] = ()

    @property
    def sentence(self) -> str:
        if not self.others:
            return self.first.sentence
        targets = len({decision.target for decision in (self.first, *self.others)})
        times = f"{self.first.action} {len(self.others) + 1} times on {targets} target{'s' * (targets > 1)}"
        return f"{times}, the last: {self.first.sentence}"


def label(decision: Decision) -> Told:
    """What has become of a decision. One that nobody could carry out is what would have been done."""
    if decision.outcome == "recorded" and decision.action != "assess":
        return WOULD
    return "failed" if decision.outcome.startswith("failed") else _OUTCOMES.get(decision.outcome, "noted")


def entries(decisions: Sequence[Decision], most: int) -> list[Entry]:
    """Lines for decisions that come newest first; at most `most` of them.

    Of a lasting decision (a limit) the newest is what counts, and a large fleet makes hundreds a minute: all
    with one label make one line, at the place of the newest. Of others only those in a row do.
    """
    runs: dict[tuple[object, ...], list[Decision]] = {}
    row = 0
    before: tuple[Told, str] | None = None
    for one in decisions:
        kind = label(one), one.action
        row += kind != before
        before = kind
        runs.setdefault(kind if one.action in LASTING else (*kind, row), []).append(one)
    lines: list[Entry] = []
    for run in runs.values():
        few = len(run) <= _MOST_ALONE
        lines += (
            [Entry(label(one), one) for one in run] if few else [Entry(label(run[0]), run[0], tuple(run[1:]))]
        )
    lines.sort(key=lambda line: -line.first.at)
    return lines[:most]


def evidence(of: Evidence) -> str:
    """One reading that a decision rests on, with its age when it was taken."""
    value = f"unknown ({of.unknown})" if of.value is None else count(of.value)
    return f"{of.name} {value}, {age(of.age_seconds)} old"
