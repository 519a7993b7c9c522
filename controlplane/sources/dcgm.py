"""From a page of NVIDIA's dcgm-exporter to a report on the GPUs of its node.

What a page says and what it does not:

- The node is the one that was asked, not the label `Hostname`: that holds the exporter's own pod, or
  `localhost`, as often as the node.
- Under MIG the exporter repeats whole-card values on a row for each instance. Where there is a row for the
  card it counts, else the instances together (`GpuSignal.over`); never a sum of temperatures.
- A pod stands in `exported_pod` where Prometheus had a `pod` of its own. Empty and absent both mean: not
  attributed.
- A family that is absent is not 0. Some exporters print no XID family until the first XID.
"""

from collections.abc import Iterable
from typing import NamedTuple

from controlplane.signals.gpu import GPU_SIGNALS, Gpu, Instance, NodeBlind, NodeReport, Over, Pod
from controlplane.signals.reading import Reason
from controlplane.sources.dcgm_fields import Field, by_name
from controlplane.sources.exposition import ExpositionError, Layout, Page, Reader

SOURCE = "dcgm"
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
"""XIDs by code over a sliding window of the exporter; it calls this a counter, but it falls again."""

_PREFIXES = (b"DCGM_FI_", b"DCGM_EXP_")
_START = "process_start_time_seconds"
_DRIVERS = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION")
_MOST_GPUS = 64
_MOST_INSTANCES = 64


def is_dcgm(body: bytes) -> bool:
    """Whether a page looks like one of a DCGM exporter."""
    return any(prefix in body for prefix in _PREFIXES)


class DcgmReader:
    """Reads the pages of one node's exporter, one after the other."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._reader = Reader(lambda name: name in by_name() or name in (XID_COUNT, _START))
        self._layout: Layout | None = None
        self._plan = _Plan((), {}, ())

    def read(self, body: bytes, at: float) -> NodeReport | NodeBlind:
        """What the page in `body`, taken at Unix time `at`, says."""
        try:
            page = self._reader.read(body)
        except ExpositionError as error:
            return NodeBlind(self.node, SOURCE, at, Reason.SCRAPE_FAILED, str(error))
        if page.layout is not self._layout:
            self._plan, self._layout = _plan(page.layout), page.layout
        if not self._plan.gpus:
            detail = f"the page names no GPU ({page.samples} samples)"
            return NodeBlind(self.node, SOURCE, at, Reason.ABSENT, detail)
        return self._report(page, at)

    def _report(self, page: Page, at: float) -> NodeReport:
        plan = self._plan
        found: dict[str, _Figures] = {uuid: _Figures() for uuid in plan.gpus}
        start = ""
        for place, row in plan.rows:
            printed = page.values[place]
            if row.field is not None:
                found[row.uuid].take(row, row.field.value(printed))
            elif row.xid is not None:
                found[row.uuid].count(row.xid, printed)
            else:
                start = f"{printed:.3f}"
        gpus = {uuid: facts.gpu(found[uuid]) for uuid, facts in plan.gpus.items()}
        hosts = {facts.host for facts in plan.gpus.values()}
        drivers = {facts.driver for facts in plan.gpus.values()}
        return NodeReport(
            node=self.node,
            source=SOURCE,
            at=at,
            gpus=gpus,
            driver=max(drivers),
            epoch=start,
            host=max(hosts),
            warnings=plan.warnings,
        )


class _Row(NamedTuple):
    """What one series is: a field, or a count of XIDs, of a GPU or of an instance of it ("" for the card)."""

    uuid: str
    instance: str
    field: Field | None
    age: int
    xid: int | None


class _Facts:
    """What the labels of a GPU's rows say of it."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.host = self.driver = self.model = self.bus = ""
        self.index: int | None = None
        self.pods: dict[Pod, None] = {}
        self.profiles: dict[str, str] = {}
        self.instance_pods: dict[str, Pod] = {}

    def take(self, labels: dict[str, str], instance: str) -> None:
        self.host = self.host or labels.get("hostname") or labels.get("Hostname") or ""
        self.driver = self.driver or next((labels[name] for name in _DRIVERS if labels.get(name)), "")
        self.model = self.model or labels.get("modelName", "")
        self.bus = self.bus or labels.get("pci_bus_id", "")
        if self.index is None and labels.get("gpu", "").isdecimal():
            self.index = int(labels["gpu"])
        pod = _pod(labels)
        if instance:
            self.profiles.setdefault(instance, labels.get("GPU_I_PROFILE", ""))
            if pod is not None:
                self.instance_pods.setdefault(instance, pod)
        elif pod is not None:
            self.pods[pod] = None

    def gpu(self, figures: "_Figures") -> Gpu:
        instances = {
            key: Instance(key, profile, *figures.of(key), self.instance_pods.get(key))
            for key, profile in self.profiles.items()
        }
        numbers, unknown = figures.card(tuple(instances.values()))
        return Gpu(
            uuid=self.uuid,
            index=self.index,
            model=self.model,
            pci_bus_id=self.bus,
            numbers=numbers,
            unknown=unknown,
            recent_xids=figures.xids,
            instances=instances,
            pods=tuple(self.pods),
        )


