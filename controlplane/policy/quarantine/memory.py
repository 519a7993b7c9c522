"""What quarantine remembers from one tick to the next. Immutable, so that it can be journaled."""

from collections.abc import Mapping

import msgspec

from controlplane.policy.quarantine.words import Fault
from controlplane.signals.gpu import Gpu
from controlplane.signals.node import Mark, Placement

JUDGED_OVER_TIME = (
    "throttle_reasons",
    "throttled_thermal_seconds_total",
    "throttled_hw_thermal_seconds_total",
    "throttled_sw_thermal_seconds_total",
    "throttled_power_brake_seconds_total",
    "ecc_uncorrectable_total",
    "pcie_replays_total",
    "nvlink_replays_total",
    "nvlink_recoveries_total",
)
"""The signals that a `Look` keeps, in its order."""
_PLACES = {name: place for place, name in enumerate(JUDGED_OVER_TIME)}


class Look(msgspec.Struct, frozen=True, array_like=True):
    """The figures of one moment that are judged over time; None where one is not known.

    A fleet keeps tens of thousands of these in its journal, so they have no names there.
    """

    at: float
    values: tuple[float | None, ...]

    @classmethod
    def of(cls, at: float, numbers: Mapping[str, float]) -> "Look":
        return cls(at, tuple(map(numbers.get, JUDGED_OVER_TIME)))

    def get(self, name: str) -> float | None:
        return self.values[_PLACES[name]]


class GpuMemory(msgspec.Struct, frozen=True):
    """One GPU. `latest` is by source; `looks` span the time that slowdown is judged over, oldest first.

    `gauge` is the last XID that DCGM's gauge was known to show and `counts` its windowed counters. `families`
    are the signals of its last DCGM page. `old_xid` was there before we watched. `missing_since` is by
    source. `xids` says of each code when it was last news, and by which source.
    """

    latest: dict[str, Gpu] = {}
    seen: dict[str, float] = {}
    looks: tuple[Look, ...] = ()
    gauge: int | None = None
    counts: dict[int, float] | None = None
    families: frozenset[str] = frozenset()
    old_xid: int = 0
    missing_since: dict[str, float] = {}
    xids: dict[int, tuple[float, str]] = {}


class Sight(msgspec.Struct, frozen=True):
    """What one source has seen of a node. `good_at` is None before the first report.

    `event` and `epoch` are the last event taken over, and the run of the source it was of. `uuids` are the
    GPUs that should be there, `most` is how many were seen at once.
    """

    good_at: float | None = None
    blind_since: float | None = None
    why: str = ""
    epoch: str = ""
    event: int = 0
    uuids: frozenset[str] = frozenset()
    most: int = 0


class NodeMemory(msgspec.Struct, frozen=True):
    """One node: who sees it, its GPUs by UUID, what is held against them by (UUID, check).

    `pools` are those whose replicas it has, or had last. `resets` says when a GPU was last seen reset.
    `blind_told`: it was told that nobody sees it. `overruled`: since when a person has it in their hands.
    """

    since: float
    sights: dict[str, Sight] = {}
    gpus: dict[str, GpuMemory] = {}
    faults: tuple[Fault, ...] = ()
    driver: str = ""
    boot_id: str = ""
    rack: str = ""
    pools: tuple[str, ...] = ()
    resets: dict[str, float] = {}
    blind_since: float | None = None
    blind_told: bool = False
    overruled: float | None = None


class ProgramXid(msgspec.Struct, frozen=True):
    """An XID of the kind that programs cause. `owner` is what made the pod; both empty where not known."""

    at: float
    code: int
    node: str
    uuid: str
    pod: str = ""
    owner: str = ""


class Quarantine(msgspec.Struct, frozen=True):
    """A node that we took, or want taken. `placed`: we have seen the mark on it.

    `asked_at` is when that was last asked for. `well_since` is since when everything speaks for a release.
    `releasing`: its release was asked for, and not seen yet. `evicted_at` is when its pods were last asked to
    leave, 0 where they never were.
    """

    mark: Mark
    asked_at: float
    placed: bool = False
    well_since: float | None = None
    releasing: bool = False
    evicted_at: float = 0.0


class Storm(msgspec.Struct, frozen=True):
    """Faults of one cause on many nodes at once."""

    cause: str
    since: float
    nodes: tuple[str, ...]


class Past(msgspec.Struct, frozen=True):
    """That a node was taken for a GPU once."""

    node: str
    uuid: str
    check: str
    at: float


class QuarantineMemory(msgspec.Struct, frozen=True):
    """The whole. `QuarantineMemory()` is the state before the first tick.

    `taken` are the times of the last hour's additions; `ejected` the replicas that are kept from new
    requests, and since when; `tripped` since when the breaker stops additions and `trip_seen` when its cause
    was last seen; `told` what need not be told again.
    """

    now: float = 0.0
    nodes: dict[str, NodeMemory] = {}
    programs: tuple[ProgramXid, ...] = ()
    quarantines: dict[str, Quarantine] = {}
    taken: tuple[float, ...] = ()
    past: tuple[Past, ...] = ()
    ejected: dict[str, float] = {}
    storms: tuple[Storm, ...] = ()
    tripped: float | None = None
    trip_seen: float = 0.0
    trip_why: str = ""
    restarted: dict[str, float] = {}
    told: frozenset[str] = frozenset()
    placements: tuple[Placement, ...] = ()
