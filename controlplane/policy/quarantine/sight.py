"""Which source sees which node, and what it saw: reports taken into memory.

"Cannot see" is a state of its own. A node that nobody sees keeps what was held against it, gets nothing new,
and is never released for looking well. A GPU that one source misses may be seen by another.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from controlplane.policy.quarantine import xid_news
from controlplane.policy.quarantine.memory import GpuMemory, Look, NodeMemory, Sight
from controlplane.policy.quarantine.xid_news import XidNews
from controlplane.signals.gpu import Answer, Gpu, NodeBlind, NodeReport, NodeSample, Pod
from controlplane.signals.reading import Reason

NVML = "nvml"
LOOK_EVERY_SECONDS = 20.0


class View(msgspec.Struct, frozen=True):
    """One GPU as all its fresh sources together see it; NVML's word before DCGM's.

    `at` is the newest report's time, `times` that of each signal; `sources` is empty where nobody sees it.
    """

    uuid: str
    at: float
    numbers: dict[str, float] = {}
    unknown: dict[str, Reason] = {}
    times: dict[str, float] = {}
    sources: tuple[str, ...] = ()
    answer: Answer = Answer.VALUES
    pods: tuple[Pod, ...] = ()
    index: int | None = None
    model: str = ""

    @property
    def is_seen(self) -> bool:
        return bool(self.sources)


def take(node: NodeMemory, sample: NodeSample, over_seconds: float) -> tuple[NodeMemory, tuple[XidNews, ...]]:
    """The node's memory after one sample, and the XIDs that became known by it.

    Figures that are judged over time are kept for `over_seconds`. A sample older than the last one of the
    same source changes nothing.
    """
    sight = node.sights.get(sample.source, Sight())
    if isinstance(sample, NodeBlind):
        since = sight.blind_since
        if since is None:
            since = min(sample.at, sample.since or sample.at)
        sight = msgspec.structs.replace(sight, blind_since=since, why=sample.detail)
        return msgspec.structs.replace(node, sights={**node.sights, sample.source: sight}), ()
    if sight.good_at is not None and sample.at <= sight.good_at:
        return node, ()
    return _take_report(node, sight, sample, over_seconds)


def view(uuid: str, gpu: GpuMemory, now: float, stale_after: float) -> View:
    """What is known of a GPU at `now`."""
    fresh = [source for source in sorted(gpu.latest) if now - gpu.seen[source] <= stale_after]
    fresh = [source for source in fresh if source not in gpu.missing_since]
    if not fresh:
        return View(uuid, max(gpu.seen.values(), default=0.0))
    numbers: dict[str, float] = {}
    unknown: dict[str, Reason] = {}
    times: dict[str, float] = {}
    for source in fresh:  # "dcgm" comes before "nvml", which has the last word
        seen = gpu.latest[source]
        numbers |= seen.numbers
        unknown |= seen.unknown
        times |= dict.fromkeys(seen.numbers, gpu.seen[source])
    pods = [pod for source in fresh for pod in gpu.latest[source].all_pods]
    last = gpu.latest[fresh[-1]]
    return View(
        uuid,
        max(gpu.seen[source] for source in fresh),
        numbers,
        {name: reason for name, reason in unknown.items() if name not in numbers},
        times,
        tuple(fresh),
        gpu.latest[NVML].answer if NVML in fresh else Answer.VALUES,
        tuple({(pod.namespace, pod.name): pod for pod in pods}.values()),
        last.index,
        last.model,
    )


def is_seen(node: NodeMemory, now: float, stale_after: float) -> bool:
    """Whether any source has a fresh report of the node."""
    return any(s.good_at is not None and now - s.good_at <= stale_after for s in node.sights.values())


def last_report(node: NodeMemory) -> float:
    """When any source last reported of the node (Unix seconds)."""
    return max((s.good_at for s in node.sights.values() if s.good_at is not None), default=node.since)


def why_blind(node: NodeMemory) -> str:
    """What its sources say of why they cannot see it."""
    said = [f"{name}: {sight.why}" for name, sight in sorted(node.sights.items()) if sight.why]
    return "; ".join(said) or "no source has reported"


def _take_report(
    node: NodeMemory, sight: Sight, report: NodeReport, over_seconds: float
) -> tuple[NodeMemory, tuple[XidNews, ...]]:
    news: list[XidNews] = []
    gpus = dict(node.gpus)
    resets = dict(node.resets)
    source, at = report.source, report.at
    before = sight
    sight, events = xid_news.from_events(sight, report)
    for uuid, gpu in report.gpus.items():
        memory = gpus.get(uuid, GpuMemory())
        if _was_reset(memory.latest.get(source), gpu):
            resets[uuid] = at
        codes: frozenset[int] = frozenset()
        if source != NVML:
            memory, codes = xid_news.from_page(memory, gpu)
        fresh = [code for code in sorted(codes) if not xid_news.is_repeat(memory, code, at, source)]
        news += (XidNews(at, code, report.node, uuid, gpu.all_pods) for code in fresh)
        memory = xid_news.remember(memory, fresh, at, source)
        gpus[uuid] = _looked(_seen(memory, source, gpu, at), source, gpu, at, over_seconds)
    for event in events:
        memory = gpus.get(event.uuid, GpuMemory())
        if xid_news.is_old(event, before, node.since, at):
            memory = msgspec.structs.replace(memory, old_xid=event.code)
        elif not xid_news.is_repeat(memory, event.code, event.at, source):
            seen = memory.latest.get(source)
            news.append(XidNews(event.at, event.code, report.node, event.uuid, seen.all_pods if seen else ()))
            memory = xid_news.remember(memory, (event.code,), event.at, source)
        if event.uuid:
            gpus[event.uuid] = memory
    expected = sight.uuids | frozenset(report.gpus)
    gone = sight.uuids - frozenset(report.gpus)
    most = max(sight.most, len(report.gpus))
    if gone and len(report.gpus) >= sight.most:
        # As many as before: a card was exchanged, none is missing.
        expected = frozenset(report.gpus)
        gpus = {uuid: gpu for uuid, gpu in gpus.items() if uuid not in gone or _other(gpu, source, at)}
    else:
        for uuid in gone & gpus.keys():
            memory = gpus[uuid]
            since = {source: at} | memory.missing_since
            gpus[uuid] = msgspec.structs.replace(memory, missing_since=since)
    sight = msgspec.structs.replace(sight, good_at=at, blind_since=None, why="", uuids=expected, most=most)
    return (
        msgspec.structs.replace(
            node,
            sights={**node.sights, source: sight},
            gpus=gpus,
            driver=report.driver or node.driver,
            boot_id=report.boot_id or node.boot_id,
            resets=resets,
        ),
        tuple(news),
    )


def _was_reset(before: Gpu | None, now: Gpu) -> bool:
    """Whether what only a reset clears is cleared; the restart of an exporter clears none of it."""
    if before is None:
        return False
    pending = before.numbers.get("row_remap_pending", 0) > 0 and now.numbers.get("row_remap_pending") == 0
    names = ("ecc_uncorrectable_total", "ecc_correctable_total")
    return pending or any(now.numbers.get(name, inf) < before.numbers.get(name, 0) for name in names)


def _seen(memory: GpuMemory, source: str, gpu: Gpu, at: float) -> GpuMemory:
    missing = {name: since for name, since in memory.missing_since.items() if name != source}
    return msgspec.structs.replace(
        memory,
        latest={**memory.latest, source: gpu},
        seen={**memory.seen, source: at},
        missing_since=missing,
    )


def _other(gpu: GpuMemory, source: str, at: float) -> bool:
    """Whether another source still sees it."""
    return any(at - seen <= LOOK_EVERY_SECONDS * 6 for name, seen in gpu.seen.items() if name != source)


def _looked(memory: GpuMemory, source: str, gpu: Gpu, at: float, over_seconds: float) -> GpuMemory:
    """With the figures of this report, where they come from the better of the GPU's sources and are due."""
    nvml_at = memory.seen.get(NVML)
    if source != NVML and nvml_at is not None and at - nvml_at <= LOOK_EVERY_SECONDS * 4:
        return memory
    looks = memory.looks
    if looks and at - looks[-1].at < LOOK_EVERY_SECONDS:
        return memory
    kept = _within(looks, at - over_seconds)
    return msgspec.structs.replace(memory, looks=(*kept, Look.of(at, gpu.numbers)))


def _within(looks: Iterable[Look], since: float) -> tuple[Look, ...]:
    return tuple(look for look in looks if look.at >= since)