class _Plan(NamedTuple):
    rows: tuple[tuple[int, _Row], ...]
    gpus: dict[str, _Facts]
    warnings: tuple[str, ...]


class _Figures:
    """The values of one GPU's rows, by instance ("" for the card) and signal."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[int, float | Reason]] = {}
        self.xids: dict[int, float] | None = None

    def take(self, row: _Row, value: float | Reason) -> None:
        """A newer name of a field wins over an older one; of repeated rows the highest value counts."""
        assert row.field is not None
        key = row.instance, row.field.signal
        age, old = self._values.get(key, (row.age, Reason.ABSENT))
        if isinstance(old, Reason):
            wins = True
        elif isinstance(value, Reason):
            wins = False
        else:
            wins = row.age < age or (row.age == age and value > old)
        if wins:
            self._values[key] = row.age, value

    def count(self, xid: int, printed: float) -> None:
        if self.xids is None:
            self.xids = {}
        if xid >= 0 and 0 <= printed <= 1e9:
            self.xids[xid] = max(self.xids.get(xid, 0.0), printed)

    def of(self, instance: str) -> tuple[dict[str, float], dict[str, Reason]]:
        numbers: dict[str, float] = {}
        unknown: dict[str, Reason] = {}
        for (where, signal), (_, value) in self._values.items():
            if where == instance:
                _put(signal, value, numbers, unknown)
        return numbers, unknown

    def card(self, instances: tuple[Instance, ...]) -> tuple[dict[str, float], dict[str, Reason]]:
        """The figures of the whole card: its own rows, else those of its instances put together."""
        numbers, unknown = self.of("")
        names = dict.fromkeys(name for part in instances for name in (*part.numbers, *part.unknown))
        for name in names:
            if name in numbers or name in unknown:
                continue
            over = GPU_SIGNALS[name].over
            values = [part.numbers[name] for part in instances if name in part.numbers]
            if not values or (over == "sum" and len(values) < len(instances)):
                reasons = [part.unknown[name] for part in instances if name in part.unknown]
                unknown[name] = reasons[0] if reasons else Reason.ABSENT
            else:
                numbers[name] = _together(over, values)
        return numbers, unknown


def _put(signal: str, value: float | Reason, numbers: dict[str, float], unknown: dict[str, Reason]) -> None:
    if isinstance(value, Reason):
        unknown[signal] = value
    else:
        numbers[signal] = value


def _together(over: Over, values: Iterable[float]) -> float:
    if over == "sum":
        return sum(values)
    return max(values) if over == "max" else min(values)


def _plan(layout: Layout) -> _Plan:
    """What each series of a layout is; worked out once while it lasts."""
    rows: list[tuple[int, _Row]] = []
    gpus: dict[str, _Facts] = {}
    nameless = 0
    for place, (name, series_labels) in enumerate(layout.series):
        if name == _START:
            rows.append((place, _Row("", "", None, 0, None)))
            continue
        labels = dict(series_labels)
        if "nvlink" in labels or "nvswitch" in labels:
            continue  # of a link or a switch, not of a GPU
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid", "")
        if not uuid or (uuid not in gpus and len(gpus) == _MOST_GPUS):
            nameless += 1
            continue
        row = _row(name, uuid, labels)
        if row is None:
            continue
        facts = gpus.setdefault(uuid, _Facts(uuid))
        if row.instance not in facts.profiles and len(facts.profiles) == _MOST_INSTANCES:
            continue
        facts.take(labels, row.instance)
        rows.append((place, row))
    warnings = ("series without a GPU's UUID, or of too many GPUs, were left out",) if nameless else ()
    return _Plan(tuple(rows), gpus, warnings)


def _row(name: str, uuid: str, labels: dict[str, str]) -> _Row | None:
    instance = labels.get("GPU_I_ID", "")
    if name == XID_COUNT:
        code = labels.get("xid", "")
        # A row without a code says that there was none.
        return _Row(uuid, instance, None, 0, int(code) if code.isdecimal() and len(code) < 6 else -1)
    field, age = by_name()[name]
    return _Row(uuid, instance, field, age, None)


def _pod(labels: dict[str, str]) -> Pod | None:
    prefix = "exported_" if "exported_pod" in labels else ""
    name = labels.get(f"{prefix}pod", "")
    if not name:
        return None
    return Pod(labels.get(f"{prefix}namespace", ""), name, labels.get(f"{prefix}container", ""))
