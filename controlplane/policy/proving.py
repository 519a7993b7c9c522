"""Whether an engine has shown by a token that it works, and whether it should be tried.

    new        it came, or was restarted, while we watched, and has made no token yet: an open port, a health
               page or a model list come earlier than that
    suspected  it shows work, or gateways have requests open at it while its page shows none, and nothing
               has moved for half the time after which that is called a stall. The page of an engine that the
               first request after a pause has wedged shows none: gauges are of the last step that ended
    on trial   it is new, suspected, or out as wedged or for its errors: it is asked for one token

A token that a gateway saw, or that its own counters tell of, is as good as that one. Where nobody can ask,
because trials are off or what was asked for is not there or not allowed, there is no doubt and the page
counts. Engines that were there before us are taken to have been in service.
"""

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.policy import stall, view
from controlplane.policy.memory import Proof, ReplicaMemory
from controlplane.policy.readiness import Fault, Standing
from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.snapshot import FleetSnapshot

NEW, OUT, SUSPECTED = "new", "out", "suspected"
"""Why an engine is on trial."""

_NO_VERDICT_SECONDS = 300.0  # until one that could not be asked is tried again
_PASSED_SECONDS = 30.0  # so long a token speaks for an engine whose page stands still
_FAILED = (ProbeResult.TIMEOUT, ProbeResult.ERROR)


class Sight(NamedTuple):
    """What is known beside the replica's own memory.

    `standing` is that of the tick before. It `answers` where a page was read or a health probe went well;
    `was_refused`: the health probe before these found its port closed. `is_loading` is what its pod says;
    `is_flowing`: tokens of it were seen just now. Gateways have waited for one since `waits_since`.
    """

    standing: Standing
    suspect_after: float
    waits_since: float | None = None
    probes: Sequence[Probe] = ()
    is_triable: bool = True
    was_refused: bool = False
    is_loading: bool = False
    is_flowing: bool = False
    answers: bool = True


def look(before: Proof | None, replica: ReplicaMemory, sight: Sight, now: float) -> Proof:
    """What is held of it after a tick."""
    trials = [probe for probe in sight.probes if probe.kind is ProbeKind.TRIAL]
    trial = trials[-1] if trials else None if before is None else before.trial
    if not sight.is_triable or _cannot_be_asked(trial, now):
        return Proof(trial=trial, restarts=replica.restarts)
    passed = any(one.result is ProbeResult.OK for one in trials)
    works = passed or sight.is_flowing or _has_made_tokens(replica)
    was_new = _has_begun(before, replica, sight) or (before is not None and before.is_new)
    is_new = was_new and not works
    owes = _owes(trial, sight)
    doubt = ""
    if sight.answers and not sight.is_loading and not _is_asleep(replica):
        if is_new or owes:
            doubt = NEW if is_new else OUT
        elif (
            not sight.is_flowing and still_since(replica, sight.waits_since, sight.suspect_after) is not None
        ):
            doubt = SUSPECTED
    return Proof(is_new, owes, doubt, trial, replica.restarts)


def doubted(snapshot: FleetSnapshot) -> dict[str, str]:
    """The replicas that should be tried, and with which model; empty where they name none."""
    return {
        name: next(iter(seen.models), "") for name, seen in snapshot.replicas.items() if seen.probed.doubt
    }


def has_failed(proof: Proof, replica: ReplicaMemory, waits_since: float | None, suspect_after: float) -> bool:
    """Whether it is suspected, and did not make the one token that it was asked for while it stood still."""
    trial = proof.trial
    if trial is None or trial.result not in _FAILED:
        return False
    since = still_since(replica, waits_since, suspect_after)
    return since is not None and trial.begun_at >= since


def has_passed(proof: Proof, replica: ReplicaMemory, now: float) -> bool:
    """Whether the one token that it was asked for speaks against its page, which shows no progress.

    Of several engines one answers for all: that proves nothing.
    """
    trial = proof.trial
    if trial is None or trial.result is not ProbeResult.OK or len(replica.progress) != 1:
        return False
    since = still_since(replica, None, 0.0)
    return since is not None and trial.begun_at >= since and now - trial.at <= _PASSED_SECONDS


def still_since(replica: ReplicaMemory, waits_since: float | None, suspect_after: float) -> float | None:
    """Since when nothing has moved though there is work, as of the last page; None where that is not so long
    or no page was read."""
    latest = replica.latest
    if latest is None or replica.failure is not None:
        return None
    since = min(
        (one.at for name, one in replica.progress.items() if name in latest.engines), default=latest.at
    )
    if waits_since is not None and not any(stall.busy(engine) for engine in latest.engines.values()):
        since = min(since, waits_since)
    return since if latest.at - since >= suspect_after else None


def _cannot_be_asked(trial: Probe | None, now: float) -> bool:
    if trial is None or trial.result is not ProbeResult.NO_VERDICT:
        return False
    return now - trial.at <= _NO_VERDICT_SECONDS


def _has_begun(before: Proof | None, replica: ReplicaMemory, sight: Sight) -> bool:
    """Whether a new process began, or the replica came, while we watched.

    Who was out with a closed port may answer for its health before its page tells that it is another process.
    """
    if before is not None and replica.restarts > before.restarts:
        return True
    if sight.was_refused and sight.standing.fault is Fault.UNREACHABLE:
        return sight.standing.out_since is not None
    is_down = replica.latest is None and (replica.failure is not None or sight.is_loading)
    return is_down or (before is None and not replica.was_there)


def _has_made_tokens(replica: ReplicaMemory) -> bool:
    """Whether its page tells of a token since its process began."""
    latest = replica.latest
    if latest is None or replica.failure is not None:
        return False
    return any(unit.numbers.get("generation_tokens_total", 0.0) > 0 for unit in latest.units.values())


def _owes(trial: Probe | None, sight: Sight) -> bool:
    """Whether one that is out as wedged or for its errors has not worked again since."""
    since, fault = sight.standing.out_since, sight.standing.fault
    if since is None or fault not in (Fault.WEDGED, Fault.ERRORS):
        return False
    if fault is Fault.WEDGED and sight.is_flowing:
        return False
    return trial is None or trial.result is not ProbeResult.OK or trial.begun_at < since


def _is_asleep(replica: ReplicaMemory) -> bool:
    return replica.latest is not None and view.asleep(replica.latest)
