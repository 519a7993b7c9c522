"""Reports from node agents, as soon as they have news.

    GET {url}/v1/report?after=VERSION&wait=SECONDS      Authorization: Bearer TOKEN

Times in a report are moved to our own clock by what the agent says that it is now there. A report that
cannot be is refused whole: it comes from outside, and what it says may cost a node.
"""

import math
import time
from collections.abc import Callable

import msgspec

from controlplane.signals.gpu import GPU_SIGNALS, Gpu, GpuEvent, NodeBlind, NodeSample
from controlplane.signals.reading import Reason
from controlplane.sources.fetch import Answer, Errand, Failed, Fetch

SOURCE = "nvml"
WAIT_SECONDS = 10.0
"""How long an agent holds its answer back while there is nothing new."""

_MOST_BYTES = 4 * 1024 * 1024
_MOST_GPUS = 64
_MOST_INSTANCES = 64
_MOST_EVENTS = 1_000
_LONGEST_TEXT = 300


class _Told(msgspec.Struct, frozen=True):
    version: int
    now: float
    sample: NodeSample


class NodeAgent:
    """The agent of one node. `errand` says as whom it is asked; its time limit is on top of the wait."""

    def __init__(
        self, node: str, url: str, errand: Errand, fetch: Fetch, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._node = node
        self._wall = wall
        self._url = url
        self._errand = msgspec.structs.replace(
            errand,
            accept="application/json",
            timeout_seconds=errand.timeout_seconds + WAIT_SECONDS,
            max_body_bytes=_MOST_BYTES,
        )
        self._fetch = fetch
        self._version = -1

    async def read(self, *, wait_seconds: float = WAIT_SECONDS) -> NodeSample:
        """The next news, or what stands after `wait_seconds`. At first, and after a failure, at once."""
        wait = 0.0 if self._version < 0 else wait_seconds
        url = f"{self._url}/v1/report?after={self._version}&wait={wait:g}"
        answer = await self._fetch(url, self._errand)
        if isinstance(answer, Failed):
            self._version = -1
            return NodeBlind(self._node, SOURCE, self._wall(), Reason.SCRAPE_FAILED, answer.detail)
        return self._read(answer)

    def _read(self, answer: Answer) -> NodeSample:
        try:
            told = msgspec.json.decode(answer.body, type=_Told)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._refuse(f"not a report ({error})")
        flaw = _flaw(told.sample)
        if flaw or not math.isfinite(told.now):
            return self._refuse(f"a report that cannot be: {flaw or 'its clock'}")
        self._version = told.version
        return _shifted(msgspec.structs.replace(told.sample, node=self._node), self._wall() - told.now)

    def _refuse(self, why: str) -> NodeBlind:
        self._version = -1
        return NodeBlind(self._node, SOURCE, self._wall(), Reason.SCRAPE_FAILED, f"{self._url}: {why}")


def _shifted(sample: NodeSample, by: float) -> NodeSample:
    """The same on another clock."""
    if isinstance(sample, NodeBlind):
        since = None if sample.since is None else sample.since + by
        return msgspec.structs.replace(sample, at=sample.at + by, since=since)
    events = tuple(msgspec.structs.replace(event, at=event.at + by) for event in sample.events)
    return msgspec.structs.replace(sample, at=sample.at + by, events=events)


def _flaw(sample: NodeSample) -> str:
    """Why a sample cannot be; "" where it can."""
    if isinstance(sample, NodeBlind):
        return (
            "" if math.isfinite(sample.at) and len(sample.detail) <= 10 * _LONGEST_TEXT else "what is blind"
        )
    if sample.source != SOURCE or len(sample.gpus) > _MOST_GPUS or len(sample.events) > _MOST_EVENTS:
        return f"{len(sample.gpus)} GPUs and {len(sample.events)} events from {sample.source[:20]!r}"
    texts = (sample.driver, sample.boot_id, sample.epoch, sample.host)
    if not math.isfinite(sample.at) or max(map(len, texts)) > _LONGEST_TEXT:
        return "its time or its names"
    flaws = (_gpu_flaw(uuid, gpu) for uuid, gpu in sample.gpus.items())
    return next((flaw for flaw in flaws if flaw), "") or _event_flaw(sample.events)


def _gpu_flaw(uuid: str, gpu: Gpu) -> str:
    if uuid != gpu.uuid or not 0 < len(uuid) <= _LONGEST_TEXT:
        return f"a GPU called {uuid[:40]!r}"
    names = {*gpu.numbers, *gpu.unknown, *gpu.blind}
    strange = sorted(names - GPU_SIGNALS.keys())
    if strange:
        return f"a signal {strange[0][:40]!r}"
    if len(gpu.instances) > _MOST_INSTANCES or len(gpu.pods) > _MOST_INSTANCES:
        return f"{len(gpu.instances)} instances and {len(gpu.pods)} pods on {uuid}"
    return "" if all(map(math.isfinite, gpu.numbers.values())) else f"a number of {uuid}"


def _event_flaw(events: tuple[GpuEvent, ...]) -> str:
    for event in events:
        if not (math.isfinite(event.at) and 0 <= event.code < 1 << 63 and len(event.uuid) <= _LONGEST_TEXT):
            return f"event {event.number}"
    return ""
