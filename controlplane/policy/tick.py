"""One tick: samples and memory in; snapshot, decisions and new memory out. Pure.

The order inside is always the same: learn which targets there are, take in every page and failure, put
each replica into words, look at its conditions, put the pools together, look at theirs. What was decided
here is seen in the next snapshot, never within the same tick.

The daemon, the simulator and replay call this one function.
"""

from collections.abc import Iterable, Sequence

import msgspec

from controlplane.policy import absorb, pools, stall, view
from controlplane.policy.conditions import Watch, look
from controlplane.policy.growth import Mark
from controlplane.policy.memory import Memory, PoolMemory, ReplicaMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Decision, Event, Evidence, Mode, Severity
from controlplane.signals.histogram import Histogram
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
from controlplane.signals.units import duration_text

# Kinds that are judgements rather than facts: they are told as decisions, with their evidence.
_JUDGEMENTS = {"wedged", "frozen-gauges", "stalled", "preempting", "saturated", "objective-missed"}
_MISSED = "objective-missed"
_KV_FULL = 0.95
_MOST_WINDOWS = 5_000  # of gateways' outcomes kept for a pool: 80 gateways, each second of a minute


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
        named = {target.pool for target in wanted.values()} | set(self.settings.pools)
        kept = {name: self.pools[name] for name in self.pools if name in named}
        self.pools = kept | {name: PoolMemory() for name in sorted(named - kept.keys())}

    def _forget(self, name: str) -> None:
        old = self.replicas.pop(name)
        self._gain(old.target.pool, absorb.close(old, self.settings))
        self._event("replica-left", name, Severity.INFO, f"{name} left pool {old.target.pool}")

    def take_outcomes(self, outcomes: Iterable[OutcomeWindow]) -> None:
        """Keep the windows of the pools that we know, each once, the newest of them."""
        oldest = self.now - self.settings.window
        came: dict[str, list[OutcomeWindow]] = {}
        for window in outcomes:
            came.setdefault(window.pool, []).append(window)
        for name, pool in self.pools.items():
            if not came.get(name) and (not pool.outcomes or pool.outcomes[0].end >= oldest):
                continue
            each = {(w.gateway, w.start): w for w in (*pool.outcomes, *came.get(name, ()))}
            kept = sorted((w for w in each.values() if w.end >= oldest), key=lambda w: w.end)
            self.pools[name] = msgspec.structs.replace(pool, outcomes=tuple(kept[-_MOST_WINDOWS:]))

    def take(self, sample: Scrape | ScrapeFailure) -> None:
        replica = self.replicas.get(sample.target)
        if replica is None:  # left the fleet while its page was under way
            return
        self.touched.add(sample.target)
        if isinstance(sample, Scrape):
            absorbed = absorb.absorb(replica, sample, self.settings)
            replica = self._watch(absorbed.memory, "scrape-failing", False)
            replica = self._watch(replica, "not-an-engine", False)
            self.events.extend(absorbed.events)
            self._gain(replica.target.pool, absorbed.gain)
        else:
            replica = msgspec.structs.replace(replica, failure=sample)
            wrong_page = sample.reason is Reason.NOT_AN_ENGINE
            kind = "not-an-engine" if wrong_page else "scrape-failing"
            replica = self._watch(replica, kind, True, sample.detail)
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
        asleep = f"every engine of {name} sleeps: it is up, but without capacity"
        replica = self._watch(replica, "asleep", sleeping, asleep)
        kind, sentence, stalled = self._stall(replica, latest) if not sleeping else ("", "", frozenset())
        for one in ("wedged", "frozen-gauges", "stalled"):
            replica = self._watch(replica, one, kind == one, sentence)
        replica = msgspec.structs.replace(
            replica,
            disbelieved=stalled if kind != "wedged" else frozenset(),
            window=view.over_window(replica),
        )
        seen = view.replica(replica, self.settings, self.now)
        often = f"{name} preempts again and again: it holds more than its KV cache can"
        trend = seen.preemption_trend
        sustained = None if trend is Trend.UNKNOWN else trend is Trend.SUSTAINED
        replica = self._watch(replica, "preempting", sustained, often, seen)
        replica = self._watch(replica, "saturated", *_saturated(seen), seen)
        self._look_at_edges(replica)
        now_active = view.active(w.active for w in replica.watches.values())
        return msgspec.structs.replace(replica, view=msgspec.structs.replace(seen, conditions=now_active))

    def _stall(self, replica: ReplicaMemory, latest: Mark) -> tuple[str, str, frozenset[str]]:
        """Kind and sentence of the longest stall of any engine, and all engines that stall; empty if none."""
        kind = sentence = ""
        longest, stalled = self.settings.stalled_after, set()
        for name, progress in replica.progress.items():
            since = latest.at - progress.at
            if since < self.settings.stalled_after or name not in latest.engines:
                continue
            stalled.add(name)
            if since >= longest:
                longest = since
                who = replica.target.name
                who = who if len(latest.engines) == 1 else f"engine {name} of {who}"
                open_requests = self._open_requests(replica.target.pool)
                kind, sentence = stall.judge(who, since, open_requests, latest.engines[name])
        return kind, sentence, frozenset(stalled)

    def _open_requests(self, pool: str) -> float | None:
        """What the gateways have open towards each replica of the pool; None where they can't tell which.

        None open at all is none for each; some open is known to be its own only of a replica that is alone.
        """
        found = pools.in_flight(self.pools.get(pool, PoolMemory()), self.settings, self.now)
        alone = sum(r.target.pool == pool for r in self.replicas.values()) == 1
        return found if found == 0 or alone else None

    def _look_at_edges(self, replica: ReplicaMemory) -> None:
        """Tell once for a pool that an objective lies between the bucket edges of its engine."""
        pool, slo = replica.target.pool, self.settings.slo(replica.target.pool)
        memory = self.pools.get(pool, PoolMemory())
        for name, limit in (("ttft", slo.ttft), ("tpot", slo.tpot)):
            seen = replica.window.get(name)
            told = f"{name} {limit:g} off edge"
            if seen is None or len(seen.bounds) == 1 or limit in seen.bounds or told in memory.told:
                continue
            sentence = (
                f"pool {pool}: the {name} objective of {duration_text(limit)} lies between bucket edges "
                f"of {replica.engine} ({_neighbours(seen, limit)}): its goodput is a wide interval"
            )
            self._event("objective-off-edge", pool, Severity.WARNING, sentence)
            memory = msgspec.structs.replace(memory, told=memory.told | {told})
            self.pools[pool] = memory

    def look_at_pools(self) -> dict[str, PoolSnapshot]:
        members: dict[str, list[ReplicaMemory]] = {name: [] for name in self.pools}
        for replica in self.replicas.values():
            members.setdefault(replica.target.pool, []).append(replica)
        return {name: self._look_at_pool(name, replicas) for name, replicas in members.items()}

    def _look_at_pool(self, name: str, replicas: Sequence[ReplicaMemory]) -> PoolSnapshot:
        memory = self.pools.setdefault(name, PoolMemory())
        seen = pools.pool(name, replicas, memory, self.settings, self.now)
        if self.now - memory.looked_at < self.settings.goodput_cell:
            return seen  # its patience is counted in cells
        old = memory.watches.get(_MISSED, Watch())
        new = look(old, _MISSED, *self._missed(seen), self.now)
        self._tell_change(_MISSED, name, old, new, _goodput_evidence(seen, self.now))
        self.pools[name] = msgspec.structs.replace(memory, watches={_MISSED: new}, looked_at=self.now)
        return msgspec.structs.replace(seen, conditions=view.active((new.active,)))

    def _missed(self, pool: PoolSnapshot) -> tuple[bool | None, str]:
        """Whether it is proven that the pool misses its objective; not known where little is known."""
        ratio, slo = pool.goodput.ratio, self.settings.slo(pool.name)
        if ratio is None:
            return (False if pool.goodput.unknown is Reason.NO_TRAFFIC else None), ""
        return ratio.high < slo.objective, (
            f"pool {pool.name}: at most {ratio.high:.1%} of {pool.goodput.requests:.0f} requests were good, "
            f"the objective is {slo.objective:.1%}"
        )

    # -- telling -----------------------------------------------------------------------------------

    def _watch(
        self,
        replica: ReplicaMemory,
        kind: str,
        holds: bool | None,
        sentence: str = "",
        seen: ReplicaSnapshot | None = None,
    ) -> ReplicaMemory:
        """Look at one condition of a replica; tell where it begins or ends."""
        old = replica.watches.get(kind, Watch())
        new = look(old, kind, holds, sentence, self.now)
        if new is old:
            return replica
        self._tell_change(kind, replica.target.name, old, new, _evidence(seen, self.now))
        watches = {**replica.watches, kind: new}
        if new == Watch():
            del watches[kind]
        return msgspec.structs.replace(replica, watches=watches)

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


def _saturated(seen: ReplicaSnapshot) -> tuple[bool | None, str]:
    kv, waiting = known(seen.load.kv_usage), known(seen.load.waiting)
    if kv is None or waiting is None:
        return None, ""
    return kv >= _KV_FULL and waiting > 0, (
        f"{seen.name} is saturated: its KV cache is {kv:.0%} full and {waiting:.0f} requests wait"
    )


def _neighbours(histogram: Histogram, limit: float) -> str:
    below = [b for b in histogram.bounds if b < limit]
    above = [b for b in histogram.bounds[:-1] if b > limit]
    return " and ".join(duration_text(b) for b in (*below[-1:], *above[:1]))


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
