"""A real `controlplane run` beside the event loop of a test, and what its API said meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from .server import wait_until

COMMAND = Path(sys.executable).with_name("controlplane")
TOKEN = "a-token-of-this-run-only"
LOOK_SECONDS = 0.4  # under the time from tick to tick, so that no tick goes unseen

# A page a second shows what changes in a second; all that is not named here is the default.
CONFIG = """\
pools:
  {pool}:
    targets: {{static: ["{target}"]}}
    slo: {{ttft: {ttft}s, tpot: {tpot}s}}
scrape: {{interval: 1s, timeout: 900ms}}
daemon: {{tick: 1s, journal: journal.db}}
api: {{listen: "127.0.0.1:0", token_file: token}}
"""


class Watcher:
    """`controlplane run` on one server. Journal, log and configuration lie in `directory`.

    `looks` are the answers of `/api/v1/fleet`, each tick once.
    """

    def __init__(self, directory: Path, target: str, *, pool: str, ttft: float, tpot: float) -> None:
        self.journal = directory / "journal.db"
        self.looks: list[dict[str, Any]] = []
        self._directory = directory
        config = CONFIG.format(pool=pool, target=target, ttft=ttft, tpot=tpot)
        (directory / "controlplane.yaml").write_text(config)
        (directory / "token").write_text(TOKEN)
        self._url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watcher:
        with (self._directory / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                COMMAND, "run", cwd=self._directory, stdout=log, stderr=log
            )
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))
        try:
            await wait_until(self._serves)
            self._looking = asyncio.create_task(self._look())
            await wait_until(self._has_looked)
        except TimeoutError:
            raise AssertionError(f"the daemon does not get ready: {self.log}") from None
        finally:
            if not self.looks:
                await self._end()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def exit_code(self) -> int | None:
        """Of the process; None while it runs."""
        return None if self._process is None else self._process.returncode

    @property
    def log(self) -> str:
        """What it wrote to standard output and error."""
        return (self._directory / "log").read_text()

    async def ask(self, path: str, *, method: str = "GET", **options: Any) -> Any:
        """JSON from the API, with the token. Raises where the status is no success."""
        assert self._session is not None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self._session.request(method, self._url + path, headers=headers, **options) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def page_after(self, at: float) -> None:
        """Wait until the API speaks from a page that was scraped after Unix time `at`."""

        async def newer() -> bool:
            self._still_looks()
            running = self.looks[-1]["pools"][0]["load"]["running"]
            return "value" in running and running["at"] > at

        await wait_until(newer)

    def _still_looks(self) -> None:
        assert self._looking is not None
        if self._looking.done():
            self._looking.result()

    async def _serves(self) -> bool:
        assert self.exit_code is None, f"the daemon ended: {self.log}"
        found = re.search(r"the API listens on (http://[^\s\"]+)", self.log)
        if found is None:
            return False
        self._url = found[1]
        with contextlib.suppress(aiohttp.ClientResponseError):  # 503 before the first tick
            return bool((await self.ask("/readyz"))["status"] == "ok")
        return False

    async def _has_looked(self) -> bool:
        self._still_looks()
        return bool(self.looks)

    async def _look(self) -> None:
        while True:
            look = await self.ask("/api/v1/fleet")
            if not self.looks or look["tick"] != self.looks[-1]["tick"]:
                self.looks.append(look)
            await asyncio.sleep(LOOK_SECONDS)

    async def _end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._session is not None:
            await self._session.close()
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), 20.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
