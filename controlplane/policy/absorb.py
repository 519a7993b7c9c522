"""How one page changes what is remembered of a replica: marks, cells, carries, progress, restarts."""

import math

import msgspec

from controlplane.policy import goodput, growth, stall
from controlplane.policy.goodput import Carry, Cell, Ends, EngineCell, Finishers
from controlplane.policy.growth import Mark
from controlplane.policy.memory import ReplicaMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Event, Severity
from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import Scrape, Signals
from controlplane.signals.snapshot import Totals


class Absorbed(msgspec.Struct, frozen=True):
    """A replica's memory after one page, what it adds to its pool's totals, and what happened."""

    memory: ReplicaMemory
    gain: Totals | None
    events: tuple[Event, ...]


def absorb(memory: ReplicaMemory, scrape: Scrape, settings: PolicySettings) -> Absorbed:
    """Take in one good page. A page older than the latest one tells nothing new and changes nothing."""
    latest = Mark(scrape.at, scrape.engines, scrape.server)
    if memory.latest is not None and scrape.at <= memory.latest.at:
        return Absorbed(memory, None, ())
    memory, events = _identify(memory, scrape)
    memory = msgspec.structs.replace(memory, progress=_progress(memory, latest))
    if memory.latest is None:
        carries = {name: goodput.start(_in_flight(latest, name, True)) for name in latest.units}
        fresh = msgspec.structs.replace(memory, latest=latest, marks=(latest,), carries=carries)
        return Absorbed(fresh, None, events)
    if growth.began_again(memory.latest, latest):
        sentence = f"{memory.target.name} restarted: its counters began again"
        events = (*events, Event(scrape.at, "restart", memory.target.name, Severity.WARNING, sentence))
        memory, gain = _close(memory, settings)  # what was counted up to the last page of the old process
        memory = msgspec.structs.replace(
            memory,
            marks=(Mark(memory.latest.at if memory.latest else scrape.at),),
            carries={},
            cells=(),
            preemptions=(),
            restarts=memory.restarts + 1,
            latest=latest,
        )
        more = Totals(restarts=1)
        gain = more if gain is None else add(gain, more)
    else:
        memory, gain = msgspec.structs.replace(memory, latest=latest), None
    since = scrape.at - memory.marks[-1].at
    if since >= settings.goodput_cell - settings.poll_interval / 2:
        gap = since > max(settings.stale_after, 3 * settings.goodput_cell)
        memory, closed = _close(memory, settings)
        gain = closed if gain is None else gain if closed is None else add(gain, closed)
        if gap:  # counted in the totals, but it says nothing about now
            memory = msgspec.structs.replace(memory, marks=memory.marks[-1:], cells=(), preemptions=())
    return Absorbed(memory, gain, events)


def close(memory: ReplicaMemory, settings: PolicySettings) -> Totals | None:
    """What a replica that leaves the fleet still adds to its pool's totals."""
    return _close(memory, settings)[1]


def _identify(memory: ReplicaMemory, scrape: Scrape) -> tuple[ReplicaMemory, tuple[Event, ...]]:
    """Who answers, and each of its warnings once."""
    name = memory.target.name
    new = [warning for warning in scrape.warnings if warning not in memory.told]
    events = tuple(Event(scrape.at, "page-warning", name, Severity.WARNING, f"{name}: {w}") for w in new)
    known = msgspec.structs.replace(
        memory,
        engine=scrape.engine,
        version=scrape.version,
        models=scrape.models,
        scrape_seconds=scrape.seconds,
        partial=scrape.partial,
        failure=None,
        told=memory.told.union(new) if new else memory.told,
    )
    return known, events


def _progress(memory: ReplicaMemory, latest: Mark) -> dict[str, stall.Progress]:
    shared = latest.server if growth.SERVER in latest.units else None
    return {
        name: stall.follow(memory.progress.get(name), signals, shared, latest.at)
        for name, signals in latest.engines.items()
    }


