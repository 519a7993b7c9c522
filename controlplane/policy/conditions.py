"""Conditions that begin and end once: a test must hold several times in a row before anybody is told."""

import msgspec

from controlplane.signals.snapshot import Condition

# How many looks in a row it takes to begin, and to end. A stall and a missing engine are already held for
# a time by their own tests; load comes and goes between two looks.
_PATIENCE = {
    "scrape-failing": (3, 1),
    "not-an-engine": (1, 1),
    "asleep": (1, 1),
    "wedged": (1, 1),
    "frozen-gauges": (1, 1),
    "stalled": (1, 1),
    "preempting": (1, 3),
    "saturated": (3, 3),
    "objective-missed": (3, 3),
    "not-started": (1, 1),
    "readiness-blind": (1, 1),
    "readiness-capped": (1, 1),
}


class Watch(msgspec.Struct, frozen=True):
    """One condition under watch: `streak` looks in a row spoke against what we hold."""

    active: Condition | None = None
    streak: int = 0


def look(watch: Watch, kind: str, holds: bool | None, sentence: str, at: float) -> Watch:
    """One look at Unix time `at`. Where it cannot be told whether it holds (None), nothing changes."""
    begin, end = _PATIENCE[kind]
    if holds is None:
        return watch
    if holds == (watch.active is not None):
        return watch if watch.streak == 0 else Watch(watch.active)
    streak = watch.streak + 1
    if streak < (begin if holds else end):
        return Watch(watch.active, streak)
    return Watch(Condition(kind, at, sentence)) if holds else Watch()
