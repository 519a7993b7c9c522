"""Asks the engines on a node that was taken to leave it, where the settings want that.

Only once our mark is seen on the node: before that a new pod could be placed there again. Only the pods of
replicas that we know. What a disruption budget does not let go now is asked for again.
"""

import msgspec

from controlplane.policy.quarantine.bench import Bench
from controlplane.signals.decision import EVICT_PODS

AGAIN_SECONDS = 60.0
"""A budget opens when another pod is ready somewhere else, which takes minutes."""


def evict(bench: Bench) -> None:
    """Decide on the pods of each node that is ours."""
    if not bench.settings.evict:
        return
    for name, ours in bench.quarantines.items():
        if not ours.placed or ours.releasing or bench.now - ours.evicted_at < AGAIN_SECONDS:
            continue
        if bench.is_off_limits(name):
            continue
        pods = sorted({one.pod for one in bench.observation.serving if one.node == name and one.pod})
        if not pods:
            continue
        bench.quarantines[name] = msgspec.structs.replace(ours, evicted_at=bench.now)
        again = "once more: " if ours.evicted_at else ""
        count = "1 engine" if len(pods) == 1 else f"{len(pods)} engines"
        bench.decide(
            EVICT_PODS,
            name,
            ours.mark.check,
            f"{again}{count} should leave node {name}, which is out for {ours.mark.reason}",
            new=" ".join(pods),
        )
