"""A real redis-server on a free port of loopback."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from processes import free_ports

from controlplane.gateway.settings import RedisSettings

BINARY = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(
    BINARY is None, reason="no redis-server here: scripts/system-packages installs it where it may"
)


LOSES_SOON = {"timeout": "200ms"}
"""Settings by which a gateway is alone, and a dead one forgotten, after a second of silence."""


class RedisServer:
    """Keeps nothing on disk: a restart is empty. `arguments` are redis-server's own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def settings(self, **more: object) -> RedisSettings:
        """Frequent exchanges, and so much patience that only a Redis that is away is lost: see LOSES_SOON."""
        base = {"address": self.address, "interval": "50ms", "timeout": "10s"}
        return RedisSettings.model_validate({**base, **more})

    def client(self, **options: object) -> "redis.Redis":
        return redis.Redis(port=self.port, socket_timeout=30, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        assert BINARY is not None
        port = () if "--tls-port" in self._arguments else ("--port", str(self.port))
        fixed = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._folder))
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [BINARY, *port, *fixed, *self._arguments], stdout=log, stderr=log
            )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5):
                return
            time.sleep(0.02)
        raise AssertionError((self._folder / "redis.log").read_text())

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It hangs, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(folder: Path, *arguments: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *arguments)
    server.start()
    try:
        yield server
    finally:
        server.kill()
