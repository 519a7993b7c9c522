"""Which XIDs are news.

- DCGM's gauge keeps the last code until its host engine starts anew. An edge from one known value to another
  is an event; the same value again is none, and neither is 0 (a restart) or a value that is not known.
- A code on the first page of a GPU was there before we watched: `old_xid`, which proves nothing by itself.
- Some exporters print no XID family, or a blank, until the first XID. Then its appearance is the event,
  unless other families came with it: that is a new configuration, which uncovers old codes.
- DCGM's windowed counters fall as the window slides; only a rise is an event. They see a code that comes
  twice.
- NVML's events come with a number and a time. Those of the time before we listened are old where they are
  old.
- Two sources tell of the same event at different times.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy.quarantine.memory import GpuMemory, Sight
from controlplane.signals.gpu import Gpu, GpuEvent, NodeReport, Pod

SAME_EVENT_SECONDS = 120.0
"""Within this time two sources that tell of one code on one GPU tell of one event."""

_OLD_SECONDS = 3600.0  # an event that we hear of so late is history


class XidNews(msgspec.Struct, frozen=True):
    """One XID that has just become known; `pods` were on the GPU then."""

    at: float
    code: int
    node: str
    uuid: str
    pods: tuple[Pod, ...] = ()


def from_page(memory: GpuMemory, gpu: Gpu) -> tuple[GpuMemory, frozenset[int]]:
    """The codes that are new on a DCGM page of one GPU, and what is to be remembered of the page."""
    families = frozenset((*gpu.numbers, *gpu.unknown))
    first = "dcgm" not in memory.latest
    codes = set[int]()
    value = gpu.numbers.get("xid")
    gauge, old = memory.gauge, memory.old_xid
    if value is not None:
        code = int(value)
        uncovered = first or ("xid" not in memory.families and not families - {"xid"} <= memory.families)
        if code and code != gauge:
            if gauge is None and uncovered:
                old = code
            else:
                codes.add(code)
        gauge = code
    counts = gpu.recent_xids
    if counts is not None and memory.counts is not None:
        codes |= {code for code, count in counts.items() if code > 0 and count > memory.counts.get(code, 0.0)}
    elif counts is not None and not first and families <= memory.families:
        codes |= {code for code, count in counts.items() if code > 0 and count > 0}
    known = memory.counts if counts is None else counts
    return (
        msgspec.structs.replace(memory, gauge=gauge, counts=known, families=families, old_xid=old),
        frozenset(codes),
    )


def from_events(sight: Sight, report: NodeReport) -> tuple[Sight, tuple[GpuEvent, ...]]:
    """The XID events of a report that are new to us."""
    same_run = sight.epoch == report.epoch
    seen = sight.event if same_run else 0
    new = [event for event in report.events if event.number > seen]
    last = max((event.number for event in new), default=seen)
    return (
        msgspec.structs.replace(sight, epoch=report.epoch, event=last),
        tuple(event for event in new if event.kind == "xid"),
    )


def is_old(event: GpuEvent, sight: Sight, since: float, at: float) -> bool:
    """Whether an event is history: from before we watched the node, or told far too late."""
    before_us = sight.good_at is None and event.at < since
    return before_us or at - event.at > _OLD_SECONDS


def is_repeat(memory: GpuMemory, code: int, at: float, source: str) -> bool:
    """Whether another source has told of this event before."""
    known = memory.xids.get(code)
    return known is not None and known[1] != source and abs(at - known[0]) <= SAME_EVENT_SECONDS


def remember(memory: GpuMemory, codes: Iterable[int], at: float, source: str) -> GpuMemory:
    """The memory in which these codes are no news any more."""
    return msgspec.structs.replace(memory, xids=memory.xids | dict.fromkeys(codes, (at, source)))
