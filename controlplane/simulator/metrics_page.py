"""What a scrape of a simulated engine gives: vLLM's page, or at once what a reader would make of the page.

One table says which family carries which signal, so that the page and the scrape can't differ.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from controlplane.signals.histogram import Histogram
from controlplane.signals.samples import Scrape, Signals
from controlplane.simulator.counters import EngineCounters
from controlplane.simulator.families import FAMILIES, Family
from controlplane.simulator.settings import EngineSettings

VERSION = "0.32.0"
VERSION_RANGE = ">=0.32"
"""What a reader can tell of the version from the names on the page."""

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""What vLLM's server says of its page."""

Value: TypeAlias = float | dict[str, float] | Histogram

_NOT_MODELLED = (
    *("est_flops_total", "est_read_bytes_total", "est_write_bytes_total"),
    *("ext_prefix_queries_total", "ext_prefix_hits_total", "mm_cache_queries_total", "mm_cache_hits_total"),
)


class Replica(msgspec.Struct, frozen=True):
    """How an engine is known: `model` is the served name, `started_at` the Unix time of the run's second
    0."""

    model: str
    started_at: float
    settings: EngineSettings


def render(replica: Replica, counters: EngineCounters) -> bytes:
    """The page as vLLM would print it now."""
    return generate_latest(_Page(replica, counters))


def scrape(replica: Replica, counters: EngineCounters, target: str, at: float, seconds: float) -> Scrape:
    """What a reader would make of the page, had it arrived whole at Unix time `at` after `seconds`."""
    values = _values(replica, counters)
    engine, server = Signals({}, {}, {}, {}), Signals({}, {}, {}, {})
    for family in FAMILIES:
        signals = server if family.owner == "server" else engine
        _put(signals, family.signal, values[family.signal])
    # The same counter, read once by status as printed and once by class of requests to a model.
    _put(server, "http_inference_requests", values["http_requests_total"])
    engine.numbers.update(
        kv_blocks=float(replica.settings.num_gpu_blocks),
        kv_block_size=float(replica.settings.block_size),
        kv_capacity_tokens=float(replica.settings.num_gpu_blocks * replica.settings.block_size),
    )
    return Scrape(target, at, seconds, "vllm", VERSION_RANGE, (replica.model,), {"0": engine}, server)


def _put(signals: Signals, signal: str, value: Value) -> None:
    if isinstance(value, Histogram):
        signals.histograms[signal] = value
    elif isinstance(value, dict):
        signals.by[signal] = value
        if signal != "sleep_state":  # states, not parts of a sum
            signals.numbers[signal] = sum(value.values())
    else:
        signals.numbers[signal] = value


def _values(replica: Replica, counters: EngineCounters) -> dict[str, Value]:
    """The value of every signal in the table."""
    counters.settle()
    waiting, hits, cached = (
        float(counters.waiting),
        float(counters.prefix_hits),
        float(counters.cached_tokens),
    )
    return {
        **dict.fromkeys(_NOT_MODELLED, 0.0),
        **{signal: buckets.histogram() for signal, buckets in counters.histograms().items()},
        "rejected_total": _split(max_num_queued_reqs=0.0, max_num_queued_tokens=0.0),
        "running": float(counters.running),
        "waiting": waiting,
        "waiting_by_reason": _split(capacity=waiting, deferred=0.0),
        "sleep_state": _split(awake=1.0, weights_offloaded=0.0, discard_all=0.0),
        "kv_usage": counters.kv_usage,
        "prefix_queries_total": float(counters.prefix_queries),
        "prefix_hits_total": hits,
        "preemptions_total": float(counters.preemptions),
        "prompt_tokens_total": float(counters.prompt_tokens),
        "prompt_tokens_by_source_total": _split(
            local_compute=counters.prompt_tokens - cached, local_cache_hit=cached, external_kv_transfer=0.0
        ),
        "cached_prompt_tokens_total": cached,
        "cached_prompt_tokens_by_tier_total": _split(
            device=hits, host=0.0, p2p=0.0, disk=0.0, external_unspecified=0.0
        ),
        "generation_tokens_total": float(counters.generation_tokens),
        # vLLM counts hang-ups under none of the reasons (see counters.py).
        "finished_total": _split(
            stop=float(counters.stopped), length=float(counters.length), abort=0.0, error=0.0, repetition=0.0
        ),
        "http_requests_total": {"2xx": float(counters.stopped + counters.length + counters.aborted)},
        "start_time": replica.started_at,
    }


def _split(**parts: float) -> dict[str, float]:
    return parts


class _Page(Collector):
    """The families as `prometheus_client` prints them."""

    def __init__(self, replica: Replica, counters: EngineCounters) -> None:
        self._replica = replica
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        values = _values(self._replica, self._counters)
        for family in FAMILIES:
            yield self._metric(family, values[family.signal])
        settings = self._replica.settings
        config = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Options of the KV cache.",
            labels=(
                "engine",
                "block_size",
                "enable_prefix_caching",
                "kv_cache_size_tokens",
                "num_gpu_blocks",
            ),
        )
        facts = (
            settings.block_size,
            settings.enable_prefix_caching,
            settings.num_gpu_blocks * settings.block_size,
            settings.num_gpu_blocks,
        )
        config.add_metric(("0", *map(str, facts)), 1.0)
        yield config

    def _metric(self, family: Family, value: Value) -> Metric:
        """One family with its samples; every counter and histogram says when it was created."""
        labels = {"engine": {"engine": "0", "model_name": self._replica.model}}
        labels["model"] = {"model_name": self._replica.model}
        own = {**labels.get(family.owner, {}), **family.also}
        names = (*own, family.label) if family.label else tuple(own)
        parts = value if isinstance(value, dict) else {"": value}
        created = self._replica.started_at
        metric: Metric
        if family.kind == "histogram":
            metric = HistogramMetricFamily(family.name, family.help, labels=names)
        elif family.kind == "counter":
            metric = CounterMetricFamily(family.name, family.help, labels=names)
        else:
            metric = GaugeMetricFamily(family.name, family.help, labels=names)
        for part, figure in parts.items():
            at = (*own.values(), part) if family.label else tuple(own.values())
            if isinstance(metric, HistogramMetricFamily) and isinstance(figure, Histogram):
                pairs = zip(map(floatToGoString, figure.bounds), figure.counts, strict=True)
                metric.add_metric(at, list(pairs), figure.total or 0.0)
                metric.add_sample(f"{family.name}_created", dict(zip(names, at, strict=True)), created)
            elif isinstance(metric, CounterMetricFamily) and isinstance(figure, float):
                metric.add_metric(at, figure, created=created)
            elif isinstance(metric, GaugeMetricFamily) and isinstance(figure, float):
                metric.add_metric(at, figure)
        return metric
