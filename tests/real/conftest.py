"""Fixtures for the tests that need a real vLLM server. All of them carry the marker `real`.

What is made once (environment, model, logs) lies in `var/`, so a second run starts in seconds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from .server import ServerOptions, VllmServer

HERE = Path(__file__).parent
VAR = HERE.parents[1] / "var"
LACKS_PREREQUISITE = 3
KEEP_SERVERS = 2

StartServer = Callable[..., Awaitable[VllmServer]]

TABLES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what the tests measured."""
    config.stash[TABLES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it at the end, also where all went well."""
    for table in config.stash[TABLES]:
        terminalreporter.write_line(f"\n{table}")


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Tell people something at the end of the test run."""
    return request.config.stash[TABLES].append


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    """The environment with vLLM, installed when it is not there yet (some minutes, once)."""
    venv = VAR / "vllm"
    done = subprocess.run(["bash", HERE / "install.sh", venv], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return venv
    # On CI a skip would hide that nothing real was tested.
    if done.returncode == LACKS_PREREQUISITE and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    pytest.fail(done.stderr.strip(), pytrace=False)


@pytest.fixture(scope="session")
def tiny_model(vllm_venv: Path) -> Path:
    """The folder with the random model and its tokenizer."""
    model = VAR / "model"
    subprocess.run([vllm_venv / "bin" / "python", HERE / "make_model.py", model], check=True)
    return model


class ServerPool:
    """Servers shared between tests by their options; those not used for longest are ended first."""

    def __init__(self, venv: Path, model: Path) -> None:
        self._venv = venv
        self._model = model
        self._shared: OrderedDict[ServerOptions, VllmServer] = OrderedDict()
        self._own: list[VllmServer] = []

    async def get(self, options: ServerOptions, *, own: bool) -> VllmServer:
        """A running server: one of the test's own, or the shared one, started anew if it has died."""
        if own:
            server = self._new(options)
            self._own.append(server)
            await server.start()
            return server
        if options not in self._shared:
            self._shared[options] = self._new(options)
        self._shared.move_to_end(options)
        server = self._shared[options]
        if not await server.healthy(timeout_seconds=60.0):
            await server.restart()
        return server

    async def end_of_test(self) -> None:
        """End the test's own servers and the shared ones above the number kept.

        An idle server still costs 1.4 GB and a fifth of a core.
        """
        ending = self._own
        self._own = []
        while len(self._shared) > KEEP_SERVERS:
            ending.append(self._shared.popitem(last=False)[1])
        await asyncio.gather(*(server.stop() for server in ending))

    def close(self) -> None:
        """End all servers."""
        for server in [*self._own, *self._shared.values()]:
            server.kill()

    def _new(self, options: ServerOptions) -> VllmServer:
        return VllmServer(options, self._venv, self._model, VAR / "logs")


@pytest.fixture(scope="session")
def server_pool(vllm_venv: Path, tiny_model: Path) -> Iterator[ServerPool]:
    """All servers of the test run."""
    pool = ServerPool(vllm_venv, tiny_model)
    yield pool
    pool.close()


@pytest.fixture
async def vllm_server(server_pool: ServerPool) -> AsyncIterator[StartServer]:
    """Start servers: `await vllm_server(ServerOptions(...))`, or with `own=True` one that no other test sees.

    A shared server keeps its counters from test to test: compare before and after. A test that kills,
    freezes or exhausts its server takes one of its own.
    """

    async def start(options: ServerOptions | None = None, *, own: bool = False) -> VllmServer:
        return await server_pool.get(options or ServerOptions(), own=own)

    yield start
    await server_pool.end_of_test()
