#!/usr/bin/env python3
"""A fleet that moves: simulated vLLM servers, clients that ask too much, and controlplane that watches.

    make demo        (or: .venv/bin/python scripts/demo.py)

Needs no GPU, no network and no configuration; what it writes is in var/demo here. Ctrl-C ends all of it.
"""

import asyncio
import contextlib
import fcntl
import json
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import Process
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo_load import CELL_SECONDS, WINDOW_SECONDS, Limits, Load, Phase
from demo_screen import Screen

FOLDER = Path("var/demo")
ENGINE, REPLICAS = "2xh100-70b-fp8", 3
FLEET_OPTIONS = ("--max-num-seqs", "48", "--kv-tokens", "40000", "--max-model-len", "4096")
CAPACITY_PER_SECOND = 8.0 * REPLICAS
"""What the fleet can answer of the load's questions: where goodput ends when the rate is raised slowly."""
LIMITS = Limits(ttft=2.5, tpot=0.075)
PHASES = (
    Phase("light", 20.0, 0.5, "half of what the fleet can answer"),
    Phase("overload", 35.0, 2.0, "twice what it can"),
    Phase("light", 45.0, 0.5, "half again; the queue must be worked off first"),
)
LINE_SECONDS = 5.0
START_SECONDS = 30.0
STOP_SECONDS = 2.0

CONFIG = """\
# Written by the demo.
pools:
  chat:
    targets: {{static: [{urls}]}}
    slo: {{ttft: {ttft}s, tpot: {tpot}s, objective: 95%}}
scrape: {{interval: 1s, timeout: 900ms}}
policy: {{stale_after: 5s, rate_window: 5s, goodput_cell: {cell:.0f}s, window: {window:.0f}s}}
daemon: {{tick: 1s, journal: journal.db}}
api: {{listen: "127.0.0.1:{port}"}}
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


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
                _command(), *self._arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
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


class Demo:
    """All of it. Begins its folder anew. Raises DemoError where ports are short."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        first, api_port = free_ports(8000, REPLICAS), free_ports(9090, 1)
        self._urls = [f"http://127.0.0.1:{first + i}" for i in range(REPLICAS)]
        self._api = f"http://127.0.0.1:{api_port}"
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        config, urls = FOLDER / "controlplane.yaml", ", ".join(self._urls)
        config.write_text(
            CONFIG.format(
                urls=urls,
                ttft=LIMITS.ttft,
                tpot=LIMITS.tpot,
                window=WINDOW_SECONDS,
                cell=CELL_SECONDS,
                port=api_port,
            )
        )
        fleet = ("--engine", ENGINE, "--port", str(first), "--replicas", str(REPLICAS), *FLEET_OPTIONS)
        self._children = (Child("fleet", "simulate", "serve", *fleet), Child("daemon", "run", str(config)))
        self._load = Load(self._urls, ENGINE, PHASES, capacity_per_second=CAPACITY_PER_SECOND, limits=LIMITS)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises DemoError where something ends that should not."""
        jobs: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
        try:
            await asyncio.gather(*(child.start() for child in self._children))
            jobs += [asyncio.create_task(child.watch()) for child in self._children]
            jobs.append(asyncio.create_task(self._show()))
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            # On Ctrl-C in a terminal the children end by themselves too: that is no error then.
            if not stop.is_set():
                for job in done:
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.gather(*(child.stop() for child in self._children))

    async def _show(self) -> None:
        await self._ready()
        self._screen.introduce(self._urls, self._api, str(_command()), str(FOLDER))
        load = asyncio.create_task(self._load.run())
        await asyncio.sleep(0)  # so that it has begun
        phase = None
        try:
            for count in range(1, 1 << 62):
                if self._load.phase is not phase:
                    phase = self._load.phase
                    self._screen.begin(phase, first=phase is PHASES[0])
                await asyncio.wait([load], timeout=max(0.1, count * LINE_SECONDS - self._load.seconds))
                if load.done():
                    load.result()
                pool = await asyncio.to_thread(self._pool)
                self._screen.line(self._load.seconds, phase, self._load.window(), pool)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)

    async def _ready(self) -> None:
        """Wait until all that was started answers."""
        urls = [f"{self._urls[-1]}/health", f"{self._api}/readyz"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while True:
                    if None not in [await asyncio.to_thread(get, url) for url in urls]:
                        return
                    await asyncio.sleep(0.05)
        raise DemoError(f"no answer within {START_SECONDS:.0f} s; see the logs in {FOLDER}")

    def _pool(self) -> dict[str, Any]:
        """What the daemon says of the pool; empty where it says nothing."""
        answer = get(f"{self._api}/api/v1/fleet")
        pools = json.loads(answer)["pools"] if answer else []
        return pools[0] if pools else {}


@contextlib.contextmanager
def only_one_here() -> Iterator[None]:
    """Raises DemoError where another demo uses this folder: each begins it anew."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(f"another demo runs here and uses {FOLDER}") from None
        yield


def get(url: str) -> bytes | None:
    """The body at a URL of ours; None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:  # noqa: S310 - ours, and http
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def free_ports(preferred: int, count: int) -> int:
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


def _command() -> Path:
    """The controlplane command beside this Python, as short as it can be written."""
    command = Path(sys.executable).with_name("controlplane")
    return command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command


async def _run(demo: Demo) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    await demo.run(stop)


def main() -> None:
    screen = Screen(CAPACITY_PER_SECOND, LIMITS)
    try:
        with only_one_here():
            asyncio.run(_run(Demo(screen)))
    except DemoError as error:
        screen.say(f"demo: {error}", "red")
        sys.exit(1)
    screen.say("\nstopped: nothing of it runs any more")


if __name__ == "__main__":
    main()
