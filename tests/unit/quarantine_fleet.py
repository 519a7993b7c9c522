"""A fleet of GPU nodes for quarantine: DCGM's pages or the agent's reports, and a cluster that obeys."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.quarantine.observation import Observation, ReplicaEvidence
from controlplane.policy.quarantine.observe import Outcome, observe
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.signals import marks
from controlplane.signals.decision import Decision, Event, Orders, Override
from controlplane.signals.gpu import Answer, Gpu, GpuEvent, NodeBlind, NodeReport, NodeSample, Pod
from controlplane.signals.node import NodeFacts
from controlplane.signals.reading import Reason


def uuid_of(node: str, index: int = 0) -> str:
    return f"GPU-00000000-{sum(map(ord, node)) % 10_000:04d}-4000-8000-{node[-4:]:0>8}{index:04d}"


@dataclass
class Card:
    """One GPU as its source shows it; `numbers` None: it is not on the page."""

    numbers: dict[str, float] | None = field(
        default_factory=lambda: {"xid": 0.0, "temperature_celsius": 40.0}
    )
    answer: Answer = Answer.VALUES
    pods: tuple[Pod, ...] = ()
    recent_xids: dict[int, float] | None = None


class Fleet:
    """Nodes with GPUs, one source each, driven by hand; `tick` looks once and remembers."""

    def __init__(
        self,
        nodes: int = 6,
        gpus: int = 2,
        *,
        source: str = "dcgm",
        cluster: bool = False,
        replicas: bool = True,
        **settings: Any,
    ) -> None:
        self.settings = QuarantineSettings(**settings)
        self.memory = QuarantineMemory()
        self.source = source
        self.now = 1_000_000.0
        self.names = [f"gpu-node-{n}" for n in range(1, nodes + 1)]
        self.cards = {name: {uuid_of(name, i): Card() for i in range(gpus)} for name in self.names}
        self.facts = {
            name: NodeFacts(name, ready=True, unschedulable=False, tainted=False) for name in self.names
        }
        self.has_cluster = cluster
        self.replicas: dict[str, ReplicaEvidence] = {}
        if replicas:
            for name in self.names:
                first = next(iter(self.cards[name]))
                one = ReplicaEvidence(f"chat-{name}", "chat", name, (first,), pod=f"serving/chat-{name}")
                self.replicas[one.replica] = one
        self.boots = dict.fromkeys(self.names, "boot-1")
        self.drivers = dict.fromkeys(self.names, "580.1")
        self.xid_events: dict[str, list[GpuEvent]] = {name: [] for name in self.names}
        self.silent: set[str] = set()
        self.overrides: tuple[Override, ...] = ()
        self.decisions: list[Decision] = []
        self.events: list[Event] = []
        self.outcome: Outcome | None = None

    def uuid(self, node: str, index: int = 0) -> str:
        return list(self.cards[node])[index]

    def card(self, node: str, index: int = 0) -> Card:
        return self.cards[node][self.uuid(node, index)]

    def show(self, node: str, index: int = 0, **numbers: float) -> None:
        card = self.card(node, index)
        assert card.numbers is not None
        card.numbers = card.numbers | numbers

    def raise_xid(self, node: str, code: int, index: int = 0, *, uuid: str | None = None) -> None:
        """An XID, as the fleet's source shows it."""
        if self.source == "dcgm":
            self.show(node, index, xid=float(code))
            return
        events = self.xid_events[node]
        target = self.uuid(node, index) if uuid is None else uuid
        events.append(GpuEvent(len(events) + 1, self.now, "xid", code, target))

    def serve(self, node: str, **changes: Any) -> None:
        one = self.replicas[f"chat-{node}"]
        self.replicas[one.replica] = msgspec.structs.replace(one, **changes)

    def person(self, node: str, value: str) -> None:
        self.overrides = (
            *(order for order in self.overrides if order.name != node),
            Override("node", node, "quarantine", value, "ada", "looked at it", self.now),
        )

    def sample(self, name: str) -> NodeSample:
        if name in self.silent:
            return NodeBlind(name, self.source, self.now, Reason.SCRAPE_FAILED, "no answer")
        gpus = {
            uuid: Gpu(
                uuid=uuid,
                answer=card.answer,
                numbers=dict(card.numbers),
                pods=card.pods,
                recent_xids=None if card.recent_xids is None else dict(card.recent_xids),
            )
            for uuid, card in self.cards[name].items()
            if card.numbers is not None
        }
        nvml = self.source == "nvml"
        if nvml:
            for uuid, gpu in gpus.items():
                gpus[uuid] = msgspec.structs.replace(
                    gpu, numbers={k: v for k, v in gpu.numbers.items() if k != "xid"}
                )
        return NodeReport(
            name,
            self.source,
            self.now,
            gpus,
            events=tuple(self.xid_events[name]),
            driver=self.drivers[name],
            boot_id=self.boots[name] if nvml else "",
            epoch=self.boots[name] if nvml else "",
        )

    def tick(self, seconds: float = 30.0, times: int = 1) -> Outcome:
        for _ in range(times):
            self.now += seconds
            self.observe(tuple(self.sample(name) for name in self.names))
        assert self.outcome is not None
        return self.outcome

    def observe(self, samples: tuple[NodeSample, ...]) -> Outcome:
        facts = None
        if self.has_cluster:
            facts = {
                name: msgspec.structs.replace(f, boot_id=self.boots[name]) for name, f in self.facts.items()
            }
        seen = Observation(
            samples=samples,
            watched=tuple(self.names),
            nodes=facts,
            serving=tuple(self.replicas.values()),
            orders=Orders(overrides=self.overrides),
        )
        self.memory, self.outcome = observe(self.memory, seen, self.settings, self.now)
        self.decisions += self.outcome.decisions
        self.events += self.outcome.events
        if self.has_cluster:
            self.obey(self.outcome.decisions)
        return self.outcome

    def obey(self, decisions: tuple[Decision, ...]) -> None:
        """What an actuator that enforces would do to the cluster."""
        for decision in decisions:
            fact = self.facts.get(decision.target)
            if fact is None:
                continue
            if decision.action == "quarantine-node":
                mark = marks.read(decision.new)
                assert mark is not None
                cordons = mark.kind in ("cordon", "both")
                fact = msgspec.structs.replace(
                    fact,
                    mark=mark,
                    tainted=mark.kind in ("taint", "both"),
                    unschedulable=fact.unschedulable or cordons,
                )
            elif decision.action == "release-node":
                ours = marks.read(decision.old)
                assert ours is not None
                off, _ = marks.undo(
                    ours, fact.mark, tainted=bool(fact.tainted), unschedulable=bool(fact.unschedulable)
                )
                fact = msgspec.structs.replace(
                    fact,
                    mark=None,
                    tainted=bool(fact.tainted) and off not in (marks.Undo.TAINT, marks.Undo.BOTH),
                    unschedulable=bool(fact.unschedulable)
                    and off not in (marks.Undo.CORDON, marks.Undo.BOTH),
                )
            self.facts[decision.target] = fact

    def restart_daemon(self, *, keep: bool) -> None:
        """A new process: with the journal's memory, or with nothing."""
        self.memory = (
            msgspec.json.decode(msgspec.json.encode(self.memory), type=QuarantineMemory)
            if keep
            else QuarantineMemory()
        )

    def did(self, action: str) -> list[str]:
        return [decision.target for decision in self.decisions if decision.action == action]

    def told(self, kind: str) -> list[str]:
        return [event.sentence for event in self.events if event.kind == kind]
