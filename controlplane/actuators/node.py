"""Takes nodes with broken GPUs out of the fleet, and gives them back: taint, cordon, and the annotation that
says what is ours.

All of it is one change of the node, so there is no half-taken node to find after a crash, and the same
decision again changes nothing. What a person did in between wins: a node that somebody cordoned since the
decision is not taken over, and of a node whose annotation reads otherwise nothing is taken off.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from controlplane.actuators.call import Send
from controlplane.actuators.cluster_object import Object, change
from controlplane.actuators.limit import Newest, RefusedError
from controlplane.signals import marks
from controlplane.signals.decision import QUARANTINE_NODE, RELEASE_NODE, Decision
from controlplane.signals.marks import ANNOTATION, TAINT_EFFECT, TAINT_KEY, Undo
from controlplane.signals.node import Mark
from controlplane.signals.snapshot import FleetSnapshot


class NodeActuator:
    """The actuator. `send` takes the path of the API server for an URL; `snapshot` knows the nodes."""

    name = "node"
    actions = frozenset({QUARANTINE_NODE, RELEASE_NODE})

    def __init__(self, send: Send, snapshot: Callable[[], FleetSnapshot | None]) -> None:
        self._send, self._snapshot = send, snapshot
        self._newest = Newest()

    def takes(self, target: str, pool: str | None) -> bool:
        """Every node."""
        return True

    async def apply(self, decision: Decision) -> None:
        """Raises RefusedError and CallFailedError."""
        self._newest.take(decision)
        path = f"/api/v1/nodes/{quote(decision.target, safe='')}"
        seen = self._snapshot()
        known = seen.node_facts.get(decision.target) if seen is not None else None
        uid = "" if known is None else known.uid
        if decision.action == QUARANTINE_NODE:
            mark = _mark(decision.new)
            await change(self._send, path, lambda node: _taken(node, mark, _previous(decision.old)), uid=uid)
        else:
            ours = _mark(decision.old)
            await change(self._send, path, lambda node: _given_back(node, ours), uid=uid)


def _taken(node: Object, mark: Mark, previous: Mark | None) -> Object | None:
    """What makes the node ours. `previous` is the mark of ours that this one takes the place of, if any."""
    name = node["metadata"]["name"]
    there = _annotation(node)
    taints, cordoned = _taints(node), _is_cordoned(node)
    if there is not None and there not in (mark, previous):
        raise RefusedError(f"node {name} bears another mark by now")
    if there is None and _text(node) is not None:
        raise RefusedError(f"node {name}: the annotation {ANNOTATION} is somebody else's")
    by_cordon = mark.kind in ("cordon", "both")
    if there is None and by_cordon and cordoned != mark.unschedulable_before:
        did = "cordoned" if cordoned else "uncordoned"
        raise RefusedError(f"node {name} was {did} by somebody since the decision")
    if there is not None and there.kind in ("taint", "both") and not _has_ours(taints):
        raise RefusedError(f"node {name}: its taint was taken off by somebody while it is ours")
    spec: dict[str, Any] = {}
    if mark.kind in ("taint", "both") and not _has_ours(taints):
        spec["taints"] = [*taints, {"key": TAINT_KEY, "value": mark.check, "effect": TAINT_EFFECT}]
    if by_cordon and not cordoned:
        if there is not None:
            raise RefusedError(f"node {name} was uncordoned by somebody while it is ours")
        spec["unschedulable"] = True
    if there == mark and not spec:
        return None
    return {"metadata": {"annotations": {ANNOTATION: marks.text(mark)}}, "spec": spec}


def _given_back(node: Object, ours: Mark) -> Object | None:
    """What takes off the node all that is ours and unchanged."""
    there, taints = _annotation(node), _taints(node)
    if there is None and _text(node) is None:
        return None  # done already, or a person has taken it off
    undo, why = marks.undo(ours, there, tainted=_has_ours(taints), unschedulable=_is_cordoned(node))
    if there != ours:
        raise RefusedError(f"node {node['metadata']['name']}: {why or 'its annotation is not ours'}")
    spec: dict[str, Any] = {}
    if undo in (Undo.TAINT, Undo.BOTH):
        spec["taints"] = [taint for taint in taints if taint.get("key") != TAINT_KEY]
    if undo in (Undo.CORDON, Undo.BOTH):
        spec["unschedulable"] = None
    return {"metadata": {"annotations": {ANNOTATION: None}}, "spec": spec}


def _mark(text: str) -> Mark:
    mark = marks.read(text)
    if mark is None:
        raise RefusedError(f"the decision names no mark of ours ({text[:80]!r})")
    return mark


def _previous(text: str) -> Mark | None:
    return marks.read(text) if text else None


def _text(node: Object) -> str | None:
    text: str | None = (node["metadata"].get("annotations") or {}).get(ANNOTATION)
    return text


def _annotation(node: Object) -> Mark | None:
    text = _text(node)
    return None if text is None else marks.read(text)


def _taints(node: Object) -> list[dict[str, Any]]:
    return list(node.get("spec", {}).get("taints") or ())


def _has_ours(taints: list[dict[str, Any]]) -> bool:
    return any(taint.get("key") == TAINT_KEY for taint in taints)


def _is_cordoned(node: Object) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))
