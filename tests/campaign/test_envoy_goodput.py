"""The whole loop without a gateway of ours: engines, Envoy, and a daemon that knows only the engines' pages.

Two simulated engines behind a real Envoy get three times what they can answer in time. Without limits they
take it all and no answer is in time; with the daemon, Envoy's limit follows what the engines show.
"""

import asyncio
import math
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from daemon_process import DaemonProcess
from envoy_server import Envoy, needs_envoy

from controlplane.daemon.replay import replay
from controlplane.policy.tick import tick
from tests.gateway.processes import free_ports

pytestmark = [pytest.mark.campaign, needs_envoy]

TTFT_SECONDS, TPOT_SECONDS = 2.5, 0.05  # the default objective
OFFERED_PER_SECOND = 45.0
WARM_UP_SECONDS, MEASURED_SECONDS = 25.0, 40.0
SEED = 11

CONFIG = """
pools:
  chat:
    targets: {{static: [{engines}]}}
scrape: {{interval: 1s, timeout: 900ms}}
envoy:
  runtime_file: runtime/limits.json
  admin: ["{admin}"]
  clusters: [{{name: vllm, pool: chat}}]
daemon: {{journal: journal.db, modes: {{envoy: {{chat: enforce}}}}}}
api: {{listen: "127.0.0.1:0"}}
"""


@dataclass
class Books:
    """What became of the requests that were sent while it was measured."""

    good: int = 0
    good_tokens: int = 0
    late: int = 0
    refused: int = 0
    broken: int = 0
    first_tokens: list[float] = field(default_factory=list)

    def line(self) -> str:
        ttfts = sorted(self.first_tokens)
        p95 = f"{ttfts[math.ceil(0.95 * len(ttfts)) - 1]:.2f} s" if ttfts else "none"
        return (
            f"{self.good / MEASURED_SECONDS:5.2f} good requests/s, "
            f"{self.good_tokens / MEASURED_SECONDS:6.0f} good tokens/s, late {self.late}, "
            f"refused {self.refused}, broken {self.broken}, TTFT p95 {p95}"
        )


class Load:
    """Open loop: requests come at random times, whatever becomes of them; refused ones do not come back."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session
        self._rng = random.Random(SEED)
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, seconds: float, books: Books) -> None:
        end = due = time.monotonic()
        end += seconds
        while due < end:
            due += self._rng.expovariate(OFFERED_PER_SECOND)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._tasks.append(asyncio.create_task(self._ask(books)))

    async def give_up(self) -> None:
        """Whoever waits longer than this has nothing in time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _length(self, median: float, sigma: float, most: int) -> int:
        return max(2, min(most, round(self._rng.lognormvariate(math.log(median), sigma))))

    async def _ask(self, books: Books) -> None:
        prompt, answer = self._length(600, 0.8, 3000), self._length(129, 0.9, 600)
        body = {"prompt": [7] * prompt, "max_tokens": answer, "ignore_eos": True, "stream": True}
        sent, first, tokens = time.monotonic(), None, 0
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=body) as reply:
                if reply.status == 429:
                    books.refused += 1
                    return
                reply.raise_for_status()
                async for data in reply.content.iter_any():
                    if first is None:
                        first = time.monotonic()
                        books.first_tokens.append(first - sent)
                    tokens += data.count(b'data: {"')
        except aiohttp.ClientError:
            books.broken += 1
            return
        except asyncio.CancelledError:
            books.late += 1
            raise
        assert first is not None
        tpot = (time.monotonic() - first) / max(1, tokens - 1)
        if first - sent <= TTFT_SECONDS and tpot <= TPOT_SECONDS:
            books.good += 1
            books.good_tokens += prompt + answer
        else:
            books.late += 1


@asynccontextmanager
async def engines() -> AsyncIterator[list[str]]:
    """Two simulated engines on neighbouring ports: a step takes 32 ms and more."""
    ports = free_ports(2)
    command = "from controlplane.cli import main; main()"
    options = f"--engine h100-8b --speed 0.25 --replicas 2 --port {ports[0]} --max-model-len 4096"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, "simulate", "serve", *options.split(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        for _ in range(3):
            assert await asyncio.wait_for(process.stdout.readline(), 60), "the engines did not start"
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def daemon(folder: Path, envoy: Envoy, behind: list[str]) -> AsyncIterator[DaemonProcess]:
    config = CONFIG.format(engines=", ".join(behind), admin=envoy.admin)
    (folder / "controlplane.yaml").write_text(config)
    with DaemonProcess(folder, "controlplane.yaml") as running:
        await asyncio.to_thread(running.ready)
        yield running


async def loaded(
    envoy: Envoy, warm_up_seconds: float = WARM_UP_SECONDS, seconds: float = MEASURED_SECONDS
) -> Books:
    """What the fleet makes of the load, after some time for it to settle."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load, books = Load(envoy.url, session), Books()
        await load.run(warm_up_seconds, Books())
        await load.run(seconds, books)
        await asyncio.sleep(2)
        await load.give_up()
        return books


async def test_limits_through_envoy_keep_goodput_up_where_there_is_none_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "without").mkdir()
    async with engines() as behind, Envoy(tmp_path / "without", behind, max_requests=8192) as envoy:
        without = await loaded(envoy)

    folder = tmp_path / "with"
    folder.mkdir()
    async with (
        engines() as behind,
        Envoy(folder, behind, max_requests=8192) as envoy,
        daemon(folder, envoy, behind) as running,
    ):
        controlled = await loaded(envoy)
        decisions: list[dict[str, Any]] = running.get("/api/v1/decisions?action=set-limit&limit=1000")[
            "items"
        ]
        in_force = await envoy.max_requests_now()
        (folder / "hold").touch()  # a person stops everything
        await asyncio.sleep(2.5)
        held = await envoy.max_requests_now()
        await loaded(envoy, warm_up_seconds=0.0, seconds=6.0)
        assert await envoy.max_requests_now() == held, "nothing moves while everything is on hold"

    with capsys.disabled():
        print(f"\nwithout limits: {without.line()}\nwith limits:    {controlled.line()}; {in_force} at once")
    outcomes = [decision["outcome"] for decision in decisions]
    replayed = replay(folder / "journal.db", tick)
    assert (replayed.different, replayed.decisions >= len(decisions)) == (0, True), replayed
    assert outcomes.count("done") > 10
    assert controlled.broken == 0
    assert controlled.good > 7.0 * MEASURED_SECONDS
    assert controlled.good > 10 * without.good
