"""Broken and ailing GPUs and nodes, from the exporters' own series: it fires without the daemon too.

The alerts only tell. What may be done to a node is decided by policy with proof and budgets.
"""

from controlplane.render.alerts import engines
from controlplane.render.rule import Alert, by

FATAL_XIDS = (48, 62, 64, 79, 95, 110, 140, 143, 158, 167, 169)
"""Codes after which a GPU needs a reset, a reboot or a replacement (class hardware-fatal of the XID table).

171 and 172 are left out: they come with a 48, whose action counts.
"""
AILING_XIDS = (
    32,
    54,
    63,
    74,
    92,
    94,
    119,
    120,
    121,
    142,
    144,
    145,
    146,
    147,
    148,
    149,
    150,
    156,
    157,
    160,
    161,
    164,
    165,
    168,
)
"""Codes that call for a look: degraded memory, NVLink, firmware. One-off application codes are none."""

_AT = "GPU {{ $labels.gpu }} ({{ $labels.modelName }}, {{ $labels.UUID }}) of {{ $labels.node }}"
_LOOK = "On the node: `nvidia-smi -q -d ECC,ROW_REMAPPER,TEMPERATURE,PERFORMANCE`, `dmesg -T | grep -i xid`."
_DRAIN = "Take its replicas out of rotation first, let their streams end, then drain the node."
_ABOUT = ("UUID",)
_ON_A_NODE = 'node!=""'


