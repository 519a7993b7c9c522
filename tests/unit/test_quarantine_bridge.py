"""What the tick knows of replicas as evidence for quarantine: failing, slow, ready, and where."""

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from daemon_fakes import settings as daemon_settings
from quarantine_fleet import Fleet

from controlplane.daemon.steering import level
from controlplane.policy import steer
from controlplane.policy.memory import Memory
from controlplane.policy.quarantine.bridge import NOTHING, Arrived, evidence, look
from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.quarantine.peers import Work, slow
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Standing
from controlplane.signals.node import Placement
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.samples import Samples, Scrape, Signals, Target
from controlplane.signals.snapshot import (
    Condition,
    Denominator,
    FleetSnapshot,
    Goodput,
    Latency,
    Load,
    ReplicaSnapshot,
    ReplicaState,
    Trend,
)

UNKNOWN = Unknown(Reason.NOT_SCRAPED, 0.0)


def replica(
    name: str,
    state: ReplicaState = ReplicaState.UP,
    *,
    running: float = 10.0,
    rate: float = 500.0,
    kinds: tuple[str, ...] = (),
) -> ReplicaSnapshot:
    load = dict.fromkeys(Load.__struct_fields__, UNKNOWN)
    load |= {"running": Known(running, 0.0), "generation_tokens_per_second": Known(rate, 0.0)}  # type: ignore[dict-item]
    return ReplicaSnapshot(
        name=name,
        pool="chat",
        url=f"http://{name}",
        state=state,
        detail="",
        engine="vllm",
        version="",
        models=(),
        last_scrape_at=None,
        scrape_seconds=None,
        restarts=0,
        load=Load(**load),  # type: ignore[arg-type]
        latency=Latency(**dict.fromkeys(Latency.__struct_fields__, UNKNOWN)),
        goodput=Goodput(60.0, Denominator.FINISHED),
        preemption_trend=Trend.UNKNOWN,
        conditions=tuple(Condition(kind, 0.0, "") for kind in kinds),
        engines={},
    )


@pytest.mark.parametrize(
    ("state", "kinds", "ready", "failing"),
    [
        (ReplicaState.UP, (), True, False),
        (ReplicaState.UP, ("saturated",), True, False),
        (ReplicaState.UP, ("wedged",), True, True),
        (ReplicaState.UP, ("stalled",), True, True),
        (ReplicaState.UNREACHABLE, (), False, True),
        (ReplicaState.UNSEEN, (), False, None),
        (ReplicaState.ASLEEP, (), False, False),
    ],
)
def test_what_a_replica_is_evidence_of(
    state: ReplicaState, kinds: tuple[str, ...], ready: bool, failing: bool | None
) -> None:
    (found,) = evidence((Placement("a", "n1", ("g",)),), {"a": replica("a", state, kinds=kinds)}, {})
    assert (found.ready, found.failing, found.node, found.gpus) == (ready, failing, "n1", ("g",))


def test_a_replica_that_lies_nowhere_counts_as_a_peer_all_the_same() -> None:
    (found,) = evidence((), {"a": replica("a")}, {})
    assert (found.node, found.pool, found.ready) == ("", "chat", True)


def test_slow_is_against_peers_at_equal_load() -> None:
    pool = {name: Work(10.0, 500.0) for name in ("a", "b", "c")} | {"bad": Work(10.0, 200.0)}
    assert slow(pool) == {"a": False, "b": False, "c": False, "bad": True}
    busier = pool | {"bad": Work(30.0, 600.0)}  # a fuller batch has fewer tokens a second for each
    assert slow(busier)["bad"] is None


@pytest.mark.parametrize("work", [Work(None, 10.0), Work(10.0, None), Work(0.0, 0.0)])
def test_what_does_nothing_or_is_not_known_is_not_slow(work: Work) -> None:
    pool = {name: Work(10.0, 500.0) for name in ("a", "b", "c")} | {"x": work}
    assert slow(pool)["x"] is None


def test_an_older_gpu_among_newer_ones_is_not_slow() -> None:
    places = [Placement(name, f"node-{name}") for name in ("h1", "h2", "h3", "a1", "a2", "a3")]
    rates = {"h1": 500.0, "h2": 480.0, "h3": 150.0, "a1": 250.0, "a2": 240.0, "a3": 100.0}
    replicas = {name: replica(name, rate=rate) for name, rate in rates.items()}
    models = {f"node-{name}": "H100" if name[0] == "h" else "A100" for name in rates}
    assert {one.replica for one in evidence(places, replicas, models) if one.slow} == {"h3", "a3"}


def test_two_alone_cannot_tell_which_is_slow() -> None:
    assert slow({"a": Work(10.0, 500.0), "b": Work(10.0, 100.0)}) == {"a": None, "b": None}


