"""Between the tick and quarantine: what the tick knows of replicas as evidence, and the way back into its
words.

    memory, outcome = look(memory, arrived, replicas, orders, settings, now=now)
"""

from collections.abc import Iterable, Mapping

import msgspec

from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.quarantine.observation import Observation, ReplicaEvidence
from controlplane.policy.quarantine.observe import Outcome, observe
from controlplane.policy.quarantine.peers import Work, slow
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.signals.decision import Orders
from controlplane.signals.gpu import NodeSample
from controlplane.signals.node import GpuVerdict, NodeFacts, NodeHealth, Placement
from controlplane.signals.reading import known
from controlplane.signals.snapshot import ReplicaSnapshot, ReplicaState

_FAILING = {"wedged", "stalled"}
NOTHING = Outcome((), (), (), {}, {}, (), None)


class Arrived(msgspec.Struct, frozen=True):
    """What the sources brought of GPUs and nodes since the last tick. None where it did not change.

    `facts` are of all nodes of the cluster, changed or not; None where no cluster is asked.
    """

    samples: tuple[NodeSample, ...] = ()
    watched: tuple[str, ...] | None = None
    placements: tuple[Placement, ...] | None = None
    facts: dict[str, NodeFacts] | None = None


def look(
    memory: QuarantineMemory,
    arrived: Arrived,
    replicas: Mapping[str, ReplicaSnapshot],
    orders: Orders,
    settings: QuarantineSettings,
    *,
    now: float,
) -> tuple[QuarantineMemory, Outcome]:
    """One look at the GPUs. A fleet without GPU nodes costs nothing."""
    placements = memory.placements if arrived.placements is None else arrived.placements
    if not (memory.nodes or arrived.samples or arrived.watched or arrived.facts):
        same = placements is memory.placements
        return memory if same else msgspec.structs.replace(memory, placements=placements), NOTHING
    seen = Observation(
        arrived.samples,
        arrived.watched,
        arrived.facts,
        tuple(evidence(placements, replicas, _models(memory))),
        orders,
    )
    after, outcome = observe(memory, seen, settings, now)
    return msgspec.structs.replace(after, placements=placements), outcome


def health(memory: QuarantineMemory, outcome: Outcome) -> dict[str, NodeHealth]:
    """Every node with GPUs, for the snapshot."""
    verdicts: dict[str, list[GpuVerdict]] = {}
    for one in outcome.verdicts:
        verdicts.setdefault(one.node, []).append(
            GpuVerdict(
                one.uuid,
                one.check,
                one.fault_class.value,
                one.remedy.value,
                one.stage.value,
                one.since,
                one.sentence,
                one.why,
            )
        )
    ours = memory.quarantines
    return {
        name: NodeHealth(
            name,
            len(node.gpus),
            outcome.blind.get(name),
            tuple(verdicts.get(name, ())),
            ours[name].mark if name in ours else None,
        )
        for name, node in memory.nodes.items()
    }


def evidence(
    placements: Iterable[Placement], replicas: Mapping[str, ReplicaSnapshot], models: Mapping[str, str]
) -> Iterable[ReplicaEvidence]:
    """How each replica whose node is known serves; `models` are the GPUs' by node. Peers have the same: an
    A100 among H100s is not broken."""
    where = {placement.replica: placement for placement in placements}
    peers: dict[tuple[str, str], dict[str, Work]] = {}
    for name, replica in replicas.items():
        model = models.get(where[name].node, "") if name in where else ""
        work = Work(known(replica.load.running), known(replica.load.generation_tokens_per_second))
        peers.setdefault((replica.pool, model), {})[name] = work
    is_slow = {name: verdict for group in peers.values() for name, verdict in slow(group).items()}
    for name, replica in replicas.items():
        place = where.get(name, Placement(name, ""))
        yield ReplicaEvidence(
            replica=name,
            pool=replica.pool,
            node=place.node,
            gpus=place.gpus,
            pod=place.pod,
            owner=place.owner,
            image=place.image,
            ready=replica.state is ReplicaState.UP,
            failing=_failing(replica),
            slow=is_slow.get(name),
        )


def _models(memory: QuarantineMemory) -> dict[str, str]:
    """Which GPUs each node has, as far as a source says."""
    return {
        name: next((m for gpu in node.gpus.values() for seen in gpu.latest.values() if (m := seen.model)), "")
        for name, node in memory.nodes.items()
    }


def _failing(replica: ReplicaSnapshot) -> bool | None:
    """Whether the engine fails; not known before its first page."""
    if replica.state is ReplicaState.UNSEEN:
        return None
    if replica.state is ReplicaState.UNREACHABLE:
        return True
    return any(condition.kind in _FAILING for condition in replica.conditions)
