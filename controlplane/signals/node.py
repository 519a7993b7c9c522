"""A node of the cluster, and what stands on it: facts of the cluster, our mark, where replicas run."""

from typing import Literal

import msgspec

MarkKind = Literal["taint", "cordon", "both"]


class Mark(msgspec.Struct, frozen=True):
    """Our annotation on a node that we took, as it stands there. Times are Unix seconds.

    `unschedulable_before`: somebody had cordoned the node already.
    """

    fault: str
    check: str
    uuid: str
    remedy: str
    reason: str
    since: float
    kind: MarkKind = "taint"
    unschedulable_before: bool = False
    boot_id: str = ""
    by: str = "controlplane"


class NodeFacts(msgspec.Struct, frozen=True):
    """A node as the cluster has it at the moment; None where that is not known.

    `mark` is our own annotation as it stands there, `tainted` whether our taint does, `unschedulable` whether
    the node is cordoned, by whomever. `hands_off`: a person's annotation that forbids us the node.
    `probe_passed` is the id of a fault that a job or a person has tested and found gone. `leaving` is the
    taint by which a program says that the node is about to go, empty where none does. Another machine may
    take its name, but not its `uid`.
    """

    name: str
    ready: bool | None = None
    unschedulable: bool | None = None
    tainted: bool | None = None
    mark: Mark | None = None
    boot_id: str = ""
    rack: str = ""
    hands_off: bool = False
    probe_passed: str = ""
    leaving: str = ""
    uid: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Where a replica runs. `gpus` are UUIDs, empty where they are not known; `pod` is "namespace/name"."""

    replica: str
    node: str
    gpus: tuple[str, ...] = ()
    pod: str = ""
    owner: str = ""
    image: str = ""


class GpuVerdict(msgspec.Struct, frozen=True):
    """What is held against one GPU, its worst fault, since `since` (Unix seconds).

    `stage` says how far it has come (noted, suspected, held-down, withheld, wanted, placed), `why` what
    stands against acting on it.
    """

    uuid: str
    check: str
    fault_class: str
    remedy: str
    stage: str
    since: float
    sentence: str
    why: str = ""


class NodeHealth(msgspec.Struct, frozen=True):
    """A node with GPUs. `blind_since` is None while somebody sees them; `quarantined` is our mark, if any."""

    name: str
    gpus: int
    blind_since: float | None = None
    verdicts: tuple[GpuVerdict, ...] = ()
    quarantined: Mark | None = None
