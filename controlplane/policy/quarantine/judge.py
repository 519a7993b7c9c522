"""Judging every node: findings to faults, what agrees, what excuses, who is blind."""

from collections.abc import Iterable

import msgspec

from controlplane.policy.quarantine import blame, checks, faults
from controlplane.policy.quarantine.bench import FLEET, Bench, where
from controlplane.policy.quarantine.intake import Found
from controlplane.policy.quarantine.memory import NodeMemory, Storm
from controlplane.policy.quarantine.sight import last_report, why_blind
from controlplane.policy.quarantine.storm import storms
from controlplane.policy.quarantine.words import Fault, Finding
from controlplane.signals.decision import Severity

_FAILING_AGREES = ("ecc-uncorrectable", "gpu-missing")  # and XIDs
_SLOW_AGREES = ("sw-thermal", "pcie-width", "pcie-replays", "nvlink-errors")


def judge_nodes(bench: Bench, found: Found) -> None:
    """The faults of all nodes after this tick's looks."""
    blamed = blame.judge(bench.programs, bench.settings, bench.now)
    _tell_blame(bench, blamed)
    for name in sorted(bench.nodes):
        node = bench.nodes[name]
        if _is_quiet(bench, name, found):
            continue
        seen = bench.is_seen(name)
        node = _notice_blindness(bench, name, node, seen)
        by_gpu = {uuid: list(findings) for uuid, findings in found.get(name, {}).items()}
        judged: set[str] = set()
        if seen:
            for uuid, gpu in node.gpus.items():
                view = bench.view(name, uuid)
                assert view is not None
                found_now = checks.find(view, gpu, bench.settings, bench.now)
                told_at = last_report(node)
                by_gpu.setdefault(uuid, []).extend(
                    msgspec.structs.replace(one, at=told_at) for one in found_now
                )
                if uuid in blamed.gpus and "xid-repeats" not in bench.settings.disabled_checks:
                    by_gpu[uuid].append(blamed.gpus[uuid])
                if view.is_seen:
                    judged.add(uuid)
        whole = {uuid: tuple(findings) for uuid, findings in by_gpu.items()}

        def agree(uuid: str, finding: Finding, name: str = name) -> faults.Agreement:
            return _agreement(bench, name, uuid, finding)

        known = tuple(fault for fault in node.faults if not fault.uuid or fault.uuid in node.gpus)
        settled = faults.settle(known, whole, frozenset(judged), agree, bench.now)
        settled = tuple(_excused(bench, name, fault) for fault in settled)
        _tell_changes(bench, name, node.faults, settled)
        bench.nodes[name] = msgspec.structs.replace(node, faults=settled)


def _is_quiet(bench: Bench, name: str, found: Found) -> bool:
    """Whether there is nothing to judge on a node: no report, no fault, seen as before. So it is mostly."""
    node = bench.nodes[name]
    as_before = node.blind_since is None and bench.is_seen(name)
    reported = name in bench.reported or name in found
    suspect = {xid.uuid for xid in bench.programs} & node.gpus.keys()
    return as_before and not (node.faults or reported or suspect)


def judge_fleet(bench: Bench) -> tuple[tuple[Storm, ...], float | None, float, str]:
    """The storms, since when the breaker has stopped additions (None: it has not), and why.

    The breaker trips where half of the fleet or more looks bad at once: then it is the telemetry, or
    something that a person must see first. It closes when that has been over for a while.
    """
    now, total = bench.now, len(bench.nodes)
    found = storms(bench.memory.storms, bench.nodes, bench.settings, now)
    tripped, last, why = bench.memory.tripped, bench.memory.trip_seen, bench.memory.trip_why
    for storm in found:
        bad = len(storm.nodes)
        half = 2 * bad >= total
        sentence = f"{bad} of {total} nodes look bad at once: "
        sentence += "probably the telemetry" if half else "one event of the fleet, no node is touched"
        sentence += f" ({storm.cause})"
        level = "all" if bad == total else "half" if half else "some"
        bench.tell_once(f"storm {storm.cause}: {level}", "gpu-fault-storm", FLEET, sentence)
        if half:
            tripped, last, why = (now if tripped is None else tripped), now, sentence
    if tripped is not None:
        sentence = f"no node is taken any more: {why}; releases go on"
        bench.tell_once("breaker", "quarantine-breaker-tripped", FLEET, sentence)
        if now - last >= bench.settings.breaker_rest:
            _close_breaker(bench, tripped)
            tripped, why = None, ""
    for storm in bench.memory.storms:
        if storm.cause not in {one.cause for one in found}:
            lasted = now - storm.since
            sentence = f"no storm of {storm.cause} any more after {lasted:.0f} s"
            bench.event("gpu-fault-storm-over", FLEET, sentence, Severity.INFO)
    return found, tripped, last, why


def _close_breaker(bench: Bench, tripped: float) -> None:
    """What happened before it closes counts only where it can still be seen."""
    bench.told.discard("breaker")
    bench.event("quarantine-breaker-closed", FLEET, "nodes may be taken again", Severity.INFO)
    for name, node in bench.nodes.items():
        kept = tuple(
            msgspec.structs.replace(
                fault, excused="it came while the breaker was open, and nothing agrees now"
            )
            if fault.finding.stays and fault.agreed_since is None and not fault.excused
            else fault
            for fault in node.faults
        )
        bench.nodes[name] = msgspec.structs.replace(node, faults=kept)


