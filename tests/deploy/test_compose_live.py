"""The services of deploy/compose.yaml without Docker: the same commands and files, other addresses and paths.

Grafana alone is left out: the dashboards are tried on a real Prometheus elsewhere.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from compose_file import is_file_mount, mounts, on_this_machine, services

PROGRAMS = {
    "prometheus": shutil.which("prometheus"),
    "alertmanager": shutil.which("prometheus-alertmanager") or shutil.which("alertmanager"),
}
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        None in PROGRAMS.values(),
        reason="no Prometheus and Alertmanager here: scripts/system-packages installs them",
    ),
]
QUICKER = {"scrape_interval: 5s, evaluation_interval: 5s": "scrape_interval: 1s, evaluation_interval: 1s"}
QUICKER |= {"group_wait: 5s": "group_wait: 200ms"}
RUNNING = ("engines", "gateway", "daemon", "clients", "prometheus", "alertmanager")


def free_ports(count: int) -> list[int]:
    """So many free ports, one after the other: the engines' replicas need them so."""
    for first in range(22000 + os.getpid() % 5000, 60000, 50):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(first, first + count))
    raise AssertionError("no free ports")


class Site:
    """A folder with the files of all services, and what runs by them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = [("engines", port) for port in (8000, 8001, 8002, 9400)]
        names += [
            ("gateway", 8080),
            ("gateway", 9101),
            ("daemon", 9090),
            ("prometheus", 9090),
            ("alertmanager", 9093),
        ]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def url(self, service: str, port: int) -> str:
        return f"http://127.0.0.1:{self.ports[service, port]}"

    def get(self, service: str, port: int, path: str) -> Any:
        """The JSON there; None while there is no answer."""
        try:
            with urllib.request.urlopen(self.url(service, port) + path, timeout=30) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        """The first true answer; fails where it does not come in time, or where a service has ended."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name}: {(self._folder / f'{name}.log').read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
            time.sleep(0.1)
        return value

    def send(self, method: str, url: str, body: object, token: str = "") -> None:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        urllib.request.urlopen(request, timeout=30).close()

    @property
    def token(self) -> str:
        return (self._folder / "volumes" / "token" / "token").read_text()

    def run(self, name: str) -> None:
        """The service to its end."""
        subprocess.run(self._command(name), cwd=self._folder, check=True, timeout=60)

    def start(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                self._command(name), cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, name: str) -> list[str]:
        service = services()[name]
        places = self._places(name)
        words = [self._here(word, places, name) for word in service["command"]]
        if name in PROGRAMS:
            own = {"prometheus": 9090, "alertmanager": 9093}[name]
            listen = f"--web.listen-address=127.0.0.1:{self.ports[name, own]}"
            return [str(PROGRAMS[name]), *words, listen]
        python = Path(sys.executable)
        return [
            str(python if word == "python" else word)
            for word in (*service.get("entrypoint", [python.with_name("controlplane")]), *words)
        ]

    def _places(self, name: str) -> dict[str, Path]:
        """Where the paths inside the container are here; files are copied with the addresses of here."""
        places = {}
        inside_folder = self._folder / name
        for source, inside, _ in mounts(services()[name]):
            here = self._folder / "volumes" / source
            if is_file_mount(source):
                here, there = inside_folder / Path(inside).name, on_this_machine(source)
                if there.is_dir():
                    here = there
            else:
                here.mkdir(parents=True, exist_ok=True)
            places[inside] = here
        inside_folder.mkdir(exist_ok=True)
        for source, inside, _ in mounts(services()[name]):
            if is_file_mount(source) and (there := on_this_machine(source)).is_file():
                places[inside].write_text(self._here(there.read_text(), places, name))
        return places

    def _here(self, text: str, places: dict[str, Path], name: str) -> str:
        longest_first = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        if longest_first:
            # At once: a path of here may hold one of there.
            text = re.sub(longest_first, lambda found: str(places[found[0]]), text)
        for slow, quick in QUICKER.items():
            text = text.replace(slow, quick)
        for (service, port), free in self.ports.items():
            text = re.sub(rf"\b{service}:{port}\b", f"127.0.0.1:{free}", text)
            text = (
                text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{free}")
                if service in ("daemon", "gateway")
                else text
            )
        if name == "engines":
            text = "127.0.0.1" if text == "0.0.0.0" else text
            text = next((str(free) for (_, port), free in self.ports.items() if text == str(port)), text)
        return text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory.mktemp("compose")) as made:
        yield made


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    made = Site(folder)
    made.run("token")
    try:
        for name in RUNNING:
            made.start(name)
        yield made
    finally:
        made.stop()


def test_prometheus_finds_every_target_up(site: Site) -> None:
    def all_up() -> Any:
        answer = site.get("prometheus", 9090, "/api/v1/targets?state=active")
        targets = answer["data"]["activeTargets"] if answer else []
        return len(targets) == 7 and all(one["health"] == "up" for one in targets) and targets

    targets = site.until(all_up, "seven targets that are up")
    jobs = [one["labels"]["job"] for one in targets]
    assert {job: jobs.count(job) for job in jobs} == {
        "llm-engine": 3,
        "llm-gpu": 1,
        "controlplane": 1,
        "controlplane-gateway": 1,
        "prometheus": 1,
    }


def test_every_rule_evaluates_and_alertmanager_is_known(site: Site) -> None:
    def rules() -> Any:
        answer = site.get("prometheus", 9090, "/api/v1/rules")
        found = [rule for group in answer["data"]["groups"] for rule in group["rules"]] if answer else []
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    assert {rule["health"] for rule in site.until(rules, "rules that were evaluated")} == {"ok"}
    managers = site.get("prometheus", 9090, "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert len(managers) == 1


def test_requests_go_through_the_gateway_and_the_daemon_hears_of_them(site: Site) -> None:
    def served() -> bool:
        answer = site.get("daemon", 9090, "/api/v1/pools/chat")
        return (
            bool(answer)
            and answer["goodput"]["denominator"] == "gateway"
            and answer["load"]["running"]["value"] > 0
        )

    site.until(served, "load that comes through the gateway")
    nodes = site.until(lambda: site.get("daemon", 9090, "/api/v1/nodes")["items"], "a node with GPUs")
    assert [(node["name"], node["gpus"]) for node in nodes] == [("gpu-node-1", 6)]


def test_what_fires_is_shown_by_the_daemon(site: Site) -> None:
    site.until(lambda: site.get("alertmanager", 9093, "/api/v2/status"), "Alertmanager answers")
    labels = {"alertname": "GoodputBurnFast", "severity": "page", "team": "serving", "pool": "chat"}
    site.send("POST", site.url("alertmanager", 9093) + "/api/v2/alerts", [{"labels": labels}])

    def shown() -> bool:
        answer = site.get("daemon", 9090, "/api/v1/alerts")
        return bool(answer) and "GoodputBurnFast" in [one["name"] for one in answer["items"]]

    site.until(shown, "the alert is shown")


def test_control_is_turned_on_as_the_file_says(site: Site) -> None:
    order = {
        "scope": "pool",
        "name": "chat",
        "setting": "mode",
        "value": "enforce",
        "by": "me",
        "reason": "to see it",
    }
    site.until(lambda: site.get("daemon", 9090, "/api/v1/replicas"), "the daemon answers")
    site.send("PUT", site.url("daemon", 9090) + "/api/v1/overrides", order, site.token)

    def enforced() -> bool:
        items = site.get("daemon", 9090, "/api/v1/replicas")["items"]
        return bool(items) and all(one["limit"] and one["limit"]["standing"] == "enforce" for one in items)

    site.until(enforced, "limits that are enforced")
