"""What is remembered of a replica, put into the words of a snapshot."""

from collections.abc import Iterable

from controlplane.policy import goodput, growth, preemption
from controlplane.policy.growth import Mark
from controlplane.policy.memory import ReplicaMemory, RotationMemory
from controlplane.policy.settings import PolicySettings
from controlplane.signals.histogram import Histogram
from controlplane.signals.kv_size import engine_kv_tokens
from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.samples import Signals
from controlplane.signals.snapshot import (
    Condition,
    Distribution,
    EngineLoad,
    Latency,
    Load,
    Number,
    Probed,
    Quantiles,
    ReplicaSnapshot,
    ReplicaState,
)

LATENCIES = {
    "queue_time": "queue_time",
    "engine_time": "inference_time",
    "prefill_time": "prefill_time",
    "decode_time": "decode_time",
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "itl",
    "e2e": "e2e",
}
_NOT_PROBED = Probed()


def quantiles(histogram: Histogram) -> Quantiles:
    """A histogram in a few numbers."""
    q, finite = histogram.quantile, histogram.bounds[:-1]
    return Quantiles(
        histogram.count,
        histogram.mean,
        *(q(0.5), q(0.9), q(0.95), q(0.99)),
        lowest=finite[0] if finite else None,
        highest=finite[-1] if finite else None,
    )


def distribution(histogram: Histogram | None, at: float, why: Reason) -> Distribution:
    """The quantiles of what a window observed, or why there are none."""
    if histogram is None:
        return Unknown(why, at)
    return Known(quantiles(histogram), at) if histogram.count > 0 else Unknown(Reason.NO_TRAFFIC, at)


def over_window(memory: ReplicaMemory) -> dict[str, Histogram]:
    """What each latency histogram observed over the window (seconds), all engines together."""
    if memory.latest is None or not memory.marks or memory.marks[0].at >= memory.latest.at:
        return {}
    base = memory.marks[0]
    grown = {name: growth.merged(base, memory.latest, signal) for name, signal in LATENCIES.items()}
    return {name: histogram for name, histogram in grown.items() if histogram is not None}


def replica(memory: ReplicaMemory, settings: PolicySettings, now: float) -> ReplicaSnapshot:
    """The snapshot of one replica at Unix time `now` (seconds)."""
    latest, target = memory.latest, memory.target
    state, detail = _state(memory, settings, now)
    missing = _why_missing(memory, state, now)
    if latest is None or isinstance(missing, Unknown):
        nothing = missing or Unknown(Reason.NOT_SCRAPED, now)
        load, latency, engines = unknown_load(nothing), unknown_latency(nothing), {}
        gone: Reason | None = nothing.reason
    else:
        load = _load(memory, settings)
        latency = _latency(memory)
        engines = {name: _engine(latest, name, memory.disbelieved) for name in latest.engines}
        gone = None
    return ReplicaSnapshot(
        name=target.name,
        pool=target.pool,
        url=target.url,
        state=state,
        detail=detail,
        engine=memory.engine,
        version=memory.version,
        models=memory.models,
        last_scrape_at=latest.at if latest else None,
        scrape_seconds=memory.scrape_seconds,
        restarts=memory.restarts,
        load=load,
        latency=latency,
        goodput=goodput.summarize(
            memory.cells if gone is None else (),
            settings.window,
            settings.enough_requests,
            gone or unmeasured(memory),
        ),
        preemption_trend=preemption.trend(memory.preemptions if gone is None else ()),
        conditions=active(w.active for w in memory.watches.values()),
        engines=engines,
        was_ready=was_ready(memory),
        probed=probed(memory.rotation),
        ready_since=memory.ready_since,
        kv_tokens=None if latest is None else kv_tokens(latest),
        pod=target.pod,
    )


def was_ready(memory: ReplicaMemory) -> bool:
    """Whether it has answered: its page was read, and where that can be asked for, it has made a token."""
    rotation = memory.rotation
    proof = None if rotation is None else rotation.proof
    return memory.latest is not None and (proof is None or not proof.is_new)


def probed(rotation: RotationMemory | None) -> Probed:
    """How its probes went."""
    if rotation is None or rotation.proof is None:
        return _NOT_PROBED
    proof = rotation.proof
    return Probed(rotation.health, proof.trial, rotation.standing.bad, proof.doubt)


def kv_tokens(mark: Mark) -> float | None:
    """Tokens that the KV caches of all engines of a replica hold; None where one does not say."""
    sizes = [engine_kv_tokens(engine) for engine in mark.engines.values()]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def active(conditions: Iterable[Condition | None]) -> tuple[Condition, ...]:
    """The conditions that hold, the oldest first."""
    return tuple(sorted((c for c in conditions if c is not None), key=lambda c: (c.since, c.kind)))


