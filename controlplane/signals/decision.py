"""Decisions and events, and the orders of people that bind them."""

from enum import StrEnum

import msgspec

from controlplane.signals.reading import Reason


class Mode(StrEnum):
    """Whether an actuator may touch the world."""

    OBSERVE = "observe"  # decisions are recorded, nothing is touched
    ENFORCE = "enforce"


class Evidence(msgspec.Struct, frozen=True):
    """One reading that a decision rests on: its value or why there is none, and its age in seconds."""

    name: str
    value: float | None
    age_seconds: float
    unknown: Reason | None = None


class Decision(msgspec.Struct, frozen=True):
    """One thing decided in one tick.

    `action` says what ("assess" changes nothing but our opinion), `target` on what, `old` and `new`
    from which to which value, `reason` is a stable code and `sentence` is for people. `outcome` is
    "recorded" (nothing to carry out), "observed" (would have acted), "held" (a hold or an override
    forbids it), "pending", "done" or "failed: why".
    """

    id: str
    at: float
    action: str
    target: str
    old: str
    new: str
    reason: str
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    mode: Mode = Mode.OBSERVE
    outcome: str = "recorded"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"


class Event(msgspec.Struct, frozen=True):
    """Something that happened to `target`, told once when it begins and once when it ends."""

    at: float
    kind: str
    target: str
    severity: Severity
    sentence: str


class Hold(msgspec.Struct, frozen=True):
    """Everything stops: no actuator acts while this stands."""

    since: float
    by: str
    reason: str


class Override(msgspec.Struct, frozen=True):
    """A person's word on one thing; it wins over every law until it is taken back or `until` (Unix s).

    `scope` is "pool", "replica" or "node", `name` which one; `setting` what is overridden ("mode", ...)
    and `value` to what.
    """

    scope: str
    name: str
    setting: str
    value: str
    by: str
    reason: str
    since: float
    until: float | None = None


class Orders(msgspec.Struct, frozen=True):
    """What people have ordered, whole: the tick replaces what it knew with this."""

    hold: Hold | None = None
    overrides: tuple[Override, ...] = ()
