"""The Envoy actuator and the shipped configuration on a real Envoy with traffic."""

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from envoy_server import BINARY, DEPLOY, Clients, Engine, Envoy, needs_envoy, until, until_async

from controlplane.actuators.call import Call, Reply
from controlplane.actuators.envoy_runtime import EnvoyError, EnvoyRuntime
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.actuators.runtime_file import RuntimeFile, RuntimeFileError, max_requests_key
from controlplane.actuators.settings import EnvoySettings
from controlplane.commands.actuators import sender
from controlplane.signals.decision import Decision
from controlplane.sources.fetch import Client

pytestmark = needs_envoy
NAME = "10.0.0.7:8000"


def decision(new: object, tick: int = 1) -> Decision:
    return Decision(f"{tick}-1", 1.0, "set-limit", NAME, "", str(new), "tpot-over", "so")


class Rig:
    """An Envoy between one engine and its clients, and the actuator with a real HTTP client."""

    def __init__(self, engine: Engine, envoy: Envoy, clients: Clients, client: Client) -> None:
        self.engine, self.envoy, self.clients, self._client = engine, envoy, clients, client
        self.now = 1000.0
        self._tick = 0
        self.actuator = self.started()

    def started(self, **changes: Any) -> EnvoyRuntime:
        """The actuator of a new process."""
        settings = EnvoySettings.model_validate(
            {
                "runtime_file": self.envoy.runtime_file,
                "admin": [self.envoy.admin],
                "clusters": [{"name": "vllm", "replica": NAME}],
                "backoff_first": "100ms",
                **changes,
            }
        )
        return EnvoyRuntime(settings, self._send, lambda: None, steady=self._clock)

    async def set(self, limit: int) -> None:
        """Give the decision again until it is in force, with seconds between that nobody has to wait for."""
        self._tick += 1
        while True:
            try:
                return await self.actuator.apply(decision(limit, self._tick))
            except UnfinishedError:
                self.now += 1.0

    async def _send(self, call: Call) -> Reply:
        """An answer that comes counts, however slow the machine."""
        return await sender(self._client)(msgspec.structs.replace(call, timeout_seconds=60.0))

    def _clock(self) -> float:
        """Time goes on with each look at it, so that a machine that stands still misses nothing."""
        self.now += 0.01
        return self.now

    async def thresholds_count(self) -> bool:
        return await self.envoy.max_requests_now() == self.envoy.max_requests

    async def offer(self, count: int) -> int:
        """Send so many requests, wait until each is at the engine or refused; how many are at the engine."""
        before = self.clients.ended + self.engine.active
        self.clients.send(count)
        await until(
            lambda: self.clients.ended + self.engine.active == before + count, f"{count} requests judged"
        )
        return self.engine.active

    async def drain(self) -> None:
        self.engine.finish()
        await self.clients.all()
        await until(lambda: self.engine.active == 0, "the engine is empty")


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        Engine() as engine,
        Envoy(tmp_path, [engine.address]) as envoy,
        Client() as client,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Rig(engine, envoy, Clients(envoy.url, session), client)


