"""One look at all GPUs through NVML, GPU by GPU and call by call: no error of one costs another.

Handles are asked for anew at each look, because one from before an error may be stale. A GPU that was there
before and is not found by its index any more is asked for by its UUID: the others may have moved up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pynvml as nvml

from controlplane.agent.nvml_calls import (
    CALLS,
    FIELDS,
    GROUPS,
    LEVELS,
    Handle,
    Meaning,
    answer_to,
    field_value,
    words_for,
)
from controlplane.signals.gpu import Answer, Gpu, Instance
from controlplane.signals.reading import Reason

T = TypeVar("T")
_MOST_INSTANCES = 32


class UnusableError(Exception):
    """The library cannot be used any more; the text says why."""


class Identity(msgspec.Struct, frozen=True):
    """What a GPU was when it still answered."""

    uuid: str
    model: str
    pci_bus_id: str


class Looker:
    """Looks again and again, and remembers who was there."""

    def __init__(self) -> None:
        self.known: dict[str, Identity] = {}
        self.warnings: list[str] = []

    def look(self) -> dict[str, Gpu]:
        """All GPUs by UUID. UnusableError where NVML cannot be used."""
        self.warnings = []
        found: dict[str, Gpu] = {}
        for index, handle, error in self._handles():
            identity = self._identify(handle, index) if handle is not None else None
            if identity is None:
                self.warnings.append(f"GPU {index} cannot be found by its index: {error or 'no UUID'}")
                continue
            self.known[identity.uuid] = identity
            found[identity.uuid] = _read(handle, identity, index)
        for uuid in self.known.keys() - found.keys():
            again = self._ask_for(uuid)
            if again is not None:
                found[uuid] = again
        return found

    def topology(self) -> dict[str, dict[str, str]]:
        """What each pair of GPUs has in common; pairs that NVML says nothing of are left out."""
        handles: dict[str, Handle] = {}
        for uuid in self.known:
            try:
                handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            except nvml.NVMLError:
                continue
        pairs: dict[str, dict[str, str]] = {}
        for one, handle in handles.items():
            for other, its in handles.items():
                if one == other:
                    continue
                try:
                    level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, its)
                except nvml.NVMLError:
                    continue
                pairs.setdefault(one, {})[other] = LEVELS.get(level, str(level))
        return pairs

    def _handles(self) -> Iterator[tuple[int, Handle | None, str]]:
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise UnusableError(f"NVML cannot count the GPUs: {error}") from None
        for index in range(count):
            try:
                yield index, nvml.nvmlDeviceGetHandleByIndex(index), ""
            except nvml.NVMLError as error:
                _raise_if_unusable(error)
                yield index, None, str(error)

    def _identify(self, handle: Handle, index: int) -> Identity | None:
        try:
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            _raise_if_unusable(error)
            return None
        old = self.known.get(uuid)
        model = _or_empty(nvml.nvmlDeviceGetName, handle) or (old.model if old else "")
        bus = _or_empty(_bus_id, handle) or (old.pci_bus_id if old else "")
        return Identity(uuid, model, bus)

    def _ask_for(self, uuid: str) -> Gpu | None:
        """A GPU that was there before, by its UUID; None where NVML knows it no more."""
        identity = self.known[uuid]
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            meaning = answer_to(error.value)
            _raise_if_unusable(error)
            if meaning is Meaning.LOST:
                return _silent(identity, Answer.LOST)
            return _silent(identity, Answer.UNKNOWN_ERROR) if meaning is Meaning.TRY_AGAIN else None
        return _read(handle, identity, None)


@dataclass
class _Sheet:
    """What the calls on one GPU have given so far."""

    numbers: dict[str, float] = field(default_factory=dict)
    unknown: dict[str, Reason] = field(default_factory=dict)
    blind: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    reset: int = 0
    failed: int = 0

    def refuse(self, signals: tuple[str, ...], error: int) -> None:
        """These signals have no value because NVML answered with an error."""
        meaning = answer_to(error)
        if meaning is Meaning.BLIND:
            self.blind |= dict.fromkeys(signals, words_for(error))
            return
        self.lost += meaning is Meaning.LOST
        self.reset += meaning is Meaning.RESET
        self.failed += meaning is Meaning.TRY_AGAIN
        self.unknown |= dict.fromkeys(signals, Reason.UNAVAILABLE)

    @property
    def answer(self) -> Answer:
        """The driver's answer about the whole GPU. An unknown error counts where hardly a call succeeds."""
        if self.lost:
            return Answer.LOST
        if self.reset:
            return Answer.RESET_REQUIRED
        return Answer.UNKNOWN_ERROR if self.failed > len(self.numbers) else Answer.VALUES


