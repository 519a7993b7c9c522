"""What we write on a node, and how we know it again: the pure part of taint, cordon and annotation.

The annotation is one JSON object. It says why the node is out, since when and by whom, and what stood there
before, so that another leader, or a person, can undo it. Only what it names is ever taken off again, and only
where it still reads as we wrote it.
"""

from enum import StrEnum

import msgspec

from controlplane.signals.node import Mark

MANAGER = "controlplane"
"""What our writes are known by (`fieldManager`)."""

TAINT_KEY = "controlplane.llm/quarantine"
TAINT_EFFECT = "NoSchedule"
ANNOTATION = "controlplane.llm/quarantine"
HANDS_OFF = "controlplane.llm/hands-off"
"""A person's annotation (value "true"): nothing is ever done to this node."""

PROBE_PASSED = "controlplane.llm/probe-passed"
"""An annotation of whoever has tested the node: the id of the fault that is gone."""

_LONGEST = 4_096


class Undo(StrEnum):
    """What to take off a node again."""

    NOTHING = "nothing"
    TAINT = "taint"
    CORDON = "cordon"
    BOTH = "both"


def text(mark: Mark) -> str:
    """The annotation's value."""
    return msgspec.json.encode(mark).decode()


def read(value: str) -> Mark | None:
    """The mark in an annotation's value; None where it is not one of ours."""
    if len(value) > _LONGEST:
        return None
    try:
        mark = msgspec.json.decode(value, type=Mark)
    except msgspec.DecodeError:
        return None
    return mark if mark.by == "controlplane" else None


def undo(ours: Mark, there: Mark | None, *, tainted: bool, unschedulable: bool) -> tuple[Undo, str]:
    """What may be taken off, and why not all of it where something stays.

    `ours` is what we wrote, `there` what the annotation says now. Nothing is touched where the annotation was
    changed or removed since: then a person, or another program, has taken the node over.
    """
    if there is None:
        return Undo.NOTHING, "our annotation is gone: somebody has taken the node over"
    if there != ours:
        return Undo.NOTHING, "our annotation was changed by somebody"
    off_taint = ours.kind in ("taint", "both") and tainted
    off_cordon = ours.kind in ("cordon", "both") and unschedulable and not ours.unschedulable_before
    kept = ours.kind in ("cordon", "both") and ours.unschedulable_before
    why = "it was cordoned before us: the cordon stays" if kept else ""
    if off_taint and off_cordon:
        return Undo.BOTH, why
    if off_taint:
        return Undo.TAINT, why
    return (Undo.CORDON if off_cordon else Undo.NOTHING), why
