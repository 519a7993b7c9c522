"""The values that rule files are made of: recording rules, alerts, groups of them."""

from typing import Literal, TypeAlias

import msgspec

WINDOW = "2m"
"""Over this long the rates of `llm:*` are taken: four scrapes at 30 s, and still two at 60 s."""

TARGET = ("cluster", "namespace", "job", "instance", "node", "pod", "pool")
"""Labels of a scraped target that a rule keeps, where the target has them: it sums over all others."""

POOL = ("cluster", "namespace", "job", "pool", "model_name")
"""Labels of what is put together from all replicas of a pool."""

Severity: TypeAlias = Literal["page", "ticket", "info"]
"""Wake somebody, have somebody look in working hours, or only show it."""

Team: TypeAlias = Literal["serving", "hardware", "platform"]
"""Who is asked: those who run the engines, the machines, or controlplane itself."""

Layer: TypeAlias = Literal["users", "queue", "engine", "gpu", "node", "control"]
"""Where the trouble shows; what an inhibition goes by."""


class Recording(msgspec.Struct, frozen=True):
    """A recording rule. `keeps` are the labels that its series may have, `unit` that of its value.

    `labels` are added by the rule itself. Several rules may record one name under different `labels`.
    """

    name: str
    expr: str
    help: str
    unit: str = ""
    keeps: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Alert(msgspec.Struct, frozen=True):
    """An alert. `summary` is a sentence with values, `wait` how long it must hold before it fires.

    `board` is the dashboard to open, `about` are the labels that its variables are set from. `meaning`,
    `confirm` and `action` are the runbook page.
    """

    name: str
    expr: str
    wait: str
    severity: Severity
    team: Team
    layer: Layer
    summary: str
    board: str
    meaning: str
    confirm: tuple[str, ...]
    action: tuple[str, ...]
    about: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """Rules that Prometheus evaluates one after the other, every `interval`."""

    name: str
    rules: tuple[Recording | Alert, ...]
    interval: str = "15s"


def by(*labels: str) -> str:
    """`by (a, b)`."""
    return f"by ({', '.join(labels)})"


def first_of(*expressions: str) -> str:
    """The first expression that has a series; by full label sets, so each target chooses for itself."""
    return "\nor\n".join(dict.fromkeys(expressions))
