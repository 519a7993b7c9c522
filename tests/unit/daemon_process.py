"""A real `controlplane run`, started, watched and ended by a test."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

PATIENCE_SECONDS = 60.0


def until(what: str, condition: Any, patience_seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true answer of `condition`; fails the test where none comes in time."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {patience_seconds:g} s")


class DaemonProcess:
    """`controlplane run ARGUMENTS` in `directory`; `log` is what it wrote to standard error."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self._log_path = directory / f"log-{time.monotonic_ns()}"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from controlplane.cli import main; main()", "run", *arguments],
                cwd=directory,
                stderr=log,
                stdout=log,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> "DaemonProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    @property
    def url(self) -> str:
        """Where the API listens, once it does."""

        def find() -> str | None:
            assert self.process.poll() is None, f"it ended: {self.log}"
            found = re.search(r"the API listens on (http://[^\s\"]+)", self.log)
            return found and found[1]

        return str(until("the API", find))

    def get(self, path: str) -> Any:
        """JSON from the API; None while it does not answer or is not ready."""
        try:
            with urlopen(self.url + path, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)
        except (HTTPError, URLError, ConnectionError, TimeoutError):
            return None

    def send(self, method: str, path: str, body: Any, token: str = "") -> int:
        """The status of a request to the API's writing half."""
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        request = Request(self.url + path, json.dumps(body).encode(), headers, method=method)
        try:
            with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def ready(self) -> None:
        until("readiness", lambda: self.get("/readyz") is not None)

    def logged(self, text: str, times: int = 1) -> None:
        until(f"{text!r} in the log", lambda: self.log.count(text) >= times)

    def end(self, with_signal: int = signal.SIGTERM) -> int:
        """The exit code after a signal."""
        self.process.send_signal(with_signal)
        return self.process.wait(PATIENCE_SECONDS)