def stale(memory: ReplicaMemory, settings: PolicySettings, now: float) -> bool:
    """Whether the last good page is too old to speak for now."""
    return memory.latest is not None and now - memory.latest.at > settings.stale_after


def unmeasured(memory: ReplicaMemory) -> Reason | None:
    """Why goodput cannot be read from this engine's page at all; None where it can."""
    if memory.latest is None:
        return Reason.NOT_SCRAPED
    if any("ttft" in signals.histograms for signals in memory.latest.units.values()):
        return None
    why = growth.why_unknown((memory.latest,), "ttft")
    return Reason.UNSUPPORTED if why is Reason.ABSENT else why


def _state(memory: ReplicaMemory, settings: PolicySettings, now: float) -> tuple[ReplicaState, str]:
    failure = memory.failure
    if memory.latest is None:
        if failure is None:
            return ReplicaState.UNSEEN, "not scraped yet"
        wrong_page = failure.reason is Reason.NOT_AN_ENGINE
        return (ReplicaState.NOT_AN_ENGINE if wrong_page else ReplicaState.UNREACHABLE), failure.detail
    if failure is not None and failure.reason is Reason.NOT_AN_ENGINE:
        return ReplicaState.NOT_AN_ENGINE, failure.detail
    if stale(memory, settings, now):
        detail = failure.detail if failure else "its pages have stopped coming"
        return ReplicaState.UNREACHABLE, detail
    if asleep(memory.latest):
        return ReplicaState.ASLEEP, "every engine of it sleeps"
    return ReplicaState.UP, failure.detail if failure else ""


def asleep(mark: Mark) -> bool:
    """Whether all engines of the page say that they are not awake."""
    awake = [s.by["sleep_state"].get("awake", 1.0) for s in mark.units.values() if "sleep_state" in s.by]
    return bool(awake) and not any(awake)


def _why_missing(memory: ReplicaMemory, state: ReplicaState, now: float) -> Unknown | None:
    """Why nothing of this replica is known, None where its last page still speaks."""
    failure = memory.failure
    if state is ReplicaState.UNSEEN:
        return Unknown(Reason.NOT_SCRAPED, now)
    if state is ReplicaState.NOT_AN_ENGINE and failure is not None:
        return Unknown(failure.reason, failure.at, failure.detail)
    if state is ReplicaState.UNREACHABLE:
        if memory.latest is None and failure is not None:
            return Unknown(failure.reason, failure.at, failure.detail)
        at = memory.latest.at if memory.latest else now
        return Unknown(Reason.STALE, at, failure.detail if failure else "no new page")
    return None


def _load(memory: ReplicaMemory, settings: PolicySettings) -> Load:
    latest = memory.latest
    assert latest is not None
    quality = Quality.LOWER_BOUND if memory.partial else Quality.EXACT
    base = _rate_base(memory, settings)

    def gauge(name: str) -> Number:
        values = _values(latest, name, memory.disbelieved)
        missing = len(values) < len(_values(latest, name))
        if not values:
            why = Reason.FROZEN if missing else growth.why_unknown((latest,), name)
            return Unknown(why, latest.at, "stands still while nothing moves" if missing else "")
        value = max(values) if name == "kv_usage" else sum(values)
        return Known(value, latest.at, Quality.LOWER_BOUND if missing else quality)

    def rate(name: str) -> Number:
        return _rate(base, latest, growth.over_engines(base, latest, name) if base else None, name, quality)

    waiting = gauge("waiting")
    usages = _values(latest, "kv_usage", memory.disbelieved)
    mean = gauge("kv_usage")
    if isinstance(mean, Known):  # a mean over some of the engines is no bound of the whole
        partly = Quality.EXACT if mean.quality is Quality.EXACT else Quality.ESTIMATE
        mean = Known(sum(usages) / len(usages), latest.at, partly)
    return Load(
        running=gauge("running"),
        waiting=waiting,
        waiting_tokens=_waiting_tokens(memory, waiting),
        kv_usage=gauge("kv_usage"),
        kv_usage_mean=mean,
        prompt_tokens_per_second=rate("prompt_tokens_total"),
        generation_tokens_per_second=rate("generation_tokens_total"),
        requests_per_second=_rate(base, latest, _finished(base, latest), "finished_total", quality),
        preemptions_per_second=rate("preemptions_total"),
        prefix_hit_ratio=_prefix_hit_ratio(memory),
    )