async def test_the_shipped_configuration_is_good_as_it_is() -> None:
    assert BINARY is not None
    process = await asyncio.create_subprocess_exec(
        BINARY, "--mode", "validate", "-c", "envoy.yaml", cwd=DEPLOY,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_limits_take_effect_on_live_traffic_and_cut_no_stream(rig: Rig) -> None:
    assert await rig.offer(30) == 16, "the threshold of the configuration, until a limit comes"
    await rig.drain()
    await rig.set(4)
    assert await rig.offer(30) == 4
    await rig.set(8)
    assert await rig.offer(30) == 8
    await rig.set(4)
    assert await rig.offer(10) == 8, "those that are open stay open"
    await rig.drain()
    assert await rig.offer(30) == 4
    await rig.drain()
    assert rig.clients.broken == []
    assert rig.clients.whole == 16 + 8 + 4
    assert len(rig.clients.refused) == 14 + 26 + 26 + 10 + 26
    refusal = rig.clients.refused[0]
    assert refusal["retry"] == "2"
    assert json.loads(refusal["body"])["error"]["type"] == "overloaded"


async def test_a_hundred_changes_under_load_drop_nothing_and_each_is_seen(rig: Rig) -> None:
    rig.engine.gate.set()  # it answers at once
    await rig.set(64)
    stop = False

    async def client() -> None:
        while not stop:
            await rig.clients._one()

    load = [asyncio.create_task(client()) for _ in range(8)]
    for i in range(100):
        await rig.set(40 + i % 20)
        assert await rig.envoy.max_requests_now() == 40 + i % 20
    await until(lambda: rig.clients.whole > 200, "a load that says something")
    stop = True
    await asyncio.gather(*load)
    assert rig.clients.broken == []
    assert rig.clients.refused == []


async def test_a_wrong_value_never_reaches_envoy_and_a_foreign_file_is_left_alone(rig: Rig) -> None:
    await rig.set(5)
    for new in ("abc", "-5", "0", "6.5"):
        with pytest.raises(RefusedError):
            await rig.actuator.apply(decision(new))
    assert await rig.envoy.max_requests_now() == 5
    beside = rig.envoy.runtime_file.with_name("theirs")
    beside.write_bytes(b'{"version_info": "9", "resources": [{')  # cut short, as by a full disk
    beside.rename(rig.envoy.runtime_file)
    with pytest.raises(RuntimeFileError, match="move it away"):
        await rig.actuator.apply(decision(6))
    assert await rig.envoy.max_requests_now() == 5, "Envoy goes on with what it knew"
    rig.envoy.runtime_file.unlink()
    await rig.actuator.apply(decision(6))
    assert await rig.envoy.max_requests_now() == 6


async def test_an_envoy_that_was_away_has_the_newest_limit_from_its_start(rig: Rig) -> None:
    await rig.set(6)
    await rig.envoy.stop(signal.SIGKILL)
    rig.now += 1.0
    with pytest.raises(EnvoyError, match=r"5 is written for cluster vllm, not read back: .*refused"):
        await rig.actuator.apply(decision(5, tick=2))
    await rig.envoy.start()
    assert await rig.offer(20) == 5
    await rig.drain()
    rig.now += 1.0  # its back-off
    await rig.actuator.apply(decision(5, tick=3))
    assert rig.clients.broken == []


async def test_kill_9_between_write_and_rename_leaves_envoy_with_the_old_limit(rig: Rig) -> None:
    await rig.set(6)
    await asyncio.to_thread(killed_between_write_and_rename, rig.envoy.runtime_file)
    assert rig.envoy.runtime_file.with_name(".limits.json.new").exists(), "it had got that far"
    assert await rig.envoy.max_requests_now() == 6
    assert "runtime.update_failure: 0" in await rig.envoy.ask("/stats?filter=runtime.update_failure")
    rig.actuator = rig.started()
    await rig.set(7)
    assert await rig.offer(20) == 7
    await rig.drain()


def killed_between_write_and_rename(path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=put_and_die, args=(path,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


def put_and_die(path: Path) -> None:
    """In a process of its own: killed at the moment between writing and renaming."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Path.replace = die  # type: ignore[method-assign, assignment]
    asyncio.run(RuntimeFile(path).put(max_requests_key("vllm"), 99))


async def test_a_new_process_goes_on_from_the_limit_that_is_in_force(rig: Rig) -> None:
    await rig.set(8)
    rig.actuator = rig.started(max_change=0.25)
    with pytest.raises(UnfinishedError, match="cluster vllm is at 10 on its way to 100"):
        await rig.actuator.apply(decision(100))
    assert await rig.offer(20) == 10
    await rig.drain()


async def test_a_person_who_steps_in_wins_and_is_named(rig: Rig) -> None:
    await rig.set(8)
    rig.actuator = rig.started(verify_within="200ms")
    key = max_requests_key("vllm")
    await rig.envoy.ask(f"/runtime_modify?{key}=2", "POST")
    with pytest.raises(EnvoyError, match=r"holds cluster vllm to 2, .* so says its runtime layer 'admin'"):
        await rig.actuator.apply(decision(9))
    assert await rig.offer(20) == 2
    await rig.drain()
    await rig.envoy.ask(f"/runtime_modify?{key}=", "POST")
    await rig.set(10)
    assert await rig.offer(20) == 10
    await rig.drain()


async def test_the_shipped_file_moved_over_it_takes_all_limits_back(rig: Rig) -> None:
    await rig.set(5)
    empty = rig.envoy.folder / "empty"
    empty.write_bytes((DEPLOY / "runtime" / "limits.json").read_bytes())
    empty.rename(rig.envoy.runtime_file)
    await until_async(rig.thresholds_count, "Envoy goes by its thresholds")
    assert await rig.offer(20) == 16
    await rig.drain()


async def test_a_cluster_that_is_not_there_is_told_and_not_believed(rig: Rig) -> None:
    actuator = rig.started(clusters=[{"name": "vlm", "replica": NAME}])
    with pytest.raises(EnvoyError, match=r"Envoy at http://127.0.0.1:\d+ has no cluster 'vlm'"):
        await actuator.apply(decision(8))


async def test_several_workers_keep_one_limit(tmp_path: Path) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        Engine() as engine,
        Envoy(tmp_path, [engine.address], workers=2) as envoy,
        Client() as client,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        rig = Rig(engine, envoy, Clients(envoy.url, session), client)
        await rig.actuator.apply(decision(7))
        assert await rig.offer(60) == 7
        await rig.drain()
