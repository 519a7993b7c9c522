"""Which replicas get new requests: what is known of each, gathered for `readiness`, and what becomes of it.

    probe       its health page; where nobody gets that, a metrics page that was read says that the engine
                answers. A pod that loads no more and whose containers are not ready says that it does not. A
                metrics page that was not read says nothing.
    flowing     a gateway saw tokens of it in the last seconds, or its own counters move
    answered    it has made a token, see `proving`
    faults      its GPU is broken, it is wedged, its node is about to go, its answers are errors, it has far
                more work than its peers
    serves      its pod does not load and is ready, or a gateway sees tokens of it all the same; nobody else
                has taken it out of its Service

A pod that is being deleted is no question any more: it gets nothing new, whatever the rest of the pool does,
and counts as one that does not serve. While people keep a pool as it is, nothing is judged: one that loads is
in once it has made a token all the same, because that is a fact.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from controlplane.policy import proving, readiness
from controlplane.policy.memory import Proof, ReplicaMemory, RotationMemory
from controlplane.policy.readiness import Fault, Look, ReadinessSettings, Standing
from controlplane.signals.node import NodeFacts
from controlplane.signals.pod import PodFacts
from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.reading import Known, known
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.serving import GATE, LABEL, out_reason
from controlplane.signals.snapshot import Out

ENDING = "terminating"
"""The reason of a replica whose pod is being deleted."""

REPORTS = ("not-started", "readiness-blind", "readiness-capped")
"""What may be told of a pool while it lasts."""

_FLOWING_SECONDS = 3.0  # windows of gateways end each second and take some time to come
_HEALTH_SECONDS = 60.0  # so long after its last health probe no page stands in for one
_ERRORS_SECONDS = 30.0
_FEWEST_ERRORS, _ERROR_SHARE, _NOTHING = 5, 0.5, 1e-3
_FEWEST_PEERS = 2
_FEWEST_WAITING, _TIMES_PEERS, _TIMES_PEERS_AFTER = 10.0, 3.0, 1.5
_OVERLOADED_SECONDS = 30.0
_SETTLE_SECONDS = 15.0  # until nobody sends anything any more to a replica that is out
_ASK_SECONDS = 60.0  # an eviction that a disruption budget forbids is asked for again
_NO_PROOF = Proof()
_ENDED = (Fault.WEDGED, Fault.UNREACHABLE, Fault.LEAVING)
_WORDS = {
    Fault.GPU: "its GPU is held to be broken",
    Fault.WEDGED: "it has work and makes no token",
    Fault.UNREACHABLE: "it does not answer its probes",
    Fault.ERRORS: "too many of its answers are errors",
    Fault.OVERLOADED: "it has far more work than its peers",
    Fault.LEAVING: "its node or pod is about to go",
}


class Around(NamedTuple):
    """What is known beside the replicas of a pool: the gateways' new windows, broken GPUs, pods and nodes.

    `reaches` is whether any engine of the fleet answers us at all. People keep the replicas `kept` as they
    are. `probes` are the new ones by replica; the replicas `triable` can be asked for a token. A page speaks
    for now until it is `stale_after` seconds old; after `suspect_after` seconds of work without progress an
    engine is suspected.
    """

    told: Sequence[OutcomeWindow]
    quarantined: Mapping[str, float]
    pods: Mapping[str, PodFacts]
    nodes: Mapping[str, NodeFacts]
    reaches: bool
    kept: frozenset[str]
    probes: Mapping[str, Sequence[Probe]]
    triable: frozenset[str]
    stale_after: float
    suspect_after: float


class Change(NamedTuple):
    """A replica that goes in or out: why, as a code and as a sentence."""

    name: str
    is_out: bool
    reason: str
    sentence: str


def look(
    replicas: Sequence[ReplicaMemory],
    around: Around,
    settings: ReadinessSettings,
    now: float,
) -> tuple[dict[str, RotationMemory], tuple[Change, ...], tuple[tuple[str, str], ...]]:
    """The rotation of each replica of a pool after a tick, who goes in or out, and what is to be told."""
    loads = {r.target.name: load for r in replicas if (load := _load(r)) is not None}
    works = sorted(work for work, _ in loads.values())
    before = {r.target.name: r.rotation or _found(around.pods.get(r.target.pod), now) for r in replicas}
    after, looks, others = {}, {}, []
    for replica in replicas:
        name, pod = replica.target.name, around.pods.get(replica.target.pod)
        if pod is not None and (pod.terminating_since is not None or pod.is_over):
            others.append(False)
            continue
        rotation = _heard(_loaded(before[name], loads.get(name), works, now), name, around.told, now)
        flows = _flows(replica, rotation, around.stale_after, now)
        rotation = after[name] = _proven(rotation, replica, pod, flows, around=around, now=now)
        seen = _look(replica, pod, rotation, flows, around=around, now=now)
        if name in around.kept:
            is_in = rotation.out is None and (seen.answered or seen.flowing)
            others.append(is_in and seen.serves)
        else:
            looks[name] = seen
    standings = {name: after[name].standing for name in looks}
    judged = readiness.look(standings, looks, now, settings, others=others, backend_answers=around.reaches)
    rotations, changes = {}, []
    for replica in replicas:
        name, old = replica.target.name, before[replica.target.name]
        if name in looks:
            standing = judged.standings[name]
            page_at = old.page_at if replica.latest is None else replica.latest.at
            rotation = replace(after[name], standing=standing, page_at=page_at)
            rotations[name] = _placed(old, rotation, now, standing.out_since is not None)
        elif name in around.kept:  # what was seen of it is no judgement
            rotations[name] = replace(after.get(name, old), standing=old.standing)
        else:
            rotations[name] = _ended(old, now)
        if (rotations[name].out is None) != (old.out is None):
            changes.append(_change(name, old, rotations[name]))
    return rotations, tuple(changes), judged.reports


def end(replica: ReplicaMemory, pod: PodFacts | None, settings: ReadinessSettings, now: float) -> str:
    """Why the pod of a replica should be asked to end now, as a sentence; empty where it should not.

    One that was started anew and has not made a token yet is left its time to load.
    """
    rotation, name, limit = replica.rotation, replica.target.name, settings.end_after
    if limit is None or not replica.target.pod or rotation is None or rotation.out is None:
        return ""
    seconds, asked_at = now - rotation.out.since, rotation.asked_at
    is_due = asked_at is None or now - asked_at >= _ASK_SECONDS
    is_new = rotation.proof is not None and rotation.proof.is_new
    soonest = settings.startup_grace if is_new else min(_SETTLE_SECONDS, limit)
    if rotation.out.reason not in _ENDED or not is_due or seconds < soonest:
        return ""
    if pod is not None and pod.loading:
        return ""
    load = _load(replica)
    if load is not None and load[0] == 0:
        return f"{name} is drained: {rotation.out.detail}, and it is idle"
    return f"{name} has been out for {seconds:.0f} s: {rotation.out.detail}" if seconds >= limit else ""


def _found(pod: PodFacts | None, now: float) -> RotationMemory:
    """What is to be thought of a replica that nobody remembers: as its pod stands, if we took it out once."""
    reason = "" if pod is None else out_reason(pod.annotations)
    if pod is not None and not reason and GATE in pod.gates and pod.conditions.get(GATE) == "False":
        reason = "gate"
    if not reason:
        return RotationMemory(Standing(now))
    fault = Fault(reason) if reason in set(Fault) else Fault.ERRORS
    out = Out(now, str(fault), "it was out already when this daemon began")
    return RotationMemory(Standing(now, started=True, fault=fault, out_since=now), out=out)


def _look(
    replica: ReplicaMemory,
    pod: PodFacts | None,
    rotation: RotationMemory,
    flows: bool,
    *,
    around: Around,
    now: float,
) -> Look:
    name, latest = replica.target.name, replica.latest
    proof, waits_since = rotation.proof or _NO_PROOF, _waits_since(rotation, now)
    faults = set()
    if name in around.quarantined:
        faults.add(Fault.GPU)
    if (not flows and proving.has_failed(proof, replica, waits_since, around.suspect_after)) or (
        _is_wedged(replica, around.told, rotation.standing.fault)
        and not proving.has_passed(proof, replica, now)
    ):
        faults.add(Fault.WEDGED)
    if _is_leaving(pod, around.nodes):
        faults.add(Fault.LEAVING)
    errors = rotation.failed / max(rotation.finished + rotation.failed, 1.0)
    if rotation.failed >= _FEWEST_ERRORS and errors >= _ERROR_SHARE:
        faults.add(Fault.ERRORS)
    since = rotation.overloaded_since
    if since is not None and now - since >= _OVERLOADED_SECONDS:
        faults.add(Fault.OVERLOADED)
    return Look(
        probe=_probe(replica, pod, rotation, around.probes.get(name, ()), now),
        answered=latest is not None and not (pod is not None and pod.loading) and not proof.is_new,
        unproven=proof.is_new or proof.owes,
        flowing=flows,
        serves=_serves(pod, now - rotation.moved_at <= _FLOWING_SECONDS),
        faults=frozenset(faults),
        badness=errors,
    )


def _serves(pod: PodFacts | None, by_gateway: bool) -> bool:
    """Whether it gets requests unless it is we who keep it out. Where no pod is known, nothing tells.

    A gateway that gets tokens of it does not ask whether its pod is ready; its Service does, and its own page
    may tell of streams that came before. What we wrote, the label or the gate, says nothing; behind our gate
    no pod is ready. Where a node is lost, its pods are not ready though their containers still seem to be.
    """
    if pod is None:
        return True
    if pod.loading or (pod.labels.get(LABEL) == "false" and not out_reason(pod.annotations)):
        return False
    is_shut = GATE in pod.gates and pod.conditions.get(GATE) == "False"
    return by_gateway or (pod.containers_ready and (pod.ready or is_shut))


def _probe(
    replica: ReplicaMemory, pod: PodFacts | None, rotation: RotationMemory, new: Sequence[Probe], now: float
) -> ProbeResult | None:
    """What the last probe got, if one has ended since the last look; of several a good one counts."""
    if pod is not None and not pod.loading and not pod.containers_ready:
        return ProbeResult.ERROR
    results = [one.result for one in new if one.kind is ProbeKind.HEALTH]
    results = [one for one in results if one is not ProbeResult.NO_VERDICT]
    if results:
        return ProbeResult.OK if ProbeResult.OK in results else results[-1]
    health, latest = rotation.health, replica.latest
    is_asked = health is not None and health.result is not ProbeResult.NO_VERDICT
    if health is not None and is_asked and now - health.at <= _HEALTH_SECONDS:
        return None
    is_read = latest is not None and replica.failure is None and latest.at > rotation.page_at
    return ProbeResult.OK if is_read else None


def _proven(
    before: RotationMemory,
    replica: ReplicaMemory,
    pod: PodFacts | None,
    flows: bool,
    *,
    around: Around,
    now: float,
) -> RotationMemory:
    """With its new probes, and what they prove. One that is restarted in service begins anew."""
    name, standing = replica.target.name, before.standing
    new = around.probes.get(name, ())
    if not new and _is_settled(before, replica, flows, name in around.triable):
        return before
    health = next((one for one in reversed(new) if one.kind is ProbeKind.HEALTH), before.health)
    is_well = health is not None and health.result is ProbeResult.OK
    sight = proving.Sight(
        standing=standing,
        suspect_after=around.suspect_after,
        waits_since=_waits_since(before, now),
        probes=new,
        is_triable=name in around.triable,
        was_refused=before.health is not None and before.health.result is ProbeResult.REFUSED,
        is_loading=pod is not None and pod.loading,
        is_flowing=flows,
        answers=is_well or (replica.latest is not None and replica.failure is None),
    )
    proof = proving.look(before.proof, replica, sight, now)
    if proof.is_new and standing.started and standing.out_since is None:
        standing = Standing(now)
    if (health, proof, standing) == (before.health, before.proof, before.standing):
        return before
    return replace(before, health=health, proof=proof, standing=standing)


def _is_settled(rotation: RotationMemory, replica: ReplicaMemory, flows: bool, is_triable: bool) -> bool:
    """Whether nothing is to be asked of it: most of a fleet, most of the time."""
    proof = rotation.proof
    if proof is None:
        return not is_triable
    is_doubted = proof.is_new or proof.owes or proof.doubt
    is_known = proof.restarts == replica.restarts and rotation.standing.out_since is None
    return flows and is_known and not is_doubted


def _flows(replica: ReplicaMemory, rotation: RotationMemory, stale_after: float, now: float) -> bool:
    """Whether a gateway saw tokens of it just now, or its own page shows that it makes some."""
    if now - rotation.moved_at <= _FLOWING_SECONDS:
        return True
    latest = replica.latest
    if replica.view is None or latest is None:
        return False
    # Of the last page that came the next one is not due before the interval is over.
    lasts = stale_after if replica.failure is None else _FLOWING_SECONDS
    rate = known(replica.view.load.generation_tokens_per_second) or 0.0
    return rate > 0 and now - latest.at <= lasts


def _is_wedged(replica: ReplicaMemory, told: Sequence[OutcomeWindow], fault: Fault | None) -> bool:
    """Whether it has work and makes no token. The gateways know of each replica whether it has requests open;
    one that was taken out for it has none any more, so that nobody can tell it from frozen gauges."""
    kinds = {watch.active.kind for watch in replica.watches.values() if watch.active is not None}
    if "wedged" in kinds or (fault is Fault.WEDGED and kinds & {"stalled", "frozen-gauges"}):
        return True
    newest = {window.gateway: window.replicas.get(replica.target.name) for window in told}
    return "stalled" in kinds and any(seen is not None and seen.in_flight > 0 for seen in newest.values())


def _is_leaving(pod: PodFacts | None, nodes: Mapping[str, NodeFacts]) -> bool:
    """Whether somebody gave notice that the pod or its node is about to go."""
    if pod is None:
        return False
    node = nodes.get(pod.node)
    return pod.conditions.get("DisruptionTarget") == "True" or (node is not None and node.leaving != "")


def _heard(before: RotationMemory, name: str, told: Sequence[OutcomeWindow], now: float) -> RotationMemory:
    """With what the gateways' new windows tell of it; what they told before counts less and less."""
    mine = [(window, seen) for window in told if (seen := window.replicas.get(name)) is not None]
    if not mine and before.finished == before.failed == 0.0:
        return before
    decay = math.exp(-max(0.0, now - before.heard_at) / _ERRORS_SECONDS)
    finished, failed, moved_at = before.finished * decay, before.failed * decay, before.moved_at
    for window, seen in mine:
        finished, failed = finished + seen.finished, failed + seen.failed
        moved_at = max(moved_at, window.end) if seen.gaps + seen.finished > 0 else moved_at
    if finished + failed < _NOTHING:
        finished = failed = 0.0
    waits_since, told_at = before.waits_since, before.told_at
    if mine:
        waits_since, told_at = _waiting(waits_since, mine), now
    return replace(
        before,
        heard_at=now,
        told_at=told_at,
        finished=finished,
        failed=failed,
        moved_at=moved_at,
        waits_since=waits_since,
    )


