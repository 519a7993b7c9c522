"""One real vLLM server on a free loopback port, started, watched and surely ended.

::

    async with VllmServer(ServerOptions(blocks=64), venv, model, logs) as server:
        ...  # requests to server.base_url

By hand, with what install.sh and make_model.py left in `var/` (options after the name go to vLLM)::

    python tests/real/server.py [vLLM options]      prints its address when ready, ends on Ctrl-C

A server is three processes (API, engine, worker) in a process group of their own. Ending one of them does not
always end the others, so whatever ends the server ends the group. A small guard process does the same when
the test run itself is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

BLOCK_TOKENS = 32
READY_LIMIT_SECONDS = 180.0
NICENESS = 5
STOP_LIMIT_SECONDS = 20.0

# Waits for the end of its standard input, which comes when the process that holds the other end is gone.
GUARD = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What a server is started with. Hashable, so that equal servers can be shared."""

    blocks: int = 64
    """KV cache blocks of 32 tokens. Few of them, so that a small load already preempts."""
    max_len: int = 1024
    max_seqs: int = 16
    model_name: str = "tiny"
    extra_args: tuple[str, ...] = ()
    extra_env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """The engine refuses a cache that cannot hold one request of `max_len`; one block is its own."""
        if (self.blocks - 1) * BLOCK_TOKENS < self.max_len:
            raise ValueError(
                f"{self.blocks} blocks of {BLOCK_TOKENS} tokens cannot hold {self.max_len} tokens"
            )


class ServerError(RuntimeError):
    """The server did not start, with the end of its log."""


class VllmServer:
    """A server that is started, restarted and ended by its owner. Not tied to one event loop."""

    def __init__(self, options: ServerOptions, venv: Path, model: Path, logs: Path) -> None:
        self.options = options
        self.port = _free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log_path = logs / f"vllm-{os.getpid()}-{next(_numbers)}.log"
        self.ready_seconds = float("nan")
        """How long the last start took."""
        self._venv = venv
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> VllmServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- state -------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The API server's process, which leads the group."""
        if self._process is None:
            raise ServerError("the server is not started")
        return self._process.pid

    def pids(self) -> list[int]:
        """Every live process of the server; empty once it is gone."""
        return [] if self._process is None else _group(self._process.pid)

    def running(self) -> bool:
        """Whether the API server's process is there."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the server wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    async def healthy(self, timeout_seconds: float = 2.0) -> bool:
        """Whether /health answers 200."""
        try:
            return await self._get_status("/health", timeout_seconds) == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def metrics(self) -> str:
        """The text of /metrics."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{self.base_url}/metrics", raise_for_status=True) as response,
        ):
            return await response.text()

    async def settled_metrics(self, limit_seconds: float = 60.0) -> str:
        """The text of /metrics once nothing runs or waits and no token is written any more."""
        texts = [await self.metrics()]

        async def settled() -> bool:
            await asyncio.sleep(0.2)
            texts.append(await self.metrics())
            tokens = [sample_sum(text, "vllm:generation_tokens_total") for text in texts[-2:]]
            busy = [sample_sum(texts[-1], f"vllm:num_requests_{what}") for what in ("running", "waiting")]
            return busy == [0, 0] and tokens[0] == tokens[1]

        await wait_until(settled, limit_seconds)
        return texts[-1]

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start and wait until it answers; raise with the end of the log if it does not."""
        if self.pids():
            raise ServerError("the server runs already")
        begun = time.monotonic()
        self._spawn()
        try:
            while not await self.healthy():
                if not self.running():
                    raise ServerError(f"vLLM ended while starting:\n{self.log_tail()}")
                if time.monotonic() - begun > READY_LIMIT_SECONDS:
                    raise ServerError(f"vLLM not ready in {READY_LIMIT_SECONDS:.0f} s:\n{self.log_tail()}")
                await asyncio.sleep(0.2)
        except BaseException:
            self.kill()
            raise
        self.ready_seconds = time.monotonic() - begun
        _let_clients_first(self.pid)

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Ask it to end (SIGTERM), then end what is left of its group."""
        if self._process is not None and self.running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, grace_seconds)
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End every process of the server at once (SIGKILL) and wait until they are gone."""
        if self._process is None:
            return
        self._dismiss_guard()
        until = time.monotonic() + STOP_LIMIT_SECONDS
        while self.pids():
            if time.monotonic() > until:
                raise ServerError(f"processes {self.pids()} do not end")
            self.signal(signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()
        self._process = None

    async def restart(self, *, graceful: bool = False) -> None:
        """End it (by SIGKILL unless graceful) and start it anew on the same port."""
        if graceful:
            await self.stop()
        else:
            await asyncio.to_thread(self.kill)
        await self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, SIGSTOP for a server that hangs, say."""
        if self.pids():
            os.killpg(self.pid, number)

    # --- details -----------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        options = self.options
        command = [
            str(self._venv / "bin" / "vllm"), "serve", str(self._model),
            "--served-model-name", options.model_name,
            "--host", "127.0.0.1",
            "--port", str(self.port),
            "--enforce-eager",
            "--max-model-len", str(options.max_len),
            "--max-num-seqs", str(options.max_seqs),
            "--block-size", str(BLOCK_TOKENS),
            "--num-gpu-blocks-override", str(options.blocks),
            "--disable-uvicorn-access-log",
            *options.extra_args,
        ]  # fmt: skip
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(options),
            )
        self._guard = subprocess.Popen(
            [sys.executable, "-c", GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _dismiss_guard(self) -> None:
        # Before the group is reaped: the guard must not outlive it, or it might end a later group of that id.
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None

    async def _get_status(self, path: str, timeout_seconds: float) -> int:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self.base_url + path) as response,
        ):
            return response.status


