"""A fleet as on a bad night, as large as wanted, and a daemon that shows it and takes orders."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import fleet_fakes as fakes
import msgspec
from fleet_fakes import AT, FakeDaemon, goodput, load, replica

from controlplane.signals.decision import (
    Decision,
    Event,
    Evidence,
    Mode,
    Orders,
    Override,
    Severity,
    Standing,
)
from controlplane.signals.node import GpuVerdict, Mark, NodeHealth
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import (
    Condition,
    Denominator,
    FleetSnapshot,
    Goodput,
    Limit,
    PoolSnapshot,
    Quantiles,
    ReplicaSnapshot,
    ReplicaState,
)
from controlplane.signals.status import Objective, Status

OBJECTIVE = Objective(2.5, 0.05, 0.95)
SILENT = Goodput(60.0, Denominator.HTTP, unknown=Reason.NO_TRAFFIC)
EVIL = "<img src=x onerror=alert(1)>\"'&"
"""A name from outside that would like to be markup."""


def seconds(p95: float) -> Known[Quantiles]:
    return Known(Quantiles(286.0, p95 / 2, p95 / 3, p95 * 0.9, p95, p95 * 1.2), AT)


def bad_pool(name: str = "chat", replicas: int = 4, up: int = 3) -> PoolSnapshot:
    """A pool that provably misses its objective because requests wait."""
    latency = msgspec.structs.replace(
        fakes.latency(), queue_time=seconds(4.1), ttft=seconds(4.4), tpot=seconds(0.045)
    )
    miss = Condition("objective-missed", AT - 47, f"pool {name}: at most 84.6% of 286 requests were good")
    return PoolSnapshot(
        name, replicas, up, load(64, 312, 0.97), latency, goodput(231, 242, 286), fakes.TOTALS, (miss,)
    )


def good_pool(name: str = "code", replicas: int = 2) -> PoolSnapshot:
    latency = msgspec.structs.replace(
        fakes.latency(), ttft=seconds(0.4), tpot=seconds(0.03), queue_time=seconds(0.01)
    )
    return PoolSnapshot(name, replicas, replicas, load(), latency, goodput(97, 99.6, 100), fakes.TOTALS, ())


def idle_pool(name: str = "batch", replicas: int = 1) -> PoolSnapshot:
    """A pool that nobody asks anything."""
    return PoolSnapshot(name, replicas, replicas, load(0, 0, 0.0), fakes.NO_LATENCY, SILENT, fakes.TOTALS, ())


def troubled(name: str, pool: str = "chat") -> ReplicaSnapshot:
    gone = Unknown(Reason.SCRAPE_FAILED, AT - 76, "connection refused")
    nothing = msgspec.structs.replace(load(), **dict.fromkeys(fakes.load().__struct_fields__, gone))
    failing = Condition("scrape-failing", AT - 76, f"http://{name}/metrics: connection refused")
    return replica(
        name,
        pool,
        state=ReplicaState.UNREACHABLE,
        detail="connection refused",
        last_scrape_at=AT - 76,
        load=nothing,
        latency=msgspec.structs.replace(fakes.NO_LATENCY),
        goodput=Goodput(60.0, Denominator.HTTP, unknown=Reason.SCRAPE_FAILED),
        conditions=(failing,),
        limit=None,
    )


def fleet(size: int = 6, nodes: int = 3, gpus_a_node: int = 8) -> FleetSnapshot:
    """`size` replicas in three pools, of which the first is in trouble, on `nodes` nodes."""
    replicas = [
        troubled("10.0.0.9:8000"),
        replica(
            "wedged:8000",
            "chat",
            conditions=(
                Condition("wedged", AT - 300, "wedged:8000 has 12 running and has made no token for 300 s"),
            ),
        ),
    ]
    replicas.append(
        replica(
            EVIL,
            "chat",
            quarantined_since=AT - 600,
            limit=Limit("slo-gradient", 7, "ordered", "ann ordered it (a canary)", AT - 4, 5.0),
        )
    )
    spread = ("chat", "code", "code", "batch")
    replicas += [replica(f"vllm-{i}:8000", spread[i % 4]) for i in range(size - len(replicas))]
    pools = [bad_pool(), good_pool(), idle_pool()]
    counted = []
    for pool in pools:
        inside = [one for one in replicas if one.pool == pool.name]
        up = sum(one.state is ReplicaState.UP for one in inside)
        counted.append(msgspec.structs.replace(pool, replicas=len(inside), replicas_up=up))
    verdict = GpuVerdict(
        "GPU-5f1c2a3b-0d4e",
        "xid-79",
        "lost",
        "reboot",
        "wanted",
        AT - 900,
        "XID 79: the GPU has fallen off the bus",
        "this version touches no node",
    )
    health = {f"node-{i:03}": NodeHealth(f"node-{i:03}", gpus_a_node) for i in range(nodes)}
    health["node-001"] = NodeHealth(
        "node-001",
        gpus_a_node,
        None,
        (verdict,),
        Mark("f1", "xid-79", "GPU-5f", "reboot", "XID 79", AT - 880),
    )
    health["node-002"] = NodeHealth("node-002", gpus_a_node, AT - 120)
    return FleetSnapshot(
        AT,
        80,
        {pool.name: pool for pool in counted},
        {one.name: one for one in replicas},
        Orders(),
        (),
        health,
    )


def decisions() -> tuple[Decision, ...]:
    """Newest first: a limit that was set, many that would have been, a verdict, one that failed."""
    evidence = (Evidence("waiting", 312.0, 1.5), Evidence("kv_usage", None, 40.0, Reason.STALE))

    def set_limit(i: int, ago: float, outcome: str, mode: Mode) -> Decision:
        sentence = (
            f"vllm-{i}:8000 may hold {64 - i} sequences at once instead of {70 - i}: a token takes 52 ms"
        )
        return Decision(
            f"80-{i}",
            AT - ago,
            "set-limit",
            f"vllm-{i}:8000",
            str(70 - i),
            str(64 - i),
            "tpot-over",
            sentence,
            evidence,
            mode,
            outcome,
        )

    missed = Decision(
        "79-1",
        AT - 47,
        "assess",
        "chat",
        "",
        "objective-missed",
        "objective-missed",
        "pool chat: at most 84.6% of 286 requests were good, the objective is 95.0%",
        evidence,
    )
    return (
        set_limit(1, 4, "done", Mode.ENFORCE),
        *(set_limit(i, 10 + i, "observed", Mode.OBSERVE) for i in range(2, 9)),
        missed,
        set_limit(9, 300, "failed: no answer within 10 s", Mode.ENFORCE),
        set_limit(10, 400, "held", Mode.ENFORCE),
    )


EVENTS = (
    Event(
        AT - 76,
        "scrape-failing",
        "10.0.0.9:8000",
        Severity.WARNING,
        "http://10.0.0.9:8000/metrics: connection refused",
    ),
    Event(AT - 300, "joined", "vllm-0:8000", Severity.INFO, "vllm-0:8000 joined pool code"),
)


def status(**changes: object) -> Status:
    standings = {
        "chat": {"gateway": Standing.ENFORCE},
        "code": {"gateway": Standing.OBSERVE, "envoy": Standing.OBSERVE},
        "batch": {},
    }
    base = fakes.status(
        objectives={"chat": OBJECTIVE, "code": OBJECTIVE, "batch": OBJECTIVE},
        pool_standings=standings,
        limit_standings={EVIL: Standing.ENFORCE, "vllm-1:8000": Standing.OBSERVE},
        scrape_failures={"10.0.0.9:8000": 40},
    )
    return msgspec.structs.replace(base, **changes)


@dataclass
class NightDaemon(FakeDaemon):
    """Takes the orders that the page can send, and keeps every one it was given."""

    given: list[object] = field(default_factory=list)

    async def override(self, override: Override) -> None:
        self.given.append(override)
        self.ordered = Orders(self.ordered.hold, (override,))

    async def hold(self, hold: object) -> None:
        self.given.append(hold)
        await super().hold(hold)  # type: ignore[arg-type]


def night(size: int = 6, nodes: int = 3, told: Sequence[Decision] | None = None) -> NightDaemon:
    """The daemon of a bad night."""
    return NightDaemon(
        seen=fleet(size, nodes),
        how=status(),
        told=decisions() if told is None else tuple(told),
        happened=EVENTS,
    )


def hour(daemon: FakeDaemon) -> None:
    """Let an hour of ticks pass whose goodput falls towards the end; with a gap."""
    seen = daemon.seen
    assert seen is not None
    for step in range(361):
        at = AT - 3600 + 10 * step
        good = 280 - max(0, step - 240) * 0.4
        chat = msgspec.structs.replace(seen.pools["chat"], goodput=goodput(good - 8, good, 286))
        if 100 < step < 120:
            chat = msgspec.structs.replace(chat, goodput=SILENT)
        daemon.seen = msgspec.structs.replace(seen, at=at, pools={**seen.pools, "chat": chat})
        daemon.tick()
    daemon.seen = seen
