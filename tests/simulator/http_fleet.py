"""A simulated fleet on free ports of this machine, and a client for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from controlplane.simulator.http.fleet import Fleet, FleetSettings

FAST = FleetSettings("h100-8b", port=0, speed=20.0, model="simulated", max_model_len=1024, kv_tokens=40_000)
"""A step takes 0.4 ms."""


class Client:
    """Asks the first replica, or the one at `url`."""

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self.session = session
        self.url = fleet.urls[0]

    async def get(self, path: str) -> str:
        async with self.session.get(self.url + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        async with self.session.post(self.url + path, json=body) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json()

    async def break_as(self, **faults: Any) -> Any:
        return await self.post("/sim/faults", faults)

    async def samples(self, path: str = "/metrics") -> "Samples":
        return Samples(await self.get(path))


class Samples:
    """The samples of a page."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.found = [s for family in text_string_to_metric_families(page) for s in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name with these labels; there must be one."""
        values = [s.value for s in self.found if s.name == name and labels.items() <= s.labels.items()]
        assert values, f"no sample {name} {labels}"
        return sum(values)


@asynccontextmanager
async def fleet(settings: FleetSettings = FAST) -> AsyncIterator[Client]:
    async with Fleet(settings) as running, aiohttp.ClientSession() as session:
        yield Client(running, session)


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is true; TimeoutError where it never is."""
    async with asyncio.timeout(60.0):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


def completion(tokens: int, prompt: str | Sequence[int] = "a b c", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
