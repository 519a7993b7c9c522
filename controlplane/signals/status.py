"""What the daemon tells of itself: how its loop goes, how its scrapes and its journal fare."""

import msgspec

from controlplane.signals.histogram import Histogram


class Objective(msgspec.Struct, frozen=True):
    """What a pool is measured against: `ratio` of all requests within both limits (seconds)."""

    ttft_seconds: float
    tpot_seconds: float
    ratio: float


class Status(msgspec.Struct, frozen=True):
    """The daemon at one moment. Counts are since its start, times are Unix seconds.

    `scrapes` counts by result: "ok" or the reason of the failure; `scrape_failures` counts the failed ones
    of each replica. `decisions` counts by (action,
    reason code), `events` by kind. `troubles` are sentences about what stands wrong with the daemon
    itself just now (a journal that cannot be written, a reload that was refused); empty when all is well.
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
    journal_writes: int = 0
    journal_failures: int = 0
    journal_queue: int = 0
    decisions: dict[tuple[str, str], int] = {}
    events: dict[str, int] = {}
    objectives: dict[str, Objective] = {}
    troubles: tuple[str, ...] = ()
