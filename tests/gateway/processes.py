"""Real processes: the gateway as users start it, and simulated engines."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CONTROLPLANE = Path(sys.executable).with_name("controlplane")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in taken:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in taken]


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
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_up(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 40.0) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=2):
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