def _waiting(before: float | None, mine: Sequence[tuple[OutcomeWindow, ReplicaWindow]]) -> float | None:
    """Since when gateways have requests open at it and see no token, by their new windows."""
    if any(seen.gaps + seen.finished > 0 for _, seen in mine):
        return None
    starts = [window.start for window, seen in mine if seen.in_flight > 0]
    return min(starts) if before is None and starts else before if starts else None


def _waits_since(rotation: RotationMemory, now: float) -> float | None:
    """As the gateways told it last, where that is not long ago."""
    return rotation.waits_since if now - rotation.told_at <= _FLOWING_SECONDS else None


def _load(replica: ReplicaMemory) -> tuple[float, float] | None:
    """What it has to do, and what of it waits, in requests."""
    if replica.view is None:
        return None
    running, waiting = replica.view.load.running, replica.view.load.waiting
    if isinstance(running, Known) and isinstance(waiting, Known):
        return running.value + waiting.value, waiting.value
    return None


def _loaded(
    before: RotationMemory, load: tuple[float, float] | None, works: Sequence[float], now: float
) -> RotationMemory:
    """With the time since when it has far more work than its peers; once it has, it is let off later.

    `works` is the work of all that tell it, the least first. Where that is not known, it stays as it was.
    """
    if load is None or len(works) <= _FEWEST_PEERS:
        return before
    (work, waiting), since = load, before.overloaded_since
    if since is None and waiting < _FEWEST_WAITING:
        return before
    usual = _median_without(works, work)
    if since is not None:
        return before if work > _TIMES_PEERS_AFTER * usual else replace(before, overloaded_since=None)
    return replace(before, overloaded_since=now) if work > _TIMES_PEERS * usual else before


