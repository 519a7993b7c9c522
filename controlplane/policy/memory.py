"""What the tick remembers from one call to the next. An immutable value, so that it can be journaled."""

import msgspec

from controlplane.policy.boundary.law import BoundaryState
from controlplane.policy.conditions import Watch
from controlplane.policy.goodput import Carry, Cell
from controlplane.policy.growth import Mark
from controlplane.policy.limits.kv_ceiling import Lengths
from controlplane.policy.limits.laws import KeptState
from controlplane.policy.limits.windows import Sight
from controlplane.policy.quarantine.memory import QuarantineMemory
from controlplane.policy.readiness import Standing
from controlplane.policy.scaling.gathered import Gathered, Mix
from controlplane.policy.scaling.prudence import Wish
from controlplane.policy.scaling.work import WorkState
from controlplane.policy.stall import Progress
from controlplane.signals.decision import Orders
from controlplane.signals.histogram import Histogram
from controlplane.signals.node import NodeFacts
from controlplane.signals.pod import PodFacts
from controlplane.signals.probe import Probe
from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.samples import OutcomeWindow, ScrapeFailure, Target
from controlplane.signals.snapshot import Number, Out, PoolSnapshot, ReplicaSnapshot, Totals


class LimitMemory(msgspec.Struct, frozen=True):
    """The limit of one replica: what its law knows, and what its next window begins with.

    `slots` is the whole number to enforce, and has been `since` then. `state` is None where the clock was set
    back: the law goes on from `slots`. `in_force` is what the gateways go by.
    """

    slots: int
    state: KeptState | None
    sight: Sight
    since: float
    in_force: float | None = None


class Proof(msgspec.Struct, frozen=True):
    """Whether an engine has shown by a token that it works (`policy.proving`).

    It `is_new` until its process has made one, and `owes` one where it is out and must prove that it works
    again. It is on trial while there is a `doubt`; `trial` is how that went last, `restarts` how often it had
    been restarted when it was looked at.
    """

    is_new: bool = False
    owes: bool = False
    doubt: str = ""
    trial: Probe | None = None
    restarts: int = 0


class RotationMemory(msgspec.Struct, frozen=True):
    """Whether a replica gets new requests: how it stands, and what the next look begins with.

    `out` is what is told of it, None while it is in; `page_at` the time of the page that was judged last;
    `overloaded_since` since when it has far more work than its peers. Of requests that ended by `heard_at`,
    so many `finished` and `failed`, older ones counting less; a gateway saw tokens of it at `moved_at`. Its
    pod was asked to end at `asked_at`. `health` is its last health probe. Gateways have had requests open at
    it and seen no token since `waits_since`, as they told last at `told_at`.
    """

    standing: Standing
    page_at: float = 0.0
    overloaded_since: float | None = None
    heard_at: float = 0.0
    finished: float = 0.0
    failed: float = 0.0
    moved_at: float = 0.0
    asked_at: float | None = None
    out: Out | None = None
    health: Probe | None = None
    proof: Proof | None = None
    waits_since: float | None = None
    told_at: float = 0.0


class ReplicaMemory(msgspec.Struct, frozen=True):
    """One replica. `marks` are about a goodput cell apart, oldest first, and span the window; `latest` is
    the newest page, `previous` the one before; `cells` and `preemptions` (a cell each) span the window too;
    `window` is what the latency histograms observed over it; `disbelieved` names the engines whose gauges
    stand still. It `was_there` when we began to look: nobody knows since when."""

    target: Target
    engine: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    scrape_seconds: float | None = None
    partial: bool = False
    loose: tuple[str, ...] = ()
    gauges_lag: bool = False
    latest: Mark | None = None
    previous: Mark | None = None
    marks: tuple[Mark, ...] = ()
    window: dict[str, Histogram] = {}
    carries: dict[str, Carry] = {}
    cells: tuple[Cell, ...] = ()
    preemptions: tuple[float, ...] = ()
    progress: dict[str, Progress] = {}
    disbelieved: frozenset[str] = frozenset()
    restarts: int = 0
    failure: ScrapeFailure | None = None
    watches: dict[str, Watch] = {}
    told: frozenset[str] = frozenset()
    view: ReplicaSnapshot | None = None
    was_there: bool = False
    ready_since: float | None = None
    limit: LimitMemory | None = None
    rotation: RotationMemory | None = None


class ScaleMemory(msgspec.Struct, frozen=True):
    """How many replicas a pool should have: what its law and prudence know, and what the next look begins
    with.

    The last look was at `end`; `gathered` is what gateways told since, `backlog` the requests that waited
    then. `loading` says since when each replica loads. The wish has been for so many `since` then.

    `start_ups` are the latest, in seconds, and `cold_start` is what the last look took one to be.
    `watched_since`: no look was missed since then, None after a pause.
    """

    end: float
    since: float = 0.0
    gathered: Gathered = Gathered()
    mix: Mix = Mix()
    backlog: int = 0
    loading: dict[str, float] = {}
    ready: int = 0
    state: WorkState | None = None
    need: Number = Unknown(Reason.NO_DATA, 0.0)
    wish: Wish | None = None
    start_ups: tuple[float, ...] = ()
    watched_since: float | None = None
    cold_start: float | None = None


