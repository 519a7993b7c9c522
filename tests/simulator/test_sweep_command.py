"""`controlplane simulate sweep` as a process with workers: it ends as a whole, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ENDLESS = """\
title: longer than any test
duration: 7d
fleet: [{engine: h100-8b}]
workload:
  sources:
    - {name: chat, mix: azure-conv, rate: 17.5}
"""
_DEADLINE_SECONDS = 60.0
_SIGINT_BIT = 1 << (signal.SIGINT - 1)


def _workers(pid: int) -> list[int]:
    """Children of the process that ignore Ctrl-C, as its workers do once they have begun."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        status = Path(f"/proc/{child}/status").read_text()
        ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
        command = Path(f"/proc/{child}/cmdline").read_text()
        if int(ignored, 16) & _SIGINT_BIT and "spawn_main" in command:
            found.append(int(child))
    return found


@contextmanager
def sweeping(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A sweep whose two workers run, in a process group of its own."""
    file = folder / "endless.yaml"
    file.write_text(ENDLESS)
    code = "from controlplane.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", "sweep", str(file), "--processes", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while len(_workers(process.pid)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_sweep_and_quietly(number: signal.Signals, tmp_path: Path) -> None:
    with sweeping(tmp_path) as process:
        if number is signal.SIGINT:  # a terminal sends it to all of them
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        # Workers have the same output: it ends only when they have ended too.
        output, _ = process.communicate(timeout=_DEADLINE_SECONDS)
    assert "Traceback" not in output
    if number is signal.SIGINT:
        assert output.strip() == "Aborted!"
    assert process.returncode == (1 if number is signal.SIGINT else -number)
