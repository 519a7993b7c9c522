"""Somebody else writes the replica count too: told, and not fought.

A count that is read back other than it was written is a reset. The first may be a person who knows better,
so it is answered once with what is wanted; after `resets_before_stop` of them within `window` nothing is
written any more, until the count has been left alone for `quiet` or a person says so (a fresh `Contention`).
"""

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from controlplane.signals.units import Duration


class ContentionSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    resets_before_stop: int = Field(3, ge=1, strict=True)
    window: Duration = Field(600.0, gt=0)
    quiet: Duration = Field(1800.0, gt=0, description="left alone for so long, the count is written again")


class Contention(msgspec.Struct, frozen=True):
    """What is remembered of a replica count: what we wrote last and when, when it was reset, since when we
    keep our hands off, and what is told of that meanwhile. `seen` is what was read last, and since when."""

    wrote: int | None = None
    first_wrote_at: float = 0.0
    resets: tuple[float, ...] = ()
    stopped_at: float | None = None
    why: str = ""
    seen: int | None = None
    seen_since: float = 0.0


def look(
    before: Contention, observed: int, wanted: int, at: float, settings: ContentionSettings
) -> tuple[Contention, int | None]:
    """One evaluation: what is remembered, and what to write (None: nothing)."""
    now = before
    if observed != now.seen:
        now = msgspec.structs.replace(now, seen=observed, seen_since=at)
    if now.stopped_at is not None:
        if at - max(now.stopped_at, now.seen_since) < settings.quiet:
            return now, None
        now = Contention(seen=observed, seen_since=now.seen_since)
    resets = tuple(when for when in now.resets if at - when <= settings.window)
    # A write whose answer was lost may have been carried out: then it reads as wanted, and nobody reset it.
    if now.wrote is not None and observed not in (now.wrote, wanted):
        resets = (*resets, at)
        if len(resets) >= settings.resets_before_stop:
            seconds = at - min(now.first_wrote_at, resets[0])
            why = f"another writer changes replicas ({len(resets)} times in {seconds:.0f} s)"
            return msgspec.structs.replace(now, resets=resets, stopped_at=at, why=why), None
    now = msgspec.structs.replace(now, resets=resets)
    if observed == wanted:
        return msgspec.structs.replace(now, wrote=wanted if now.wrote is not None else None), None
    first = at if now.wrote is None or not resets else now.first_wrote_at
    return msgspec.structs.replace(now, wrote=wanted, first_wrote_at=first), wanted
