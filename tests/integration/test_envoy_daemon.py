"""`controlplane run` with an Envoy: what it decides is in force, and stays so when it dies."""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from envoy_server import Envoy, needs_envoy, until, until_async
from prometheus_server import Exporter

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from daemon_process import DaemonProcess

from controlplane.actuators.runtime_file import RuntimeFile, max_requests_key

pytestmark = needs_envoy

PAGE = (Path(__file__).parents[1] / "data/captures/vllm-0.32-overload.prom").read_bytes()
THRESHOLD = 999

CONFIG = """
pools:
  chat: {{targets: {{static: ["127.0.0.1:{engine}"]}}, limits: {limits}}}
scrape: {{interval: 1s, timeout: 900ms}}
envoy:
  runtime_file: runtime/limits.json
  admin: ["{admin}"]
  clusters: [{{name: vllm, pool: chat}}]
daemon: {{journal: journal.db, tick: 200ms, modes: {{envoy: {{chat: {mode}}}}}}}
api: {{listen: "127.0.0.1:0"}}
"""


class Rig:
    def __init__(self, folder: Path, envoy: Envoy, engine: int) -> None:
        self.folder, self.envoy, self._engine = folder, envoy, engine

    def daemon(self, mode: str, limits: str = "{law: slo-gradient}") -> DaemonProcess:
        config = CONFIG.format(engine=self._engine, admin=self.envoy.admin, mode=mode, limits=limits)
        (self.folder / "controlplane.yaml").write_text(config)
        return DaemonProcess(self.folder, "controlplane.yaml")

    async def decided(self, daemon: DaemonProcess, outcome: str) -> dict[str, Any]:
        """The newest decision on the limit, once one has ended so."""

        def look() -> dict[str, Any] | None:
            found = daemon.get("/api/v1/decisions?action=set-limit&limit=100")
            ended = [
                decision
                for decision in (found or {"items": ()})["items"]
                if decision["outcome"].startswith(outcome)
            ]
            return ended[0] if ended else None

        await until(lambda: daemon.url, "the API")
        return await until(look, f"a limit that is {outcome}")

    async def settled(self, daemon: DaemonProcess, limit: int) -> None:
        """Return once the limit is done and Envoy goes by it."""

        async def goes_by_it() -> bool:
            return await self.envoy.max_requests_now() == limit

        await self.decided(daemon, "done")
        await until_async(goes_by_it, f"the limit {limit} in force")


@asynccontextmanager
async def rig(folder: Path) -> AsyncIterator[Rig]:
    with Exporter({"/metrics": PAGE}).running() as engine:
        async with Envoy(folder, [f"127.0.0.1:{engine.port}"], max_requests=THRESHOLD) as envoy:
            yield Rig(folder, envoy, engine.port)


async def test_what_is_decided_is_in_force_and_outlives_the_daemon(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        with it.daemon("enforce") as daemon:
            await it.decided(daemon, "done")

            async def in_force() -> bool:
                now = await it.envoy.max_requests_now()
                found = daemon.get("/api/v1/decisions?action=set-limit&limit=100")
                return found is not None and str(now) in [one["new"] for one in found["items"]]

            await until_async(in_force, "a limit that was decided in force")
            daemon.end(signal.SIGKILL)
        written = await RuntimeFile(it.envoy.runtime_file).value(max_requests_key("vllm"))
        assert written is not None
        assert 1 <= written < THRESHOLD
        await it.envoy.stop(signal.SIGKILL)
        await it.envoy.start()
        assert await it.envoy.max_requests_now() == written


async def test_in_observe_nothing_is_touched(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        before = it.envoy.runtime_file.read_bytes()
        with it.daemon("observe") as daemon:
            await it.decided(daemon, "observed")
        assert it.envoy.runtime_file.read_bytes() == before
        assert await it.envoy.max_requests_now() == THRESHOLD


async def test_an_envoy_that_is_away_is_told_in_the_journal(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        await it.envoy.stop()
        with it.daemon("enforce") as daemon:
            decision = await it.decided(daemon, "failed")
            assert "is written for cluster vllm, not read back" in decision["outcome"]
            assert "connection refused" in decision["outcome"]
        await it.envoy.start()

        async def in_force() -> bool:
            return await it.envoy.max_requests_now() < THRESHOLD

        await until_async(in_force, "the limit that was written while Envoy was away")


async def test_a_limit_that_stands_still_is_missed_when_it_is_lost(tmp_path: Path) -> None:
    """A person steps in, then Envoy and the file are gone; nothing new is decided meanwhile."""
    async with rig(tmp_path) as it:
        with it.daemon("enforce", "{law: fixed, limit: 64}") as daemon:
            await it.settled(daemon, 64)
            key = max_requests_key("vllm")
            await it.envoy.ask(f"/runtime_modify?{key}=3", "POST")
            holds = f"Envoy at {it.envoy.admin} holds cluster vllm to 3, not to the 64 that is written"
            await it.decided(daemon, f"failed: {holds}")
            await it.envoy.ask(f"/runtime_modify?{key}=", "POST")
            await it.settled(daemon, 64)
            await it.envoy.stop(signal.SIGKILL)
            it.envoy.runtime_file.unlink()
            await until(it.envoy.runtime_file.exists, "the file, without which Envoy does not start")
            await it.envoy.start()
            await it.settled(daemon, 64)
            found = daemon.get("/api/v1/decisions?action=set-limit")
            assert found is not None
            assert [one["new"] for one in found["items"]] == ["64"]
