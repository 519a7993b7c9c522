"""Cases C1 and C4 with daemon, gateway and engines as processes of their own."""

import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.gateway.processes import free_ports, running

TOKEN = "let-me-in"
ENGINES = 3
LONG_STREAM = {"model": "m", "prompt": "a", "max_tokens": 1900, "ignore_eos": True, "stream": True}
OUT = "controlplane_replica_out_of_rotation"
FAILED_PROBES = "controlplane_replica_failed_health_probes"
PROBES = "controlplane_probes_total"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read()).decode()


def post(url: str, fields: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def wait(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within a minute"
        time.sleep(0.05)
    return found


def _samples(page: str, name: str, **labels: str) -> list[Sample]:
    found = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return [one for one in found if one.name == name and labels.items() <= one.labels.items()]


def _sum(page: str, name: str, **labels: str) -> float:
    return sum(sample.value for sample in _samples(page, name, **labels))


class Site:
    """Engines of one pool behind a gateway, under a daemon that looks once a second and enforces."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.gateway, control, self.api, *self.engines = free_ports(3 + ENGINES)
        for port in self.engines:
            model = ("--engine", "h100-8b", "--model", "m", "--max-model-len", "2048", "--port", str(port))
            self._start("simulate", "serve", *model, url=f"http://127.0.0.1:{port}/health")
        static = ", ".join(f'"http://{self.name(i)}"' for i in range(ENGINES))
        (folder / "controlplane.yaml").write_text(
            f"""
pools: {{chat: {{targets: {{static: [{static}]}}}}}}
scrape: {{interval: 1s, timeout: 500ms, probe: {{trial_timeout: 2s}}}}
policy: {{stalled_after: 8s}}
daemon: {{journal: journal.db, tick: 500ms, modes: {{gateway: {{"*": enforce}}}}}}
api: {{listen: "127.0.0.1:{self.api}"}}
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
        wait("all engines in service", self._is_up)

    def _is_up(self) -> bool:
        return self.sum("controlplane_pool_up_replicas") == ENGINES and not self.out()

    def name(self, engine: int) -> str:
        return f"127.0.0.1:{self.engines[engine]}"

    def sum(self, name: str, **labels: str) -> float:
        """Over the daemon's samples of this name with these labels."""
        return _sum(get(f"http://127.0.0.1:{self.api}/metrics"), name, **labels)

    def out(self) -> dict[str, str]:
        """Why replicas get no new request, by name."""
        page = get(f"http://127.0.0.1:{self.api}/metrics")
        found = [sample.labels for sample in _samples(page, OUT)]
        assert all(labels["in_force"] == "true" for labels in found)
        return {labels["replica"]: labels["reason"] for labels in found}

    def failed_probes(self, engine: int) -> float:
        return self.sum(FAILED_PROBES, replica=self.name(engine))

    def in_flight(self, engine: int) -> float:
        """How many requests the gateway has open at the engine."""
        page = get(f"http://127.0.0.1:{self.gateway}/metrics")
        return _sum(page, "controlplane_gateway_replica_in_flight_sequences", replica=self.name(engine))

    def break_as(self, engine: int, **faults: Any) -> None:
        with post(f"http://{self.name(engine)}/sim/faults", faults):
            pass

    def requests(self, engine: int) -> int:
        """How many the engine has in it now."""
        return int(json.loads(get(f"http://{self.name(engine)}/sim"))["requests"])

    def finished(self, engine: int) -> float:
        return _sum(get(f"http://{self.name(engine)}/metrics"), "vllm:request_success_total")

    def changes(self, engine: int) -> list[tuple[str, str]]:
        """What was decided on its rotation, the oldest first."""
        url = f"http://127.0.0.1:{self.api}/api/v1/decisions?target={self.name(engine)}&action=set-rotation"
        return [(one["new"], one["reason"]) for one in reversed(json.loads(get(url))["items"])]

    def _start(self, *args: str, url: str) -> None:
        log = self._folder / f"{args[0]}-{time.monotonic_ns()}.log"
        self._stack.enter_context(running(log, *args, url=url, CONTROL_TOKEN=TOKEN))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


class Load:
    """Clients that ask the gateway for one short thing after the other."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._stop = threading.Event()
        self._clients = [threading.Thread(target=self._ask) for _ in range(clients)]
        self.answers = 0

    def __enter__(self) -> "Load":
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(90)

    def _ask(self) -> None:
        while not self._stop.is_set():
            with (
                contextlib.suppress(OSError),
                post(self._url, {"model": "m", "prompt": "a", "max_tokens": 2}),
            ):
                self.answers += 1


@contextlib.contextmanager
def streaming_from(site: Site, engine: int) -> Iterator[None]:
    """A long stream through the gateway that ends up at this engine."""
    with ExitStack() as stack:
        for _ in range(20 * ENGINES):
            stream = post(f"http://127.0.0.1:{site.gateway}/v1/completions", LONG_STREAM)
            stack.enter_context(stream)
            assert stream.readline().startswith(b"data: ")
            if site.requests(engine):
                break
        else:
            raise AssertionError("no stream came to that engine")
        yield


def test_C1_a_probe_that_is_slow_is_outvoted_by_tokens_that_flow_through_the_gateway(site: Site) -> None:
    # So slow that streams last for minutes; the metrics page is away, so that only the gateway sees tokens.
    for engine in range(ENGINES):
        site.break_as(engine, slow_factor=20.0)
    with streaming_from(site, 0):
        site.break_as(0, health_delay_seconds=30.0, scrape="error")
        wait("probes that fail", lambda: site.failed_probes(0) >= 5)
        assert site.out() == {}
        assert site.changes(0) == []
    wait("the end of its streams", lambda: site.requests(0) == 0)
    wait("one that is out", lambda: site.out() == {site.name(0): "unreachable"})
    site.break_as(0, health_delay_seconds=0.0)  # its metrics page is still away: that alone changes nothing
    wait("one that is in again", lambda: site.out() == {})
    assert site.changes(0) == [("out", "unreachable"), ("in", "well")]


def test_C1_an_engine_that_says_it_is_dead_gets_nothing_though_its_page_is_read(site: Site) -> None:
    site.break_as(1, health="error")
    wait("one that is out", lambda: site.out() == {site.name(1): "unreachable"})
    assert site.sum(PROBES, kind="health", result="error") >= 3
    with Load(site.gateway) as load:
        wait("answers", lambda: load.answers > 50)
        assert site.finished(1) == 0
    wait("its page", lambda: site.sum("controlplane_pool_up_replicas") == ENGINES)


def test_C1_an_engine_that_is_wedged_is_told_from_frozen_gauges_by_one_token(site: Site) -> None:
    site.break_as(2, slow_factor=20.0)
    direct = f"http://{site.name(2)}/v1/completions"  # so that no gateway knows of its request
    with post(direct, LONG_STREAM) as stream:
        assert stream.readline().startswith(b"data: ")
        site.break_as(2, wedged=True)
        wait("one that is out", lambda: site.out() == {site.name(2): "wedged"})
        assert site.sum(PROBES, kind="trial", result="timeout") >= 1
    site.break_as(2, wedged=False)
    wait("one that is in again", lambda: site.out() == {})
    assert site.changes(2) == [("out", "wedged"), ("in", "well")]


def test_C4_a_replica_whose_port_is_open_gets_requests_once_its_model_has_answered(site: Site) -> None:
    site.break_as(0, warming_up=True, restart_seconds=5.0)
    wait("one that gets nothing", lambda: site.name(0) in site.out())
    with Load(site.gateway) as load:
        wait("a trial that fails", lambda: site.sum(PROBES, kind="trial", result="timeout") >= 1)
        for path in ("/health", "/v1/models", "/metrics"):
            assert get(f"http://{site.name(0)}{path}") is not None
        before = load.answers
        wait("answers of the others", lambda: load.answers > before + 50)
        assert site.name(0) in site.out()
        assert site.in_flight(0) == 0, "what the gateway had sent would be there still"
        site.break_as(0, warming_up=False)
        wait("one that is in", lambda: site.out() == {})
        wait("requests for it", lambda: site.finished(0) > 10)
    assert site.sum(PROBES, kind="trial", result="ok") == 1


def test_C1_an_engine_that_the_first_request_wedges_is_out_though_its_page_shows_no_work(site: Site) -> None:
    for engine in range(ENGINES):
        site.break_as(engine, wedged=engine == 1)
    with Load(site.gateway, clients=12):
        wait("one that is out", lambda: site.out() == {site.name(1): "wedged"})
        page = get(f"http://{site.name(1)}/metrics")
        assert _sum(page, "vllm:num_requests_running") == _sum(page, "vllm:num_requests_waiting") == 0
        site.break_as(1, wedged=False)
        wait("one that is in again", lambda: site.out() == {})
