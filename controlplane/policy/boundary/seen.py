"""What one window shows of the two pools, put together from the gateways' outcome windows and the engines."""

from collections.abc import Iterable, Sequence

import msgspec

from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.samples import OutcomeWindow
from controlplane.signals.size_class import EDGES, SizeClass
from controlplane.signals.snapshot import Load, Number

_KNOWN_EDGES = frozenset(EDGES)


class Room(msgspec.Struct, frozen=True):
    """One replica in rotation: sequences at once (its limit), tokens of its KV cache (times over-commit) and
    the longest sequence it takes; None where not known."""

    slots: float | None = None
    kv_tokens: float | None = None
    longest_tokens: int | None = None


class PoolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One pool in a window.

    `replicas` are those in rotation; `slots` and `kv_tokens` are the mean of one, `longest_tokens` is what
    the best of them takes; None where not known of all. Of the gateways together: `in_flight` sequences and
    `queued` requests (means over the window), `gaps` between two tokens of a stream that took `gap_seconds`,
    and the requests that ended by size class. `waiting`, `kv_usage` (mean) and `preemptions_per_second` are
    the engines' own. `heard` says whether any gateway spoke of this pool.
    """

    replicas: int
    slots: float | None
    kv_tokens: float | None
    longest_tokens: int | None
    heard: bool
    in_flight: float
    queued: float
    gaps: float
    gap_seconds: float
    sizes: dict[int, SizeClass]
    waiting: Number
    kv_usage: Number
    preemptions_per_second: Number


class PairWindow(msgspec.Struct, frozen=True):
    """Both pools from `start` to `end` (Unix seconds)."""

    start: float
    end: float
    short: PoolSeen
    long: PoolSeen

    def __post_init__(self) -> None:
        if not self.end > self.start:
            raise ValueError(f"a window ends after it starts (got {self.start} to {self.end})")


def pool_seen(
    windows: Iterable[OutcomeWindow], rooms: Sequence[Room], load: Load | None, now: float
) -> PoolSeen:
    """One pool from the outcome windows that are new since the last call (of this pool alone, each once),
    its replicas in rotation, and the engines' load (None: nothing is known of them)."""
    by_gateway: dict[str, list[OutcomeWindow]] = {}
    for window in windows:
        by_gateway.setdefault(window.gateway, []).append(window)
    told = [window for own in by_gateway.values() for window in own]
    replicas = [replica for window in told for replica in window.replicas.values()]
    nothing = Unknown(Reason.NO_DATA, now)
    return PoolSeen(
        replicas=len(rooms),
        slots=_mean([room.slots for room in rooms]),
        kv_tokens=_mean([room.kv_tokens for room in rooms]),
        longest_tokens=_longest(rooms),
        heard=bool(told),
        in_flight=sum(
            _over_time(own, [float(sum(r.in_flight for r in window.replicas.values())) for window in own])
            for own in by_gateway.values()
        ),
        queued=sum(_over_time(own, [float(window.queued) for window in own]) for own in by_gateway.values()),
        gaps=float(sum(replica.gaps for replica in replicas)),
        gap_seconds=sum(replica.gap_seconds for replica in replicas),
        sizes=merged(window.sizes for window in told),
        waiting=nothing if load is None else load.waiting,
        kv_usage=nothing if load is None else load.kv_usage_mean,
        preemptions_per_second=nothing if load is None else load.preemptions_per_second,
    )


def merged(histograms: Iterable[dict[int, SizeClass]]) -> dict[int, SizeClass]:
    """All histograms together. Classes that this version does not know are left out."""
    parts: dict[int, list[SizeClass]] = {}
    for histogram in histograms:
        for edge, size in histogram.items():
            if edge in _KNOWN_EDGES:
                parts.setdefault(edge, []).append(size)
    return {
        edge: SizeClass(
            sum(size.offered for size in sizes),
            sum(size.served for size in sizes),
            sum(size.sequence_seconds for size in sizes),
            sum(size.token_seconds for size in sizes),
        )
        for edge, sizes in sorted(parts.items())
    }


def _over_time(windows: Sequence[OutcomeWindow], values: Sequence[float]) -> float:
    """The mean of one value a window, by how long the windows are."""
    seconds = [window.end - window.start for window in windows]
    return sum(s * value for s, value in zip(seconds, values, strict=True)) / sum(seconds)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _longest(rooms: Sequence[Room]) -> int | None:
    lengths = [room.longest_tokens for room in rooms]
    known = [length for length in lengths if length is not None]
    return max(known) if known and len(known) == len(lengths) else None
