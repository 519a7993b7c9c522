"""The port of one replica: open, dropped, or closed while it loads."""

import asyncio
import contextlib
import logging

from aiohttp import web

from controlplane.simulator.http.control import Control
from controlplane.simulator.http.replica import Replica
from controlplane.simulator.http.routes import LARGEST_BODY_BYTES, Api

_BACKLOG = 4096
_KEEP_ALIVE_SECONDS = 75.0
_RETRY_SECONDS = 0.2
_LAST_WORDS_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Listener:
    """Serves `replica` at one address. Until it has loaded, and after it was stopped, connections are
    refused."""

    def __init__(self, replica: Replica, host: str, port: int) -> None:
        self.replica = replica
        self.port = port
        self._host = host
        app = web.Application(client_max_size=LARGEST_BODY_BYTES)
        Api(replica).add_to(app)
        Control(replica, self).add_to(app)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=_LAST_WORDS_SECONDS,
        )  # fmt: skip
        self._site: web.TCPSite | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Start the engine and open the port. Raises OSError where it cannot be opened."""
        await self._runner.setup()
        await self._open()

    async def stop(self) -> None:
        """Close the port and end all that runs, streams with what they have so far, as vLLM on SIGTERM."""
        if self._restarting is not None:
            self._restarting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restarting
        self.replica.drive.end_all()
        await self._runner.cleanup()
        self.replica.stop()

    def drop_connections(self, spare: asyncio.Transport | None = None) -> None:
        """Reset every connection, but for that of whoever ordered it."""
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None and connection.transport is not spare:
                connection.transport.abort()

    def restart(self, seconds: float) -> None:
        """End the engine as if by SIGKILL, load for so long, come back. A restart under way is begun anew."""
        if self._restarting is not None:
            self._restarting.cancel()
        self._restarting = asyncio.create_task(self._restart(seconds))

    async def _open(self) -> None:
        site = web.TCPSite(self._runner, self._host, self.port, backlog=_BACKLOG)
        await site.start()
        self._site = site
        self.replica.start()
        if self.port == 0:
            self.port = self._runner.addresses[0][1]

    async def _restart(self, seconds: float) -> None:
        # The answer to whoever ordered it is on its way; leave it the time to be written.
        await asyncio.sleep(0.05)
        if self._site is not None:
            await self._site.stop()
            self._site = None
        self.replica.stop()
        self.drop_connections()
        await asyncio.sleep(seconds)
        while True:
            try:
                await self._open()
            except OSError as error:
                _log.warning("port %d cannot be opened again yet: %s", self.port, error.strerror)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return
