"""Every metric that a node agent exports. Rules as in `registry.py`: names start with `controlplane_gpu_`, or
`controlplane_agent_` for the agent itself, and end with their unit.

A GPU's labels are its UUID and its index at the moment; the node is the target's, given by whoever scrapes. A
signal that is not known has no sample; `controlplane_gpu_answer` says where that is because the GPU is lost.
"""

from controlplane.signals.gpu import GPU_SIGNALS, GpuSignal
from controlplane.signals.registry import Kind, Metric

GPU_LABELS = ("uuid", "gpu")


def _of_signal(signal: GpuSignal) -> Metric:
    kind = Kind.COUNTER if signal.counts else Kind.GAUGE
    bare = signal.name.removesuffix("_total")
    units = ("celsius", "watts", "joules", "hertz", "seconds", "bytes", "ratio")
    unit = next((unit for unit in units if bare.endswith(f"_{unit}")), "")
    text = f"{signal.help[0].upper()}{signal.help[1:]}."
    return Metric(f"controlplane_gpu_{signal.name}", kind, text, unit, GPU_LABELS)


OF_SIGNAL: dict[str, Metric] = {
    name: _of_signal(signal) for name, signal in GPU_SIGNALS.items() if name != "xid"
}
"""By signal. The last XID is an event, and counted as one."""

METRICS: tuple[Metric, ...] = (
    *OF_SIGNAL.values(),
    Metric(
        "controlplane_gpu_info",
        Kind.INFO,
        "A GPU that is there.",
        "",
        (*GPU_LABELS, "model", "driver", "pci_bus_id"),
    ),
    Metric(
        "controlplane_gpu_answer",
        Kind.GAUGE,
        "1 for the driver's answer about a GPU as a whole: values, lost, reset-required or unknown-error.",
        "",
        (*GPU_LABELS, "answer"),
    ),
    Metric(
        "controlplane_gpu_instance_memory_used_bytes",
        Kind.GAUGE,
        "Memory in use on a MIG instance.",
        "bytes",
        (*GPU_LABELS, "instance", "profile"),
    ),
    Metric("controlplane_gpu_xids_total", Kind.COUNTER, "XIDs since the agent's start.", "", ("uuid", "xid")),
    Metric(
        "controlplane_agent_seeing", Kind.GAUGE, "1 while the driver answers, 0 while nothing can be seen."
    ),
    Metric(
        "controlplane_agent_last_look_timestamp_seconds",
        Kind.GAUGE,
        "Unix time of the last look at the GPUs; absent before the first.",
        "seconds",
    ),
    Metric(
        "controlplane_agent_look_duration_seconds", Kind.GAUGE, "Time that the last look took.", "seconds"
    ),
    Metric("controlplane_agent_looks_total", Kind.COUNTER, "Looks at the GPUs."),
    Metric("controlplane_agent_hangs_total", Kind.COUNTER, "Looks that passed the deadline."),
    Metric("controlplane_agent_child_starts_total", Kind.COUNTER, "Starts of the process that calls NVML."),
    Metric("controlplane_agent_stuck_children", Kind.GAUGE, "Processes that hang in the driver.", "children"),
)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
