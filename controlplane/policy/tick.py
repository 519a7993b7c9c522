"""One tick: samples and memory in; snapshot, decisions and new memory out. Pure.

The order inside is always the same: learn which targets there are, take in every page and failure, put each
replica into words, look at its conditions, say whether it gets requests, move its limit, put the pools
together, look at theirs, move the boundary between two of them, say how many replicas each should have.
What was decided here is seen in the next snapshot, never within the same tick.

The daemon, the simulator and replay call this one function.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controlplane.policy import absorb, keeping, limiting, parting, pools, readying, sizing, stall, view
from controlplane.policy.conditions import Watch, look
from controlplane.policy.growth import Mark
from controlplane.policy.memory import (
    BoundaryMemory,
    LimitMemory,
    Memory,
    PoolMemory,
    ReplicaMemory,
    RotationMemory,
    ScaleMemory,
)
from controlplane.policy.quarantine import bridge
from controlplane.policy.quarantine.bridge import Arrived
from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import (
    RESTART_WORKLOAD,
    SCALE,
    SET_BOUNDARY,
    SET_LIMIT,
    SET_ROTATION,
    Decision,
    Event,
    Evidence,
    Mode,
    Orders,
    Severity,
)
from controlplane.signals.histogram import Histogram
from controlplane.signals.node import NodeHealth
from controlplane.signals.probe import Probe, ProbeResult
from controlplane.signals.reading import Known, Reason, known
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Target
from controlplane.signals.snapshot import (
    FleetSnapshot,
    Number,
    PoolSnapshot,
    Probed,
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
_AWAY_SECONDS = 30.0  # without a tick
_MOST_WINDOWS = 5_000  # of gateways' outcomes kept for a pool: 80 gateways, each second of a minute


def tick(
    samples: Samples, memory: Memory, settings: PolicySettings, now: float
) -> tuple[FleetSnapshot, tuple[Decision, ...], Memory]:
    """Decide once at Unix time `now` (seconds) on all samples that came since the last call.

    `now` may not go back; where the clock does, time stands still until it has caught up.
    """
    now = max(now, memory.now)
    if samples.handed is not None:
        memory = keeping.adopted(memory, samples.handed, settings, now)
    work = _Work(memory, settings, now)
    work.take_cluster(samples)
    if samples.targets is not None:
        work.set_targets(samples.targets)
    work.take_outcomes(samples.outcomes)
    for sample in samples.scrapes:
        work.take(sample)
    work.take_probes(samples)
    work.look_at_replicas()
    orders = memory.orders if samples.orders is None else samples.orders
    quarantine = work.look_at_gpus(memory.quarantine, samples, orders)
    work.look_at_rotation(orders)
    work.look_at_limits(orders)
    views = work.look_at_pools()
    boundary = work.look_at_boundary(memory.boundary, views, orders)
    views = work.look_at_scales(views, orders)
    if samples.handed is not None and samples.handed.leads:
        work.tell_scales()
    snapshot = FleetSnapshot(
        at=work.now,
        tick=work.number,
        pools=views,
        replicas=work.replica_views(),
        orders=orders,
        events=tuple(work.events),
        nodes=work.nodes,
        boundary=None if boundary is None else parting.shown(boundary),
        pods=work.cluster_pods,
        node_facts=work.node_facts or {},
    )
    after = Memory(
        work.number,
        work.now,
        orders,
        work.replicas,
        work.pools,
        quarantine,
        boundary,
        work.cluster_pods,
        work.node_facts,
        work.limits_left,
        memory.limits_left_at,
        work.triable,
    )
    return snapshot, tuple(work.decisions), after


class _Work:
    """The bench of one call: copies of what is remembered, and what has come out so far."""

    def __init__(self, memory: Memory, settings: PolicySettings, now: float) -> None:
        self.settings = settings
        self.now = now
        self.number = memory.tick + 1
        # Of what we meet now nobody knows since when it is there.
        self.was_away = memory.tick == 0 or self.now - memory.now > _AWAY_SECONDS
        self.replicas = dict(memory.replicas)
        self.pools = dict(memory.pools)
        self.cluster_pods, self.node_facts = memory.pods, memory.node_facts
        are_fresh = self.now - memory.limits_left_at < keeping.LIMITS_SECONDS
        self.limits_left = memory.limits_left if are_fresh else {}
        self.triable = memory.triable
        self.probes: dict[str, list[Probe]] = {}  # the new ones, by replica
        self.events: list[Event] = []
        self.decisions: list[Decision] = []
        self.quarantined: dict[str, float] = {}  # replicas on broken GPUs, and since when
        self.nodes: dict[str, NodeHealth] = {}
        self.touched: set[str] = set()  # replicas whose view must be made anew
        self.changed: set[str] = set()  # pools of which a replica came, left or has another view
        self.told: dict[str, tuple[OutcomeWindow, ...]] = {}  # the gateways' new windows, by pool

    # -- taking in ---------------------------------------------------------------------------------

    def take_cluster(self, samples: Samples) -> None:
        if samples.pods is not None:
            self.cluster_pods = samples.pods.on(self.cluster_pods)
        if samples.node_facts is not None:
            self.node_facts = samples.node_facts

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
            self.replicas[name] = ReplicaMemory(target, was_there=self.was_away)
            self.touched.add(name)
            self.changed.add(target.pool)
            self._event("replica-joined", name, Severity.INFO, f"{name} joined pool {target.pool}")
        named = {target.pool for target in wanted.values()} | set(self.settings.pools)
        kept = {name: self.pools[name] for name in self.pools if name in named}
        self.pools = kept | {name: PoolMemory() for name in sorted(named - kept.keys())}

    def _forget(self, name: str) -> None:
        old = self.replicas.pop(name)
        self.changed.add(old.target.pool)
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
            known = {(w.gateway, w.start): w for w in pool.outcomes}
            new = {key: w for w in came.get(name, ()) if (key := (w.gateway, w.start)) not in known}
            self.told[name] = tuple(sorted(new.values(), key=_end))
            kept = sorted((w for w in (known | new).values() if w.end >= oldest), key=_end)
            self.pools[name] = msgspec.structs.replace(pool, outcomes=tuple(kept[-_MOST_WINDOWS:]))

    def take(self, sample: Scrape | ScrapeFailure) -> None:
        replica = self.replicas.get(sample.target)
        if replica is None:  # left the fleet while its page was under way
            return
        self.touched.add(sample.target)
        if isinstance(sample, Scrape):
            self._look_at_pace(replica, sample)
            absorbed = absorb.absorb(replica, sample, self.settings)
            replica = self._watch(absorbed.memory, "scrape-failing", False)
            replica = self._watch(replica, "not-an-engine", False)
            self.events.extend(absorbed.events)
            self._gain(replica.target.pool, absorbed.gain)
        else:
            replica = msgspec.structs.replace(replica, failure=sample)
            wrong_page = sample.reason is Reason.NOT_AN_ENGINE
            kind = "not-an-engine" if wrong_page else "scrape-failing"
            pod = self.cluster_pods.get(replica.target.pod)
            loads = pod is not None and pod.loading  # that it does not answer yet is no news
            replica = self._watch(replica, kind, not loads, sample.detail)
        self.replicas[sample.target] = replica

    def _look_at_pace(self, replica: ReplicaMemory, page: Scrape) -> None:
        """Tell once for a pool that pages come too seldom to know anything between them.

        Prometheus scrapes as it was told to, not as we poll.
        """
        latest, previous, settings = replica.latest, replica.previous, self.settings
        if latest is None or previous is None or replica.failure is not None:
            return
        name = replica.target.pool
        memory, told = self.pools.get(name, PoolMemory()), "pages far apart"
        apart = min(page.at - latest.at, latest.at - previous.at)
        if apart + settings.poll_interval <= settings.stale_after or told in memory.told:
            return
        sentence = (
            f"pool {name}: pages come {apart:.0f} s apart, and what is older than "
            f"{duration_text(settings.stale_after)} is unknown: let them come more often, or raise "
            f"policy.stale_after to {duration_text(math.ceil(3 * apart))}"
        )
        self._event("pages-far-apart", name, Severity.WARNING, sentence)
        self.pools[name] = msgspec.structs.replace(memory, told=memory.told | {told})

    def take_probes(self, samples: Samples) -> None:
        self.triable = self.triable if samples.triable is None else samples.triable
        for probe in samples.probes:
            self.probes.setdefault(probe.target, []).append(probe)

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
            self.changed.add(replica.target.pool)
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

    def look_at_gpus(self, memory: QuarantineMemory, samples: Samples, orders: Orders) -> QuarantineMemory:
        """Judge the GPUs; the replicas on broken ones are quarantined from here on."""
        arrived = Arrived(samples.gpus, samples.gpu_nodes, samples.placements, self.node_facts)
        views = {name: r.view for name, r in self.replicas.items() if r.view is not None}
        after, outcome = bridge.look(memory, arrived, views, orders, self.settings.quarantine, now=self.now)
        self.events.extend(outcome.events)
        for one in outcome.decisions:
            self.decisions.append(msgspec.structs.replace(one, id=self._next_id()))
        self.quarantined, self.nodes = outcome.ejected, bridge.health(after, outcome)
        return after

    def look_at_rotation(self, orders: Orders) -> None:
        """Say of each replica whether it gets new requests; each change is a decision."""
        reaches = any(r.failure is None and r.latest is not None for r in self.replicas.values())
        nodes = self.node_facts or {}
        for name, replicas in self._members().items():
            told, settings = self.told.get(name, ()), self.settings.pool(name).readiness
            names, is_pool_kept = (replica.target.name for replica in replicas), orders.keep(("pool", name))
            kept = frozenset(one for one in names if is_pool_kept or orders.keep(("replica", one)))
            around = readying.Around(
                told,
                self.quarantined,
                self.cluster_pods,
                nodes,
                reaches,
                kept,
                self.probes,
                self.triable,
                self.settings.stale_after,
                self.settings.stalled_after / 2,
            )
            rotations, changes, reports = readying.look(replicas, around, settings, self.now)
            if not is_pool_kept:
                self._watch_pool(name, dict(reports))
            for change in changes:
                self._tell_rotation(change, rotations[change.name])
            for replica in replicas:
                rotation = rotations[replica.target.name]
                changed = msgspec.structs.replace(replica, rotation=rotation)
                is_kept = replica.target.name in kept
                pod = self.cluster_pods.get(replica.target.pod)
                if not is_kept and (sentence := readying.end(changed, pod, settings, self.now)):
                    rotation = msgspec.structs.replace(rotation, asked_at=self.now)
                    self._tell_end(changed, sentence)
                if rotation != replica.rotation:
                    self.replicas[replica.target.name] = self._rotated(replica, rotation)

    def _rotated(self, replica: ReplicaMemory, rotation: RotationMemory) -> ReplicaMemory:
        """The replica with its new rotation; one that has just become ready is so from now on."""
        old, seen = replica.rotation, replica.view
        changed = msgspec.structs.replace(replica, rotation=rotation)
        if old is not None and old.proof is not None and old.proof.is_new and view.was_ready(changed):
            changed = msgspec.structs.replace(changed, ready_since=self.now)
        if seen is None:
            return changed
        was_ready, probed = view.was_ready(changed), view.probed(rotation)
        if (was_ready, probed) == (seen.was_ready, seen.probed):
            return changed
        seen = msgspec.structs.replace(
            seen, was_ready=was_ready, ready_since=changed.ready_since, probed=probed
        )
        return msgspec.structs.replace(changed, view=seen)

    def _watch_pool(self, name: str, reports: Mapping[str, str]) -> None:
        """Tell where one of the reports on readiness begins or ends."""
        pool = self.pools.get(name, PoolMemory())
        watches = dict(pool.watches)
        for kind in readying.REPORTS:
            old = watches.get(kind, Watch())
            sentence = f"pool {name}: {reports[kind]}" if kind in reports else ""
            new = look(old, kind, kind in reports, sentence, self.now)
            if new is old:
                continue
            self._tell_change(kind, name, old, new, ())
            if new == Watch():
                del watches[kind]
            else:
                watches[kind] = new
        if watches != pool.watches:
            self.pools[name] = msgspec.structs.replace(pool, watches=watches)

    def _tell_end(self, replica: ReplicaMemory, sentence: str) -> None:
        name, seen = replica.target.name, _evidence(replica.view, self.now)
        self._decide(RESTART_WORKLOAD, name, ("", ""), reason="drained", sentence=sentence, evidence=seen)

    def _tell_rotation(self, change: readying.Change, rotation: RotationMemory) -> None:
        old, new = ("in", "out") if change.is_out else ("out", "in")
        seen, probed = self.replicas[change.name].view, view.probed(rotation)
        self._decide(
            SET_ROTATION,
            change.name,
            (old, new),
            reason=change.reason,
            sentence=change.sentence,
            evidence=(*_evidence(seen, self.now), *_probe_evidence(probed, self.now)),
        )

    def look_at_limits(self, orders: Orders) -> None:
        """Move the limit of each replica; each change of the whole number is a decision."""
        for name, replicas in self._members().items():
            told = self.told.get(name, ())
            pool = limiting.hear(self.pools.get(name, PoolMemory()), told, replicas, self.now)
            self.pools[name] = pool
            round_ = limiting.Round(told, pool, self.limits_left, replicas)
            for replica in replicas:
                change = limiting.look(replica, round_, self.settings, orders, self.now)
                before, after = replica.limit, None if change is None else change.limit
                if after is not before:
                    self.replicas[replica.target.name] = msgspec.structs.replace(replica, limit=after)
                if change is not None and (before is None or before.slots != change.limit.slots):
                    self._tell_limit(replica.target.name, before, change)

    def _tell_limit(self, name: str, before: LimitMemory | None, change: limiting.Change) -> None:
        limit = change.limit
        assert limit.state is not None
        instead = "" if before is None else f" instead of {before.slots}"
        self._decide(
            SET_LIMIT,
            name,
            ("" if before is None else str(before.slots), str(limit.slots)),
            reason=str(limit.state.reason),
            sentence=f"{name} may hold {limit.slots} sequences at once{instead}: {limit.state.detail}",
            evidence=limiting.evidence(change.window),
        )

    def replica_views(self) -> dict[str, ReplicaSnapshot]:
        """Each replica in words, with its limit."""
        views = {}
        for name, replica in self.replicas.items():
            seen = replica.view
            if seen is not None:
                limit = limiting.shown(replica, self.settings)
                seen = seen if limit is None else msgspec.structs.replace(seen, limit=limit)
                since = self.quarantined.get(name)
                if since is not None:
                    seen = msgspec.structs.replace(seen, quarantined_since=since)
                out = None if replica.rotation is None else replica.rotation.out
                seen = seen if out is None else msgspec.structs.replace(seen, out=out)
                views[name] = seen
        return views

    def _members(self) -> dict[str, list[ReplicaMemory]]:
        """The replicas of each pool, as they are now."""
        members: dict[str, list[ReplicaMemory]] = {name: [] for name in self.pools}
        for replica in self.replicas.values():
            members.setdefault(replica.target.pool, []).append(replica)
        return members

    def look_at_pools(self) -> dict[str, PoolSnapshot]:
        return {name: self._look_at_pool(name, replicas) for name, replicas in self._members().items()}

    def _look_at_pool(self, name: str, replicas: Sequence[ReplicaMemory]) -> PoolSnapshot:
        memory = self.pools.get(name, PoolMemory())
        unchanged = name not in self.changed
        seen = pools.pool(name, replicas, memory, self.settings, self.now, unchanged=unchanged)
        memory = self.pools[name] = msgspec.structs.replace(memory, view=seen)
        if self.now - memory.looked_at < self.settings.goodput_cell:
            return seen  # its patience is counted in cells
        old = memory.watches.get(_MISSED, Watch())
        new = look(old, _MISSED, *self._missed(seen), self.now)
        self._tell_change(_MISSED, name, old, new, _goodput_evidence(seen, self.now))
        watches = {**memory.watches, _MISSED: new}
        self.pools[name] = msgspec.structs.replace(memory, watches=watches, looked_at=self.now)
        return msgspec.structs.replace(seen, conditions=view.active((new.active,)))

    def _missed(self, pool: PoolSnapshot) -> tuple[bool | None, str]:
        """Whether it is proven that the pool misses its objective; not known where little is known.

        A few requests prove no miss, but when they are well, one that was proven is over.
        """
        seen, ratio, slo = pool.goodput, pool.goodput.ratio, self.settings.slo(pool.name)
        if ratio is None:
            few = seen.good_requests if seen.unknown is Reason.TOO_FEW else None
            is_well = few is not None and few.high >= slo.objective * seen.requests
            return (False if is_well or seen.unknown is Reason.NO_TRAFFIC else None), ""
        return ratio.high < slo.objective, (
            f"pool {pool.name}: at most {ratio.high:.1%} of {pool.goodput.requests:.0f} requests were good, "
            f"the objective is {slo.objective:.1%}"
        )

    def look_at_boundary(
        self, before: BoundaryMemory | None, views: dict[str, PoolSnapshot], orders: Orders
    ) -> BoundaryMemory | None:
        """Move the boundary between the two pools, if there are such; each change of it is a decision."""
        pair = self.settings.pair
        if pair is None:
            return None
        short, long = (self._side(name, views) for name in (pair.short, pair.long))
        change = parting.look(before, short, long, settings=self.settings, orders=orders, now=self.now)
        if change is None:
            return None
        after = change.boundary
        if before is None or after.since > before.since:
            self._tell_boundary(before, change)
        return after

    def _side(self, name: str, views: dict[str, PoolSnapshot]) -> parting.Side:
        pool = self.pools.get(name, PoolMemory())
        serving = [
            replica
            for replica in self.replicas.values()
            if replica.target.pool == name
            and replica.view is not None
            and replica.view.state is ReplicaState.UP
            and replica.target.name not in self.quarantined
        ]
        load = views[name].load if name in views else None
        return parting.Side(self.told.get(name, ()), bool(pool.heard), serving, load)

    def _tell_boundary(self, before: BoundaryMemory | None, change: parting.Change) -> None:
        boundary, old = parting.shown(change.boundary), ""
        if before is not None and parting.shown(before).name == boundary.name:
            old = str(before.tokens)
        self._decide(
            SET_BOUNDARY,
            boundary.name,
            (old, str(boundary.tokens)),
            reason=boundary.reason,
            sentence=f"requests of up to {boundary.tokens:,} tokens go to pool {boundary.short}, longer ones "
            f"to {boundary.long}: {boundary.detail}",
            evidence=parting.evidence(change),
        )

    def look_at_scales(self, views: dict[str, PoolSnapshot], orders: Orders) -> dict[str, PoolSnapshot]:
        """Say how many replicas each pool should have; each change is a decision."""
        after, members, changes = dict(views), self._members(), {}
        before = {name: self.pools.get(name, PoolMemory()).scale for name in views}
        for name in views:
            pool, policy = self.pools.get(name, PoolMemory()), self.settings.pool(name)
            told = self.told.get(name, ())
            round_ = sizing.Round(told, members.get(name, ()), self.quarantined, self.cluster_pods)
            change = sizing.look(pool, name, round_, policy=policy, orders=orders, now=self.now)
            if change is not None:
                changes[name] = change
            elif pool.scale is not None:  # it is scaled no more
                self.pools[name] = msgspec.structs.replace(pool, scale=None)
        for name, change in sizing.within(changes, before, self.settings).items():
            pool, law = self.pools.get(name, PoolMemory()), self.settings.pool(name).scale
            self.pools[name] = msgspec.structs.replace(pool, scale=change.scale)
            assert law is not None
            after[name] = msgspec.structs.replace(after[name], scale=sizing.shown(change.scale, law.law.law))
            self._tell_scale(name, before[name], change)
        return after

    def tell_scales(self) -> None:
        """Decide once more on each count that stands: who led before may not have asked for it."""
        told = {one.target for one in self.decisions if one.action == SCALE}
        for name, pool in self.pools.items():
            if name not in told and pool.scale is not None and pool.scale.wish is not None:
                count = str(pool.scale.wish.replicas)
                why = f"pool {name} should still have {count} replicas, now that this daemon leads"
                self._decide(SCALE, name, ("", count), reason="took-lead", sentence=why, evidence=())

    def _tell_scale(self, pool: str, before: ScaleMemory | None, change: sizing.Change) -> None:
        for kind, sentence in change.reports:
            self._event(kind, pool, Severity.WARNING, f"pool {pool}: {sentence}")
        old, new = None if before is None else before.wish, change.scale.wish
        if change.seen is None or new is None or (old is not None and old.replicas == new.replicas):
            return
        instead = "" if old is None else f" instead of {old.replicas}"
        self._decide(
            SCALE,
            pool,
            ("" if old is None else str(old.replicas), str(new.replicas)),
            reason=new.reason,
            sentence=f"pool {pool} should have {new.replicas} replicas{instead}: {new.sentence}",
            evidence=sizing.evidence(change.scale, change.seen),
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
        old_kind, new_kind = ("", kind) if began else (kind, "")
        reason = kind if began else f"{kind}-over"
        change = (old_kind, new_kind)
        self._decide("assess", target, change, reason=reason, sentence=sentence, evidence=evidence)

    def _next_id(self) -> str:
        return f"{self.number}-{len(self.decisions) + 1}"

    def _decide(
        self,
        action: str,
        target: str,
        change: tuple[str, str],
        *,
        reason: str,
        sentence: str,
        evidence: tuple[Evidence, ...],
    ) -> None:
        """`change` is from the old to the new value."""
        id_ = self._next_id()
        self.decisions.append(
            Decision(id_, self.now, action, target, *change, reason, sentence, evidence, Mode.OBSERVE)
        )

    def _event(self, kind: str, target: str, severity: Severity, sentence: str) -> None:
        self.events.append(Event(self.now, kind, target, severity, sentence))


def _end(window: OutcomeWindow) -> float:
    return window.end


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


def _probe_evidence(probed: Probed, now: float) -> tuple[Evidence, ...]:
    """Seconds that the last good answers took; of a bad one there is none, and how often in a row."""
    found = [
        Evidence(
            f"{probe.kind}_probe_seconds",
            probe.seconds if probe.result is ProbeResult.OK else None,
            max(0.0, now - probe.at),
            None if probe.result is ProbeResult.OK else Reason.UNAVAILABLE,
        )
        for probe in (probed.health, probed.trial)
        if probe is not None
    ]
    if probed.health is not None:
        found.append(
            Evidence("failed_health_probes", float(probed.failures), max(0.0, now - probed.health.at))
        )
    return tuple(found)


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
