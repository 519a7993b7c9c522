"""What holds from now on, as decisions: for who begins to act and does not know how far others have come.

The same decision again changes nothing, so all of it is said; what nobody may enforce now is only kept.
"""

from controlplane.policy.readying import ENDING
from controlplane.signals.decision import SCALE, SET_ROTATION, Decision
from controlplane.signals.pod import PodFacts
from controlplane.signals.serving import GATE, out_reason
from controlplane.signals.snapshot import FleetSnapshot


def lasting(seen: FleetSnapshot) -> tuple[Decision, ...]:
    """Who is out, who is in though its pod says that we took it out, and how many replicas there should be.

    Their ids are older than those of any tick.
    """
    found: list[tuple[str, str, str, str, str]] = []
    for name, replica in seen.replicas.items():
        if replica.out is not None and replica.out.reason != ENDING:
            found.append((SET_ROTATION, name, "out", replica.out.reason, replica.out.detail))
        elif replica.out is None and _is_out(seen.pods.get(replica.pod)):
            found.append((SET_ROTATION, name, "in", "well", "nothing is held against it"))
    for name, pool in seen.pools.items():
        if pool.scale is not None:
            found.append((SCALE, name, str(pool.scale.replicas), pool.scale.reason, pool.scale.detail))
    return tuple(
        Decision(f"0-{i}", seen.at, action, target, "", new, reason, f"{target}: {detail}")
        for i, (action, target, new, reason, detail) in enumerate(found, 1)
    )


def _is_out(pod: PodFacts | None) -> bool:
    """Whether the pod says that we took it out."""
    if pod is None:
        return False
    by_gate = GATE in pod.gates and pod.conditions.get(GATE) == "False"
    return out_reason(pod.annotations) != "" or by_gate
