"""Decisions on limits, and gateways that take them, all in memory and in virtual time."""

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fleet_fakes import fleet, replica
from virtual_time import VirtualLoop, run_virtually

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.signals.decision import Decision
from controlplane.signals.snapshot import FleetSnapshot, Limit, ReplicaSnapshot, ReplicaState

NOON = 1_764_000_000.0
SNAPSHOT = fleet(replica("a:1", "chat"), replica("b:1", "chat"), replica("c:1", "batch"))


def decision(new: object = 58, target: str = "a:1", tick: int = 1, at: float = NOON) -> Decision:
    sentence = f"the limit of {target} goes to {new}"
    return Decision(f"{tick}-1", at, "set-limit", target, "64", str(new), "tpot-over", sentence)


def chat(**members: tuple[ReplicaState, int | None]) -> FleetSnapshot:
    """A fleet of one pool: state and limit of each replica, by its name without port."""
    return fleet(*(member(f"{name}:1", *those) for name, those in members.items()))


def member(name: str, state: ReplicaState, slots: int | None) -> ReplicaSnapshot:
    limit = None if slots is None else Limit("slo-gradient", slots, "tpot-over", "", NOON)
    return replica(name, "chat", state=state, limit=limit)


def virtually(test: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(NOON)
    run_virtually(loop, test(loop))


@dataclass
class FakeEnvoy:
    """Admin interface of an Envoy that has `file` as its runtime layer; it takes a change up `slow` late."""

    file: Path
    loop: VirtualLoop
    thresholds: dict[str, int] = field(default_factory=lambda: {"vllm": 100})
    overrides: dict[str, int] = field(default_factory=dict)
    slow: float = 0.03
    away: str = ""
    calls: list[tuple[float, str]] = field(default_factory=list)
    _seen: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    async def send(self, call: Call) -> Reply:
        now = self.loop.time()
        self.calls.append((now, call.url))
        if self.away:
            raise CallFailedError(f"{call.url.partition('?')[0]}: {self.away}")
        parts = urlsplit(call.url)
        if parts.path == "/runtime":
            return self._reply(self._runtime(now))
        name = unquote(parse_qs(parts.query)["filter"][0])
        assert (name[0], name[-1]) == ("^", "$")
        return self._reply(self._clusters(name[1:-1].replace("\\", ""), now))

    def max_requests(self, cluster: str, now: float) -> int:
        key = f"circuit_breakers.{cluster}.default.max_requests"
        return self.overrides.get(cluster, self._layer(now).get(key, self.thresholds[cluster]))

    def _layer(self, now: float) -> dict[str, int]:
        """What it read last. It has to be asked often enough to see each change."""
        read = json.loads(self.file.read_bytes())["resources"][0]["layer"] if self.file.exists() else {}
        if not self._seen or self._seen[-1][1] != read:
            self._seen.append((now, read))
        taken = [layer for at, layer in self._seen if now - at >= self.slow]
        return taken[-1] if taken else {}

    def _clusters(self, name: str, now: float) -> object:
        if name not in self.thresholds:
            return {}
        high = {"priority": "HIGH", "max_requests": 1024}
        thresholds = [{"max_requests": self.max_requests(name, now)}, high]
        return {"cluster_statuses": [{"name": name, "circuit_breakers": {"thresholds": thresholds}}]}

    def _runtime(self, now: float) -> object:
        layer = self._layer(now)
        keys = {f"circuit_breakers.{name}.default.max_requests": name for name in self.thresholds}
        entries = {
            key: {"layer_values": [str(layer.get(key, "")), str(self.overrides.get(name, ""))]}
            for key, name in keys.items()
        }
        return {"layers": ["fleet", "admin_layer"], "entries": entries}

    def _reply(self, answer: object) -> Reply:
        return Reply(200, {}, json.dumps(answer).encode())


@dataclass
class FakeGateway:
    """Takes limits by webhook as docs/webhook.md asks a receiver to; `trouble` decides on each request."""

    loop: VirtualLoop
    trouble: Callable[[Call], Reply | None] = lambda _: None
    limits: dict[str, int] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    posts: list[tuple[float, Call]] = field(default_factory=list)
    reads: list[tuple[float, Call]] = field(default_factory=list)

    async def send(self, call: Call) -> Reply:
        (self.posts if call.method == "POST" else self.reads).append((self.loop.time(), call))
        reply = self.trouble(call)
        if reply is not None:
            return reply
        return self._take(json.loads(call.body)) if call.method == "POST" else self._show(call.url)

    def start_anew(self) -> None:
        """As a process that kept nothing."""
        self.limits.clear()
        self.sequences.clear()

    def _take(self, message: dict[str, Any]) -> Reply:
        target = message["target"]
        if message["sequence"] > self.sequences.get(target, -1):
            self.sequences[target] = message["sequence"]
            self.limits[target] = message["value"]
        return Reply(204, {}, b"")

    def _show(self, url: str) -> Reply:
        target = unquote(url.rpartition("/")[2])
        if target not in self.limits:
            return Reply(404, {}, b"")
        return Reply(200, {}, json.dumps({"value": self.limits[target]}).encode())

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(call.body) for _, call in self.posts]
