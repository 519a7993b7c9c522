"""A real Prometheus on loopback, and an exporter that prints whatever pages it is given.

Both use free ports and end with the block that they are started in. Nothing here sleeps for a fixed time:
`until` polls a condition and gives up loudly.
"""

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

BINARY = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    BINARY is None, reason="no Prometheus here: scripts/system-packages installs it where it may"
)

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    """The first true value of `condition`. AssertionError if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)
    return value


_held: list[socket.socket] = []


def free_port() -> int:
    """A port that the system gives to nobody else for as long as this process lives. A server that asks for
    it gets it: one that is bound and does not listen stands in nobody's way where both reuse addresses."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    port: int = holder.getsockname()[1]
    return port


@dataclass
class Exporter:
    """Prints `pages[path]`; a path without a page is answered with 503. `scrapes` counts by path."""

    pages: dict[str, bytes]
    scrapes: dict[str, int] = field(default_factory=dict)
    port: int = 0

    @contextmanager
    def running(self) -> Iterator["Exporter"]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                page = exporter.pages.get(self.path)
                exporter.scrapes[self.path] = exporter.scrapes.get(self.path, 0) + 1
                self.send_response(503 if page is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(page or b"")))
                self.end_headers()
                self.wfile.write(page or b"")

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass
class Prometheus:
    """A server with its data in `folder`; it keeps port and data when it is stopped and started again."""

    folder: Path
    config: str
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until it is ready."""
        assert BINARY is not None
        self.configure(self.config)
        self.process = subprocess.Popen(
            [
                BINARY,
                f"--config.file={self.folder}/prometheus.yml",
                f"--storage.tsdb.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
                *self.flags,
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
        )
        until(self._ready, f"Prometheus ready: {(self.folder / 'log').read_text()}")

    def configure(self, config: str) -> None:
        """Write the configuration; a running server takes it up with `reload`."""
        self.config = config
        (self.folder / "prometheus.yml").write_text(config)

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def stop(self, *, kill: bool = False) -> None:
        """End it as an operator would, or as the kernel does when memory is short."""
        if self.process is not None:
            if kill:
                self.process.kill()
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def query(self, promql: str) -> list[dict[str, Any]]:
        """The result of an instant query, by a way of its own."""
        query = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=60) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, config: str, *flags: str) -> Iterator[Prometheus]:
    """A running server."""
    server = Prometheus(folder, config, flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def job(
    exporter: Exporter,
    instances: Mapping[str, str],
    *,
    name: str = "vllm",
    interval: str = "250ms",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A job that scrapes the exporter's paths (by instance), with more labels for all of them."""
    targets = [
        {
            "targets": [f"127.0.0.1:{exporter.port}"],
            "labels": {"instance": instance, "__metrics_path__": path, **(labels or {})},
        }
        for instance, path in instances.items()
    ]
    return {
        "job_name": name,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "static_configs": targets,
    }


def scraping(*jobs: dict[str, Any]) -> str:
    """A configuration with these jobs. Prometheus begins to scrape about five seconds after its start."""
    return json.dumps({"scrape_configs": jobs})  # JSON is YAML
