"""What a leader leaves to the next one: what has been spent, and where things stood."""

import msgspec


class KeptWish(msgspec.Struct, frozen=True):
    """How many replicas a pool was to have, and when that was last lowered and raised (Unix s)."""

    replicas: int
    lowered_at: float
    raised_at: float


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """All times are Unix seconds.

    `taken` says when nodes were taken within the last hour, and `past` for what: node, GPU, check, time. Of
    the nodes that are `overruled` a person has taken our mark off. `restarted` are workloads. The breaker is
    `tripped` since then, for `trip_why`, and its cause was last seen at `trip_seen`. `wishes` are by pool,
    `limits` (sequences) by replica.
    """

    taken: tuple[float, ...] = ()
    past: tuple[tuple[str, str, str, float], ...] = ()
    overruled: dict[str, float] = {}
    restarted: dict[str, float] = {}
    tripped: float | None = None
    trip_seen: float = 0.0
    trip_why: str = ""
    wishes: dict[str, KeptWish] = {}
    limits: dict[str, int] = {}


class Handed(msgspec.Struct, frozen=True):
    """What the last leader left, and whether this daemon leads from now on."""

    kept: Kept = Kept()
    leads: bool = False
