"""A mirror whose watches end as soon as they are opened, in virtual time."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from virtual_time import VirtualLoop, run_virtually

from controlplane.sources.kubernetes_api import Answered, Ask, KubernetesApi
from controlplane.sources.kubernetes_mirror import Mirror

NOON = 1_764_000_000.0
POD: dict[str, Any] = {"metadata": {"name": "a", "namespace": "serving", "resourceVersion": "8"}}
ADDED = {"type": "ADDED", "object": POD}
EXPIRED = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


class Server:
    """Each of its watches tells the same `events` and ends; without any it ends, or `stays` open."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.stays = False
        self.watches = 0

    async def send(self, ask: Ask) -> Answered:
        return Answered(200, {}, msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "items": [POD]}))

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[Any]:
        self.watches += 1
        pieces = [msgspec.json.encode(event) + b"\n" for event in self.events]

        async def readany() -> bytes:
            if self.stays:
                await asyncio.Event().wait()
            return pieces.pop(0) if pieces else b""

        yield SimpleNamespace(status=200, headers={}, content=SimpleNamespace(readany=readany))


class Bench:
    def __init__(self) -> None:
        async def path() -> str:
            return "/api/v1/namespaces/serving/pods"

        self.server = Server()
        api = cast(KubernetesApi, self.server)
        self.mirror: Mirror[bytes] = Mirror(api, path, bytes, luck=lambda: 0.5)

    def run(self, *steps: tuple[float, Callable[[], None]]) -> None:
        """For so many seconds each time, and then what is to be seen or done."""

        async def whole() -> None:
            task = asyncio.create_task(self.mirror.run())
            for seconds, step in steps:
                await asyncio.sleep(seconds)
                step()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        run_virtually(VirtualLoop(NOON), whole())


def test_a_watch_that_ends_as_soon_as_it_is_opened_is_a_trouble_until_one_holds() -> None:
    bench = Bench()

    def ends() -> None:
        assert bench.mirror.trouble == "/api/v1/namespaces/serving/pods: a watch ends as soon as it is opened"
        assert set(bench.mirror.items) == {"serving/a"}
        assert (bench.mirror.lists, bench.server.watches) == (1, 7)  # 22.5 s as a rule from then on
        bench.server.stays = True

    def holds() -> None:
        assert bench.mirror.trouble == ""

    bench.run((40.0, ends), (30.0, holds))


@pytest.mark.parametrize("events", [[EXPIRED], [ADDED, EXPIRED]], ids=["at-once", "after-an-event"])
def test_who_forgets_our_version_again_and_again_is_not_asked_for_lists_without_end(
    events: list[dict[str, Any]],
) -> None:
    bench = Bench()
    bench.server.events = events

    def storm() -> None:
        assert bench.mirror.lists < 10
        assert set(bench.mirror.items) == {"serving/a"}

    bench.run((60.0, storm))
