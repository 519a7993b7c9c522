"""One call of quarantine: from what came in and what is remembered to verdicts and decisions. Pure."""

import msgspec

from controlplane.policy.quarantine import budget, ejection, eviction, hands, intake, judge
from controlplane.policy.quarantine.bench import Bench
from controlplane.policy.quarantine.memory import QuarantineMemory, Storm
from controlplane.policy.quarantine.observation import Observation
from controlplane.policy.quarantine.settings import QuarantineSettings
from controlplane.policy.quarantine.words import Fault, Stage, Verdict
from controlplane.signals.decision import Decision, Event


class Outcome(msgspec.Struct, frozen=True):
    """What came of one call. `ejected` are the replicas that get nothing new, and since when (Unix seconds).

    `verdicts` has each GPU's worst fault; `blind` says since when nobody sees a node.
    """

    verdicts: tuple[Verdict, ...]
    decisions: tuple[Decision, ...]
    events: tuple[Event, ...]
    ejected: dict[str, float]
    blind: dict[str, float]
    storms: tuple[Storm, ...]
    tripped: float | None


def observe(
    memory: QuarantineMemory, observation: Observation, settings: QuarantineSettings, now: float
) -> tuple[QuarantineMemory, Outcome]:
    """Decide once at Unix time `now` (seconds); it may not go back, time stands still where it does."""
    bench = Bench(memory, observation, settings, now)
    intake.set_nodes(bench)
    found = intake.take_samples(bench)
    judge.judge_nodes(bench, found)
    storms, tripped, trip_seen, trip_why = judge.judge_fleet(bench)
    hands.look_at_cluster(bench)
    hands.hear_people(bench)
    hands.give_back(bench)
    ours = [name for name, one in bench.quarantines.items() if not one.releasing]
    standing = budget.standing(bench.nodes, bench.facts, ours, observation.serving, tuple(memory.ejected))
    stays = hands.take(bench, storms, tripped, standing)
    hands.ask_again(bench)
    eviction.evict(bench)
    ejected = ejection.eject(bench, storms, tripped, standing)
    verdicts = _verdicts(bench, stays)
    after = QuarantineMemory(
        now=bench.now,
        nodes=bench.nodes,
        programs=bench.programs,
        quarantines=bench.quarantines,
        taken=bench.taken,
        past=tuple(one for one in bench.past if bench.now - one.at <= settings.escalate_within),
        ejected=ejected,
        storms=storms,
        tripped=tripped,
        trip_seen=trip_seen,
        trip_why=trip_why,
        restarted={
            name: at
            for name, at in bench.restarted.items()
            if bench.now - at < settings.restart_at_most_every
        },
        told=frozenset(bench.told),
    )
    blind = {name: node.blind_since for name, node in bench.nodes.items() if node.blind_since is not None}
    outcome = Outcome(verdicts, tuple(bench.decisions), tuple(bench.events), ejected, blind, storms, tripped)
    return after, outcome


def _verdicts(bench: Bench, stays: dict[str, str]) -> tuple[Verdict, ...]:
    """Each GPU's worst fault, and how far it has come."""
    verdicts: list[Verdict] = []
    for name, node in sorted(bench.nodes.items()):
        worst: dict[str, Fault] = {}
        for fault in node.faults:
            old = worst.get(fault.uuid)
            if old is None or _rank(fault) > _rank(old):
                worst[fault.uuid] = fault
        for uuid, fault in sorted(worst.items()):
            stage, why = _stage(bench, name, fault, stays)
            verdicts.append(
                Verdict(
                    name,
                    uuid,
                    fault.id,
                    fault.finding.check,
                    fault.finding.fault_class,
                    fault.finding.remedy,
                    stage,
                    fault.since,
                    fault.finding.sentence,
                    why,
                    fault.finding.evidence,
                )
            )
    return tuple(verdicts)


def _rank(fault: Fault) -> tuple[bool, int, float]:
    return fault.convicts, fault.finding.remedy.weight, -fault.since


def _stage(bench: Bench, name: str, fault: Fault, stays: dict[str, str]) -> tuple[Stage, str]:
    ours = bench.quarantines.get(name)
    if ours is not None and fault.convicts:
        return (Stage.PLACED if ours.placed else Stage.WANTED), ""
    if fault.id in stays:
        return Stage.WITHHELD, stays[fault.id]
    if fault.convicts:
        return Stage.HELD_DOWN, ""
    if fault.finding.remedy.takes_node and not fault.excused:
        return Stage.SUSPECTED, "nothing else agrees yet"
    return Stage.NOTED, fault.excused
