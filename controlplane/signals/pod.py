"""A pod that serves, or is about to, as the cluster has it: facts, and which of them are news."""

from collections.abc import Mapping

import msgspec

OURS = "controlplane.llm/"
"""How the keys of our own labels, annotations and conditions begin."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation by which a ReplicaSet chooses whom to remove first."""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a pool. Times are Unix seconds; None or "" where the cluster does not say.

    `url` is empty while it has no address. `ready` is the condition that a Service goes by,
    `containers_ready` the same without readiness gates. It is `loading` until its containers have been ready
    once since they were started. `terminating_since` is when its deletion was asked for, `gone_by` when it is
    killed. `conditions` (True, False, Unknown by type) and `annotations` are those that we go by, `gates` its
    readiness gates. `owner` is "Kind/name" of what made it; of an owner's ReplicaSet, the Deployment.
    """

    namespace: str
    name: str
    pool: str
    uid: str = ""
    url: str = ""
    node: str = ""
    phase: str = "Pending"
    ready: bool = False
    containers_ready: bool = False
    loading: bool = True
    created_at: float | None = None
    started_at: float | None = None
    terminating_since: float | None = None
    gone_by: float | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    conditions: dict[str, str] = {}
    gates: tuple[str, ...] = ()
    owner: str = ""
    image: str = ""
    model: str = ""
    restarts: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_over(self) -> bool:
        """Whether it will never serve again."""
        return self.phase in ("Succeeded", "Failed")


class PodNews(msgspec.Struct, frozen=True):
    """What became of the pods: those that `changed` and those `gone`, by "namespace/name".

    `whole`: there are no others than `changed`, but for those of the pools `untold`, which stand as before.
    """

    changed: dict[str, PodFacts] = {}
    gone: frozenset[str] = frozenset()
    whole: bool = False
    untold: frozenset[str] = frozenset()

    def then(self, later: "PodNews") -> "PodNews":
        """Both, one after the other."""
        changed = later.on(self.changed)
        gone = (self.gone | later.gone | self.changed.keys()).difference(changed)
        if not later.whole:
            return PodNews(changed, gone, self.whole, self.untold)
        untold = later.untold & self.untold if self.whole else later.untold
        return PodNews(changed, gone if untold else frozenset(), True, untold)

    def on(self, pods: Mapping[str, PodFacts]) -> dict[str, PodFacts]:
        """The pods after it, those before being `pods`."""
        kept = {
            name: pod
            for name, pod in pods.items()
            if name not in self.gone and (not self.whole or pod.pool in self.untold)
        }
        return kept | self.changed
