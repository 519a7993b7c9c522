"""Taking nodes and giving them back: what is decided, never how it is carried out.

The decisions are QUARANTINE_NODE and RELEASE_NODE of `signals/decision.py`.
"""

import msgspec

from controlplane.policy.quarantine import budget, release
from controlplane.policy.quarantine.bench import Bench, where
from controlplane.policy.quarantine.budget import Standing
from controlplane.policy.quarantine.memory import NodeMemory, Past, Quarantine, Storm
from controlplane.policy.quarantine.storm import causes
from controlplane.policy.quarantine.words import Fault, Remedy
from controlplane.signals import marks
from controlplane.signals.decision import QUARANTINE_NODE, RELEASE_NODE, Severity
from controlplane.signals.node import Mark, NodeFacts

ASK_AGAIN_SECONDS = 600.0
_SETTLES_SECONDS = 120.0  # for what we asked for to be seen on the node
_MOST_PAST = 1_000


def look_at_cluster(bench: Bench) -> None:
    """What became of our marks: placed, taken off by a person, gone with the node, or found again."""
    if bench.observation.nodes is None:
        return
    facts = bench.observation.nodes
    for name, fact in facts.items():
        node, ours = bench.nodes.get(name), bench.quarantines.get(name)
        # What we only wanted, another leader may have done.
        lost = ours is None or (not ours.placed and fact.mark != ours.mark)
        if fact.mark is not None and lost and node is not None and node.overruled is None:
            _find(bench, name, ours, fact.mark)
            bench.event(
                "quarantine-found", name, f"node {name} carries our mark: {fact.mark.reason}", Severity.INFO
            )
    for name, ours in list(bench.quarantines.items()):
        there = facts.get(name)
        if there is None:
            del bench.quarantines[name]
            bench.event("quarantined-node-gone", name, f"node {name} has left the cluster", Severity.INFO)
        elif there.mark == ours.mark:
            if not ours.placed:
                bench.quarantines[name] = msgspec.structs.replace(ours, placed=True)
            elif not (ours.releasing or bench.is_off_limits(name)) and (what := _taken_off(ours.mark, there)):
                _let_go(bench, name, ours, what)
        elif ours.placed:
            _settle_change(bench, name, ours, there.mark)


def _find(bench: Bench, name: str, wanted: Quarantine | None, mark: Mark) -> None:
    """A mark of ours that we do not remember: the node was taken once, and so it is counted."""
    if wanted is not None:
        bench.taken = tuple(at for at in bench.taken if at != wanted.mark.since)
        bench.past = tuple(one for one in bench.past if (one.node, one.at) != (name, wanted.mark.since))
    bench.quarantines[name] = Quarantine(mark, mark.since, placed=True)
    if bench.now - mark.since < budget.HOUR_SECONDS and mark.since not in bench.taken:
        bench.taken = (*bench.taken, mark.since)
    past = Past(name, mark.uuid, mark.check, mark.since)
    if past not in bench.past:
        bench.past = (*bench.past, past)[-_MOST_PAST:]


def _settle_change(bench: Bench, name: str, ours: Quarantine, there: Mark | None) -> None:
    """Our mark does not read any more as it did."""
    if there is None and ours.releasing:
        del bench.quarantines[name]
        bench.event("node-released", name, f"node {name} is back", Severity.INFO)
        return
    if there is not None and bench.now - ours.asked_at < _SETTLES_SECONDS:
        return  # we have asked for another text ourselves
    del bench.quarantines[name]
    what = "taken off" if there is None else "changed"
    _overrule(bench, name)
    bench.event(
        "quarantine-overruled",
        name,
        f"our mark on node {name} was {what} by somebody: it is left alone until they say otherwise",
    )


def _overrule(bench: Bench, name: str) -> None:
    """The node is in a person's hands, also where we do not know yet who watches it."""
    node = bench.nodes.get(name, NodeMemory(bench.now))
    bench.nodes[name] = msgspec.structs.replace(node, overruled=bench.now)


def _taken_off(mark: Mark, fact: NodeFacts) -> str:
    """What a person took off a node that still bears our annotation; "" where all is there."""
    if mark.kind != "cordon" and fact.tainted is False:
        return "its taint was taken off"
    return "it was uncordoned" if mark.kind != "taint" and fact.unschedulable is False else ""


def _let_go(bench: Bench, name: str, ours: Quarantine, what: str) -> None:
    """`kubectl uncordon` leaves our annotation there: the node is a person's, the rest of ours goes."""
    _overrule(bench, name)
    bench.quarantines[name] = msgspec.structs.replace(ours, releasing=True, asked_at=bench.now)
    why = f"{what} by somebody while it was ours: it is left alone until they say otherwise"
    bench.event("quarantine-overruled", name, f"node {name}: {why}")
    bench.decide(
        RELEASE_NODE, name, "overruled", f"node {name} is given back: {why}", old=marks.text(ours.mark)
    )


