"""Which replicas of a pool get new requests: judged one by one, then bounded for the pool as a whole.

One replica. It starts as loading and is ready once it has answered for real (a completion of one token: an
open port, a health page or a model list come earlier than that). Then

    fails    `failure_threshold` probes in a row got no good answer, and no tokens flow through it
             or it is wedged, its GPU is broken, its errors are too many, it is overloaded against its peers
    works    `success_threshold` good probes in a row, and none of the other reasons, after `hold_down`;
             a token where it must prove that it works again

A slow probe is outvoted by tokens that flow: busy is not dead. A failed scrape is no probe at all.

The pool. At most `max_unready_ratio` of it is made unready: of those that fail, the worst are taken out and
the others stay in service, with a report.

    broken GPU  always goes out, and counts: how many may be is bounded by the budget of nodes (`quarantine`)

    result      those that do not serve count as out, for whatever reason: one that loads, is being deleted,
                was taken out by a person, does not answer. Where they are so many already, none that serves
                is taken out as well; who was out before need not come back for that.
    last one    while any replica serves, one that serves is in. It may be at fault, or about to go: nobody
                else serves. Where the others stop serving later, the best of those that are out comes back.
    blind       where nothing answers at all, no target and no metrics backend, the fault is here, and nothing
                is changed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from controlplane.signals.probe import ProbeResult
from controlplane.signals.units import Duration, Share


class Fault(StrEnum):
    """Why a replica should get nothing new, the worst first."""

    GPU = "gpu"  # its hardware is broken
    WEDGED = "wedged"  # it has work and makes no token
    UNREACHABLE = "unreachable"  # it does not answer its probes
    LEAVING = "leaving"  # its node or pod is about to go, it is told
    ERRORS = "errors"  # too many of its answers are errors
    OVERLOADED = "overloaded"  # far more loaded than its peers


_SEVERITY = tuple(Fault)
_SILENT = frozenset({Fault.WEDGED, Fault.UNREACHABLE})  # no answer comes of these, in or out


class ReadinessSettings(BaseModel):
    """When a replica is taken out of service, and how much of a pool may be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    failure_threshold: int = Field(3, ge=1, strict=True, description="bad probes in a row")
    success_threshold: int = Field(1, ge=1, strict=True, description="good probes in a row")
    hold_down: Duration = Field(
        0.0, ge=0, description="a replica taken out for its own faults stays out so long"
    )
    max_unready_ratio: Share = Field(0.4, description="most of a pool that is made unready")
    end_after: Duration | None = Field(
        None,
        gt=0,
        description="a pod that is out (wedged, unreachable, leaving) is evicted once it is idle, at latest "
        "after so long; default: never",
    )
    startup_grace: Duration = Field(
        1800.0, gt=0, description="a replica may load for so long before it is told of"
    )


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one replica since the last look.

    `probe` is None where none has ended, never one without a verdict. `answered` tells that it completed a
    request of one token, or any other; one that is out and `unproven` has not since then. `flowing`: streams
    through it got tokens in the last 2 s. It `serves` unless something that is not ours to change keeps
    requests from it. `faults` are what other policies hold against it now, and `badness` orders replicas of
    equal fault (higher is worse).
    """

    probe: ProbeResult | None = None
    answered: bool = False
    unproven: bool = False
    flowing: bool = False
    serves: bool = True
    faults: frozenset[Fault] = frozenset()
    badness: float = 0.0


class Standing(msgspec.Struct, frozen=True):
    """One replica between two looks. `started` once it has answered for real; `out_since` is None while it
    is in service; `bad` and `good` count probes in a row."""

    since: float
    started: bool = False
    ready: bool = False
    fault: Fault | None = None
    bad: int = 0
    good: int = 0
    out_since: float | None = None


class Pool(msgspec.Struct, frozen=True):
    """The replicas of a pool by name, and what is to be told of while it lasts: kind and sentence each."""

    standings: Mapping[str, Standing]
    reports: tuple[tuple[str, str], ...] = ()


def look(
    before: Mapping[str, Standing],
    looks: Mapping[str, Look],
    at: float,
    settings: ReadinessSettings,
    *,
    others: Sequence[bool] = (),
    backend_answers: bool | None = None,
) -> Pool:
    """The pool after one more look at all of its replicas, at Unix time `at`.

    `others` are those of its replicas that are not for us to judge: whether each serves. `backend_answers` is
    whether the metrics backend answers, None where there is none to ask.
    """
    judged = {name: _judge(before.get(name) or Standing(at), seen, settings) for name, seen in looks.items()}
    grace = settings.startup_grace
    reports = [
        ("not-started", f"{name}: not started after {grace:g} s")
        for name, one in judged.items()
        if not one.started and at - one.since >= grace
    ]
    started = [name for name, one in judged.items() if one.started]
    failing = [name for name in started if judged[name].fault is not None]
    serving = [name for name in started if looks[name].serves]
    working = [name for name in serving if judged[name].fault not in _SILENT]
    was_out = {name for name in judged if name in before and before[name].out_since is not None}

    def worst_first(name: str) -> tuple[int, bool, float, int, str]:
        """Those that are out already before others as bad, so that one that fails later brings none back."""
        one = judged[name]
        rank = len(_SEVERITY) if one.fault is None else _SEVERITY.index(one.fault)
        return rank, name not in was_out, -looks[name].badness, -one.bad, name

    last = [] if any(others) else working or serving or started

    def sparing(names: Collection[str]) -> set[str]:
        """These; without the best of them where no other is left that serves."""
        spared = max(last, key=worst_first) if last and set(last).issubset(names) else None
        return {name for name in names if name != spared}

    is_blind = failing != [] and _is_blind(judged, looks, failing, backend_answers)
    if is_blind:  # what failed before stays as it was; nothing new is believed
        out = sparing(was_out)
    else:
        held = [name for name in started if _is_held(judged[name], at, settings)]
        worst = sorted(sparing([*failing, *held]), key=worst_first)
        away, ratio = judged.keys() - working, settings.max_unready_ratio
        room = _most_out(len(judged) + len(others), ratio) - others.count(False)
        broken = {name for name in worst if judged[name].fault is Fault.GPU}
        room = max(room, len(away | broken | was_out.intersection(worst)))
        out = _taken(worst, away, broken, own=_most_out(len(started), ratio), room=room)
    if is_blind:
        why = "no target and no metrics backend answers: the fault is probably here"
        reports.append(("readiness-blind", why))
    elif kept := {name: judged[name].fault for name in failing if name not in out}:
        kinds = {judged[name].fault for name in failing}
        what = "fail their probe" if kinds == {Fault.UNREACHABLE} else "are at fault"
        why = f"{len(failing)} of {len(started)} replicas {what}; {len(kept)} kept in service"
        left = [name for name in last if name not in out]
        reports.append(("readiness-capped", why + _why_last(kept, left)))
    standings = {name: _placed(one, name in out, at) for name, one in judged.items()}
    return Pool(standings, tuple(reports))


def _judge(standing: Standing, seen: Look, settings: ReadinessSettings) -> Standing:
    """Its counts of probes, whether it has started, and what is its fault now."""
    bad, good = standing.bad, standing.good
    if seen.probe is not None:
        ok = seen.probe is ProbeResult.OK
        bad, good = (0, good + 1) if ok else (bad + 1, 0)
    if not standing.started:
        started = seen.answered or seen.flowing
        return msgspec.structs.replace(standing, started=started, bad=0 if started else bad, good=good)
    faults = set(seen.faults)
    if seen.unproven and standing.out_since is not None and standing.fault is not None:
        faults.add(standing.fault)
    was_unreachable = standing.fault is Fault.UNREACHABLE
    if seen.flowing:
        bad = 0 if was_unreachable else bad
    elif bad >= settings.failure_threshold or (was_unreachable and good < settings.success_threshold):
        faults.add(Fault.UNREACHABLE)
    fault = next((one for one in _SEVERITY if one in faults), None)
    return msgspec.structs.replace(standing, bad=bad, good=good, fault=fault)


def _is_held(standing: Standing, at: float, settings: ReadinessSettings) -> bool:
    """Whether it works again, but was taken out too recently to be let in."""
    since = standing.out_since
    return since is not None and standing.fault is None and at - since < settings.hold_down


def _placed(standing: Standing, is_out: bool, at: float) -> Standing:
    """In service or not."""
    if is_out:
        since = at if standing.out_since is None else standing.out_since
        return msgspec.structs.replace(standing, ready=False, out_since=since)
    return msgspec.structs.replace(standing, ready=standing.started, out_since=None)


def _taken(
    worst: Sequence[str], away: Collection[str], broken: Collection[str], *, own: int, room: int
) -> set[str]:
    """Which of them are taken out: the `broken`; with these `own` at most, and within the `room` that those
    `away` anyhow leave."""
    out, count = set[str](), len(away)
    for name in worst:
        more = name not in away
        if name in broken or (len(out) < own and count + more <= room):
            out.add(name)
            count += more
    return out


def _why_last(kept: Mapping[str, Fault | None], left: Sequence[str]) -> str:
    """What is to be said of one that is kept in service because no other is `left` that serves."""
    if len(left) != 1 or left[0] not in kept:
        return ""
    until = " and stays until it is gone" if kept[left[0]] is Fault.LEAVING else ""
    return f": {left[0]} is the last that serves{until}"


def _most_out(size: int, ratio: float) -> int:
    """How many of so many replicas may be out: rounded down, but one of two all the same."""
    if size < 2 or ratio == 0:
        return 0
    return min(size - 1, max(1, math.floor(ratio * size + 1e-9)))


def _is_blind(
    judged: Mapping[str, Standing],
    looks: Mapping[str, Look],
    failing: list[str],
    backend_answers: bool | None,
) -> bool:
    """Whether all that fails is that nothing can be reached."""
    if backend_answers is not False:
        return False
    started = [name for name, one in judged.items() if one.started]
    return len(failing) == len(started) and all(
        judged[name].fault is Fault.UNREACHABLE and not looks[name].flowing for name in failing
    )
