"""What quarantine is told in one tick: GPU reports, facts of nodes, and how the replicas on them serve."""

import msgspec

from controlplane.signals.decision import Orders
from controlplane.signals.gpu import NodeSample
from controlplane.signals.node import NodeFacts


class ReplicaEvidence(msgspec.Struct, frozen=True):
    """One replica and how it serves.

    `gpus` are the UUIDs it runs on, empty where only the node is known. `pod` is "namespace/name"; `owner`
    and `image` are what made it. `ready`: it is up and may be sent requests. `failing`: the engine is down,
    wedged or answers errors; `slow`: it serves less than its peers at equal load; None where that cannot be
    told.
    """

    replica: str
    pool: str
    node: str
    gpus: tuple[str, ...] = ()
    pod: str = ""
    owner: str = ""
    image: str = ""
    ready: bool = True
    failing: bool | None = None
    slow: bool | None = None

    def runs_on(self, uuid: str, pods: frozenset[str], elsewhere: frozenset[str]) -> bool:
        """Whether it runs on this GPU: by its UUID, by its pod, else because only the node is known.

        `pods` are named on this GPU, `elsewhere` on others of its node. Where pods share a GPU, exporters
        often name one of them: a pod that is named nowhere may be on any.
        """
        if self.gpus:
            return uuid in self.gpus
        return not self.pod or self.pod in pods or self.pod not in elsewhere


class Observation(msgspec.Struct, frozen=True):
    """All that came since the last tick. `watched` are the nodes that should be there, None: as before.

    `nodes` is None where no cluster is asked. `serving` are all replicas, each time.
    """

    samples: tuple[NodeSample, ...] = ()
    watched: tuple[str, ...] | None = None
    nodes: dict[str, NodeFacts] | None = None
    serving: tuple[ReplicaEvidence, ...] = ()
    orders: Orders = Orders()
