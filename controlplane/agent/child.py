"""The child: calls NVML and prints what it sees, until its parent goes or NVML cannot be used.

    python -m controlplane.agent.child SECONDS          a look every SECONDS; events as they come

It ends whenever it should begin anew: when NVML cannot be used (a library is loaded once in a process's
life), and when a GPU came or came back (its events must be registered). The parent starts the next one.
"""

import ctypes
import os
import sys
import threading
import time

import pynvml as nvml

from controlplane.agent.messages import Beat, Heard, Message, Trouble, line
from controlplane.agent.nvml_calls import EVENTS
from controlplane.agent.nvml_look import Looker, UnusableError
from controlplane.signals.gpu import Answer

_WAIT_MS = 1000
_WHOLE_GPU = 0xFFFFFFFF
_printing = threading.Lock()


def say(message: Message) -> None:
    """One line on standard output, whole."""
    with _printing:
        sys.stdout.buffer.write(line(message))
        sys.stdout.buffer.flush()


def main(every_seconds: float) -> None:
    """Look and listen."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        looker = Looker()
        looker.look()  # who is there must be known before their events are
        names = _register(looker)
        topology = looker.topology()
    except nvml.NVMLError as error:
        say(Trouble(time.time(), f"NVML cannot be used: {error}"))
        return
    except UnusableError as error:
        say(Trouble(time.time(), str(error)))
        return
    answers: dict[str, Answer] = {}
    while True:
        started = time.monotonic()
        try:
            gpus = looker.look()
        except UnusableError as error:
            say(Trouble(time.time(), str(error)))
            return
        seconds = time.monotonic() - started
        warnings = (*looker.warnings, *names)
        say(Beat(time.time(), seconds, driver, gpus, topology, warnings))
        now = {uuid: gpu.answer for uuid, gpu in gpus.items()}
        if answers and any(_came(answers.get(uuid), answer) for uuid, answer in now.items()):
            return
        answers = {**answers, **now}
        time.sleep(max(0.0, every_seconds - seconds))


def _came(before: Answer | None, now: Answer) -> bool:
    """Whether a GPU is new, or back."""
    return before is None or (before in (Answer.LOST, Answer.RESET_REQUIRED) and now is Answer.VALUES)


def _register(looker: Looker) -> tuple[str, ...]:
    """Listen for the events of all GPUs, each as far as it has them. What cannot be listened for is told."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError as error:
        return (f"no events can be listened for: {error}",)
    names: dict[int, str] = {}
    deaf: list[str] = []
    wanted = 0
    for kind in EVENTS:
        wanted |= kind
    for uuid in looker.known:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            mask = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
            nvml.nvmlDeviceRegisterEvents(handle, mask, events)
        except nvml.NVMLError as error:
            deaf.append(f"no events of {uuid} can be listened for: {error}")
            continue
        names[_address(handle)] = uuid
    if names:
        threading.Thread(target=_listen, args=(events, names), daemon=True).start()
    return tuple(deaf)


def _listen(events: object, names: dict[int, str]) -> None:
    """Say every event. An error other than a timeout is no reason to stop, but to breathe."""
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except nvml.NVMLError_Timeout:
            continue
        except nvml.NVMLError:
            time.sleep(1.0)
            continue
        at = time.time()
        instance = "" if event.gpuInstanceId == _WHOLE_GPU else str(event.gpuInstanceId)
        kind = EVENTS.get(event.eventType, f"event-{event.eventType:#x}")
        say(Heard(at, kind, int(event.eventData), names.get(_address(event.device), ""), instance))


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however it died."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]))
    os._exit(0)  # a thread may be in the driver's hands: nobody waits for it
