"""From what a pool needs to what is asked for: nothing hasty, nothing blind, nothing twice.

need known       up at once, to ceil(need) where it is outside the tolerance; at most as many beyond the ready
                 ones as `surge` allows. What is asked for is a total, and what was asked for before is part
                 of it, so that replicas that still load are not asked for again.
                 down one at a time: each look of the last `down_after` must have been content with fewer,
                 and `down_every` must have passed since the last was taken away.
                 no turn: after one was taken away none is asked for until a `cold_start` has passed, nor the
                 other way round. A replica that comes and goes within its own start has served nobody.
need unknown     hold; after `hold` raise to `fallback_replicas`, never lower. An outage also ends all
                 patience for fewer: it has to be shown again, look by look.
overdue          replicas that still load after `startup_timeout` are no capacity. They are told of, and
                 replaced once: whatever keeps them from loading may keep their successors as well.
"""

from collections.abc import Iterator
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.scaling.target_ratio import wanted
from controlplane.signals.reading import Known, Quality
from controlplane.signals.snapshot import Number

Peaks: TypeAlias = tuple[tuple[float, int], ...]

_NEVER = -1e18  # as JSON knows no infinity


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at Unix time `at`: replicas that are ready, since when each other one loads, and the need.

    `need` is in replicas, fractions included; a lower bound may raise the count, and never lower it. Under
    `keep`, which is more where that is given, none is taken away. `why` is a clause that explains the need.
    """

    at: float
    ready: int
    loading_since: tuple[float, ...] = ()
    need: Number
    keep: float = 0.0
    why: str = ""


class Wish(msgspec.Struct, frozen=True):
    """How many replicas should be asked for, why, and what has to be remembered until the next look.

    `seeing_since`: the need has been known in every look since then. `peaks` are the looks of the last
    `down_after` that no later one exceeds: when, and how many replicas were enough. `replaced` are asked for
    in place of overdue ones.
    """

    replicas: int
    reason: str
    sentence: str
    blind_since: float | None = None
    seeing_since: float | None = None
    peaks: Peaks = ()
    lowered_at: float = _NEVER
    raised_at: float = _NEVER
    replaced: int = 0
    overdue: int = 0


def look(before: Wish | None, seen: Look, settings: ScaleSettings) -> Wish:
    """The wish after one more look; `before` is None at the first."""
    overdue = sum(seen.at - since > settings.startup_timeout for since in seen.loading_since)
    there = seen.ready + len(seen.loading_since) - overdue
    if before is None:
        before = Wish(settings.clamp(there), "start", f"{there} replicas are there")
    # Those that replace others come on top of what the need asks for.
    asked = before.replicas - before.replaced
    wish = replace(before, overdue=overdue, replaced=_replaced(before, overdue))
    if not isinstance(seen.need, Known):
        wish, replicas = _blind(wish, asked, seen, settings)
    else:
        wish, replicas = _seeing(wish, asked, seen, seen.need, settings)
    total = replicas + wish.replaced
    if total > before.replicas:
        total = max(before.replicas, min(total, seen.ready + settings.surge(seen.ready)))
    clamped = settings.clamp(total)
    if clamped != total:
        bound = f"min {settings.min}" if clamped > total else f"max {settings.max}"
        wish = replace(wish, reason="bound", sentence=f"{wish.sentence}; {bound} binds")
    return replace(
        wish,
        replicas=clamped,
        replaced=max(0, min(wish.replaced, clamped - replicas)),
        raised_at=seen.at if clamped > before.replicas else wish.raised_at,
    )


def reports(before: Wish | None, after: Wish, settings: ScaleSettings) -> Iterator[tuple[str, str]]:
    """What has begun or ended between two wishes: kind and sentence."""
    was_blind = before is not None and before.blind_since is not None
    if after.blind_since is not None and not was_blind:
        yield "scaling-blind", f"{after.sentence}: the count is held for {settings.hold:g} s"
    if after.blind_since is None and was_blind:
        yield "scaling-sees", "the need is known again"
    were_overdue = before.overdue if before is not None else 0
    if after.overdue and not were_overdue:
        yield "replicas-overdue", f"{after.overdue} replicas not ready after {settings.startup_timeout:g} s"
    if were_overdue and not after.overdue:
        yield "replicas-overdue-over", "no replica is overdue any more"


def _replaced(before: Wish, overdue: int) -> int:
    """Once an overdue replica was replaced, others that become overdue with it are not."""
    return overdue if not before.overdue else min(before.replaced, overdue)


def _blind(wish: Wish, asked: int, seen: Look, settings: ScaleSettings) -> tuple[Wish, int]:
    since = seen.at if wish.blind_since is None else wish.blind_since
    detail = getattr(seen.need, "detail", "") or getattr(seen.need, "reason", "unknown")
    replicas, reason, sentence = asked, "held", f"the need is unknown ({detail})"
    fallback = settings.fallback_replicas
    if fallback is not None and seen.at - since >= settings.hold and fallback > asked:
        replicas, reason = fallback, "fallback"
        sentence = f"{sentence} since {seen.at - since:.0f} s: at least {fallback} replicas"
    wish = replace(wish, reason=reason, sentence=sentence, blind_since=since, seeing_since=None, peaks=())
    return wish, replicas


def _seeing(
    wish: Wish, asked: int, seen: Look, need: Known[float], settings: ScaleSettings
) -> tuple[Wish, int]:
    target = wanted(need.value, asked, settings.tolerance)
    enough = asked if need.quality is Quality.LOWER_BOUND else wanted(seen.keep, asked, 0.0)
    enough = max(target, enough)
    since = seen.at if wish.seeing_since is None else wish.seeing_since
    peaks = _peaks(wish.peaks, seen.at, enough, seen.at - settings.down_after)
    wish = replace(wish, blind_since=None, seeing_since=since, peaks=peaks)
    why = f": {seen.why}" if seen.why else ""
    sentence = f"{need.value:.2f} replicas are needed, {asked} were asked for{why}"
    if target > asked:
        turn = wish.lowered_at + settings.cold_start - seen.at
        if turn > 0:
            sentence = f"{sentence}; one was taken away lately, none is asked for during {turn:.0f} s"
            return replace(wish, reason="turning", sentence=sentence), asked
        return replace(wish, reason="need", sentence=sentence), target
    if enough >= asked:
        return replace(wish, reason="steady", sentence=sentence), asked
    most, seconds = peaks[0][1], min(seen.at - since, settings.down_after)
    sentence = f"at most {most} replicas were needed for {seconds:.0f} s, {asked} were asked for{why}"
    wish = replace(wish, reason="patience", sentence=sentence)
    patient = seconds >= settings.down_after and most < asked
    rested = seen.at - wish.lowered_at >= settings.down_every
    if not (patient and rested and seen.at - wish.raised_at >= settings.cold_start):
        return wish, asked
    return replace(wish, reason="fewer", lowered_at=seen.at), asked - 1


def _peaks(before: Peaks, at: float, enough: int, oldest: float) -> Peaks:
    """With one look more. The first is the highest since `oldest`."""
    kept = (peak for peak in before if peak[0] >= oldest and peak[1] > enough)
    return (*kept, (at, enough))