def hear_people(bench: Bench) -> None:
    """A person's word ends their earlier deeds."""
    for name, node in bench.nodes.items():
        word = bench.word(name, "allow")
        if node.overruled is not None and word is not None and word.since > node.overruled:
            bench.nodes[name] = msgspec.structs.replace(node, overruled=None)


def give_back(bench: Bench) -> None:
    """Release what is proven well, or what a person says is well. No breaker and no budget stops this."""
    for name, ours in list(bench.quarantines.items()):
        if ours.releasing:
            if bench.now - ours.asked_at >= ASK_AGAIN_SECONDS:
                _release(bench, name, ours, "release-again", "its mark is still there")
            continue
        fact, node = bench.facts.get(name), bench.nodes.get(name)
        if bench.is_off_limits(name):
            continue
        word = bench.word(name, "release")
        if word is not None and word.since >= ours.mark.since:
            _release(bench, name, ours, "person", f"{word.by} says that it is well: {word.reason}")
            continue
        seen = name in bench.nodes and bench.is_seen(name)
        proof = release.proof(ours.mark, node, bench.view(name, ours.mark.uuid), fact, seen=seen)
        since = None
        if proof.holds:
            since = bench.now if ours.well_since is None else ours.well_since
        bench.quarantines[name] = msgspec.structs.replace(ours, well_since=since)
        if since is not None and bench.now - since >= bench.settings.clear_after:
            _release(bench, name, bench.quarantines[name], "proven", proof.why)


def take(
    bench: Bench, storms: tuple[Storm, ...], tripped: float | None, standing: Standing
) -> dict[str, str]:
    """Take the nodes that must go and may go; the worst first. Why the others stay, by fault."""
    stays: dict[str, str] = {}
    due: list[tuple[int, float, str, Fault]] = []
    for name, node in bench.nodes.items():
        for fault in node.faults:
            at = fault.due_at(bench.settings.hold_down)
            if at is None or at > bench.now or not _is_fresh(bench, name, fault):
                continue
            if not _waits_for_driver(bench, name, fault):
                due.append((-fault.finding.remedy.weight, fault.since, name, fault))
    handled: set[str] = set()
    for _, _, name, fault in sorted(due, key=lambda one: one[:3]):
        if name in handled:
            continue
        why = _against(bench, name, fault, storms, tripped)
        ours = bench.quarantines.get(name)
        if ours is not None:
            handled.add(name)
            if not why and not ours.releasing:
                _worsen(bench, name, ours, fault)
            continue
        why = why or budget.refusal(name, standing, bench.taken, bench.settings, bench.now)
        if why:
            stays[fault.id] = why
            key = f"withheld {name} {fault.finding.check} {why.translate(_NO_DIGITS)}"
            sentence = f"node {name} stays in spite of {fault.finding.check}: {why}"
            bench.tell_once(key, "quarantine-withheld", name, sentence)
            continue
        handled.add(name)
        _quarantine(bench, name, fault)
        standing = standing.with_out(name)
    return stays


_NO_DIGITS = str.maketrans("", "", "0123456789")


def ask_again(bench: Bench) -> None:
    """What was asked for long ago and is not seen on its node is asked for once more."""
    if bench.observation.nodes is None:
        return
    for name, ours in bench.quarantines.items():
        if bench.is_off_limits(name):
            continue
        if not ours.placed and not ours.releasing and bench.now - ours.asked_at >= ASK_AGAIN_SECONDS:
            bench.quarantines[name] = msgspec.structs.replace(ours, asked_at=bench.now)
            bench.decide(
                QUARANTINE_NODE,
                name,
                ours.mark.check,
                f"once more: {ours.mark.reason}",
                new=marks.text(ours.mark),
            )


def _is_fresh(bench: Bench, name: str, fault: Fault) -> bool:
    """Whether a state holds now: what nobody can see is no ground. An event has happened, seen or not."""
    if fault.finding.stays:
        return True
    return bench.is_seen(name) and fault.is_certain and bench.now - fault.seen <= bench.settings.stale_after


def _waits_for_driver(bench: Bench, name: str, fault: Fault) -> bool:
    """Whether the driver will still say what it thinks of an XID: it told its mind before, but not since.

    It is waited for no longer than its reports are fresh.
    """
    if not fault.finding.stays:  # an XID is an event, and nothing else is
        return False
    view = bench.view(name, fault.uuid)
    told_at = view.times.get("recovery_action") if view is not None else None
    waited = bench.now - fault.seen > bench.settings.hold_down + bench.settings.stale_after
    return told_at is not None and told_at <= fault.seen and not waited


