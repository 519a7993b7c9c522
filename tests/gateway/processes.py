"""Real processes: the gateway as users start it, and simulated engines."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONTROLPLANE = Path(sys.executable).with_name("controlplane")


_ours: list[socket.socket] = []  # a mark for each port, until this process ends


def until(what: str, condition: Callable[[], Any]) -> Any:
    """The first true answer of `condition`; fails the test where none comes within a minute."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within a minute"
        time.sleep(0.1)
    return found


def free_ports(count: int) -> list[int]:
    """So many free ports in a row.

    They lie below those that Linux gives to whoever asks for any, and each gets a mark that one process alone
    can have: nobody takes one before its server does, another run of these tests beside this one included.
    """
    while True:
        first = random.randrange(20_000, 32_000)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            marks = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in ports]
            for port, mark in zip(ports, marks, strict=True):
                mark.bind(f"\0controlplane-tests-port-{port}")
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            stack.pop_all()
            _ours.extend(marks)
            return ports


@contextlib.contextmanager
def running(log: Path, *args: str, url: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """`controlplane ARGS`, up when `url` answers 200; ended with SIGTERM, and SIGKILL if need be."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [CONTROLPLANE, *args], stdout=output, stderr=output, env={**os.environ, **env}, cwd=log.parent
        )
    try:
        until_up(url, process, log)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer\n{log.read_text()}")


def config(folder: Path, listen: int, control: int, targets: list[int], gateway: str = "") -> Path:
    """A configuration file; `gateway` are further lines of that section, indented by two."""
    static = ", ".join(f'"http://127.0.0.1:{port}"' for port in targets)
    path = folder / "controlplane.yaml"
    path.write_text(
        f"""
pools:
  chat: {{targets: {{static: [{static}]}}}}
scrape: {{interval: 1s, timeout: 900ms}}
gateway:
  name: gw
  listen: 127.0.0.1:{listen}
  control: {{listen: "127.0.0.1:{control}", token: {{env: CONTROL_TOKEN}}, state_file: state.json}}
  drain: {{settle: 0, deadline: 2s}}
{gateway}
"""
    )
    return path
