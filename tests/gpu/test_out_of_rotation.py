"""From a GPU's fault to "no new request goes to that replica", with agent, exporter, daemon, gateway and
engines as processes of their own and the fake driver.

The engine on the bad GPU goes on answering, so it is the verdict that keeps requests from it, and no breaker.
"""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import free_ports, running
from tests.unit.nvml_fixture import Script, gpu, library

TOKEN = "let-me-in"
EXPORTER_INTERVAL_SECONDS = 2.0
WITH_AGENT_SECONDS = 2.0
WITH_EXPORTER_SECONDS = EXPORTER_INTERVAL_SECONDS + 1.0
CLIENTS = 4


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def post(url: str, fields: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


class Site:
    """Four engines behind one gateway: one on a node with an agent, three on a node with an exporter."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.gateway, control, self.api, agent, exporter, alone = free_ports(6)
        base = _ports_in_a_row(3)
        self.engines = (alone, base, base + 1, base + 2)
        model = ("--engine", "h100-8b", "--model", "m", "--max-model-len", "2048")
        url = "http://127.0.0.1:{}/health"
        self._start("simulate", "serve", *model, "--port", str(alone), url=url.format(alone))
        more = ("--port", str(base), "--replicas", "3", "--dcgm-port", str(exporter))
        self._start("simulate", "serve", *model, *more, url=url.format(base + 2))
        listen = f"127.0.0.1:{agent}"
        self._start("node-agent", "--node", "n1", "--listen", listen, url=f"http://{listen}/healthz")
        names = [f"127.0.0.1:{port}" for port in self.engines]
        uuids = _uuids(get(f"http://127.0.0.1:{exporter}/metrics").decode())
        gpus = ", ".join(f'"{name}": ["{uuid}"]' for name, uuid in zip(names[1:], uuids, strict=True))
        (folder / "controlplane.yaml").write_text(
            f"""
pools:
  chat: {{targets: {{static: [{", ".join(f'"http://{name}"' for name in names)}]}}}}
scrape: {{interval: 1s, timeout: 900ms}}
daemon: {{journal: journal.db, modes: {{gateway: {{"*": enforce}}}}}}
api: {{listen: "127.0.0.1:{self.api}"}}
gpus:
  interval: {EXPORTER_INTERVAL_SECONDS:g}s
  timeout: 1s
  nodes:
    n1: {{agent: "http://{listen}", replicas: ["{names[0]}"], gpus: {{"{names[0]}": [GPU-b]}}}}
    n2: {{dcgm: "http://127.0.0.1:{exporter}", replicas: {json.dumps(names[1:])}, gpus: {{{gpus}}}}}
gateways:
  - {{url: "http://127.0.0.1:{control}", token: {{env: CONTROL_TOKEN}}}}
gateway:
  name: gw
  listen: 127.0.0.1:{self.gateway}
  control: {{listen: "127.0.0.1:{control}", token: {{env: CONTROL_TOKEN}}, state_file: state.json}}
  drain: {{settle: 0, deadline: 2s}}
"""
        )
        self._start("gateway", "-c", "controlplane.yaml", url=f"http://127.0.0.1:{self.gateway}/health")
        self._start("run", "controlplane.yaml", url=f"http://127.0.0.1:{self.api}/healthz")

    def requests(self, engine: int) -> float:
        """How many requests the engine has answered so far; each takes it some milliseconds."""
        page = get(f"http://127.0.0.1:{self.engines[engine]}/metrics").decode()
        lines = (line for line in page.splitlines() if line.startswith("vllm:request_success_total{"))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def sees_gpus(self) -> bool:
        """Whether the daemon does, of both nodes."""
        try:
            page = json.loads(get(f"http://127.0.0.1:{self.api}/api/v1/nodes"))
        except urllib.error.HTTPError:  # before its first tick
            return False
        return [one["gpus"] for one in page["items"]] == [2, 3]

    def _start(self, *args: str, url: str) -> None:
        log = self._folder / f"{args[0]}-{time.monotonic_ns()}.log"
        self._stack.enter_context(running(log, *args, url=url, CONTROL_TOKEN=TOKEN))


def _uuids(page: str) -> list[str]:
    return list(dict.fromkeys(part.split('"', 1)[0] for part in page.split('UUID="')[1:]))


def _ports_in_a_row(count: int) -> int:
    """The first of so many free ports."""
    while True:
        (first,) = free_ports(1)
        with ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script(tmp_path / "nvml.script")
    made.write(gpu("GPU-a") + gpu("GPU-b"))
    monkeypatch.setenv("FAKE_NVML", str(made.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library()))
    return made


@pytest.fixture
def site(script: Script, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def wait(what: str, holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.1)


class Load:
    """Clients that ask one short thing after the other."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def __enter__(self) -> None:
        for client in self._clients:
            client.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(60)

    def _ask(self) -> None:
        while not self._stop.is_set():
            post(self._url, {"model": "m", "prompt": "a", "max_tokens": 2})


def last_request_after(site: Site, engine: int, strike: Callable[[], object], seconds: float) -> float:
    """Seconds from the strike to the last new request that the engine got, over twice `seconds`."""
    count, others = site.requests(engine), site.requests(3)
    wait("load on the engine", lambda: site.requests(engine) > count + 5)
    strike()
    struck_at = changed_at = time.monotonic()
    while (now := time.monotonic()) < struck_at + 2 * seconds:
        if (new := site.requests(engine)) != count:
            count, changed_at = new, now
        time.sleep(0.02)
    assert site.requests(3) > others + 5, "the others serve"
    return changed_at - struck_at


@pytest.mark.campaign  # it measures seconds, for which the machine has to be its own
def test_from_an_xid_to_no_new_request(site: Site, script: Script) -> None:
    wait("a look at the GPUs", site.sees_gpus)
    with Load(site.gateway):
        on_agent = last_request_after(
            site,
            0,
            lambda: script.write(gpu("GPU-a") + gpu("GPU-b", "xid 79", "field 230 2")),
            WITH_AGENT_SECONDS,
        )
        faults = f"http://127.0.0.1:{site.engines[1]}/sim/faults"
        on_exporter = last_request_after(
            site, 1, lambda: post(faults, {"xid": {"0": 48}}), WITH_EXPORTER_SECONDS
        )
    took = f"{on_agent:.2f} s with the agent, {on_exporter:.2f} s with the exporter"
    assert on_agent < WITH_AGENT_SECONDS, took
    assert on_exporter < WITH_EXPORTER_SECONDS, took
    print(took)
