"""The columns of the fleet's table: one figure each, for a pool or a replica."""

import math
from collections.abc import Callable
from typing import NamedTuple

from rich.text import Text

from controlplane.api.shapes import (
    Distribution,
    KnownDistribution,
    KnownNumber,
    Latency,
    Load,
    Number,
    Objective,
    Pool,
    Replica,
)
from controlplane.signals.reading import Quality, Reason
from controlplane.signals.snapshot import Denominator, ReplicaState, Trend
from controlplane.terminal.figures import age, count, percent, seconds, within
from controlplane.terminal.standing import STYLES, pool_standing

OLD_SECONDS = 20.0
_GOODPUT_CELLS = 8
_KV_CELLS = 4
_EIGHTHS = " ▏▎▍▌▋▊▉"
_KV_FULL, _KV_HIGH = 0.95, 0.85
_DASH = Text("–", style="dim")


class Row(NamedTuple):
    """What a line is about. `now` is the daemon's clock."""

    of: Pool | Replica
    objective: Objective | None
    now: float


class Column(NamedTuple):
    """`spare` columns are left out where there is no room, those with the highest number first."""

    title: str
    cell: Callable[[Row], Text]
    spare: int = 0
    left: bool = False


def _known(number: Number) -> float | None:
    return number.value if isinstance(number, KnownNumber) else None


def _figure(number: Number, style: str = "") -> Text:
    value = _known(number)
    if value is None:
        return _DASH.copy()
    return Text(_at_least(number) + count(value), style=style if value else "dim")


def _ratio(number: Number) -> Text:
    value = _known(number)
    return _DASH.copy() if value is None else Text(_at_least(number) + percent(value))


def _at_least(number: Number) -> str:
    """The mark of a figure that a part is missing from."""
    lower = isinstance(number, KnownNumber) and number.quality is Quality.LOWER_BOUND
    return "≥" if lower else ""


def _kv(load: Load) -> Text:
    value = _known(load.kv_usage)
    if value is None:
        return _DASH.copy()
    style = "red" if value >= _KV_FULL else "yellow" if value >= _KV_HIGH else "green"
    words = _at_least(load.kv_usage) + percent(value)
    return Text.assemble((_bar(value, _KV_CELLS).ljust(_KV_CELLS), style), f" {words:>4}")


def _bar(ratio: float, cells: int) -> str:
    """A bar that is `cells` wide at 1; its length is rounded down, but whatever there is shows."""
    full, eighths = divmod(int(min(1.0, max(0.0, ratio)) * cells * 8), 8)
    if ratio > 0 and full == 0:
        eighths = max(1, eighths)
    return "█" * full + (_EIGHTHS[eighths] if eighths else "")


def _goodput(row: Row) -> Text:
    """What is proven good, what may be, what is not: `█████▒·· 66–78%`."""
    of, objective = row.of, row.objective
    if isinstance(of, Replica) and of.state is not ReplicaState.UP:
        return Text(of.state, style="cyan" if of.state is ReplicaState.ASLEEP else "red")
    goodput = of.goodput
    ratio = goodput.ratio
    if ratio is None or ratio.low is None:
        words = "too few to say" if goodput.unknown is Reason.TOO_FEW else goodput.unknown or "–"
        return Text(words, style="dim")
    low, high = min(1.0, ratio.low), 1.0 if ratio.high is None else min(1.0, ratio.high)
    style = ""
    if objective is not None:
        style = "green" if low >= objective.ratio else "red" if high < objective.ratio else "yellow"
    proven = _bar(low, _GOODPUT_CELLS)
    maybe = max(0, math.ceil(high * _GOODPUT_CELLS) - len(proven))
    rest = _GOODPUT_CELLS - len(proven) - maybe
    cell = Text.assemble((proven + "▒" * maybe, style), ("·" * rest, "dim"), " ")
    cell.append(_interval(low, high), style=style)
    if goodput.denominator is Denominator.FINISHED:
        cell.append("*", style="dim")
    return cell


def _interval(low: float, high: float) -> str:
    """`88–96%`; one number where both ends read alike."""
    first, last = percent(low), percent(high)
    return first if first == last else f"{first.removesuffix('%')}–{last}"


def _p95(latency: Latency, name: str, objective: Objective | None) -> Text:
    reading: Distribution = getattr(latency, name)
    if not isinstance(reading, KnownDistribution) or reading.value.p95 is None:
        return _DASH.copy()
    value = reading.value.p95
    limit = None if objective is None else getattr(objective, f"{name}_seconds")
    words = within(value, reading.value.lowest, reading.value.highest, seconds).replace(" ", "")
    return Text(words, style="red" if limit is not None and value > limit else "")


def _preemptions(of: Pool | Replica) -> Text:
    sustained = isinstance(of, Replica) and of.preemption_trend is Trend.SUSTAINED
    return _figure(of.load.preemptions_per_second, style="red" if sustained else "yellow")


def _limit(row: Row) -> Text:
    """The limit of sequences: bold where it is enforced, with the one in force where that is another.

    Of a pool, what may be done there.
    """
    if isinstance(row.of, Pool):
        standing = pool_standing(row.of)
        return Text(standing or "", style=STYLES[standing])
    if row.of.limit is None:
        return _DASH.copy()
    limit = row.of.limit
    cell = Text(count(limit.slots), style=STYLES[limit.standing])
    if limit.in_force is not None and int(limit.in_force) != limit.slots:
        cell.append(f" ({count(limit.in_force)})", style="yellow")
    return cell


def _failures(row: Row) -> Text:
    if isinstance(row.of, Pool):
        return Text()
    failures = row.of.scrape_failures
    return Text(count(failures), style="yellow" if failures else "dim")


def _age(row: Row) -> Text:
    if isinstance(row.of, Pool):
        return Text()
    if row.of.last_scrape_at is None:
        return _DASH.copy()
    old = row.now - row.of.last_scrape_at
    return Text(age(old), style="red" if old > OLD_SECONDS else "dim")


COLUMNS = (
    Column("GOODPUT", _goodput, left=True),
    Column("RUN", lambda row: _figure(row.of.load.running)),
    Column("WAIT", lambda row: _figure(row.of.load.waiting, style="yellow")),
    Column("LIMIT", _limit, spare=4),
    Column("KV", lambda row: _kv(row.of.load)),
    Column("IN/s", lambda row: _figure(row.of.load.prompt_tokens_per_second), spare=6),
    Column("OUT/s", lambda row: _figure(row.of.load.generation_tokens_per_second), spare=3),
    Column("HIT", lambda row: _ratio(row.of.load.prefix_hit_ratio), spare=7),
    Column("QUEUE95", lambda row: _p95(row.of.latency, "queue_time", None), spare=5),
    Column("TTFT95", lambda row: _p95(row.of.latency, "ttft", row.objective)),
    Column("TPOT95", lambda row: _p95(row.of.latency, "tpot", row.objective)),
    Column("PRE/s", lambda row: _preemptions(row.of), spare=2),
    Column("FAILS", _failures, spare=4),
    Column("AGE", _age, spare=1),
)
