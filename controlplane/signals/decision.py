"""Decisions and events, and the orders of people that bind them."""

from enum import StrEnum
from functools import cached_property

import msgspec

from controlplane.signals.reading import Reason

SET_LIMIT = "set-limit"
"""The action of a decision on a limit: its target is a replica, old and new are whole numbers of
sequences."""

SET_BOUNDARY = "set-boundary"
"""The action of a decision on the boundary between two pools: its target is called SHORT/LONG after them, old
and new are whole numbers of tokens."""

SCALE = "scale"
"""The action of a decision on how many replicas a pool should have: its target is the pool, old and new are
whole numbers of replicas."""

SET_ROTATION = "set-rotation"
"""The action of a decision on whether a replica gets new requests: its target is a replica, old and new are
"in" or "out"."""

QUARANTINE_NODE = "quarantine-node"
"""The action that takes a node: its target is the node, new is the mark to be written on it
(`marks.text`), old that of ours which it takes the place of, if any."""

RELEASE_NODE = "release-node"
"""The action that gives a node back: its target is the node, old the mark that must still be on it."""

EVICT_PODS = "evict-pods"
"""The action that asks engines to leave a node that was taken: its target is the node, new are their pods as
"namespace/name", with a space between two."""

RESTART_WORKLOAD = "restart-workload"
"""The action that ends a pod whose program is lost, or that is drained, so that it starts anew. Its target
is the pod as "namespace/name", or a replica, whose pod is then looked up."""

LASTING = frozenset({SET_LIMIT, SET_BOUNDARY, SET_ROTATION, SCALE})
"""Decisions that say what holds from now on, until the next one on the same target."""


class Mode(StrEnum):
    """Whether an actuator may touch the world."""

    OBSERVE = "observe"  # decisions are recorded, nothing is touched
    ENFORCE = "enforce"


class Standing(StrEnum):
    """What may be done to a thing now: its mode, unless people keep it as it is."""

    OBSERVE = "observe"
    ENFORCE = "enforce"
    HELD = "held"  # a hold, or an override to observe: what was done stays, nothing more is done


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
    forbids it), "pending", "superseded" (by a newer one, before it was wholly done), "done" or "failed: why".
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


class Orders(msgspec.Struct, frozen=True, dict=True):
    """What people have ordered, whole: the tick replaces what it knew with this."""

    hold: Hold | None = None
    overrides: tuple[Override, ...] = ()

    @cached_property
    def _found(self) -> dict[tuple[str, str, str], Override]:
        """By setting, scope and name; made once, as it is asked for each replica in each tick."""
        return {(one.setting, one.scope, one.name): one for one in self.overrides}

    def override(self, setting: str, *things: tuple[str, str]) -> Override | None:
        """What people ordered of a setting, for the first of these things (scope and name) that has it."""
        found = (self._found.get((setting, *thing)) for thing in things)
        return next((one for one in found if one is not None), None)

    def limit(self, replica: str, pool: str) -> Override | None:
        """What people have ordered of a replica's limit: of itself, else of its pool."""
        return self.override("limit", ("replica", replica), ("pool", pool))

    def keep(self, *things: tuple[str, str]) -> bool:
        """Whether people keep what concerns these things (scope and name) as it is: a hold, or an override
        that makes one of them observe."""
        modes = (self.override("mode", thing) for thing in things)
        return self.hold is not None or any(one is not None and one.value == Mode.OBSERVE for one in modes)
