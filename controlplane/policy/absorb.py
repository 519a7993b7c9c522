"""How one page changes what is remembered of a replica: marks, cells, carries, progress, restarts."""

import math

import msgspec

from controlplane.policy import goodput, growth, stall
from controlplane.policy.goodput import Carry, Cell, Ends, EngineCell, Finishers
from controlplane.policy.growth import Gap, Mark
from controlplane.policy.memory import ReplicaMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.decision import Event, Severity
from controlplane.signals.interval import Interval
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Scrape
from controlplane.signals.snapshot import Totals

_MOST_IN_FLIGHT = 1e9  # more than any engine has; a number, so that bounds stay numbers


class Absorbed(msgspec.Struct, frozen=True):
    """A replica's memory after one page, what it adds to its pool's totals, and what happened."""

    memory: ReplicaMemory
    gain: Totals | None
    events: tuple[Event, ...]


def absorb(memory: ReplicaMemory, scrape: Scrape, settings: PolicySettings) -> Absorbed:
    """Take in one good page. A page older than the latest one tells nothing new and changes nothing."""
    page = Mark(scrape.at, scrape.engines, scrape.server)
    before = memory.latest
    if before is not None and page.at <= before.at:
        return Absorbed(memory, None, ())
    memory, events = _identify(memory, scrape)
    memory = msgspec.structs.replace(memory, progress=_progress(memory, page), previous=before)
    if before is None:
        ready_since = None if memory.was_there else page.at
        return Absorbed(_begun(msgspec.structs.replace(memory, ready_since=ready_since), page), None, events)
    gain = None
    if growth.began_again(before, page):
        if growth.ran_already(before, page):
            return _with_another(memory, page, events, settings)
        sentence = f"{memory.target.name} restarted: its counters began again"
        events = (*events, Event(scrape.at, "restart", memory.target.name, Severity.WARNING, sentence))
        memory, gain = _close(memory, settings)  # what was counted up to the last page of the old process
        gain = add(gain or Totals(), Totals(restarts=1))
        begun = Mark(before.at, fresh=True)
        memory = msgspec.structs.replace(
            memory,
            previous=begun,
            marks=(begun,),
            carries={},
            restarts=memory.restarts + 1,
            ready_since=page.at,
        )
    else:
        page = growth.held(before, page)
    memory = msgspec.structs.replace(memory, latest=page)
    since = page.at - memory.marks[-1].at
    if since >= settings.goodput_cell - settings.poll_interval / 2:
        memory, closed = _close(memory, settings)
        gain = gain if closed is None else add(gain or Totals(), closed)
    return Absorbed(memory, gain, events)


def _begun(memory: ReplicaMemory, page: Mark) -> ReplicaMemory:
    """The memory that begins with this page: what its counters say came before, nobody knows when."""
    carries = {name: goodput.start(_in_flight(page, name, memory.gauges_lag)) for name in page.units}
    return msgspec.structs.replace(memory, latest=page, marks=(page,), carries=carries)


def _with_another(
    memory: ReplicaMemory, page: Mark, events: tuple[Event, ...], settings: PolicySettings
) -> Absorbed:
    """The page is of a process that ran beside the one of the page before: no restart, and no growth."""
    memory, gain = _close(memory, settings)
    name = memory.target.name
    sentence = (
        f"{name}: another process answers, one that ran already when the last page came. Several engines "
        "behind one address? Each needs a target of its own: what is told is of one or another of them"
    )
    if sentence not in memory.told:
        events = (*events, Event(page.at, "another-process", name, Severity.WARNING, sentence))
    told = memory.told | {sentence}
    memory = msgspec.structs.replace(_begun(memory, page), previous=None, told=told)
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
        loose=scrape.loose,
        gauges_lag=scrape.gauges_lag,
        failure=None,
        told=memory.told.union(new) if new else memory.told,
    )
    return known, events


def _progress(memory: ReplicaMemory, latest: Mark) -> dict[str, stall.Progress]:
    old, lags = memory.progress, memory.gauges_lag
    return {
        name: stall.follow(old.get(name), signals, latest.server, latest.at, lags=lags)
        for name, signals in latest.engines.items()
    }