def _values(mark: Mark, name: str, without: frozenset[str] = frozenset()) -> list[float]:
    return [s.numbers[name] for unit, s in mark.units.items() if name in s.numbers and unit not in without]


def _rate_base(memory: ReplicaMemory, settings: PolicySettings) -> Mark | None:
    """The youngest mark that is a rate window old; the oldest there is where none is."""
    latest = memory.latest
    if latest is None:
        return None
    old_enough = latest.at - settings.rate_window + settings.poll_interval / 2
    before = [mark for mark in memory.marks if mark.at < latest.at]
    if not before:
        return None
    return next((mark for mark in reversed(before) if mark.at <= old_enough), before[0])


def _rate(base: Mark | None, latest: Mark, grown: float | None, name: str, quality: Quality) -> Number:
    if base is None:
        return Unknown(Reason.FIRST_SAMPLE, latest.at, "a rate needs two pages")
    if grown is None:
        return Unknown(
            Reason.RESTARTED if base.fresh else growth.why_unknown((latest, base), name), latest.at
        )
    return Known(grown / (latest.at - base.at), latest.at, quality)


def _finished(base: Mark | None, latest: Mark) -> float | None:
    if base is None:
        return None
    finished = growth.over_engines(base, latest, "finished_total")
    if finished is None:
        e2e = growth.merged(base, latest, "e2e")
        return e2e.count if e2e is not None else None
    return finished


def _waiting_tokens(memory: ReplicaMemory, waiting: Number) -> Number:
    """Prompt tokens that wait: waiting requests times the mean prompt of those that finished lately.

    The engine tells how many wait, not how long they are.
    """
    latest = memory.latest
    assert latest is not None
    if isinstance(waiting, Unknown):
        return waiting
    if waiting.value == 0:
        return Known(0.0, waiting.at, Quality.ESTIMATE)
    lately = growth.merged(memory.marks[0], latest, "prompt_len")
    ever = growth.merged(Mark(0.0, fresh=True), latest, "prompt_len")
    for lengths in (lately, ever):
        if lengths is not None and lengths.mean is not None:
            return Known(waiting.value * lengths.mean, waiting.at, Quality.ESTIMATE)
    return Unknown(Reason.NO_TRAFFIC, latest.at, "no finished request to take a prompt length from")


def _prefix_hit_ratio(memory: ReplicaMemory) -> Number:
    latest = memory.latest
    assert latest is not None
    if len(memory.marks) == 0 or memory.marks[0].at >= latest.at:
        return Unknown(Reason.FIRST_SAMPLE, latest.at)
    base = memory.marks[0]
    queries = growth.over_engines(base, latest, "prefix_queries_total")
    hits = growth.over_engines(base, latest, "prefix_hits_total")
    if queries is None or hits is None:
        return Unknown(growth.why_unknown((latest, base), "prefix_queries_total"), latest.at)
    if queries <= 0:
        return Unknown(Reason.NO_TRAFFIC, latest.at)
    return Known(min(1.0, hits / queries), latest.at)


def _latency(memory: ReplicaMemory) -> Latency:
    latest = memory.latest
    assert latest is not None
    if memory.marks[0].at >= latest.at:
        return unknown_latency(Unknown(Reason.FIRST_SAMPLE, latest.at, "a window needs two pages"))
    found: dict[str, Distribution] = {}
    for name, signal in LATENCIES.items():
        seen = memory.window.get(name)
        why = Reason.ABSENT if seen is not None else growth.why_unknown((latest,), signal)
        found[name] = distribution(seen, latest.at, why)
    return Latency(**found)


def _engine(mark: Mark, name: str, disbelieved: frozenset[str]) -> EngineLoad:
    signals, frozen = mark.unit(name), name in disbelieved
    return EngineLoad(*(_gauge(signals, n, mark.at, frozen) for n in ("running", "waiting", "kv_usage")))


def _gauge(signals: Signals, name: str, at: float, frozen: bool) -> Number:
    if frozen:
        return Unknown(Reason.FROZEN, at)
    if name in signals.numbers:
        return Known(signals.numbers[name], at)
    return Unknown(signals.unknown.get(name, Reason.ABSENT), at)


def unknown_load(why: Unknown) -> Load:
    """A load of which nothing is known."""
    return Load(*(why for _ in Load.__struct_fields__))


def unknown_latency(why: Unknown) -> Latency:
    """Latencies of which nothing is known."""
    return Latency(*(why for _ in Latency.__struct_fields__))