def sample_sum(text: str, name: str, **labels: str) -> float:
    """The sum of one metric's samples over the label sets that match; 0 when there is none."""
    # Only that metric's lines are parsed: the whole page costs 65 ms, in which a client sees no token.
    lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    )


async def wait_until(condition: Callable[[], Awaitable[bool]], limit_seconds: float = 60.0) -> None:
    """Ask again and again until the answer is yes; TimeoutError when it stays no."""
    async with asyncio.timeout(limit_seconds):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.1)


def _environment(options: ServerOptions) -> dict[str, str]:
    """Ours, with nothing looked up outside this machine and no thread pinned to a core.

    Pinning would put every server on core 0; on a small machine with several servers the kernel places
    threads better.
    """
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        **dict(options.extra_env),
    }


def _let_clients_first(leader: int) -> None:
    """Lower the priority of a server that is up, so that those who watch it see it on time.

    Engine and worker spin on two cores. On a machine of that size a client that wants a twentieth of a core
    was at times left waiting for half a second, and what it measured was its own wait. As a group of their
    own the server's processes are weighed as one, hence the group's niceness besides their own. Not before
    the server is up: starting is long enough.
    """
    with contextlib.suppress(OSError):  # it may have died, and not every kernel weighs groups
        os.setpriority(os.PRIO_PGRP, leader, NICENESS)
        Path(f"/proc/{leader}/autogroup").write_text(str(NICENESS))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group(leader: int) -> list[int]:
    """Processes of the group that `leader` leads, without those that are dead and only not yet reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # "pid (name) state ppid group ...": the name may itself hold blanks and brackets.
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state not in "ZX":
            found.append(int(entry.name))
    return sorted(found)


async def _serve_by_hand(var: Path) -> None:
    options = ServerOptions(extra_args=tuple(sys.argv[1:]))
    async with VllmServer(options, var / "vllm", var / "model", var / "logs") as server:
        print(f"{server.base_url} ready in {server.ready_seconds:.1f} s, log {server.log_path}", flush=True)
        while server.running():  # noqa: ASYNC110 - a process's end is not an event of this loop
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_by_hand(Path(__file__).resolve().parents[2] / "var"))
