"""The bench of one call: copies of what is remembered, and what has come out so far."""

from controlplane.policy.quarantine.memory import GpuMemory, NodeMemory, QuarantineMemory
from controlplane.policy.quarantine.observation import Observation, ReplicaEvidence
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.sight import View, is_seen, view
from controlplane.policy.quarantine.words import Fault
from controlplane.signals.decision import Decision, Event, Evidence, Override, Severity
from controlplane.signals.node import NodeFacts

FLEET = "fleet"
SETTING = "quarantine"
"""The setting of a node that a person overrides: "never", "release" or "allow"."""


class Bench:
    """What the steps of one call work on."""

    def __init__(
        self, memory: QuarantineMemory, observation: Observation, settings: QuarantineSettings, now: float
    ) -> None:
        self.memory = memory
        self.observation = observation
        self.settings = settings
        self.now = max(now, memory.now)
        self.nodes: dict[str, NodeMemory] = dict(memory.nodes)
        self.programs = memory.programs
        self.quarantines = dict(memory.quarantines)
        self.taken = tuple(at for at in memory.taken if self.now - at < 3600.0)
        self.past = memory.past
        self.restarted = dict(memory.restarted)
        self.reported = {sample.node for sample in observation.samples}
        self.told: set[str] = set()
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.words = {
            order.name: order
            for order in observation.orders.overrides
            if order.scope == "node" and order.setting == SETTING
        }
        self._views: dict[tuple[str, str], View] = {}

    @property
    def facts(self) -> dict[str, NodeFacts]:
        return self.observation.nodes or {}

    def word(self, node: str, value: str) -> Override | None:
        """A person's word on a node, where it is this one."""
        order = self.words.get(node)
        return order if order is not None and order.value == value else None

    def is_off_limits(self, node: str) -> bool:
        """Whether a person keeps us off it, by their word or by the node's annotation."""
        fact = self.facts.get(node)
        return self.word(node, "never") is not None or (fact is not None and fact.hands_off)

    def is_seen(self, node: str) -> bool:
        return is_seen(self.nodes[node], self.now, self.settings.stale_after)

    def view(self, node: str, uuid: str) -> View | None:
        """A GPU as it is seen now; None where it is not known. Asked for after the reports are in."""
        gpu = self.nodes[node].gpus.get(uuid) if node in self.nodes else None
        if gpu is None:
            return None
        key = node, uuid
        if key not in self._views:
            self._views[key] = view(uuid, gpu, self.now, self.settings.stale_after)
        return self._views[key]

    def on(self, node: str, uuid: str) -> list[ReplicaEvidence]:
        """The replicas that run on a GPU, or may: by the pods that were named on each, also on one that is
        gone. A GPU that nobody knows may be any."""
        gpus = self.nodes[node].gpus
        named = {name: _pods(gpu) for name, gpu in gpus.items()} if uuid in gpus else {}
        here = named.pop(uuid, frozenset())
        elsewhere = frozenset[str]().union(*named.values())
        serving = self.observation.serving
        return [one for one in serving if one.node == node and one.runs_on(uuid, here, elsewhere)]

    def event(self, kind: str, target: str, sentence: str, severity: Severity = Severity.WARNING) -> None:
        self.events.append(Event(self.now, kind, target, severity, sentence))

    def tell_once(self, key: str, kind: str, target: str, sentence: str) -> None:
        """An event for something that lasts: told when it begins, not again while it is said each tick."""
        self.told.add(key)
        if key not in self.memory.told:
            self.event(kind, target, sentence)

    def decide(
        self,
        action: str,
        target: str,
        reason: str,
        sentence: str,
        *,
        old: str = "",
        new: str = "",
        evidence: tuple[Evidence, ...] = (),
    ) -> None:
        number = len(self.decisions) + 1
        self.decisions.append(
            Decision(
                f"quarantine-{self.now:.3f}-{number}",
                self.now,
                action,
                target,
                old,
                new,
                reason,
                sentence,
                evidence,
            )
        )

    def evidence(self, node: str, fault: Fault) -> tuple[Evidence, ...]:
        """What a decision on a node rests on: the fault's own readings, how old it is, what agrees."""
        own = (Evidence(f"{fault.finding.check} seconds", self.now - fault.since, 0.0),)
        agrees: tuple[Evidence, ...] = ()
        if fault.agreed_since is not None:
            agrees = (Evidence(fault.agrees, 1.0, max(0.0, self.now - fault.agreed_since)),)
        return (*fault.finding.evidence, *own, *agrees)


def _pods(gpu: GpuMemory) -> frozenset[str]:
    return frozenset(f"{pod.namespace}/{pod.name}" for seen in gpu.latest.values() for pod in seen.all_pods)


def where(node: str, uuid: str) -> str:
    """A GPU, for people."""
    return f"{uuid} of node {node}" if uuid else f"node {node}"
