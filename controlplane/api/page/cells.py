"""One figure of a table: its words, how it stands, and what a reader may want to know of it besides.

An unknown is shown as what it is, with its reason; it is never 0 and never an empty place.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from controlplane.api.finite import finite, finite_reading
from controlplane.signals.decision import Standing
from controlplane.signals.reading import Quality, Reason, Unknown
from controlplane.signals.snapshot import (
    Denominator,
    Distribution,
    Goodput,
    Limit,
    Number,
    ReplicaSnapshot,
    ReplicaState,
    Scale,
)
from controlplane.signals.status import Objective
from controlplane.signals.units import duration_text
from controlplane.terminal.figures import age, count, percent, seconds, within

Tone: TypeAlias = Literal["", "good", "warn", "bad", "held", "dim", "unknown"]

OLD_SECONDS = 20.0
KV_HIGH, KV_FULL = 0.85, 0.95


class Cell(NamedTuple):
    """`why` is shown on demand: the age of a reading, the reason of an unknown, the law behind a limit."""

    text: str
    tone: Tone = ""
    why: str = ""


NOTHING = Cell("–", "dim")


def unknown(reason: Reason, detail: str = "", age_seconds: float | None = None) -> Cell:
    words = str(reason).replace("-", " ")
    parts = [f"unknown: {words}", detail, "" if age_seconds is None else f"for {age(age_seconds)}"]
    return Cell(words, "unknown", ", ".join(part for part in parts if part))


def number(
    reading: Number,
    now: float,
    words: Callable[[float], str] = count,
    tone: Callable[[float], Tone] | None = None,
) -> Cell:
    """A reading; `≥` marks one that a part is missing from, `~` an estimate."""
    reading = finite_reading(reading)
    old = max(0.0, now - reading.at)
    if isinstance(reading, Unknown):
        return unknown(reading.reason, reading.detail, old)
    mark = {Quality.LOWER_BOUND: "≥", Quality.ESTIMATE: "~"}.get(reading.quality, "")
    how = tone(reading.value) if tone is not None else "" if reading.value else "dim"
    return Cell(mark + words(reading.value), how, f"read {age(old)} ago")


def kv_tone(ratio: float) -> Tone:
    return "bad" if ratio >= KV_FULL else "warn" if ratio >= KV_HIGH else ""


def some(tone: Tone) -> Callable[[float], Tone]:
    """`tone` for what should be 0."""
    return lambda value: tone if value else "dim"


def p95(reading: Distribution, now: float, limit_seconds: float | None = None) -> Cell:
    """The 95th percentile, as far as the histogram can tell; bad where it is over `limit_seconds`."""
    if isinstance(reading, Unknown):
        return unknown(reading.reason, reading.detail, max(0.0, now - reading.at))
    value, of = finite(reading.value.p95), _some(reading.value.count)
    if value is None:
        return unknown(Reason.TOO_FEW, f"of {of}")
    words = within(value, reading.value.lowest, reading.value.highest, seconds)
    over = limit_seconds is not None and value > limit_seconds
    limit = "" if limit_seconds is None else f"; the objective is {duration_text(limit_seconds)}"
    why = f"95th percentile of {of}, read {age(max(0.0, now - reading.at))} ago{limit}"
    return Cell(words, "bad" if over else "", why)


def goodput(of: Goodput, objective: Objective | None) -> Cell:
    """The share of requests within the objective, as the interval that is proven; `*` where refused and
    aborted requests are missing from it."""
    ratio = of.ratio
    window = finite(of.window_seconds)
    if ratio is None or window is None:
        return unknown(of.unknown or Reason.NO_TRAFFIC)
    low, high = min(1.0, ratio.low), min(1.0, ratio.high)
    first, last = percent(low), percent(high)
    words = first if first == last else f"{first.removesuffix('%')}–{last}"
    star = "*" if of.denominator is Denominator.FINISHED else ""
    why = f"of {_some(of.requests)} requests in {duration_text(window)}"
    why += ", of those that finished" if star else ""
    return Cell(words + star, goodput_tone(low, high, objective), why)


def goodput_tone(low: float, high: float, objective: Objective | None) -> Tone:
    """Good where the objective is proven, bad where its miss is, warn between."""
    if objective is None:
        return ""
    return "good" if low >= objective.ratio else "bad" if high < objective.ratio else "warn"


STANDING_TONES: dict[Standing, Tone] = {
    Standing.OBSERVE: "dim",
    Standing.HELD: "held",
    Standing.ENFORCE: "",
}


def limit(of: Limit | None, standing: Standing | None) -> Cell:
    """Sequences that a replica may hold; in brackets what is in force where that is another."""
    if of is None:
        return Cell("none", "dim", "no law limits it")
    words, in_force = count(of.slots), finite(of.in_force)
    if in_force is not None and int(in_force) != of.slots:
        words += f" ({count(in_force)})"
    told = "nobody acts on it" if standing is None else str(standing)
    go_by = "" if in_force is None else f"; the gateways go by {count(in_force)}"
    tone: Tone = "dim" if standing is None else STANDING_TONES[standing]
    return Cell(words, tone, f"{of.reason}: {of.detail}; {told}{go_by}")


def scale(of: Scale | None) -> Cell:
    """How many replicas a pool should have."""
    if of is None:
        return Cell("–", "dim", "this pool is not scaled")
    coming = f", {of.loading} loading" if of.loading else ""
    is_there = of.replicas == of.ready
    return Cell(count(of.replicas), "" if is_there else "warn", f"{of.detail}; {of.ready} ready{coming}")


def state(of: ReplicaSnapshot) -> Cell:
    if of.quarantined_since is not None:
        return Cell("quarantined", "bad", "its GPU is held to be broken")
    tones: dict[ReplicaState, Tone] = {ReplicaState.UP: "good", ReplicaState.ASLEEP: "held"}
    tone = tones.get(of.state, "dim" if of.state is ReplicaState.UNSEEN else "bad")
    return Cell(str(of.state).replace("-", " "), tone, of.detail)


def since(at: float | None, now: float) -> Cell:
    """The age of the last page."""
    if at is None:
        return unknown(Reason.NOT_SCRAPED)
    old = max(0.0, now - at)
    return Cell(age(old), "bad" if old > OLD_SECONDS else "dim")


def _some(value: float) -> str:
    found = finite(value)
    return "?" if found is None else count(found)
