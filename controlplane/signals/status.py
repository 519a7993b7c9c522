"""What the daemon tells of itself: how its loop goes, how its scrapes and its journal fare."""

from collections.abc import Mapping

import msgspec

from controlplane.signals.decision import Standing
from controlplane.signals.histogram import Histogram
from controlplane.signals.probe import ProbeKind, ProbeResult


class Objective(msgspec.Struct, frozen=True):
    """What a pool is measured against: `ratio` of all requests within both limits (seconds)."""

    ttft_seconds: float
    tpot_seconds: float
    ratio: float


class Status(msgspec.Struct, frozen=True):
    """The daemon at one moment. Counts are since its start, times are Unix seconds.

    `scrapes` counts by result: "ok" or the reason of the failure; `scrape_failures` counts the failed ones of
    each replica, `probes` those of all by kind and result. `decisions` counts by (action, reason code),
    `events` by kind. `troubles` are sentences about what stands wrong with the daemon itself just now (a
    journal that cannot be written, a reload that was refused); empty when all is well. `limit_standings` says
    by replica whether its limit is enforced, observed or held; where nothing acts on it, there is none.
    `boundary_standing` says the same of the boundary between two pools, `pool_standings` by pool and actuator
    of all that an actuator may do there. The replicas that are `out` get nothing new. Of several daemons one
    `leads`; `follows` names it where another does, as far as is known.
    """

    started_at: float
    last_tick_at: float | None
    tick_interval_seconds: float
    tick_seconds: Histogram
    ticks: int = 0
    misfires: int = 0
    missed_scrapes: int = 0
    scrapes: dict[str, int] = {}
    scrape_failures: dict[str, int] = {}
    dropped_samples: int = 0
    probes: Mapping[tuple[ProbeKind, ProbeResult], int] = {}
    journal_writes: int = 0
    journal_failures: int = 0
    journal_queue: int = 0
    decisions: dict[tuple[str, str], int] = {}
    events: dict[str, int] = {}
    objectives: dict[str, Objective] = {}
    limit_standings: dict[str, Standing] = {}
    boundary_standing: Standing | None = None
    pool_standings: dict[str, dict[str, Standing]] = {}
    troubles: tuple[str, ...] = ()
    leads: bool = True
    out: frozenset[str] = frozenset()
    follows: str = ""
