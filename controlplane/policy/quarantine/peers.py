"""Grey failure: a replica that serves less than its peers at equal load, and nothing says why."""

from collections.abc import Mapping
from statistics import median

import msgspec

_EQUAL = 0.3  # loads that differ by less than this share are equal
_FEWEST_PEERS = 2
_SLOW = 0.6  # of what the peers do
_LEAST_RUNNING = 1.0


class Work(msgspec.Struct, frozen=True):
    """What a replica does: running requests and output tokens a second; None where that is not known."""

    running: float | None
    tokens_per_second: float | None


def slow(pool: Mapping[str, Work]) -> dict[str, bool | None]:
    """Of each replica of a pool whether it is slow; None where it has too few peers at its load to tell."""
    known = {
        name: (work.running, work.tokens_per_second / work.running)
        for name, work in pool.items()
        if work.running is not None and work.tokens_per_second is not None and work.running >= _LEAST_RUNNING
    }
    return {name: _is_slow(name, known) for name in pool}


def _is_slow(name: str, known: Mapping[str, tuple[float, float]]) -> bool | None:
    if name not in known:
        return None
    running, rate = known[name]
    peers = [
        its_rate
        for other, (its_running, its_rate) in known.items()
        if other != name and abs(its_running - running) <= _EQUAL * running
    ]
    return rate < _SLOW * median(peers) if len(peers) >= _FEWEST_PEERS else None