class PoolMemory(msgspec.Struct, frozen=True):
    """One pool: its totals for ever, the gateways' outcomes of the window, what is watched.

    `heard` says when each gateway last told something of it, `lengths` how long its requests have been of
    late (up to `lengths_at`). `view` is the last snapshot of it.
    """

    totals: Totals = Totals()
    outcomes: tuple[OutcomeWindow, ...] = ()
    watches: dict[str, Watch] = {}
    looked_at: float = 0.0
    told: frozenset[str] = frozenset()
    heard: dict[str, float] = {}
    lengths: Lengths = Lengths()
    lengths_at: float = 0.0
    view: PoolSnapshot | None = None
    scale: ScaleMemory | None = None


class BoundaryMemory(msgspec.Struct, frozen=True):
    """The boundary between the pools `short` and `long`: what its law knows, and what its next window begins
    with.

    `configured` is what it began with, `tokens` what is to be enforced and has been `since` then. The last
    window of the law ended at `end`. `in_force` and `longest_tokens` are what the gateways said last.
    """

    short: str
    long: str
    configured: int
    tokens: int
    state: BoundaryState
    end: float
    since: float
    in_force: int | None = None
    longest_tokens: int | None = None


class Memory(msgspec.Struct, frozen=True):
    """The state of the tick; `Memory()` is the state before the first.

    `pods` and `node_facts` are those of the cluster; the latter None where no cluster is asked for nodes.
    `limits_left` are what another leader left of the replicas' limits, read at `limits_left_at`. The replicas
    `triable` can be asked for a token.
    """

    tick: int = 0
    now: float = 0.0
    orders: Orders = Orders()
    replicas: dict[str, ReplicaMemory] = {}
    pools: dict[str, PoolMemory] = {}
    quarantine: QuarantineMemory = QuarantineMemory()
    boundary: BoundaryMemory | None = None
    pods: dict[str, PodFacts] = {}
    node_facts: dict[str, NodeFacts] | None = None
    limits_left: dict[str, int] = {}
    limits_left_at: float = 0.0
    triable: frozenset[str] = frozenset()


def rewind(memory: Memory, now: float) -> Memory:
    """The memory for a clock that was set back to `now`: what was counted stays, the windows begin anew."""
    replicas = {name: _rewound(replica, now) for name, replica in memory.replicas.items()}
    pools = {
        name: PoolMemory(totals=pool.totals, lengths=pool.lengths, scale=_rewound_scale(pool.scale, now))
        for name, pool in memory.pools.items()
    }
    old = memory.quarantine
    quarantine = QuarantineMemory(quarantines=old.quarantines, past=old.past, placements=old.placements)
    boundary = None if memory.boundary is None else _rewound_boundary(memory.boundary, now)
    return Memory(
        memory.tick,
        now,
        memory.orders,
        replicas,
        pools,
        quarantine,
        boundary,
        memory.pods,
        memory.node_facts,
        triable=memory.triable,
    )


def _rewound_boundary(boundary: BoundaryMemory, now: float) -> BoundaryMemory:
    """What was learned stays. How long ago it moved is not known: as if it were now."""
    moved_at = None if boundary.state.moved_at is None else now
    state = msgspec.structs.replace(boundary.state, wish_up=None, moved_at=moved_at)
    return msgspec.structs.replace(boundary, state=state, end=now, since=now)


def _rewound_scale(scale: ScaleMemory | None, now: float) -> ScaleMemory | None:
    """What was learned and asked for stays. How long ago it changed is not known: as if it were now."""
    if scale is None:
        return None
    wish = scale.wish
    if wish is not None:
        detail = "the clock was set back"
        wish = Wish(wish.replicas, str(Reason.RESTARTED), detail, lowered_at=now, raised_at=now)
    state = None if scale.state is None else msgspec.structs.replace(scale.state, quiet_since=None)
    return ScaleMemory(
        now,
        now,
        Gathered(),
        scale.mix,
        loading=dict.fromkeys(scale.loading, now),
        state=state,
        wish=wish,
        start_ups=scale.start_ups,
    )


def _rewound(replica: ReplicaMemory, now: float) -> ReplicaMemory:
    limit = replica.limit
    if limit is not None:
        limit = LimitMemory(limit.slots, None, Sight(now, replica.restarts), now, limit.in_force)
    return ReplicaMemory(
        replica.target,
        restarts=replica.restarts,
        was_there=replica.was_there or replica.latest is not None,
        limit=limit,
        rotation=_rewound_rotation(replica.rotation, now),
    )


def _rewound_rotation(rotation: RotationMemory | None, now: float) -> RotationMemory | None:
    """Who is out stays out. How long it has been is not known: as if it were since now."""
    if rotation is None:
        return None
    standing, out = rotation.standing, rotation.out
    out_since = None if standing.out_since is None else now
    standing = msgspec.structs.replace(standing, since=now, out_since=out_since)
    proof = None if rotation.proof is None else msgspec.structs.replace(rotation.proof, trial=None)
    out = None if out is None else msgspec.structs.replace(out, since=now)
    return RotationMemory(standing, out=out, proof=proof)