def _read(handle: Handle, identity: Identity, index: int | None) -> Gpu:
    """All signals of one GPU."""
    sheet = _Sheet()
    for signal, call in CALLS.items():
        try:
            sheet.numbers[signal] = _twice(call, handle)
        except nvml.NVMLError as error:
            _raise_if_unusable(error)
            sheet.refuse((signal,), error.value)
    for signals, group in GROUPS.items():
        try:
            sheet.numbers |= _twice(group, handle)
        except nvml.NVMLError as error:
            _raise_if_unusable(error)
            sheet.refuse(signals, error.value)
    _read_fields(handle, sheet)
    instances = _instances(handle) if sheet.numbers.get("mig_enabled") else {}
    return Gpu(
        uuid=identity.uuid,
        index=index,
        model=identity.model,
        pci_bus_id=identity.pci_bus_id,
        answer=sheet.answer,
        numbers=sheet.numbers,
        unknown=sheet.unknown,
        blind=sheet.blind,
        instances=instances,
    )


def _read_fields(handle: Handle, sheet: _Sheet) -> None:
    """All fields in one call; each has an answer of its own."""
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, [number for number, _ in FIELDS.values()])
    except nvml.NVMLError as error:
        _raise_if_unusable(error)
        sheet.refuse(tuple(FIELDS), error.value)
        return
    for (signal, (_, scale)), value in zip(FIELDS.items(), values, strict=True):
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            sheet.refuse((signal,), value.nvmlReturn)
        elif not (signal == "memory_temperature_celsius" and field_value(value) == 0):  # 0: it has no sensor
            sheet.numbers[signal] = field_value(value) * scale


def _instances(handle: Handle) -> dict[str, Instance]:
    """The MIG instances of a GPU; most calls say nothing of them but how much memory they use."""
    found: dict[str, Instance] = {}
    try:
        most = min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), _MOST_INSTANCES)
    except nvml.NVMLError:
        return found
    for index in range(most):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            key = str(nvml.nvmlDeviceGetGpuInstanceId(instance))
        except nvml.NVMLError:  # not found is the end of the list, but there may be gaps
            continue
        name = _or_empty(nvml.nvmlDeviceGetName, instance)
        numbers: dict[str, float] = {}
        for signals, group in GROUPS.items():
            if "memory_used_bytes" in signals:
                try:
                    numbers = group(instance)
                except nvml.NVMLError:
                    numbers = {}
        found[key] = Instance(key, name.rpartition("MIG ")[2], numbers)
    return found


def _silent(identity: Identity, answer: Answer) -> Gpu:
    """A GPU that gives nothing but its absence."""
    return Gpu(identity.uuid, None, identity.model, identity.pci_bus_id, answer)


def _twice(call: Callable[[Handle], T], handle: Handle) -> T:
    """The call's value; an unknown error is tried once more before it counts."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if answer_to(error.value) is not Meaning.TRY_AGAIN:
            raise
        return call(handle)


def _or_empty(call: Callable[[Handle], str], handle: Handle) -> str:
    try:
        return call(handle)
    except nvml.NVMLError as error:
        _raise_if_unusable(error)
        return ""


def _bus_id(handle: Handle) -> str:
    bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    return bus.decode() if isinstance(bus, bytes) else str(bus)


def _raise_if_unusable(error: nvml.NVMLError) -> None:
    if answer_to(error.value) is Meaning.OURS:
        raise UnusableError(f"NVML cannot be used: {error}") from None
