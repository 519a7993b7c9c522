"""How many replicas each pool should have: a look each 15 seconds, and a change is a decision.

* What gateways tell is added up between two looks. How long a token takes is the page's word where all
  answers came whole: those show nothing before they end. Where no gateway is heard, the engines' own pages
  tell what they do and what waits in them, but nobody tells what was refused.
* A replica of which a gateway sees answers is ready, whatever its scrapes say. One that is quarantined is
  not.
* Pods and targets that were never ready load, since they were first seen. How long that takes is learned of
  those that were watched from then until they were ready.
* While a hold or an override keeps the pool as it is the law looks away. It goes on from there later.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from controlplane.policy import growth
from controlplane.policy.limiting import evidence_of
from controlplane.policy.memory import PoolMemory, ReplicaMemory, ScaleMemory
from controlplane.policy.scaling import gathered as gathering
from controlplane.policy.scaling import prudence, startup
from controlplane.policy.scaling.budget import Claim, share_out
from controlplane.policy.scaling.forecast import LOOK_SECONDS
from controlplane.policy.scaling.gathered import ReplicaSums
from controlplane.policy.scaling.seen import PoolSeen, ReplicaSeen, work_of
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.scaling.target_ratio import TargetRatio
from controlplane.policy.scaling.work import WorkState
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.signals.decision import Evidence, Orders
from controlplane.signals.pod import PodFacts
from controlplane.signals.reading import Known, Reason, Unknown, known
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.snapshot import Number, ReplicaState, Scale

_LONGEST_LOOK_SECONDS = 2 * LOOK_SECONDS  # after a longer one nobody knows when within it something began


class Round(NamedTuple):
    """What one tick brings of a pool: the gateways' new windows and its replicas; those that are quarantined
    and the pods, of all pools."""

    told: tuple[OutcomeWindow, ...]
    replicas: Sequence[ReplicaMemory]
    quarantined: Iterable[str]
    pods: Mapping[str, PodFacts]


class Change(NamedTuple):
    """What is remembered after a tick; `seen` is None where it was no time for a look. `reports` are what
    began or ended: kind and sentence."""

    scale: ScaleMemory
    seen: PoolSeen | None = None
    reports: tuple[tuple[str, str], ...] = ()


def look(
    pool: PoolMemory, name: str, round_: Round, *, policy: PoolPolicy, orders: Orders, now: float
) -> Change | None:
    """How many replicas the pool should have after this tick; None where it is not scaled."""
    settings, memory = policy.scale, pool.scale
    if settings is None:
        return None
    if memory is None:
        memory = ScaleMemory(end=now)
    memory = replace(memory, gathered=memory.gathered.plus(round_.told))
    if orders.keep(("pool", name)):
        return Change(replace(memory, end=now, gathered=memory.gathered.next(), watched_since=None))
    if now - memory.end < LOOK_SECONDS:
        return Change(memory)
    watched_since = memory.watched_since
    if watched_since is None or now - memory.end > _LONGEST_LOOK_SECONDS:
        watched_since = now
    took = _took(memory.loading, watched_since, round_, now)
    memory = replace(
        memory,
        gathered=memory.gathered.only(pool.heard),
        mix=memory.mix.with_look(memory.gathered, now - memory.end),
        loading=_loading(memory.loading, name, round_, now),
        start_ups=startup.observe(memory.start_ups, took, settings),
        watched_since=watched_since,
    )
    settings = startup.learned(memory.start_ups, settings)
    seen = _seen(memory, pool, round_, now)
    state, need, keep, why = _needed(settings, memory, seen, policy)
    ready = len(seen.replicas)
    wish = prudence.look(
        memory.wish,
        prudence.Look(
            at=now, ready=ready, loading_since=tuple(memory.loading.values()), need=need, keep=keep, why=why
        ),
        settings,
    )
    changed = memory.wish is None or wish.replicas != memory.wish.replicas
    after = replace(
        memory,
        state=state,
        wish=wish,
        need=need,
        ready=ready,
        since=now if changed else memory.since,
        end=now,
        gathered=memory.gathered.next(),
        backlog=sum(memory.gathered.queued.values()),
        cold_start=settings.cold_start,
    )
    return Change(after, seen, tuple(prudence.reports(memory.wish, wish, settings)))


def within(
    changes: Mapping[str, Change], before: Mapping[str, ScaleMemory | None], settings: PolicySettings
) -> dict[str, Change]:
    """The changes of all pools, with no more replicas than their common budget allows."""
    claims = {}
    for name, change in changes.items():
        policy, old, wish = settings.pool(name).scale, before[name], change.scale.wish
        if policy is not None and wish is not None:
            asked = wish.replicas if old is None or old.wish is None else old.wish.replicas
            claims[name] = Claim(asked, wish.replicas, policy.gpus_per_replica, policy.cost_per_replica_hour)
    after = dict(changes)
    for name, granted in share_out(claims, settings.budget).items():
        scale, wish = changes[name].scale, changes[name].scale.wish
        if wish is not None and granted < wish.replicas:
            detail = f"{wish.sentence}; the budget of all pools allows {granted}"
            wish = replace(wish, replicas=granted, reason="budget", sentence=detail)
            after[name] = changes[name]._replace(scale=replace(scale, wish=wish))
    return after


def shown(memory: ScaleMemory | None, law: str) -> Scale | None:
    """The scale of a pool as its snapshot has it; None before the first look."""
    if memory is None or memory.wish is None:
        return None
    wish = memory.wish
    return Scale(
        law=law,
        replicas=wish.replicas,
        ready=memory.ready,
        loading=len(memory.loading),
        need=memory.need,
        reason=wish.reason,
        detail=wish.sentence,
        since=memory.since,
        cold_start_seconds=memory.cold_start,
    )


def evidence(memory: ScaleMemory, seen: PoolSeen) -> tuple[Evidence, ...]:
    """The readings that the decision of this look rests on, each as old as the look is long."""
    age, rate = seen.seconds, None if seen.arrived is None else seen.arrived / seen.seconds
    state = memory.state
    capacity = None if state is None else state.per_replica

    def one(name: str, value: float | None) -> Evidence:
        return Evidence(name, value, age, Reason.NO_DATA if value is None else None)

    return (
        evidence_of("needed_replicas", memory.need, seen.end),
        one("arrived_work_per_second", rate),
        one("backlog_work", seen.backlog),
        one("replica_work_per_second", capacity),
        one("ready_replicas", float(memory.ready)),
        one("loading_replicas", float(len(memory.loading))),
        one("cold_start_seconds", memory.cold_start),
    )


def _needed(
    settings: ScaleSettings, memory: ScaleMemory, seen: PoolSeen, policy: PoolPolicy
) -> tuple[WorkState | None, Number, float, str]:
    """The state of the law, what it needs, what must be kept, and why."""
    law, end = settings.law, seen.end
    if isinstance(law, TargetRatio):
        values = [one.in_flight for one in seen.replicas]
        if seen.arrived is None or None in values:
            return None, Unknown(Reason.NO_DATA, end, "nobody tells what is in flight"), 0.0, ""
        each = memory.mix.work_each
        queued = seen.backlog / each if each else 0.0
        need = law.need([*(value for value in values if value is not None), queued])
        return None, Known(need + settings.spare, end), 0.0, f"{law.target:g} requests in flight for each"
    state = law.observe(memory.state or WorkState(), seen, settings.cold_start, _longest_step(policy))
    found = law.need(state, seen, settings.cold_start)
    if found.replicas is None:
        return state, Unknown(Reason.NO_DATA, end, found.why), 0.0, found.why
    spare = settings.spare if found.replicas > 0 else 0
    return state, Known(found.replicas + spare, end), found.keep + spare, found.why


def _longest_step(policy: PoolPolicy) -> float:
    """Seconds that a token takes at most where the limit of the pool binds."""
    margin = getattr(policy.limits, "tpot_margin", 1.0)
    return float(margin) * policy.slo.tpot


def _seen(memory: ScaleMemory, pool: PoolMemory, round_: Round, now: float) -> PoolSeen:
    seconds = now - memory.end
    ready = [replica for replica in round_.replicas if _is_ready(replica, memory, round_)]
    if not pool.heard:
        return _scraped(memory, ready, now)
    gathered, mix = memory.gathered, memory.mix
    queued = sum(gathered.queued.values())
    came = gathered.sent + gathered.shed + max(0, queued - memory.backlog)
    each = mix.work_each
    unknown = came > 0 and each is None and bool(ready)
    worth = each or 1.0  # with no replica none can have finished; that something comes is all that counts
    return PoolSeen(
        start=memory.end,
        end=now,
        arrived=None if unknown else came * worth,
        shed=gathered.shed > 0,
        backlog=queued * worth,
        replicas=tuple(_of_gateways(replica, memory, seconds) for replica in ready),
    )


def _of_gateways(replica: ReplicaMemory, memory: ScaleMemory, seconds: float) -> ReplicaSeen:
    """One replica by what gateways saw of it, and its page where they saw no token come."""
    name = replica.target.name
    sums = memory.gathered.replicas.get(name, ReplicaSums())
    seen = gathering.replica_seen(name, sums, memory.mix, seconds)
    return seen if sums.gaps else replace(seen, step_seconds=_step_of_page(replica, memory.end))


def _step_of_page(replica: ReplicaMemory, since: float) -> float | None:
    """Seconds that a token takes by the two newest pages; None where the newest is older than `since`.

    Of no longer ago: held against what is in flight now, the mean of a minute of swings is nonsense. An
    engine that tells no gaps tells the mean of each request.
    """
    previous, latest = replica.previous, replica.latest
    if previous is None or latest is None or replica.failure is not None or latest.at <= since:
        return None
    gaps, each = (growth.merged(previous, latest, name) for name in ("itl", "tpot"))
    if gaps is not None and gaps.mean is not None:
        return gaps.mean / growth.tokens_a_gap(previous, latest)
    return None if each is None else each.mean


def _scraped(memory: ScaleMemory, ready: Sequence[ReplicaMemory], now: float) -> PoolSeen:
    """The same from the engines' pages alone."""
    seconds = now - memory.end
    parts = [_of_page(replica, memory.end, seconds) for replica in ready]
    works = [part.work for part, _ in parts]
    complete = bool(parts) and None not in works and all(waiting is not None for _, waiting in parts)
    work = sum(work for work in works if work is not None)
    requests = sum(
        known(replica.view.load.requests_per_second) or 0.0 for replica in ready if replica.view is not None
    )
    each = work / seconds / requests if requests > 0 else 0.0
    backlog = each * sum(waiting or 0.0 for _, waiting in parts)
    return PoolSeen(
        start=memory.end,
        end=now,
        # What waits has come and is not done; what waited before is counted as done when it is.
        arrived=work + backlog * min(1.0, seconds / 60.0) if complete else None,
        backlog=backlog,
        replicas=tuple(part for part, _ in parts),
    )