def _close(memory: ReplicaMemory, settings: PolicySettings) -> tuple[ReplicaMemory, Totals | None]:
    """Close the open cell at the latest page; the totals it adds, None where nothing had been open.

    A cell that grew long because pages were missing counts in the totals, but says nothing about now.
    """
    latest = memory.latest
    if latest is None or not memory.marks or latest.at <= memory.marks[-1].at:
        return memory, None
    begin = memory.marks[-1]
    slo = settings.slo(memory.target.pool)
    engines, carries = EngineCell(), {}
    for name, gap in growth.gaps(begin, latest).items():
        if growth.SERVER in latest.units and name != growth.SERVER:
            continue  # the server counts the requests of all its engines
        carry = memory.carries.get(name, Carry())
        in_flight = _in_flight(latest, name, memory.gauges_lag)
        part, carries[name] = goodput.measure(carry, _finishers(gap, memory.loose), slo, in_flight)
        engines = engines + part
    cell = Cell(begin.at, latest.at, engines, _ends(begin, latest))
    preempted = growth.over_engines(begin, latest, "preemptions_total")

    too_long = latest.at - begin.at > max(settings.stale_after, 3 * settings.goodput_cell)
    keep_from = latest.at - settings.window - settings.poll_interval / 2
    cells = tuple(c for c in (*memory.cells, *(() if too_long else (cell,))) if c.start >= keep_from)
    marks = () if too_long else tuple(mark for mark in memory.marks if mark.at >= keep_from)
    counts = memory.preemptions if preempted is None or too_long else (*memory.preemptions, preempted)
    closed = msgspec.structs.replace(
        memory,
        marks=(*marks, latest),
        cells=cells,
        carries=carries,
        preemptions=counts[-len(cells) :] if cells else (),
    )
    return closed, _gain(begin, latest, cell, preempted)


def _finishers(gap: Gap, loose: tuple[str, ...]) -> Finishers:
    ends = gap.parts("finished_total")
    return Finishers(
        ttft=gap.histogram("ttft"),
        tpot=gap.histogram("tpot"),
        e2e=gap.histogram("e2e"),
        queue_time=None if "queue_time" in loose else gap.histogram("queue_time"),
        prefill_time=None if "prefill_time" in loose else gap.histogram("prefill_time"),
        prompt_len=gap.histogram("prompt_len"),
        generation_len=gap.histogram("generation_len"),
        finished=gap.number("finished_total"),
        not_answers=_not_answers(ends),
        why=gap.why("finished_total"),
    )


def _not_answers(finished: dict[str, float]) -> float:
    """Requests among the finished that ended in an error or were aborted by the server."""
    return finished.get("error", 0.0) + finished.get("abort", 0.0)


def _in_flight(mark: Mark, unit: str, gauges_lag: bool) -> float:
    """How many requests at most have a first token and are unfinished.

    The gauges tell, where they are as new as the histograms; preempted requests wait again, and vLLM counts a
    preemption only when its request goes on, so those that wait may be any. The first tokens ever seen, less
    the answers ever finished, bound it too.
    """
    signals = mark.unit(unit)
    parts = mark.engines.values() if unit == growth.SERVER else (signals,)
    unknown = math.inf
    gauges = sum(s.numbers.get("running", unknown) + s.numbers.get("waiting", unknown) for s in parts)
    first, done = signals.histograms.get("ttft"), signals.histograms.get("e2e")
    open_ever = unknown
    if first is not None and done is not None:
        open_ever = max(0.0, first.count - done.count + _not_answers(signals.by.get("finished_total", {})))
    return min(open_ever, _MOST_IN_FLIGHT if gauges_lag else gauges, _MOST_IN_FLIGHT)


def _ends(earlier: Mark, later: Mark) -> Ends:
    server = Gap(earlier.server, later.server, earlier.fresh)
    rejected = growth.over_engines(earlier, later, "rejected_total")
    if rejected is None:  # several vLLM engines count their refusals in the server
        rejected = server.number("rejected_total")
    if rejected is None and _why_rejected(later) is Reason.ABSENT:
        rejected = 0.0  # the engine refuses nothing, or nothing yet
    if "http_inference_requests" not in later.server.numbers:
        return Ends(rejected)
    by_class = server.parts("http_inference_requests")
    return Ends(rejected, by_class.get("2xx", 0.0), by_class.get("5xx", 0.0))


def _why_rejected(mark: Mark) -> Reason:
    return growth.why_unknown((mark,), "rejected_total")


def _gain(earlier: Mark, later: Mark, cell: Cell, preemptions: float | None) -> Totals:
    engines = cell.engines
    return Totals(
        finished=engines.requests,
        good=engines.good,
        good_point=engines.good_point,
        tokens=engines.tokens or 0.0,
        good_tokens=engines.good_tokens or Interval(0.0, 0.0),
        good_tokens_point=engines.good_tokens_point or 0.0,
        rejected=cell.ends.rejected or 0.0,
        prompt_tokens=growth.over_engines(earlier, later, "prompt_tokens_total") or 0.0,
        generation_tokens=growth.over_engines(earlier, later, "generation_tokens_total") or 0.0,
        preemptions=preemptions or 0.0,
    )


def add(a: Totals, b: Totals) -> Totals:
    """Both totals together."""
    return Totals(*(getattr(a, f) + getattr(b, f) for f in Totals.__struct_fields__))
