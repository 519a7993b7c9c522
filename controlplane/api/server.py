"""Serves the API inside the daemon's event loop."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from controlplane.api.app import create_app
from controlplane.api.connection import Connection
from controlplane.api.notices import Notices
from controlplane.api.page.history import History
from controlplane.api.settings import ApiSettings
from controlplane.api.state import State
from controlplane.api.stream import Streams
from controlplane.server_certificate import ServerCertificate

LONGEST_STOP_SECONDS = 3

_log = logging.getLogger(__name__)


class ApiStartError(Exception):
    """The API cannot be served; the text is a sentence that names the address or the file."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: SIGTERM is the daemon's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """The API of one daemon: `start` it, and `stop` it before the daemon's other parts."""

    def __init__(self, state: State, settings: ApiSettings) -> None:
        self._settings = settings
        self._state = state
        self._notices: list[Notices] = []
        self._streams = Streams(state)
        self._history = History(state)
        self._app = create_app(state, settings, self._streams, self._history)
        self._scaler: Any = None  # an ExternalScaler, which needs gRPC
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen; accepts connections when it returns. Raises ApiStartError, TokenError."""
        settings = self._settings
        settings.token()  # a token that is configured and not there is told now, not at the first hold
        settings.autoscaling_token()
        listener = _listen(settings.host, settings.port)
        try:
            config = uvicorn.Config(
                self._app,
                log_config=None,
                log_level=logging.ERROR,  # its warnings are a line for each bad request
                access_log=False,
                server_header=False,
                proxy_headers=False,
                lifespan="off",
                ws="none",
                http=Connection,
                timeout_graceful_shutdown=LONGEST_STOP_SECONDS,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
            )
            config.load()
            if config.ssl is not None and settings.tls_cert is not None and settings.tls_key is not None:
                certificate = ServerCertificate(config.ssl, settings.tls_cert, settings.tls_key)
                self._renewing = asyncio.create_task(certificate.keep_renewing(), name="api certificate")
        except (OSError, ValueError) as error:
            listener.close()
            raise ApiStartError(
                f"api.tls_cert {settings.tls_cert} and api.tls_key {settings.tls_key} cannot be used: {error}"
            ) from None
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="api")
        while not self._server.started:
            if self._serving.done():
                await self._serving  # raises what went wrong
                raise ApiStartError("the API stopped before it had started")
            await asyncio.sleep(0.01)
        await self._start_scaler()
        self._notices = [Notices(self._state, receiver) for receiver in settings.notices]
        host, port = listener.getsockname()[:2]
        scheme = "https" if settings.tls_cert else "http"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        _log.info("the API listens on %s", self.url)

    async def _start_scaler(self) -> None:
        settings = self._settings.external_scaler
        if settings is None:
            return
        from controlplane.api.external_scaler import ExternalScaler  # noqa: PLC0415 - loads gRPC

        self._scaler = ExternalScaler(self._state, settings)
        try:
            self._scaler.start()
        except OSError as error:
            raise ApiStartError(f"api.external_scaler: {error.filename}: {error.strerror}") from None

    async def stop(self) -> None:
        """Close the listener, end the streams, let requests in progress end within some seconds."""
        if self._scaler is not None:
            await self._scaler.close()
        self._streams.close()
        self._history.close()
        for receiver in self._notices:
            await receiver.close()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = None


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ApiStartError(f"the API cannot listen on {host}:{port}: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        in_use = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise ApiStartError(f"the API cannot listen on {host}:{port}: {in_use}") from None
    return listener
