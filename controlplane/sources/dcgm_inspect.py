"""One page of a DCGM exporter as people and scripts want to see it, JSON-ready.

    {"gpus": {UUID: {signal: {"value": number} or {"unknown": reason}}}, "devices": {UUID: what it is}}

Under MIG a signal also has `by`: its values by GPU instance. With the page before it, counters have
`increase` and, where the gap is known, `rate` (per second). Nothing here is NaN or infinite.
"""

from collections.abc import Mapping
from typing import Any

from controlplane.signals.counter import increase
from controlplane.signals.gpu import GPU_SIGNALS, Gpu, NodeBlind, NodeSample, Pod
from controlplane.sources.answer import Good, judge
from controlplane.sources.dcgm import DcgmReader, is_dcgm
from controlplane.sources.http_file import read_http

Json = dict[str, Any]

_OF_INSTANCES = (
    "activity_ratio",
    "tensor_activity_ratio",
    "memory_activity_ratio",
    "memory_copy_ratio",
    "utilization_ratio",
    "memory_used_bytes",
    "memory_free_bytes",
)
"""What is an instance's own; all else is the card's and only repeated on its rows."""


def gpu_page(
    status: int, headers: Mapping[str, str], body: bytes, *, name: str, at: float
) -> NodeSample | None:
    """What an answer says of GPUs; None where it is no page of a DCGM exporter."""
    answer = judge(status, headers, body)
    if not isinstance(answer, Good) or not is_dcgm(answer.body):
        return None
    return DcgmReader(name).read(answer.body, at)


def gpu_file(raw: bytes, *, name: str, http: bool, at: float = 0.0) -> NodeSample | None:
    """As `gpu_page`, of a file: a page (gzip or not), or with `http` a raw HTTP response that holds one."""
    if not http:
        return gpu_page(200, {"content-type": "text/plain"}, raw, name=name, at=at)
    response = read_http(raw)
    if not isinstance(response, tuple):
        return None
    return gpu_page(response.status, dict(response.headers), response.body, name=name, at=at)


def gpus(sample: NodeSample, previous: NodeSample | None = None, seconds: float | None = None) -> Json:
    """Everything that one page says; `previous` is the page before it, `seconds` the gap between them.

    ValueError for a gap that is not above 0.
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(f"the interval between two pages must be above 0 s (got {seconds})")
    if isinstance(sample, NodeBlind):
        return {"gpus": {}, "devices": {}, "warnings": [], "error": sample.detail}
    before: dict[str, Gpu] = {}
    warnings = list(sample.warnings)
    if isinstance(previous, NodeBlind):
        warnings.append(f"the page before could not be read: {previous.detail}")
    elif previous is not None:
        before = previous.gpus
        seconds = seconds or max(0.0, sample.at - previous.at) or None
        warnings += [
            f"{uuid} was on the page before and is gone" for uuid in before if uuid not in sample.gpus
        ]
    return {
        "source": sample.source,
        "host": sample.host,
        "driver": sample.driver,
        "gpus": {
            uuid: {
                name: _signal(gpu, name, before.get(uuid), seconds)
                for name in GPU_SIGNALS
                if _told(gpu, name)
            }
            for uuid, gpu in sample.gpus.items()
        },
        "devices": {uuid: _device(gpu) for uuid, gpu in sample.gpus.items()},
        "warnings": warnings,
    }


def _told(gpu: Gpu, name: str) -> bool:
    return name in gpu.numbers or name in gpu.unknown


def _signal(gpu: Gpu, name: str, before: Gpu | None, seconds: float | None) -> Json:
    out: Json = {}
    if name in gpu.numbers:
        value = out["value"] = gpu.numbers[name]
        then = before.numbers.get(name) if before is not None else None
        if GPU_SIGNALS[name].counts and then is not None:
            grown = out["increase"] = increase(then, value)
            if seconds:
                out["rate"] = grown / seconds
    else:
        out["unknown"] = gpu.unknown[name].value
    by = {key: part.numbers[name] for key, part in gpu.instances.items() if name in part.numbers}
    by = by if name in _OF_INSTANCES else {}
    return out | ({"by": by} if by else {})


def _device(gpu: Gpu) -> Json:
    out: Json = {"index": gpu.index, "model": gpu.model, "pci_bus_id": gpu.pci_bus_id}
    out["pods"] = [_pod(pod) for pod in gpu.pods]
    if gpu.recent_xids is not None:
        out["recent_xids"] = {str(code): count for code, count in gpu.recent_xids.items() if code >= 0}
    if gpu.instances:
        out["instances"] = {
            key: {"profile": part.profile, "pod": _pod(part.pod) if part.pod else None}
            for key, part in gpu.instances.items()
        }
    return out


def _pod(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"
