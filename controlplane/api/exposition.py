"""One page of own metrics, as Prometheus text or OpenMetrics.

Written here and not with prometheus_client's writer because that one takes longer than a whole scrape
may for a few hundred replicas (benchmarks/bench_metrics_export.py shows both). The tests hold this
writer to that one: both give the same page. A sample line is the same in both formats; only the lines
above it differ.
"""

import math
from collections.abc import Callable
from hashlib import blake2s

from prometheus_client.utils import floatToGoString

from controlplane.signals.histogram import Histogram
from controlplane.signals.registry import METRICS, Kind, Metric

LONGEST_LABEL_CHARS = 128

_number: Callable[[float], str] = floatToGoString


def label_value(text: str) -> str:
    """`text` as a quoted label value; a long one is cut and ends with a fingerprint of the whole."""
    clean = text.encode("utf-8", "replace").decode()
    if len(clean) > LONGEST_LABEL_CHARS:
        fingerprint = blake2s(clean.encode(), digest_size=8).hexdigest()
        clean = f"{clean[: LONGEST_LABEL_CHARS - 17]}~{fingerprint}"
    escaped = clean.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'"{escaped}"'


def label_text(**labels: str) -> str:
    """Labels as they stand between the braces."""
    return ",".join(f"{name}={label_value(value)}" for name, value in labels.items())


class Page:
    """Samples by family. Only registered families can be written, and only finite values are."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {metric.name: [] for metric in METRICS}

    def add(self, name: str, value: float | None, labels: str = "") -> None:
        """One sample with labels from `label_text`; nothing where there is no finite value.

        Raises KeyError for a name that is not registered.
        """
        lines = self._lines[name]
        if value is not None and math.isfinite(value):
            text = _number(value)
            lines.append(f"{name}{{{labels}}} {text}\n" if labels else f"{name} {text}\n")

    def add_histogram(self, name: str, histogram: Histogram) -> None:
        """A histogram without labels; one without a known sum has neither sum nor count."""
        lines = self._lines[name]
        for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
            lines.append(f'{name}_bucket{{le="{_number(bound)}"}} {_number(count)}\n')
        if histogram.total is not None and math.isfinite(histogram.total):
            lines.append(f"{name}_count {_number(histogram.count)}\n")
            lines.append(f"{name}_sum {_number(histogram.total)}\n")

    def text(self, *, openmetrics: bool) -> str:
        """The whole page."""
        head = _openmetrics_head if openmetrics else _text_head
        parts: list[str] = []
        for metric in METRICS:
            parts.append(head(metric))
            parts += self._lines[metric.name]
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts)


def _text_head(metric: Metric) -> str:
    kind = Kind.GAUGE if metric.kind is Kind.INFO else metric.kind
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {kind}\n"


def _openmetrics_head(metric: Metric) -> str:
    unit = f"# UNIT {metric.family} {metric.unit}\n" if metric.unit else ""
    return f"# HELP {metric.family} {metric.help}\n# TYPE {metric.family} {metric.kind}\n{unit}"