def test_a_fleet_without_gpu_nodes_costs_nothing() -> None:
    memory = QuarantineMemory()
    after, outcome = look(memory, Arrived(), {}, Orders(), QuarantineSettings(), now=1.0)
    assert after is memory
    assert outcome is NOTHING


def test_from_reports_and_snapshots_to_a_replica_that_gets_nothing_new() -> None:
    fleet = Fleet(nodes=3)
    replicas = {f"chat-{name}": replica(f"chat-{name}") for name in fleet.names}
    places = tuple(Placement(f"chat-{name}", name, (fleet.uuid(name),)) for name in fleet.names)
    memory, settings = QuarantineMemory(), QuarantineSettings()
    for code in (0, 79):
        if code:
            fleet.raise_xid(fleet.names[1], code)
        fleet.now += 30.0
        arrived = Arrived(
            tuple(map(fleet.sample, fleet.names)), tuple(fleet.names), None if code else places, None
        )
        memory, outcome = look(memory, arrived, replicas, Orders(), settings, now=fleet.now)
    assert list(outcome.ejected) == [f"chat-{fleet.names[1]}"]
    assert memory.placements == places


class Sick(NamedTuple):
    """A fleet of three whose second replica has just been quarantined, and what goes on from there."""

    fleet: Fleet
    names: list[str]
    snapshot: FleetSnapshot
    decisions: tuple[Decision, ...]
    memory: Memory


def sick_fleet() -> Sick:
    fleet = Fleet(nodes=3)
    names = [f"chat-{name}" for name in fleet.names]
    targets = tuple(Target(name, "chat", f"http://{name}:8000") for name in names)
    places = tuple(
        Placement(name, node, (fleet.uuid(node),)) for name, node in zip(names, fleet.names, strict=True)
    )
    settings, memory = PolicySettings(), Memory()
    for n, code in enumerate((0, 0, 79)):
        if code:
            fleet.raise_xid(fleet.names[1], code)
        fleet.now += 10.0
        engines, server = {"0": Signals({"running": 1.0, "waiting": 0.0})}, Signals()
        samples = Samples(
            targets=None if n else targets,
            scrapes=tuple(
                Scrape(name, fleet.now, 0.01, "vllm", "", ("m",), engines, server) for name in names
            ),
            gpus=tuple(map(fleet.sample, fleet.names)),
            gpu_nodes=None if n else tuple(fleet.names),
            placements=None if n else places,
        )
        snapshot, decisions, memory = tick(samples, memory, settings, fleet.now)
    return Sick(fleet, names, snapshot, decisions, memory)


def test_the_tick_quarantines_and_the_gateways_are_told_where_they_may_be() -> None:
    fleet, names, snapshot, decisions, memory = sick_fleet()
    settings = PolicySettings()
    assert [d.action for d in decisions] == ["assess", "eject-replica", "set-rotation"]
    assert decisions[0].id != decisions[1].id
    sick = snapshot.replicas[names[1]]
    assert sick.quarantined_since == fleet.now
    (verdict,) = snapshot.nodes[fleet.names[1]].verdicts
    assert (verdict.check, verdict.stage) == ("xid-79", "held-down")
    for standing, rotation in ((Standing.ENFORCE, "quarantined"), (Standing.OBSERVE, "in")):
        orders = steer.orders(snapshot, settings, dict.fromkeys(names, standing), {})
        assert {one.name: one.rotation for one in orders} == dict.fromkeys(names, "in") | {names[1]: rotation}
    again = msgspec.json.decode(msgspec.json.encode(memory), type=Memory)
    assert again.quarantine == memory.quarantine


def test_a_hold_brings_no_replica_back_to_a_broken_gpu_and_takes_none_out(tmp_path: Path) -> None:
    fleet, names, _, _, memory = sick_fleet()
    given = daemon_settings(tmp_path / "journal", modes={"gateway": {"*": Mode.ENFORCE}})
    fleet.raise_xid(fleet.names[0], 95)
    fleet.now += 10.0
    samples = Samples(
        gpus=tuple(map(fleet.sample, fleet.names)), orders=Orders(Hold(fleet.now, "ann", "racks"))
    )
    snapshot, _, memory = tick(samples, memory, PolicySettings(), fleet.now)
    told = level(snapshot, memory, PolicySettings(), given, {})
    assert {one.name for one in told.orders if one.rotation != "in"} == {names[1]}


def test_settings_of_quarantine_survive_the_journal() -> None:
    given = {"quarantine": {"xids": {"63": {"class": "hardware-fatal", "action": "drain-and-reset"}}}}
    settings = PolicySettings.model_validate(given)
    again = PolicySettings.model_validate_json(settings.model_dump_json())
    assert again == settings
