"""The fake NVML library, built with the system's compiler, and a script that it follows."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from controlplane.agent.watch import Watch

SOURCE = Path(__file__).with_name("fake_nvml.c")
NEEDS_COMPILER = "no C compiler (cc): the fake NVML library cannot be built"


@cache
def library(*defines: str) -> Path:
    """The folder that holds the library; built once a run."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(NEEDS_COMPILER)
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *(f"-D{one}" for one in defines)]
    command += [
        "-Wl,-soname,libnvidia-ml.so.1",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(SOURCE),
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    return folder


class Script:
    """What the fake driver does, from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writes = 0

    def write(self, text: str) -> None:
        """Replace the script at once; each write has a time of its own."""
        self._writes += 1
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.utime(new, ns=(self._writes, self._writes))
        new.replace(self.path)


def gpu(uuid: str, *lines: str) -> str:
    """A GPU that is well, but for these lines."""
    well = (
        "nvmlDeviceGetTemperature 41",
        "nvmlDeviceGetMarginTemperature 40",
        "nvmlDeviceGetPowerUsage 350500",
        "nvmlDeviceGetEnforcedPowerLimit 700000",
        "nvmlDeviceGetCurrentClocksEventReasons 4",
        "nvmlDeviceGetCurrentClocksThrottleReasons 4",
        "nvmlDeviceGetPcieReplayCounter 7",
        "nvmlDeviceGetCurrPcieLinkWidth 16",
        "nvmlDeviceGetMaxPcieLinkWidth 16",
        "ecc_corrected 3",
        "ecc_uncorrected 0",
        "remap_failure 0",
        "memory_used 1000",
        "field 230 0",
        "field 75 2500000000",
        "field 82 55",
    )
    return "\n".join([f"gpu {uuid}", *well, *lines, ""])


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """A driver with two GPUs that are well, in the environment of children started from here on."""
    made = Script(tmp_path / "nvml.script")
    made.write(gpu("GPU-a") + gpu("GPU-b"))
    monkeypatch.setenv("FAKE_NVML", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library()))
    return made


async def impatient(watch: Watch, seconds: float) -> None:
    """What takes longer is a hang from here on; the child's start, however slow, was none."""
    looks, watch._deadline = watch.counts.looks, seconds
    await until(lambda: watch.counts.looks > looks)


async def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something, in real time, because a real process is at work."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (what is waited for happens in another process)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it did not come true within {seconds:g} s") from None