def _close(memory: ReplicaMemory, settings: PolicySettings) -> tuple[ReplicaMemory, Totals | None]:
    """Close the open cell at the latest page; the totals it adds, None where nothing had been open."""
    latest = memory.latest
    if latest is None or not memory.marks or latest.at <= memory.marks[-1].at:
        return memory, None
    begin = memory.marks[-1]
    slo = settings.slo(memory.target.pool)
    preempted = growth.over_engines(begin, latest, "preemptions_total")
    preempting = bool(preempted) or any(memory.preemptions)
    engines, carries = EngineCell(), {}
    for name, signals in latest.units.items():
        seen = _finishers(begin.unit(name), signals)
        carry = memory.carries.get(name, Carry())
        cell, carries[name] = goodput.measure(carry, seen, slo, _in_flight(latest, name, preempting))
        engines = engines + cell
    cell_ends = _ends(begin, latest)
    keep_from = latest.at - settings.window - settings.poll_interval / 2
    cells = (*memory.cells, Cell(begin.at, latest.at, engines, cell_ends))
    kept = tuple(cell for cell in cells if cell.start >= keep_from)
    counts = memory.preemptions if preempted is None else (*memory.preemptions, preempted)
    closed = msgspec.structs.replace(
        memory,
        marks=(*(mark for mark in memory.marks if mark.at >= keep_from), latest),
        cells=kept,
        carries=carries,
        preemptions=counts[-len(kept) :] if kept else (),
    )
    return closed, _gain(begin, latest, engines, cell_ends, preempted)


def _finishers(earlier: Signals, later: Signals) -> Finishers:
    def grown(name: str) -> Histogram | None:
        return growth.of_histogram(earlier, later, name)

    ends = growth.of_parts(earlier, later, "finished_total")
    return Finishers(
        ttft=grown("ttft"),
        tpot=grown("tpot"),
        e2e=grown("e2e"),
        queue_time=grown("queue_time"),
        prefill_time=grown("prefill_time"),
        prompt_len=grown("prompt_len"),
        generation_len=grown("generation_len"),
        finished=growth.of_number(earlier, later, "finished_total"),
        not_answers=ends.get("error", 0.0) + ends.get("abort", 0.0),
    )


def _in_flight(mark: Mark, unit: str, preempting: bool) -> float:
    """How many requests can have a first token and be unfinished; preempted ones wait again."""
    parts = mark.engines.values() if unit == growth.SERVER else (mark.unit(unit),)
    running = sum(signals.numbers.get("running", math.inf) for signals in parts)
    waiting = sum(signals.numbers.get("waiting", 0.0) for signals in parts)
    return running + waiting if preempting else running


def _ends(earlier: Mark, later: Mark) -> Ends:
    rejected = growth.over_engines(earlier, later, "rejected_total")
    if rejected is None:  # several vLLM engines count their refusals in the server
        rejected = growth.of_number(earlier.server, later.server, "rejected_total")
    if "http_inference_requests" not in later.server.numbers:
        return Ends(rejected or 0.0)
    by_class = growth.of_parts(earlier.server, later.server, "http_inference_requests")
    return Ends(rejected or 0.0, by_class.get("2xx", 0.0), by_class.get("5xx", 0.0))


def _gain(earlier: Mark, later: Mark, engines: EngineCell, ends: Ends, preemptions: float | None) -> Totals:
    return Totals(
        finished=engines.requests,
        good=engines.good,
        good_point=engines.good_point,
        tokens=engines.tokens,
        good_tokens=engines.good_tokens,
        good_tokens_point=engines.good_tokens_point,
        rejected=ends.rejected,
        prompt_tokens=growth.over_engines(earlier, later, "prompt_tokens_total") or 0.0,
        generation_tokens=growth.over_engines(earlier, later, "generation_tokens_total") or 0.0,
        preemptions=preemptions or 0.0,
    )


def add(a: Totals, b: Totals) -> Totals:
    """Both totals together."""
    return Totals(*(getattr(a, f) + getattr(b, f) for f in Totals.__struct_fields__))
