"""A pool under the tick, second by second: its pages, probes, pods, nodes and what a gateway sees of it."""

from typing import Any

import msgspec
from fleets import NOON, FakeReplica

from controlplane.policy.memory import Memory
from controlplane.policy.readiness import ReadinessSettings
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.tick import tick
from controlplane.signals.decision import RESTART_WORKLOAD, SET_ROTATION, Decision, Orders
from controlplane.signals.node import NodeFacts
from controlplane.signals.pod import PodFacts, PodNews
from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.reading import Reason
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow, Samples, ScrapeFailure
from controlplane.signals.snapshot import FleetSnapshot

RULES = ReadinessSettings.model_validate({"hold_down": "10s"})
POLICY = PolicySettings(
    pools={"chat": PoolPolicy(readiness=RULES, limits={"law": "fixed", "limit": 100})}, poll_interval="1s"
)


def pod(name: str, **changes: Any) -> PodFacts:
    base: dict[str, Any] = {
        "namespace": "serving",
        "name": name,
        "pool": "chat",
        "node": f"node-{name}",
        "ready": True,
        "containers_ready": True,
        "loading": False,
    }
    return PodFacts(**base | changes)


class Loop:
    """Ticks once a second with a page of each replica that answers.

    With `trials` replicas can be asked for a token.
    """

    def __init__(self, size: int = 4, *, pods: bool = True, trials: bool = False) -> None:
        self.replicas = {f"r{i}": FakeReplica(f"r{i}") for i in range(size)}
        self.pods = {f"serving/{name}": pod(name) for name in self.replicas} if pods else {}
        self.nodes: dict[str, NodeFacts] = {}
        self.targets = tuple(
            msgspec.structs.replace(r.target, pod=f"serving/{name}" if pods else "")
            for name, r in self.replicas.items()
        )
        self.settings, self.memory, self.now = POLICY, Memory(), NOON
        self.silent: set[str] = set()  # pages that are not read
        self.late: set[str] = set()  # pages that are not due yet
        self.idle: set[str] = set()  # those that make no tokens
        self.seen: dict[str, ReplicaWindow] = {}  # what a gateway sees of each, each second
        self.probes: list[Probe] = []  # of the next tick
        self.triable = frozenset(self.replicas) if trials else frozenset()
        self.orders: Orders | None = None
        self.decisions: list[Decision] = []
        self.events: list[tuple[str, str]] = []
        self.ended: list[tuple[str, float]] = []
        self.snapshot: FleetSnapshot | None = None

    def __call__(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            for name, replica in self.replicas.items():
                if name not in self.idle:
                    replica.engine.serve(1)
            pages = [
                ScrapeFailure(name, self.now, Reason.SCRAPE_FAILED, "timed out")
                if name in self.silent
                else replica.page(self.now)
                for name, replica in self.replicas.items()
                if name not in self.late
            ]
            given = Samples(
                targets=self.targets,
                scrapes=tuple(pages),
                outcomes=(self._window(),) if self.seen else (),
                orders=self.orders,
                pods=PodNews(dict(self.pods), whole=True),
                node_facts=dict(self.nodes),
                probes=tuple(self.probes),
                triable=self.triable,
            )
            self.orders = None
            self.probes.clear()
            self.snapshot, decisions, self.memory = tick(given, self.memory, self.settings, self.now)
            self.decisions += [one for one in decisions if one.action == SET_ROTATION]
            self.ended += [(one.target, self.now) for one in decisions if one.action == RESTART_WORKLOAD]
            self.events += [(one.kind, one.sentence) for one in self.snapshot.events]
            self.now += 1.0

    def probe(
        self, name: str, result: ProbeResult, kind: ProbeKind = ProbeKind.HEALTH, seconds: float = 0.01
    ) -> None:
        """One that ends in the next tick."""
        self.probes.append(Probe(name, self.now, seconds, kind, result))

    def _window(self) -> OutcomeWindow:
        names = ("offered", "finished", "good", "failed", "gave_up", "tokens", "good_tokens")
        counts = dict.fromkeys(names, 0)
        counts["in_flight"] = sum(one.in_flight for one in self.seen.values())
        return OutcomeWindow(
            "gw", "chat", self.now - 1, self.now, shed={}, replicas=dict(self.seen), **counts
        )

    def set_pod(self, name: str, **changes: Any) -> None:
        key = f"serving/{name}"
        self.pods[key] = msgspec.structs.replace(self.pods[key], **changes)

    @property
    def out(self) -> dict[str, str]:
        assert self.snapshot is not None
        return {name: r.out.reason for name, r in self.snapshot.replicas.items() if r.out is not None}

    def doubt(self, name: str) -> str:
        assert self.snapshot is not None
        return self.snapshot.replicas[name].probed.doubt

    def changes(self) -> list[tuple[str, str, str]]:
        return [(one.target, one.new, one.reason) for one in self.decisions]
