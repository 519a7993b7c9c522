"""The first thing that somebody woken at night reads: is it us, what is broken, what was done about it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controlplane.api.health import stuck
from controlplane.api.page.cells import Tone, goodput_tone
from controlplane.api.page.records import DID, WOULD, Told, label
from controlplane.api.shapes import Alert
from controlplane.signals.decision import Decision, Orders, Standing
from controlplane.signals.reading import Reason, known
from controlplane.signals.snapshot import Distribution, FleetSnapshot, PoolSnapshot, ReplicaState
from controlplane.signals.status import Objective, Status
from controlplane.terminal.figures import age, count, seconds

_MOST_NAMED = 3
_MOSTLY = 0.5  # of a latency: what is longer than that is where the time goes


class Line(NamedTuple):
    """A question of the night and its answer."""

    question: str
    answer: str
    tone: Tone = ""


class Headline(NamedTuple):
    tone: Tone
    sentence: str
    lines: tuple[Line, ...] = ()


class Stance(NamedTuple):
    """What may be done just now: `word` for the badge, `sentence` for who reads on."""

    word: str
    tone: Tone
    sentence: str


def stance(orders: Orders, status: Status, now: float) -> Stance:
    """Whether controlplane only observes, enforces, or is held."""
    hold = orders.hold
    if hold is not None:
        words = f"nothing is acted on, for {age(max(0.0, now - hold.since))}, by {hold.by}: {hold.reason}"
        return Stance("HOLD", "held", words)
    if not status.leads:
        return Stance("FOLLOWS", "dim", "another daemon leads and acts; this one stands by")
    by_pool = status.pool_standings
    acting = [p for p, each in by_pool.items() if Standing.ENFORCE in each.values()]
    if not acting:
        return Stance("OBSERVE", "dim", "decisions are written down, nothing is touched")
    if len(acting) == len(by_pool):
        return Stance("ENFORCE", "warn", "decisions are carried out")
    return Stance("PARTLY ENFORCE", "warn", f"decisions are carried out in {_names(acting)}, not elsewhere")


def headline(
    snapshot: FleetSnapshot | None,
    status: Status,
    alerts: Sequence[Alert],
    told: Sequence[Decision],
    now: float,
    *,
    is_all: bool = True,
) -> Headline:
    """The state of the fleet in a sentence, and what stands below it. `told` are the decisions of the last
    hour, the newest first; `is_all` says whether these are all of them."""
    if snapshot is None:
        why = stuck(status, now) or "the first tick has not run yet"
        return Headline("unknown", f"Nothing is known: {why}.")
    tone, sentence = _verdict(snapshot, status, now)
    broken = _broken(snapshot, status)
    lines = [
        Line("Broken", "; ".join(broken) or "nothing that can be seen", "bad" if broken else ""),
        _firing(alerts, now),
        _acted("Did", told, DID, now, is_all=is_all),
        _acted("Would have", told, WOULD, now, is_all=is_all),
    ]
    return Headline(tone, sentence, tuple(lines))


def _verdict(snapshot: FleetSnapshot, status: Status, now: float) -> tuple[Tone, str]:
    blind = _blind(snapshot, status, now)
    if blind is not None:
        return blind
    judged = {name: _judge(pool, status.objectives.get(name)) for name, pool in snapshot.pools.items()}
    missed = [name for name, tone in judged.items() if tone == "bad"]
    unsure = [name for name, tone in judged.items() if tone == "warn"]
    if missed:
        return "bad", _missed(missed, snapshot, status)
    if unsure:
        few = [_interval(snapshot.pools[name], status.objectives[name]) for name in unsure[:_MOST_NAMED]]
        return "warn", f"It is not proven that the objective is met: {'; '.join(few)}{_more(unsure)}."
    return _well(judged)


def _blind(snapshot: FleetSnapshot, status: Status, now: float) -> tuple[Tone, str] | None:
    """What stands before any word on the fleet: that it cannot be seen. None where it can."""
    loop = stuck(status, now)
    if loop:
        return "bad", f"It is controlplane itself: {loop}. What stands below is {age(now - snapshot.at)} old."
    replicas = snapshot.replicas.values()
    if not replicas:
        return "unknown", "Nothing is known: discovery has found no replica yet."
    away = sum(r.state in (ReplicaState.UNREACHABLE, ReplicaState.NOT_AN_ENGINE) for r in replicas)
    if away == len(replicas) and away > 1:
        return "bad", f"None of {away} replicas can be reached: it may be this daemon that is cut off."
    return None


def _well(judged: Mapping[str, Tone]) -> tuple[Tone, str]:
    """Of pools of which none is known to miss its objective."""
    idle = [name for name, tone in judged.items() if tone == "dim"]
    blind = [name for name, tone in judged.items() if tone == "unknown"]
    met = [name for name, tone in judged.items() if tone == "good"]
    rest = f" {_names(idle)} {'has' if len(idle) == 1 else 'have'} no traffic." if idle else ""
    rest += f" Of {_names(blind)} too little is known to say." if blind else ""
    if not met:
        return ("unknown" if blind else "good"), f"No pool is known to miss its objective.{rest}"
    subject = f"Pool {met[0]} meets its" if len(met) == 1 else f"{count(len(met))} pools meet their"
    return "good", f"{subject} objective.{rest}"


def _judge(pool: PoolSnapshot, objective: Objective | None) -> Tone:
    ratio = pool.goodput.ratio
    if ratio is None:
        return "dim" if pool.goodput.unknown in (None, Reason.NO_TRAFFIC) else "unknown"
    return goodput_tone(ratio.low, ratio.high, objective)


def _missed(names: Sequence[str], snapshot: FleetSnapshot, status: Status) -> str:
    if len(names) == 1:
        pool, objective = snapshot.pools[names[0]], status.objectives[names[0]]
        cause = where_time_goes(pool, objective)
        return f"Pool {_interval(pool, objective)}{'; ' if cause else ''}{cause}."
    few = [_interval(snapshot.pools[name], status.objectives[name]) for name in names[:_MOST_NAMED]]
    return (
        f"{len(names)} of {len(snapshot.pools)} pools miss their objective: {'; '.join(few)}{_more(names)}."
    )


def _interval(pool: PoolSnapshot, objective: Objective) -> str:
    ratio = pool.goodput.ratio
    assert ratio is not None
    low, high = f"{min(1.0, ratio.low):.1%}", f"{min(1.0, ratio.high):.1%}"
    found = f"at most {high}" if ratio.high < objective.ratio else f"{low} to {high}"
    of = f"of {count(pool.goodput.requests)} requests"
    return f"{pool.name}: {found} {of} were good, the objective is {objective.ratio:.1%}"


def where_time_goes(pool: PoolSnapshot, objective: Objective) -> str:
    """Queue or engine, of a pool that misses its objective; "" where it cannot be told."""
    queue, ttft, tpot = (_p95(getattr(pool.latency, name)) for name in ("queue_time", "ttft", "tpot"))
    parts = []
    if ttft is not None and ttft > objective.ttft_seconds and queue is not None:
        where = "requests wait in the engines' queues" if queue >= _MOSTLY * ttft else "prefill is slow"
        parts.append(f"{where} (TTFT p95 {seconds(ttft)}, queue {seconds(queue)})")
    if tpot is not None and tpot > objective.tpot_seconds:
        parts.append(f"tokens come slowly (TPOT p95 {seconds(tpot)})")
    return " and ".join(parts)


def _p95(reading: Distribution) -> float | None:
    value = known(reading)
    return None if value is None else value.p95


def _broken(snapshot: FleetSnapshot, status: Status) -> list[str]:
    replicas = snapshot.replicas.values()
    states = Counter(r.state for r in replicas if r.state not in (ReplicaState.UP, ReplicaState.ASLEEP))
    found = [f"{n} of {len(replicas)} replicas {str(state).replace('-', ' ')}" for state, n in states.items()]
    kinds = Counter(kind for r in replicas for kind in {c.kind for c in r.conditions})
    found += [f"{n} {kind.replace('-', ' ')}" for kind, n in kinds.most_common() if kind != "scrape-failing"]
    faulty = sum(len(node.verdicts) for node in snapshot.nodes.values())
    blind = sum(node.blind_since is not None for node in snapshot.nodes.values())
    if faulty:
        found.append(f"{faulty} GPU{'s' if faulty > 1 else ''} with faults")
    if blind:
        found.append(f"{blind} node{'s' if blind > 1 else ''} whose GPUs nobody sees")
    return [*found, *status.troubles]


def _firing(alerts: Sequence[Alert], now: float) -> Line:
    if not alerts:
        return Line("Firing", "no alert that Alertmanager has told of")
    by_severity = Counter(alert.severity or "alert" for alert in alerts)
    words = ", ".join(f"{n} {severity}{'s' if n > 1 else ''}" for severity, n in by_severity.items())
    first = alerts[0]
    tone: Tone = "bad" if first.severity == "page" else "warn"
    return Line("Firing", f"{words}; {first.name} for {age(max(0.0, now - first.since))}", tone)


def _acted(question: str, told: Sequence[Decision], kind: Told, now: float, *, is_all: bool) -> Line:
    these = [decision for decision in told if label(decision) == kind]
    if not these:
        return Line(question, "nothing in the last hour", "dim")
    last = these[0]
    times = f"{count(len(these))} time{'s' if len(these) > 1 else ''} in the last hour"
    times = times if is_all else f"at least {times}"
    return Line(question, f"{times}; {age(max(0.0, now - last.at))} ago: {last.sentence}")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + _more(names)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