def alerts() -> tuple[Alert, ...]:
    return (
        Alert(
            "GpuFatalXid",
            _newly(FATAL_XIDS),
            "0m",
            "page",
            "hardware",
            "gpu",
            f"{_AT} reports XID {{{{ $value }}}}, which it does not get over by itself.",
            "gpus",
            "The driver has reported an error after which the GPU needs a reset, its node a reboot, or "
            "the card a "
            "replacement. The gauge keeps the last code until the driver is loaded anew, so the alert "
            "asks what was not "
            "there a day ago; it ends after a day, the fault does not.",
            (_LOOK, "Which engine runs on it? Is it down, stalled or slow?"),
            (
                _DRAIN,
                "48, 62, 64, 95, 140: reset the GPU. 79 (fallen off the bus): reboot the node; if it "
                "comes again, replace the card.",
                "Give the code, the time and the serial number to whoever handles returns.",
            ),
            _ABOUT,
        ),
        Alert(
            "GpuXid",
            _newly(AILING_XIDS),
            "0m",
            "ticket",
            "hardware",
            "gpu",
            f"{_AT} reports XID {{{{ $value }}}}: look at it before it gets worse.",
            "gpus",
            "An error that the GPU may get over: a contained memory error, a remapped row, a link that "
            "was retrained, "
            "its firmware that did not answer.",
            (_LOOK, "More of the same on this GPU, or on the whole NVLink domain?"),
            (
                "94: restart the workload. 63: the row is remapped at the next reset. 74 and 144 to "
                "150: find the first reporter, it is the suspect.",
                "119, 120: reset; if it repeats, update firmware and driver.",
            ),
            _ABOUT,
        ),
        Alert(
            "GpuMemoryFault",
            "llm:gpu_row_remap_failed == 1\nor\nllm:gpu_double_bit_errors:increase1h > 0",
            "1m",
            "ticket",
            "hardware",
            "gpu",
            f"The memory of {_AT} fails: uncorrectable errors, or a row that cannot be remapped.",
            "gpus",
            "A failed row remap is NVIDIA's own mark for a card to be returned. Uncorrectable errors "
            "without it need a reset.",
            (_LOOK,),
            (_DRAIN, "Remap failed: return the card. Otherwise reset it and watch."),
            _ABOUT,
        ),
        Alert(
            "GpuResetNeeded",
            "llm:gpu_row_remap_pending == 1\nor\nllm:gpu_recovery_action > 0",
            "5m",
            "ticket",
            "hardware",
            "gpu",
            f"{_AT} waits for a reset.",
            "gpus",
            "The driver asks for a recovery action, or a memory row waits to be remapped, which "
            "happens at a reset.",
            (_LOOK,),
            ("Plan the reset for a quiet hour: the GPU still works.", _DRAIN),
            _ABOUT,
        ),
        Alert(
            "GpuThrottledByHeat",
            "avg_over_time(llm:gpu_hw_thermal[10m]) > 0.3\nor\nllm:gpu_throttled_by_heat:rate5m > 0.1",
            "5m",
            "ticket",
            "hardware",
            "gpu",
            f"{_AT} is held down by heat for {{{{ $value | humanizePercentage }}}} of the time: its "
            f"replica is slower than its peers.",
            "gpus",
            "The GPU lowers its clock because it is too hot. Every request on it is slow, and in a "
            "tensor-parallel group "
            "the slowest GPU sets the pace of all.",
            (
                "GPU health dashboard: temperature and clock beside its neighbours.",
                "All GPUs of a rack? Then it is the room.",
            ),
            (
                "Fans, filters, blanking panels, inlet temperature.",
                "Until then take the replica out or lower its limit.",
            ),
            _ABOUT,
        ),
        Alert(
            "GpuPowerBrake",
            "avg_over_time(llm:gpu_power_brake[10m]) > 0.3",
            "5m",
            "ticket",
            "hardware",
            "gpu",
            f"{_AT} is braked by its power supply for {{{{ $value | humanizePercentage }}}} of the time.",
            "gpus",
            "The chassis or the power supply asserts the brake line. Many nodes at once are a problem "
            "of the room.",
            (_LOOK, "The BMC's event log: a failed supply, a power cap."),
            ("Mend the supply or raise the cap.",),
            _ABOUT,
        ),
        Alert(
            "GpuHot",
            "llm:gpu_temperature_celsius >= 90\nor\nllm:gpu_temperature_margin_celsius <= 2",
            "5m",
            "ticket",
            "hardware",
            "gpu",
            f"{_AT} is about to slow itself down for heat (reading {{{{ $value }}}} °C).",
            "gpus",
            "It is at 90 °C or more, or within 2 °C of where it slows itself down (the reading is then "
            "the margin).",
            ("GPU health dashboard: this GPU beside its neighbours.",),
            ("As for GpuThrottledByHeat.",),
            _ABOUT,
        ),
        Alert(
            "GpuLinkDegraded",
            "llm:gpu_pcie_link_width < llm:gpu_pcie_max_link_width\nor\n60 * "
            "llm:gpu_pcie_replays:rate5m > 31",
            "15m",
            "ticket",
            "hardware",
            "gpu",
            f"The PCIe link of {_AT} is degraded.",
            "gpus",
            "The link has fewer lanes than it can have, or retries more than 31 times a minute, the "
            "most that is in order "
            "for 16 lanes of generation 5.",
            (_LOOK, "`lspci -vv`: LnkSta against LnkCap."),
            ("Reseat the card or its riser at the next maintenance.",),
            _ABOUT,
        ),
        Alert(
            "GpuMissing",
            "llm:gpu_count < max_over_time(llm:gpu_count[6h])",
            "5m",
            "page",
            "hardware",
            "gpu",
            "{{ if $labels.node }}{{ $labels.node }}{{ else }}{{ $labels.instance }}{{ end }} shows {{ "
            "$value }} GPUs, fewer than in the last 6 hours.",
            "gpus",
            "A GPU is gone from the exporter's page: it fell off the bus, was given to a virtual "
            "machine, or was taken out.",
            ("`nvidia-smi -L` on the node.", "`dmesg -T | grep -iE 'xid|fallen off'`."),
            (
                _DRAIN,
                "Reboot the node; if the GPU stays away, replace it.",
                "Planned work: silence the alert for 6 hours.",
            ),
            ("instance",),
        ),
        Alert(
            "GpuExporterDown",
            "llm:gpu_exporter_up == 0",
            "5m",
            "ticket",
            "hardware",
            "gpu",
            "The GPU exporter at {{ $labels.instance }} does not answer: its GPUs cannot be seen.",
            "gpus",
            "Nothing is known of the GPUs there. That is no verdict on them.",
            (
                "The exporter's pod or unit; out of memory?",
                "Does `nvidia-smi` answer on the node, or does it hang?",
            ),
            ("Restart the exporter. If `nvidia-smi` hangs, the driver does: drain the node.",),
            ("instance",),
        ),
        Alert(
            "GpuFaultStands",
            "max by (cluster, node, UUID, check, remedy, stage) (controlplane_gpu_fault{remedy=~"
            '"drain-and-reset|drain-and-reboot|cordon-and-replace",stage=~"wanted|withheld"})',
            "15m",
            "page",
            "hardware",
            "gpu",
            "GPU {{ $labels.UUID }} of {{ $labels.node }} fails the check {{ $labels.check }}; the node is "
            "not taken ({{ $labels.stage }}).",
            "gpus",
            "The daemon holds a fault against the GPU for which its node should be taken, and that has not "
            "happened: the actuator observes or fails (wanted), or the budget, a storm or a hold forbids it "
            "(withheld). Its replicas may serve on a broken GPU.",
            (
                "`controlplane top`, GPU view, or `/api/v1/nodes`: the verdict says what stands against it.",
                _LOOK,
            ),
            (
                _DRAIN,
                "Wanted for long: let the actuator enforce, or take the node by hand.",
                "If you know better: override `quarantine` of the node to `never`, with your reason.",
            ),
            _ABOUT,
        ),
        Alert(
            "NodeQuarantined",
            "max by (cluster, node) (controlplane_node_quarantined) == 1",
            "0m",
            "ticket",
            "hardware",
            "node",
            "Node {{ $labels.node }} is out of the fleet: a GPU of it is broken.",
            "gpus",
            "The daemon has marked the node, so nothing new is placed there. The mark goes when there is "
            "proof that the fault is gone: a reset, another boot, another card.",
            ("The node's annotation names fault, reason and time.", _LOOK),
            (
                "Do what the remedy says: reset, reboot or replace.",
                "Known to be well? Override `quarantine` of the node to `release`.",
            ),
            ("node",),
        ),
        Alert(
            "NodeDown",
            'max by (cluster, node) (llm:engine_up{node!=""} or llm:gpu_exporter_up{node!=""}) == 0\n'
            # Engines that load their models, as all do on a new node, speak against none.
            f"and count by (cluster, node) (({engines.down(_ON_A_NODE)})\n"
            f"  or llm:gpu_exporter_up{{{_ON_A_NODE}}}) >= 2",
            "2m",
            "page",
            "hardware",
            "node",
            "Node {{ $labels.node }} is away: no engine and no exporter on it answers.",
            "gpus",
            "All targets on one node went silent. The alerts of its engines and GPUs are held back "
            "while this one fires.",
            ("`ping`, the BMC's console, `kubectl describe node NODE`.",),
            ("Bring the node back, or cordon it and let its replicas start elsewhere.",),
        ),
    )


def _newly(codes: tuple[int, ...]) -> str:
    """The last XID is one of these and was not the same a day ago: the gauge never goes back by itself.

    By UUID, for the exporter has another address after each start; and the last value until a day ago, for a
    gap of Prometheus then is no news now.
    """
    one_of = " or ".join(f"llm:gpu_xid == {code}" for code in codes)
    before = f"max {by('cluster', 'UUID')} (last_over_time(llm:gpu_xid[6h] offset 1d))"
    return f"({one_of})\nunless on (cluster, UUID) (llm:gpu_xid == on (cluster, UUID) group_left () {before})"
