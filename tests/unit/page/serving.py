"""The API of a daemon on a free port, in a loop of its own thread: for browsers, which are driven from the
test's."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from page_fleet import NightDaemon

from controlplane.api.server import ApiServer
from controlplane.api.settings import ApiSettings

TOKEN = "a-token-for-tests"
TOGETHER_SECONDS = 60.0


class Served:
    """A daemon with its API at `url`; `do` runs a function in its loop."""

    def __init__(self, daemon: NightDaemon, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.daemon, self.url, self._loop = daemon, url, loop

    def do(self, what: Callable[[], Any]) -> Any:
        async def done() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(TOGETHER_SECONDS)


@contextmanager
def served(daemon: NightDaemon, folder: Path) -> Iterator[Served]:
    token = folder / "token"
    token.write_text(TOKEN)
    server = ApiServer(daemon, ApiSettings(listen="127.0.0.1:0", token_file=token))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(TOGETHER_SECONDS)
        try:
            yield Served(daemon, server.url, loop)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(TOGETHER_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
