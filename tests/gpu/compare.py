"""What the node agent reads of this machine's GPUs, next to what `nvidia-smi -q -x` prints of them."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree

from controlplane.agent.watch import Watch
from controlplane.signals.gpu import NodeReport

_WAIT_SECONDS = 30.0
_STEADY: dict[str, tuple[str, Callable[[str], float]]] = {
    "power_limit_watts": ("gpu_power_readings/current_power_limit", lambda text: float(text.split()[0])),
    "ecc_lifetime_uncorrectable_total": ("ecc_errors/aggregate/dram_uncorrectable", float),
    "pcie_link_width_max": (
        "pci/pci_gpu_link_info/link_widths/max_link_width",
        lambda text: float(text.removesuffix("x")),
    ),
    "pcie_replays_total": ("pci/replay_counter", float),
    "remapped_rows_uncorrectable_total": ("remapped_rows/remapped_row_unc", float),
}
_NEAR: dict[str, tuple[str, float]] = {
    "temperature_celsius": ("temperature/gpu_temp", 5.0),
    "power_watts": ("gpu_power_readings/instant_power_draw", 60.0),
}


async def report() -> NodeReport:
    """The agent's first report."""
    watch = Watch("here", 1.0, 10.0)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            while not isinstance(watch.sample(), NodeReport):  # noqa: ASYNC110 (it comes from a process)
                await asyncio.sleep(0.1)
    except TimeoutError:
        sys.exit(f"nothing was seen within {_WAIT_SECONDS:g} s: {watch.sample()}")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    sample = watch.sample()
    assert isinstance(sample, NodeReport)
    return sample


def main() -> int:
    tool = shutil.which("nvidia-smi")
    assert tool is not None
    text = subprocess.run([tool, "-q", "-x"], check=True, capture_output=True, text=True).stdout
    smi = {gpu.findtext("uuid", ""): gpu for gpu in ElementTree.fromstring(text).iter("gpu")}
    seen = asyncio.run(report())
    flaws = []
    if set(seen.gpus) != set(smi):
        flaws.append(f"GPUs {sorted(seen.gpus)} instead of {sorted(smi)}")
    for uuid, gpu in seen.gpus.items():
        theirs = smi.get(uuid)
        if theirs is None:
            continue
        for signal, (path, read) in _STEADY.items():
            told = theirs.findtext(path, "N/A")
            try:
                wanted = read(told)
            except ValueError:
                continue  # N/A
            got = gpu.numbers.get(signal)
            line = f"{uuid[-12:]} {signal:36} {got} (nvidia-smi: {told})"
            print(line)
            if got != wanted:
                flaws.append(line)
        for signal, (path, tolerance) in _NEAR.items():
            told = theirs.findtext(path, "N/A")
            if told[:1].isdigit():
                got = gpu.numbers.get(signal)
                line = f"{uuid[-12:]} {signal:36} {got} (nvidia-smi: {told})"
                print(line)
                if got is None or abs(got - float(told.split()[0])) > tolerance:
                    flaws.append(line)
        print(
            f"{uuid[-12:]} blind: {', '.join(f'{name} ({why})' for name, why in gpu.blind.items()) or 'none'}"
        )
    for flaw in flaws:
        print(f"DIFFERS {flaw}", file=sys.stderr)
    return bool(flaws)


if __name__ == "__main__":
    sys.exit(main())
