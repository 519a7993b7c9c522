"""Where the demo lives: its folder, its addresses, its configuration and the processes that run by it."""

import asyncio
import contextlib
import fcntl
import secrets
import shutil
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from pathlib import Path

from demo_load import CELL_SECONDS, LIMITS, WINDOW_SECONDS

FOLDER = Path("var/demo")
CONFIG, TOKEN = FOLDER / "controlplane.yaml", FOLDER / "token"
POOL, MODEL = "chat", "chat"
ENGINE, REPLICAS, SEQUENCES = "2xh100-70b-fp8", 3, 48
STOP_SECONDS = 2.0
_LOCK = FOLDER.with_suffix(".lock")

_CONFIG = """\
# Written by the demo. No mode is given, so all of it observes.
pools:
  {pool}:
    targets: {{static: [{urls}]}}
    slo: {{ttft: {ttft}s, tpot: {tpot}s, objective: 95%}}
    max_num_seqs: {sequences}
scrape: {{interval: 1s, timeout: 900ms}}
policy: {{stale_after: 5s, rate_window: 5s, goodput_cell: {cell:.0f}s, window: {window:.0f}s}}
daemon: {{tick: 1s, journal: journal.db}}
api: {{listen: "127.0.0.1:{api}", token_file: token}}
gpus:
  nodes: {{gpu-node-1: {{dcgm: "http://127.0.0.1:{gpus}", replicas: [{names}]}}}}
  interval: 2s
  timeout: 1s
gateways:
  - {{url: "http://127.0.0.1:{control}", token: {{file: token}}}}
gateway:
  name: gateway
  listen: 127.0.0.1:{gateway}
  control: {{listen: "127.0.0.1:{control}", token: {{file: token}}, state_file: gateway.json}}
  drain: {{settle: 0, deadline: 1s}}
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Site:
    """The folder, begun anew, and addresses that were free. Raises DemoError where ports are short."""

    def __init__(self) -> None:
        first = _free_ports(8000, REPLICAS)
        names = [f"127.0.0.1:{first + i}" for i in range(REPLICAS)]
        ports = {
            name: _free_ports(preferred)
            for name, preferred in (("gateway", 8080), ("api", 9090), ("control", 9101), ("gpus", 9400))
        }
        self.engines = [f"http://{name}" for name in names]
        self.gateway, self.api = (f"http://127.0.0.1:{ports[name]}" for name in ("gateway", "api"))
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        TOKEN.touch(0o600)
        TOKEN.write_text(secrets.token_urlsafe(24))
        CONFIG.write_text(
            _CONFIG.format(
                pool=POOL,
                urls=", ".join(self.engines),
                names=", ".join(f'"{name}"' for name in names),
                sequences=SEQUENCES,
                ttft=LIMITS.ttft,
                tpot=LIMITS.tpot,
                window=WINDOW_SECONDS,
                cell=CELL_SECONDS,
                **ports,
            )
        )
        fleet = {
            "engine": ENGINE,
            "model": MODEL,
            "port": first,
            "replicas": REPLICAS,
            "dcgm-port": ports["gpus"],
            "max-num-seqs": SEQUENCES,
            "kv-tokens": 40000,
            "max-model-len": 4096,
        }
        options = [word for name, value in fleet.items() for word in (f"--{name}", str(value))]
        self.children = (
            Child("fleet", "simulate", "serve", *options),
            Child("gateway", "gateway", "-c", str(CONFIG)),
            Child("daemon", "run", str(CONFIG)),
        )

    @property
    def probes(self) -> list[str]:
        """What answers once all has started."""
        return [f"{self.engines[-1]}/health", f"{self.gateway}/ready", f"{self.api}/readyz"]


class Child:
    """A controlplane command of ours, with its output in a file."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._name = name
        self._log = FOLDER / f"{name}.log"
        self._arguments = arguments
        self._process: Process | None = None

    async def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                command(), *self._arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def watch(self) -> None:
        """Raises DemoError when it ends by itself."""
        assert self._process is not None
        code = await self._process.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])
        raise DemoError(f"the {self._name} ended with code {code}; the end of {self._log}:\n{tail}")

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


@contextlib.contextmanager
def only_one_here() -> Iterator[None]:
    """Raises DemoError where another demo uses this folder: each begins it anew."""
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(f"another demo runs here and uses {FOLDER}") from None
        yield


def is_running_here() -> bool:
    """Whether a demo runs that uses this folder."""
    try:
        with _LOCK.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def command() -> Path:
    """The controlplane command beside this Python, as short as it can be written."""
    path = Path(sys.executable).with_name("controlplane")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _free_ports(preferred: int, count: int = 1) -> int:
    """The first of `count` free consecutive ports, from `preferred` on. Raises DemoError."""
    for first in range(preferred, 65536 - count, 10):
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + count):
                    probe = probes.enter_context(socket.socket())
                    # As the servers do: a port whose connections have just ended is free.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise DemoError(f"no {count} consecutive ports are free from {preferred} on")
