"""What the tick remembers from one call to the next. An immutable value, so that it can be journaled."""

import msgspec

from controlplane.policy.conditions import Watch
from controlplane.policy.goodput import Carry, Cell
from controlplane.policy.growth import Mark
from controlplane.policy.stall import Progress
from controlplane.signals.decision import Orders
from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import OutcomeWindow, ScrapeFailure, Target
from controlplane.signals.snapshot import ReplicaSnapshot, Totals


class ReplicaMemory(msgspec.Struct, frozen=True):
    """One replica. `marks` are about a goodput cell apart, oldest first, and span the window; `latest` is
    the newest page; `cells` and `preemptions` (a cell each) span the window too; `window` is what the latency
    histograms observed over it; `disbelieved` names the engines whose gauges stand still."""

    target: Target
    engine: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    scrape_seconds: float | None = None
    partial: bool = False
    loose: tuple[str, ...] = ()
    gauges_lag: bool = False
    latest: Mark | None = None
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


class PoolMemory(msgspec.Struct, frozen=True):
    """One pool: its totals for ever, the gateways' outcomes of the window, what is watched."""

    totals: Totals = Totals()
    outcomes: tuple[OutcomeWindow, ...] = ()
    watches: dict[str, Watch] = {}
    looked_at: float = 0.0
    told: frozenset[str] = frozenset()


class Memory(msgspec.Struct, frozen=True):
    """The state of the tick; `Memory()` is the state before the first."""

    tick: int = 0
    now: float = 0.0
    orders: Orders = Orders()
    replicas: dict[str, ReplicaMemory] = {}
    pools: dict[str, PoolMemory] = {}


def rewind(memory: Memory, now: float) -> Memory:
    """The memory for a clock that was set back to `now`: what was counted stays, the windows begin anew."""
    replicas = {name: ReplicaMemory(r.target, restarts=r.restarts) for name, r in memory.replicas.items()}
    pools = {name: PoolMemory(totals=pool.totals) for name, pool in memory.pools.items()}
    return Memory(memory.tick, now, memory.orders, replicas, pools)