def _of_page(replica: ReplicaMemory, since: float, seconds: float) -> tuple[ReplicaSeen, float | None]:
    """One replica by its page, and what waits in it."""
    name, view = replica.target.name, replica.view
    if view is None or view.state is not ReplicaState.UP:
        return ReplicaSeen(name=name), None
    load = view.load
    prompts, outputs = known(load.prompt_tokens_per_second), known(load.generation_tokens_per_second)
    one = ReplicaSeen(
        name=name,
        work=None if prompts is None or outputs is None else work_of(prompts, outputs) * seconds,
        in_flight=known(load.running),
        limit=None if replica.limit is None else float(replica.limit.slots),
        step_seconds=_step_of_page(replica, since),
    )
    return one, known(load.waiting)


def _is_ready(replica: ReplicaMemory, memory: ScaleMemory, round_: Round) -> bool:
    name, view = replica.target.name, replica.view
    if view is None or name in round_.quarantined:
        return False
    answers = name in memory.gathered.replicas and memory.gathered.replicas[name].finished > 0
    return answers or (view.was_ready and view.state is ReplicaState.UP)


def _took(loading: Mapping[str, float], watched_since: float, round_: Round, now: float) -> tuple[float, ...]:
    """How long those took to start that are ready now: of which the start was seen, and none missed since."""
    ready = (_key(r) for r in round_.replicas if r.view is not None and r.view.was_ready)
    return tuple(now - loading[key] for key in ready if loading.get(key, watched_since) > watched_since)


def _loading(before: Mapping[str, float], pool: str, round_: Round, now: float) -> dict[str, float]:
    """Since when each replica loads that has never been ready, by pod, else by target."""
    by_pod = {replica.target.pod for replica in round_.replicas if replica.target.pod}
    names = [_key(r) for r in round_.replicas if r.view is None or not r.view.was_ready]
    names += [
        key
        for key, pod in round_.pods.items()
        if pod.pool == pool
        and key not in by_pod
        and pod.loading
        and not pod.is_over
        and pod.terminating_since is None
    ]
    return {name: before.get(name, now) for name in names}


def _key(replica: ReplicaMemory) -> str:
    """Its pod, which is there before it has an address."""
    return replica.target.pod or replica.target.name
