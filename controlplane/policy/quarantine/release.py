"""When a node comes back: on proof, or on a person's word. A gauge that shows 0 again proves nothing."""

import msgspec

from controlplane.policy.quarantine.checks import NO_ACTION
from controlplane.policy.quarantine.memory import NodeMemory
from controlplane.policy.quarantine.sight import View
from controlplane.policy.quarantine.words import Remedy
from controlplane.signals.node import Mark, NodeFacts


class Proof(msgspec.Struct, frozen=True):
    """Whether the fault that a node was taken for is over; `why` says by what, or what is missing."""

    holds: bool
    why: str


def proof(
    mark: Mark, node: NodeMemory | None, view: View | None, facts: NodeFacts | None, *, seen: bool
) -> Proof:
    """What speaks for releasing a node now. `view` is of the GPU it was taken for, `seen` whether its node
    is.

    A node that nobody sees is not released for looking well.
    """
    if facts is not None and facts.probe_passed == mark.fault:
        return Proof(True, "a probe passed on it")
    missing = _missing(mark, node, view, seen=seen)
    if missing or node is None:
        return Proof(False, missing)
    boot_id = (facts.boot_id if facts is not None else "") or node.boot_id
    proofs = {
        "the GPU was exchanged": bool(mark.uuid) and mark.uuid not in node.gpus,
        "the node has booted anew": bool(mark.boot_id and boot_id) and boot_id != mark.boot_id,
        "the driver asks for nothing any more": view is not None
        and view.numbers.get("recovery_action") == NO_ACTION
        and view.times["recovery_action"] > mark.since,
        "the GPU was reset": mark.remedy == Remedy.DRAIN_AND_RESET
        and node.resets.get(mark.uuid, 0.0) > mark.since,
    }
    if mark.remedy == Remedy.CORDON_AND_REPLACE:
        proofs = {why: holds for why, holds in proofs.items() if why == "the GPU was exchanged"}
    why = next((why for why, holds in proofs.items() if holds), "")
    wanted = "its exchange" if mark.remedy == Remedy.CORDON_AND_REPLACE else "a new boot or the driver's word"
    return Proof(bool(why), why or f"nothing says that it was repaired: {wanted} would, or a person's")


def _missing(mark: Mark, node: NodeMemory | None, view: View | None, *, seen: bool) -> str:
    """What forbids to look for proof; "" where nothing does."""
    if node is None or not seen:
        return "nobody can see its GPUs"
    for fault in node.faults:
        # The event that it was taken for does not un-happen; anything else that convicts must be over.
        if fault.convicts and not (fault.finding.stays and fault.uuid == mark.uuid):
            return f"{fault.finding.check} still holds: {fault.finding.sentence}"
    if mark.uuid in node.gpus and (view is None or not view.is_seen):
        return "the GPU has not come back"
    return ""
