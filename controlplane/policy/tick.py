"""One tick: samples and memory in; snapshot, decisions and new memory out. Pure.

The order inside is always the same: learn which targets there are, take in every page and failure, put
each replica into words, look at its conditions, put the pools together, look at theirs. What was decided
here is seen in the next snapshot, never within the same tick.

The daemon, the simulator and replay call this one function.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy import absorb, pools, stall, view
from controlplane.policy.conditions import Watch, look
from controlplane.policy.growth import Mark
from controlplane.policy.memory import Memory, PoolMemory, ReplicaMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Decision, Event, Evidence, Mode, Severity
from controlplane.signals.reading import Known, Reason, known
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Target
from controlplane.signals.snapshot import (
    FleetSnapshot,
    Number,
    PoolSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    Totals,
    Trend,
)

# Kinds that are judgements rather than facts: they are told as decisions, with their evidence.
_JUDGEMENTS = {"wedged", "frozen-gauges", "stalled", "preempting", "saturated", "objective-missed"}
_KV_FULL = 0.95


def tick(
    samples: Samples, memory: Memory, settings: PolicySettings, now: float
) -> tuple[FleetSnapshot, tuple[Decision, ...], Memory]:
    """Decide once at Unix time `now` (seconds) on all samples that came since the last call.

    `now` may not go back; where the clock does, time stands still until it has caught up.
    """
    work = _Work(memory, settings, max(now, memory.now))
    if samples.targets is not None:
        work.set_targets(samples.targets)
    work.take_outcomes(samples.outcomes)
    for sample in samples.scrapes:
        work.take(sample)
    work.look_at_replicas()
    views = work.look_at_pools()
    orders = memory.orders if samples.orders is None else samples.orders
    snapshot = FleetSnapshot(
        at=work.now,
        tick=work.number,
        pools=views,
        replicas={name: r.view for name, r in work.replicas.items() if r.view is not None},
        orders=orders,
        events=tuple(work.events),
    )
    after = Memory(work.number, work.now, orders, work.replicas, work.pools)
    return snapshot, tuple(work.decisions), after


class _Work:
    """The bench of one call: copies of what is remembered, and what has come out so far."""

    def __init__(self, memory: Memory, settings: PolicySettings, now: float) -> None:
        self.settings = settings
        self.now = now
        self.number = memory.tick + 1
        self.replicas = dict(memory.replicas)
        self.pools = dict(memory.pools)
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.touched: set[str] = set()  # replicas whose view must be made anew

    # -- taking in ---------------------------------------------------------------------------------

    def set_targets(self, targets: Iterable[Target]) -> None:
        wanted = {target.name: target for target in targets}
        for name in [name for name in self.replicas if name not in wanted]:
            self._forget(name)
        for name, target in wanted.items():
            old = self.replicas.get(name)
            if old is not None and old.target == target:
                continue
            if old is not None:
                self._forget(name)
            self.replicas[name] = ReplicaMemory(target)
            self.touched.add(name)
            self._event("replica-joined", name, Severity.INFO, f"{name} joined pool {target.pool}")
        for pool in {target.pool for target in wanted.values()}:
            self.pools.setdefault(pool, PoolMemory())

    def _forget(self, name: str) -> None:
        old = self.replicas.pop(name)
        self._gain(old.target.pool, absorb.close(old, self.settings))
        self._event("replica-left", name, Severity.INFO, f"{name} left pool {old.target.pool}")

    def take_outcomes(self, outcomes: Iterable[OutcomeWindow]) -> None:
        oldest = self.now - self.settings.window
        for window in outcomes:
            pool = self.pools.get(window.pool, PoolMemory())
            seen = {(w.gateway, w.start) for w in pool.outcomes}
            if (window.gateway, window.start) not in seen:
                self.pools[window.pool] = msgspec.structs.replace(pool, outcomes=(*pool.outcomes, window))
        for name, pool in self.pools.items():
            if pool.outcomes and pool.outcomes[0].end < oldest:
                kept = tuple(w for w in pool.outcomes if w.end >= oldest)
                self.pools[name] = msgspec.structs.replace(pool, outcomes=kept)

    def take(self, sample: Scrape | ScrapeFailure) -> None:
        replica = self.replicas.get(sample.target)
        if replica is None:  # left the fleet while its page was under way
            return
        self.touched.add(sample.target)
        if isinstance(sample, Scrape):
            absorbed = absorb.absorb(replica, sample, self.settings)
            replica = self._watch(absorbed.memory, "scrape-failing", None)
            replica = self._watch(replica, "not-an-engine", None)
            self.events.extend(absorbed.events)
            self._gain(replica.target.pool, absorbed.gain)
        else:
            replica = msgspec.structs.replace(replica, failure=sample)
            wrong_page = sample.reason is Reason.NOT_AN_ENGINE
            kind = "not-an-engine" if wrong_page else "scrape-failing"
            replica = self._watch(replica, kind, sample.detail)
        self.replicas[sample.target] = replica

    def _gain(self, pool: str, gain: Totals | None) -> None:
        if gain is not None:
            old = self.pools.get(pool, PoolMemory())
            self.pools[pool] = msgspec.structs.replace(old, totals=absorb.add(old.totals, gain))

    # -- looking -----------------------------------------------------------------------------------

    def look_at_replicas(self) -> None:
        for name, replica in self.replicas.items():
            seen = replica.view
            fresh = name in self.touched
            spoke = seen is not None and seen.state in (ReplicaState.UP, ReplicaState.ASLEEP)
            went_stale = spoke and self._stale(replica)
            if not fresh and not went_stale:
                continue
            if fresh and replica.failure is None and replica.latest is not None:
                self.replicas[name] = self._look_at_page(replica, replica.latest)
            else:
                new = view.replica(replica, self.settings, self.now)
                self.replicas[name] = msgspec.structs.replace(replica, view=new)

    def _stale(self, replica: ReplicaMemory) -> bool:
        return view.stale(replica, self.settings, self.now)

    def _look_at_page(self, replica: ReplicaMemory, latest: Mark) -> ReplicaMemory:
        """Judge a replica on the page that has just arrived."""
        name, sleeping = replica.target.name, view.asleep(latest)
        idle = "every engine sleeps: up, but without capacity" if sleeping else None
        replica = self._watch(replica, "asleep", idle)
        kind, sentence = self._stall(replica, latest) if not sleeping else ("", "")
        for one in ("wedged", "frozen-gauges", "stalled"):
            replica = self._watch(replica, one, sentence if kind == one else None)
        replica = msgspec.structs.replace(replica, window=view.over_window(replica))
        seen = view.replica(replica, self.settings, self.now)
        often = f"{name} preempts again and again: it holds more than its KV cache can"
        sustained = seen.preemption_trend is Trend.SUSTAINED
        replica = self._watch(replica, "preempting", often if sustained else None, seen)
        replica = self._watch(replica, "saturated", _saturated(seen), seen)
        now_active = view.active(w.active for w in replica.watches.values())
        return msgspec.structs.replace(replica, view=msgspec.structs.replace(seen, conditions=now_active))

    def _stall(self, replica: ReplicaMemory, latest: Mark) -> tuple[str, str]:
        """The kind and sentence of the longest stall of any of its engines; empty where all move."""
        worst = ("", "")
        longest = self.settings.stalled_after
        pool = self.pools.get(replica.target.pool, PoolMemory())
        open_requests = pools.in_flight(pool, self.settings, self.now)
        for name, progress in replica.progress.items():
            stalled = latest.at - progress.at
            if stalled >= longest and name in latest.engines:
                longest = stalled
                replica_name = replica.target.name
                who = replica_name if len(latest.engines) == 1 else f"engine {name} of {replica_name}"
                worst = stall.judge(who, stalled, open_requests, latest.engines[name])
        return worst

    def look_at_pools(self) -> dict[str, PoolSnapshot]:
        members: dict[str, list[ReplicaMemory]] = {name: [] for name in self.pools}
        for replica in self.replicas.values():
            members.setdefault(replica.target.pool, []).append(replica)
        views = {}
        for name, replicas in members.items():
            memory = self.pools.setdefault(name, PoolMemory())
            seen = pools.pool(name, replicas, memory, self.settings, self.now)
            if any(r.target.name in self.touched for r in replicas):
                sentence = self._missed(seen)
                watch = look(
                    memory.watches.get("objective-missed", Watch()), "objective-missed", sentence, self.now
                )
                memory = self._tell(memory, name, watch, seen)
                self.pools[name] = memory
                seen = msgspec.structs.replace(
                    seen, conditions=view.active(w.active for w in memory.watches.values())
                )
            views[name] = seen
        return views

    def _missed(self, pool: PoolSnapshot) -> str | None:
        """A sentence where it is proven that the pool misses its objective."""
        ratio, slo = pool.goodput.ratio, self.settings.slo(pool.name)
        if ratio is None or ratio.high >= slo.objective:
            return None
        return (
            f"pool {pool.name}: at most {ratio.high:.1%} of {pool.goodput.requests:.0f} requests were good, "
            f"the objective is {slo.objective:.1%}"
        )

    # -- telling -----------------------------------------------------------------------------------

    def _watch(
        self, replica: ReplicaMemory, kind: str, sentence: str | None, seen: ReplicaSnapshot | None = None
    ) -> ReplicaMemory:
        """Look at one condition of a replica; tell where it begins or ends."""
        old = replica.watches.get(kind, Watch())
        new = look(old, kind, sentence, self.now)
        if new is old:
            return replica
        self._tell_change(kind, replica.target.name, old, new, _evidence(seen, self.now))
        watches = {**replica.watches, kind: new}
        if new == Watch():
            del watches[kind]
        return msgspec.structs.replace(replica, watches=watches)

    def _tell(self, memory: PoolMemory, name: str, new: Watch, seen: PoolSnapshot) -> PoolMemory:
        old = memory.watches.get("objective-missed", Watch())
        if new is old:
            return memory
        self._tell_change("objective-missed", name, old, new, _goodput_evidence(seen, self.now))
        return msgspec.structs.replace(memory, watches={**memory.watches, "objective-missed": new})

    def _tell_change(
        self, kind: str, target: str, old: Watch, new: Watch, evidence: tuple[Evidence, ...]
    ) -> None:
        began, ended = new.active, old.active
        if (began is None) == (ended is None):
            return
        over = f"{target}: {kind} is over"
        if ended is not None:
            over = f"{over} after {self.now - ended.since:.0f} s"
        sentence = began.sentence if began is not None else over
        if kind not in _JUDGEMENTS:
            suffix, severity = ("", Severity.WARNING) if began else ("-over", Severity.INFO)
            self._event(kind + suffix, target, severity, sentence)
            return
        self.decisions.append(
            Decision(
                id=f"{self.number}-{len(self.decisions) + 1}",
                at=self.now,
                action="assess",
                target=target,
                old="" if began else kind,
                new=kind if began else "",
                reason=kind if began else f"{kind}-over",
                sentence=sentence,
                evidence=evidence,
                mode=Mode.OBSERVE,
            )
        )

    def _event(self, kind: str, target: str, severity: Severity, sentence: str) -> None:
        self.events.append(Event(self.now, kind, target, severity, sentence))


def _saturated(seen: ReplicaSnapshot) -> str | None:
    kv, waiting = known(seen.load.kv_usage), known(seen.load.waiting)
    if kv is None or waiting is None or kv < _KV_FULL or waiting <= 0:
        return None
    return f"{seen.name} is saturated: its KV cache is {kv:.0%} full and {waiting:.0f} requests wait"


def _evidence(seen: ReplicaSnapshot | None, now: float) -> tuple[Evidence, ...]:
    if seen is None:
        return ()
    names = ("running", "waiting", "kv_usage", "preemptions_per_second", "generation_tokens_per_second")
    return tuple(evidence(name, getattr(seen.load, name), now) for name in names)


def _goodput_evidence(seen: PoolSnapshot, now: float) -> tuple[Evidence, ...]:
    ratio = seen.goodput.ratio
    if ratio is None:
        return ()
    return (
        Evidence("goodput_ratio_low", ratio.low, 0.0),
        Evidence("goodput_ratio_high", ratio.high, 0.0),
        Evidence("requests", seen.goodput.requests, 0.0),
        evidence("waiting", seen.load.waiting, now),
    )


def evidence(name: str, reading: Number, now: float) -> Evidence:
    """One reading as evidence, with its age at `now`."""
    age = max(0.0, now - reading.at)
    if isinstance(reading, Known):
        return Evidence(name, reading.value, age)
    return Evidence(name, None, age, reading.reason)
