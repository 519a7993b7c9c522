"""The agent's metrics page, made of what `signals.agent_registry` lists and nothing else."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.agent.watch import Watch
from controlplane.signals.agent_registry import BY_NAME, METRICS, OF_SIGNAL
from controlplane.signals.gpu import Answer, NodeReport
from controlplane.signals.registry import Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Samples = dict[str, list[tuple[tuple[str, ...], float]]]


class _Page(Collector):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """All families that have samples."""
        samples = _samples(self._watch)
        for metric in METRICS:
            found = samples.get(metric.name)
            if not found:
                continue
            family: CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily
            if metric.kind is Kind.COUNTER:
                family = CounterMetricFamily(metric.family, metric.help, labels=metric.labels)
            elif metric.kind is Kind.INFO:
                info = InfoMetricFamily(metric.family, metric.help)
                for labels, _ in found:
                    info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
                yield info
                continue
            else:
                family = GaugeMetricFamily(metric.family, metric.help, labels=metric.labels)
            for labels, value in found:
                family.add_metric(labels, value)
            yield family


def page(watch: Watch) -> bytes:
    """The page now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(watch))
    return generate_latest(registry)


def _samples(watch: Watch) -> Samples:
    samples: Samples = {}

    def put(name: str, value: float, *labels: str) -> None:
        assert len(labels) == len(BY_NAME[name].labels), name
        samples.setdefault(name, []).append((labels, value))

    sample, counts = watch.sample(), watch.counts
    put("controlplane_agent_seeing", float(isinstance(sample, NodeReport)))
    if watch.last_look_at is not None:
        put("controlplane_agent_last_look_timestamp_seconds", watch.last_look_at)
    put("controlplane_agent_look_duration_seconds", counts.look_seconds)
    put("controlplane_agent_looks_total", counts.looks)
    put("controlplane_agent_hangs_total", counts.hangs)
    put("controlplane_agent_child_starts_total", counts.starts)
    put("controlplane_agent_stuck_children", watch.stuck)
    for (uuid, code), count in sorted(watch.xids.items()):
        put("controlplane_gpu_xids_total", count, uuid, str(code))
    if not isinstance(sample, NodeReport):
        return samples
    for uuid, gpu in sample.gpus.items():
        me = uuid, "" if gpu.index is None else str(gpu.index)
        put("controlplane_gpu_info", 1.0, *me, gpu.model, sample.driver, gpu.pci_bus_id)
        for answer in Answer:
            put("controlplane_gpu_answer", float(gpu.answer is answer), *me, answer.value)
        for signal, value in gpu.numbers.items():
            if signal in OF_SIGNAL:
                put(OF_SIGNAL[signal].name, value, *me)
        for key, instance in gpu.instances.items():
            used = instance.numbers.get("memory_used_bytes")
            if used is not None:
                name = "controlplane_gpu_instance_memory_used_bytes"
                put(name, used, *me, key, instance.profile)
    return samples
