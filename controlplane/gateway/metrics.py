"""What a gateway counts of itself, and its metrics page.

A request is counted once, at its end; nothing is counted per token. Windows of admission are added up as
they come. A `Sheet` is all of one worker's samples; the page is made of one sheet or of all workers'.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TypeAlias

from prometheus_client.utils import floatToGoString

from controlplane.gateway.admission.request import ServiceClass
from controlplane.gateway.admission.status import Status
from controlplane.gateway.record import End, Record
from controlplane.signals.gateway_registry import LARGEST, METRICS, SECONDS
from controlplane.signals.registry import Kind
from controlplane.signals.samples import OutcomeWindow

_number: Callable[[float], str] = floatToGoString
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Labels: TypeAlias = tuple[str, ...]
Sheet: TypeAlias = dict[str, dict[Labels, float | list[float]]]
"""By name of the family and label values: a number, or of a histogram its bucket counts (not cumulative)
and, last, its sum."""

_PREFIX = "controlplane_gateway_"
_FALLBACK_TENANT = "other"


class Metrics:
    """The counters of one process."""

    def __init__(self, tenants: Iterable[str]) -> None:
        self._tenants = frozenset(tenants)
        self._sheet: Sheet = {metric.name: {} for metric in METRICS}
        self._refused = 0

    def record(self, record: Record) -> None:
        """A request has ended."""
        tenant = record.tenant if record.tenant in self._tenants else _FALLBACK_TENANT
        self._count("requests_total", record.endpoint.value, tenant, record.end.value)
        if record.end is End.REFUSED:
            self._count("refused_requests_total", str(record.status), record.reason)
        if not record.sent:
            return
        labels = (record.pool, record.service_class.value)
        self._observe("queue_time", max(0.0, record.sent - record.began), labels)
        if record.first and record.streams:
            self._observe("ttft", record.first - record.began, labels)
        if record.end is not End.FINISHED:
            return
        self._observe("e2e", record.ended - record.began, labels)
        self._observe("engine_time", record.ended - record.sent, labels)
        if record.first and record.streams and record.output_tokens > 1:
            per_token = (record.ended - record.first) / (record.output_tokens - 1)
            self._observe("tpot", per_token, labels)

    def add_windows(self, windows: Iterable[OutcomeWindow]) -> None:
        """Seconds are over."""
        for window in windows:
            pool = window.pool
            for name in ("finished", "good", "failed", "gave_up"):
                self._count(f"{name}_requests_total", pool, by=getattr(window, name))
            self._count("tokens_total", pool, by=window.tokens)
            self._count("good_tokens_total", pool, by=window.good_tokens)
            for reason, count in window.shed.items():
                self._count("shed_requests_total", pool, str(reason), by=count)
            for reason, count in window.would_shed.items():
                self._count("would_refuse_requests_total", pool, str(reason), by=count)
            for tenant, tokens in window.tokens_by_tenant.items():
                known = tenant if tenant in self._tenants else _FALLBACK_TENANT
                self._count("tenant_tokens_total", known, by=tokens)

    def refuse_control(self, reason: str) -> None:
        self._count("control_refusals_total", reason)

    def sheet(self, status: Status, process: dict[str, float]) -> Sheet:
        """All samples now. `process` are those without labels, by the rest of the name."""
        sheet = {name: dict(samples) for name, samples in self._sheet.items()}
        for rest, value in process.items():
            sheet[_PREFIX + rest][()] = value
        _add_status(sheet, status)
        return sheet

    def _count(self, rest: str, *labels: str, by: float = 1) -> None:
        samples = self._sheet[_PREFIX + rest]
        samples[labels] = samples.get(labels, 0) + by  # type: ignore[operator]

    def _observe(self, what: str, seconds: float, labels: Labels) -> None:
        bounds = SECONDS[what]
        samples = self._sheet[f"{_PREFIX}{what}_seconds"]
        buckets = samples.get(labels)
        if not isinstance(buckets, list):
            buckets = samples[labels] = [0.0] * (len(bounds) + 2)
        buckets[bisect_left(bounds, seconds)] += 1
        buckets[-1] += seconds


def _add_status(sheet: Sheet, status: Status) -> None:
    def put(rest: str, value: float | None, *labels: str) -> None:
        if value is not None:
            samples = sheet[_PREFIX + rest]
            known = samples.get(labels, 0)
            samples[labels] = (known if isinstance(known, int | float) else 0) + value

    put("enforcing", float(status.mode.value == "enforce"))
    put("share_ratio", status.share)
    for kind, count in status.counts.items():
        if kind in ("retries", "retries_refused", "resends"):
            put("retries_total", count, {"resends": "stale_connection"}.get(kind, kind))
    put("spilled_requests_total", status.counts["spilled"])
    for line in status.lines:
        put("queued_requests", line.requests, line.pool)
        put("queued_tokens", line.tokens, line.pool)
        for rank, service_class in enumerate(ServiceClass):
            where = line.pool, service_class.value
            put("queue_overloaded", float(line.overloaded[rank]), *where)
            put("queue_cap_requests", line.cap_requests[rank], *where)
            put("queue_cap_tokens", line.cap_tokens[rank], *where)
    for name, replica in status.replicas.items():
        where = replica.pool, name
        put("replica_in_flight_sequences", replica.open_sequences, *where)
        put("replica_limit_sequences", replica.limit, *where)
        put("replica_reserved_tokens", replica.reserved_tokens, *where)
        put("replica_budget_tokens", replica.budget_tokens, *where)
        put("replica_extensions_total", replica.extensions, *where)
        put("replica_grown_tokens", replica.grown_tokens, *where)
        put("replica_foreign_tokens", replica.foreign_tokens, *where)
        put("replica_breaker", 1, *where, replica.breaker.value)
        put("replica_rotation", 1, *where, replica.rotation.value)


def merged(sheets: list[Sheet]) -> Sheet:
    """The sheets of several workers as that of one gateway."""
    whole: Sheet = {metric.name: {} for metric in METRICS}
    for sheet in sheets:
        for name, samples in sheet.items():
            into = whole.setdefault(name, {})
            for labels, value in samples.items():
                into[labels] = _both(into.get(labels), value, largest=name in LARGEST)
    return whole


def page(sheet: Sheet) -> bytes:
    """The page as Prometheus text. Only finite numbers are written."""
    lines: list[str] = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n")
        for values, sample in sheet.get(metric.name, {}).items():
            labels = [
                f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, values, strict=True)
            ]
            if metric.kind is Kind.HISTOGRAM and isinstance(sample, list):
                lines += _histogram(metric.name, labels, sample)
            elif isinstance(sample, int | float) and math.isfinite(sample):
                braces = f"{{{','.join(labels)}}}" if labels else ""
                lines.append(f"{metric.name}{braces} {_number(sample)}\n")
    return "".join(lines).encode()


def _histogram(name: str, labels: list[str], sample: list[float]) -> Iterable[str]:
    what = name.removeprefix(_PREFIX).removesuffix("_seconds")
    count = 0.0
    for bound, inside in zip((*SECONDS[what], math.inf), sample[:-1], strict=True):
        count += inside
        inner = ",".join((*labels, f'le="{_number(bound)}"'))
        yield f"{name}_bucket{{{inner}}} {_number(count)}\n"
    braces = f"{{{','.join(labels)}}}" if labels else ""
    yield f"{name}_count{braces} {_number(count)}\n"
    yield f"{name}_sum{braces} {_number(sample[-1])}\n"


def _both(
    known: float | list[float] | None, value: float | list[float], *, largest: bool
) -> float | list[float]:
    if known is None:
        return value
    if isinstance(known, list) and isinstance(value, list):
        return [a + b for a, b in zip(known, value, strict=True)]
    if isinstance(known, list) or isinstance(value, list):
        return value
    return max(known, value) if largest else known + value


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
