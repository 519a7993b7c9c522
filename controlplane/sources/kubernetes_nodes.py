"""From nodes as the API server has them to what we know of them. Pure."""

import msgspec

from controlplane.signals import marks
from controlplane.signals.node import NodeFacts
from controlplane.sources.kubernetes_pods import Condition, Metadata

_LEAVING = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "ToBeDeletedByClusterAutoscaler",
)
"""Taints by which programs say that a node is about to go. Karpenter's is none: it stands on the node for as
long as a replacement takes to start, and is taken off where none does. What it ends it deletes."""

_DELETED = "deleted"


class _Taint(msgspec.Struct, frozen=True, rename="camel"):
    key: str
    effect: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] | None = None


class _Info(msgspec.Struct, frozen=True, rename="camel"):
    boot_id: str = msgspec.field(default="", name="bootID")


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    conditions: tuple[Condition, ...] | None = None
    node_info: _Info = _Info()


class Node(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a node that we read."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


def facts(node: Node, rack_label: str | None) -> NodeFacts:
    """What the cluster says of a node."""
    labels, notes = node.metadata.labels or {}, node.metadata.annotations or {}
    taints = {(taint.key, taint.effect) for taint in node.spec.taints or ()}
    deleted = "" if node.metadata.deletion_timestamp is None else _DELETED
    ready = next((one.status for one in node.status.conditions or () if one.type == "Ready"), "Unknown")
    return NodeFacts(
        name=node.metadata.name,
        ready={"True": True, "False": False}.get(ready),
        unschedulable=node.spec.unschedulable,
        tainted=(marks.TAINT_KEY, marks.TAINT_EFFECT) in taints,
        mark=marks.read(notes[marks.ANNOTATION]) if marks.ANNOTATION in notes else None,
        boot_id=node.status.node_info.boot_id,
        rack=labels.get(rack_label, "") if rack_label else "",
        hands_off=notes.get(marks.HANDS_OFF) == "true",
        probe_passed=notes.get(marks.PROBE_PASSED, ""),
        uid=node.metadata.uid,
        leaving=next((key for key in _LEAVING if any(taint == key for taint, _ in taints)), deleted),
    )