def _median_without(works: Sequence[float], work: float) -> float:
    """The median of all but one of them, which are in order."""
    mine, others = bisect_left(works, work), len(works) - 1
    lower, upper = (place + (place >= mine) for place in ((others - 1) // 2, others // 2))
    return (works[lower] + works[upper]) / 2.0


def _placed(old: RotationMemory, rotation: RotationMemory, now: float, is_out: bool) -> RotationMemory:
    if not is_out:
        return replace(rotation, out=None, asked_at=None)
    fault = rotation.standing.fault
    if fault is None:  # it works again, and is held
        return replace(rotation, out=old.out or Out(now, "hold-down", "it was taken out a short while ago"))
    since = now if old.out is None else old.out.since
    return replace(rotation, out=Out(since, str(fault), _WORDS[fault]))


def _ended(old: RotationMemory, now: float) -> RotationMemory:
    if old.out is not None and old.out.reason == ENDING:
        return old
    return replace(
        old, out=Out(now if old.out is None else old.out.since, ENDING, "its pod is being deleted")
    )


def _change(name: str, old: RotationMemory, new: RotationMemory) -> Change:
    if new.out is not None:
        return Change(name, True, new.out.reason, f"{name} gets no new requests: {new.out.detail}")
    assert old.out is not None
    if new.standing.fault is None:
        return Change(name, False, "well", f"{name} gets requests again: {old.out.reason} is over")
    why = f"{name} gets requests in spite of {new.standing.fault}: too few others of its pool serve"
    return Change(name, False, "capped", why)