def _tell_blame(bench: Bench, blamed: blame.Blame) -> None:
    images = {one.owner: one.image for one in bench.observation.serving if one.owner and one.image}
    for owner, nodes in sorted(blamed.owners.items()):
        image = f" (image {images[owner]})" if owner in images else ""
        sentence = (
            f"{owner}{image} raised XIDs on {len(nodes)} nodes ({', '.join(nodes)}): it is the common factor"
        )
        bench.tell_once(f"blame {owner}", "workload-to-blame", owner, sentence)


def _notice_blindness(bench: Bench, name: str, node: NodeMemory, seen: bool) -> NodeMemory:
    if seen:
        if node.blind_told:
            lasted = bench.now - (node.blind_since or bench.now)
            bench.event(
                "gpus-seen-again",
                name,
                f"the GPUs of node {name} are seen again after {lasted:.0f} s",
                Severity.INFO,
            )
        return msgspec.structs.replace(node, blind_since=None, blind_told=False)
    goods = [sight.good_at for sight in node.sights.values() if sight.good_at is not None]
    since = node.blind_since or max(goods, default=node.since)
    if node.blind_told or bench.now - since < bench.settings.stale_after:
        return msgspec.structs.replace(node, blind_since=since)
    ago = bench.now - since
    bench.event(
        "gpus-not-seen", name, f"nobody has seen the GPUs of node {name} for {ago:.0f} s ({why_blind(node)})"
    )
    return msgspec.structs.replace(node, blind_since=since, blind_told=True)


def _agreement(bench: Bench, name: str, uuid: str, finding: Finding) -> faults.Agreement:
    """Whether something else speaks against this GPU too: the replicas on it, or that it is gone."""
    view = bench.view(name, uuid)
    on_it = bench.on(name, uuid)
    if finding.check in _SLOW_AGREES:
        return _any(
            (one.slow, f"{one.replica} on it is slower than its peers at equal load") for one in on_it
        )
    if not (finding.stays or finding.check in _FAILING_AGREES):
        return False, ""
    gone = view is not None and not view.is_seen and bench.is_seen(name)
    if finding.check != "gpu-missing" and gone:
        return True, "the GPU is gone"
    if finding.check == "gpu-missing":
        faults_of_it = [fault.finding for fault in bench.nodes[name].faults if fault.uuid == uuid]
        xids = [one for one in faults_of_it if one.stays and one.remedy.takes_node]
        if xids:
            return True, xids[0].sentence
    return _any((one.failing, f"{one.replica} on it fails") for one in on_it)


def _any(evidence: Iterable[tuple[bool | None, str]]) -> faults.Agreement:
    """The first that holds; where none does, not known as long as one is not known."""
    unknown = False
    for holds, what in evidence:
        if holds:
            return True, what
        unknown = unknown or holds is None
    return (None if unknown else False), ""


def _excused(bench: Bench, name: str, fault: Fault) -> Fault:
    """With the reason why a fault is no ground: the driver's word on an XID, or a person's."""
    word = bench.word(name, "release")
    if word is not None and fault.since <= word.since:
        return msgspec.structs.replace(fault, excused=f"{word.by} says that it is well: {word.reason}")
    if not fault.finding.stays or fault.excused:
        return fault
    view = bench.view(name, fault.uuid)
    if view is None or view.numbers.get("recovery_action") != checks.NO_ACTION:
        return fault
    if view.times["recovery_action"] <= max(fault.since, fault.seen):
        return fault  # it may be from before the event
    return msgspec.structs.replace(fault, excused="the driver asks for nothing")


def _tell_changes(bench: Bench, name: str, before: tuple[Fault, ...], after: tuple[Fault, ...]) -> None:
    """Decisions on what we think: faults that began and ended."""
    old = {(fault.uuid, fault.finding.check): fault for fault in before}
    for fault in after:
        finding = fault.finding
        was = old.pop((fault.uuid, finding.check), None)
        if not fault.is_certain:
            continue
        if was is None or not was.is_certain:
            hint = "" if finding.proves else " (a hint: something else must agree)"
            bench.decide(
                "assess",
                name,
                finding.check,
                f"{where(name, fault.uuid)}: {finding.sentence}{hint}; {finding.fault_class.value}",
                new=fault.id,
                evidence=bench.evidence(name, fault),
            )
        elif fault.excused and not was.excused:
            sentence = f"{where(name, fault.uuid)}: {finding.check} is no ground for acting: {fault.excused}"
            bench.decide("assess", name, f"{finding.check}-excused", sentence, old=fault.id)
        elif fault.agreed_since is not None and was.agreed_since is None:
            sentence = f"{where(name, fault.uuid)}: {fault.agrees} agrees with {finding.check}"
            bench.event("fault-agreed", name, sentence)
    for fault in old.values():
        if not fault.is_certain:
            continue
        lasted = bench.now - fault.since
        sentence = f"{where(name, fault.uuid)}: {fault.finding.check} is over after {lasted:.0f} s"
        bench.decide("assess", name, f"{fault.finding.check}-over", sentence, old=fault.id)
