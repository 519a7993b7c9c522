"""Preemptions: one burst is a busy minute, sustained growth is a replica that holds more than its KV can."""

from collections.abc import Sequence

from controlplane.signals.snapshot import Trend


def trend(per_cell: Sequence[float]) -> Trend:
    """Trend of the preemptions of the last cells, oldest first; what is not known is left out before.

    Sustained: at least three cells and at least half of them had preemptions, and one of the latest two.
    """
    if not per_cell:
        return Trend.UNKNOWN
    hit = [count > 0 for count in per_cell]
    if not any(hit):
        return Trend.NONE
    sustained = sum(hit) >= max(3, len(hit) / 2) and any(hit[-2:])
    return Trend.SUSTAINED if sustained else Trend.BURST