def _against(bench: Bench, name: str, fault: Fault, storms: tuple[Storm, ...], tripped: float | None) -> str:
    """What stands against taking a node, but for the budget."""
    if bench.is_off_limits(name):
        return "a person keeps us off it"
    if bench.nodes[name].overruled is not None:
        return "a person has taken our mark off it"
    mine = causes(bench.nodes[name], fault)
    storm = next((one for one in storms if one.cause in mine and name in one.nodes), None)
    if storm is not None:
        return f"{len(storm.nodes)} nodes have {storm.cause} at once"
    return "the breaker is open" if tripped is not None else ""


def _remedy(bench: Bench, name: str, fault: Fault) -> tuple[Remedy, str]:
    """What helps; what came back after it was helped asks for replacement."""
    before = [
        one
        for one in bench.past
        if (one.node, one.uuid, one.check) == (name, fault.uuid, fault.finding.check)
        and bench.now - one.at <= bench.settings.escalate_within
    ]
    if before and fault.finding.remedy is not Remedy.CORDON_AND_REPLACE:
        days = (bench.now - before[-1].at) / 86_400
        again = f"; it was taken for that {days:.1f} days ago already: one more reset would not help"
        return Remedy.CORDON_AND_REPLACE, again
    return fault.finding.remedy, ""


def _quarantine(bench: Bench, name: str, fault: Fault) -> None:
    remedy, again = _remedy(bench, name, fault)
    fact = bench.facts.get(name)
    agrees = f"; {fault.agrees} agrees" if fault.agrees else ""
    mark = Mark(
        fault=fault.id,
        check=fault.finding.check,
        uuid=fault.uuid,
        remedy=remedy.value,
        reason=f"{fault.finding.sentence}{agrees}{again}"[:500],
        since=bench.now,
        kind=bench.settings.mark,
        unschedulable_before=bool(fact is not None and fact.unschedulable),
        boot_id=bench.nodes[name].boot_id,
    )
    bench.quarantines[name] = Quarantine(mark, bench.now)
    bench.taken = (*bench.taken, bench.now)
    bench.past = (*bench.past, Past(name, fault.uuid, fault.finding.check, bench.now))[-_MOST_PAST:]
    bench.decide(
        QUARANTINE_NODE,
        name,
        fault.finding.check,
        f"{where(name, fault.uuid)} must leave: {mark.reason}; {remedy.value}",
        new=marks.text(mark),
        evidence=bench.evidence(name, fault),
    )


def _worsen(bench: Bench, name: str, ours: Quarantine, fault: Fault) -> None:
    """A heavier fault on a node that is out already: the mark must say so."""
    remedy, again = _remedy(bench, name, fault)
    if fault.id == ours.mark.fault or remedy.weight <= Remedy(ours.mark.remedy).weight:
        return
    if again and fault.since <= ours.mark.since:
        return
    mark = msgspec.structs.replace(
        ours.mark,
        fault=fault.id,
        check=fault.finding.check,
        uuid=fault.uuid,
        remedy=remedy.value,
        reason=f"{fault.finding.sentence}{again}"[:500],
    )
    bench.quarantines[name] = msgspec.structs.replace(ours, mark=mark, asked_at=bench.now, well_since=None)
    bench.decide(
        QUARANTINE_NODE,
        name,
        fault.finding.check,
        f"{where(name, fault.uuid)} is worse than it was taken for: {mark.reason}; {remedy.value}",
        old=marks.text(ours.mark),
        new=marks.text(mark),
        evidence=bench.evidence(name, fault),
    )


def _release(bench: Bench, name: str, ours: Quarantine, reason: str, why: str) -> None:
    bench.decide(
        RELEASE_NODE,
        name,
        reason,
        f"node {name} may come back: {why} (it was taken for {ours.mark.check})",
        old=marks.text(ours.mark),
    )
    if bench.observation.nodes is None or not ours.placed:
        del bench.quarantines[name]
    else:
        bench.quarantines[name] = msgspec.structs.replace(ours, releasing=True, asked_at=bench.now)
    node = bench.nodes.get(name)
    if node is not None:  # what it was taken for is settled; what still holds will be found again
        kept = tuple(fault for fault in node.faults if not fault.finding.stays)
        bench.nodes[name] = msgspec.structs.replace(node, faults=kept)
        bench.programs = tuple(xid for xid in bench.programs if xid.node != name)
