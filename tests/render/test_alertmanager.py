"""Who is told of what: amtool's word on the file, and a real Alertmanager that routes and holds back."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from live_fleet import ALERTMANAGER, free_ports, get, until
from promtool import SETTINGS

from controlplane.render import alertmanager
from controlplane.render.alerts import all_alerts
from controlplane.render.rule import Alert

FILE = Path(__file__).parents[2] / "alerts/alertmanager.yaml"
ALERTS = all_alerts(SETTINGS)

needs_amtool = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="no amtool here: scripts/system-packages installs Alertmanager"
)
needs_alertmanager = pytest.mark.skipif(
    ALERTMANAGER is None, reason="no Alertmanager here: scripts/system-packages installs it where it may"
)


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_amtool
def test_amtool_takes_the_file() -> None:
    assert "SUCCESS" in amtool("check-config", str(FILE))


def _labels(alert: Alert) -> dict[str, str]:
    return {"alertname": alert.name, "severity": alert.severity, "team": alert.team, "layer": alert.layer}


@needs_amtool
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_reaches_its_team_and_the_daemon(alert: Alert) -> None:
    labels = [f"{name}={value}" for name, value in _labels(alert).items()]
    told = amtool("config", "routes", "test", f"--config.file={FILE}", *labels).strip().split(",")
    expected = "nobody" if alert.severity == "info" else f"{alert.severity}-{alert.team}"
    assert told == ["controlplane", expected]


@needs_amtool
def test_a_strangers_alert_is_not_lost() -> None:
    told = amtool("config", "routes", "test", f"--config.file={FILE}", "alertname=DiskFull").strip()
    assert told == "ticket-platform"


def test_inhibitions_name_alerts_that_exist() -> None:
    import re

    names = {alert.name for alert in ALERTS}
    for source, target, equal in alertmanager.inhibitions():
        for pattern in (source, target):
            for one in pattern.get("alertname", "").split("|"):
                if one:
                    assert any(re.fullmatch(one, name) for name in names), one
        assert "cluster" in equal


# --- a real one


class Phone:
    """Takes what Alertmanager sends; `rung` is who was told of which alerts."""

    def __init__(self) -> None:
        self.rung: list[tuple[str, str, dict[str, str]]] = []
        phone = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for one in body["alerts"]:
                    phone.rung.append((self.path[1:], one["status"], one["labels"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def told(self, receiver: str) -> set[str]:
        return {
            labels["alertname"] for to, status, labels in self.rung if to == receiver and status == "firing"
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Manager:
    def __init__(self, folder: Path, phone: Phone) -> None:
        config = yaml.safe_load(FILE.read_text())
        for receiver in config["receivers"]:
            name = receiver["name"]
            if len(receiver) > 1:
                hook = {"url": f"http://127.0.0.1:{phone.port}/{name}", "send_resolved": True}
                receiver.clear()
                receiver.update({"name": name, "webhook_configs": [hook]})
        _quicken(config["route"])
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        self.port = free_ports(1)[0]
        assert ALERTMANAGER is not None
        self.process = subprocess.Popen(
            [
                ALERTMANAGER,
                f"--config.file={folder}/alertmanager.yml",
                f"--storage.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "alertmanager.log").open("wb"),
        )
        until(lambda: get(f"{self.url}/-/ready"), "Alertmanager is ready")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, *alerts: dict[str, str]) -> None:
        body = json.dumps([{"labels": labels, "annotations": {}} for labels in alerts]).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts",
            data=body,
            headers={"content-type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=60).close()

    def inhibited(self) -> set[str]:
        answer = get(f"{self.url}/api/v2/alerts?active=false&inhibited=true&silenced=false")
        return {one["labels"]["alertname"] for one in json.loads(answer or b"[]")}


def _quicken(route: dict[str, Any]) -> None:
    if "group_wait" in route:
        route["group_wait"] = "300ms"
    route["group_interval"] = "500ms"
    for inner in route.get("routes", []):
        _quicken(inner)


@pytest.fixture
def phone() -> Iterator[Phone]:
    made = Phone()
    yield made
    made.close()


@pytest.fixture
def manager(tmp_path: Path, phone: Phone) -> Iterator[Manager]:
    made = Manager(tmp_path, phone)
    yield made
    made.process.terminate()
    made.process.wait(60)


def fired(name: str, **labels: str) -> dict[str, str]:
    alert = next(one for one in ALERTS if one.name == name)
    return {**_labels(alert), **labels}


@needs_alertmanager
def test_a_dead_node_pages_once_and_not_for_each_of_its_replicas(manager: Manager, phone: Phone) -> None:
    replicas = [
        fired("EngineDown", node="n1", instance=f"10.0.0.1:{8000 + i}", pool="chat") for i in range(8)
    ]
    elsewhere = fired("EngineDown", node="n2", instance="10.0.0.2:8000", pool="chat")
    # In one batch, as Prometheus sends them: the node's alert has the shorter group wait on no account.
    manager.post(
        fired("NodeDown", node="n1"),
        *replicas,
        elsewhere,
        fired("GpuExporterDown", node="n1", instance="n1:9400"),
    )
    until(lambda: "EngineDown" in phone.told("page-serving"), "the other node's replica pages")
    until(lambda: "NodeDown" in phone.told("page-hardware"), "the node pages")
    time.sleep(1.5)  # several group intervals: what is held back stays so
    paged = [labels for to, _, labels in phone.rung if to == "page-serving"]
    assert {labels["node"] for labels in paged} == {"n2"}
    until(lambda: manager.inhibited() == {"EngineDown", "GpuExporterDown"}, "these alone are held back")
    assert "GpuExporterDown" not in phone.told("ticket-hardware")


@needs_alertmanager
def test_the_greater_trouble_speaks_for_the_lesser(manager: Manager, phone: Phone) -> None:
    manager.post(
        fired("GoodputBurnFast", pool="chat"),
        fired("GoodputBurnSlow", pool="chat"),
        fired("PoolSaturated", pool="chat"),
        fired("GoodputBurnSlow", pool="code"),
        fired("EngineDown", instance="a:8000", pool="other", node="n3"),
        fired("KVSaturated", instance="a:8000", pool="other", node="n3"),
        fired("KVSaturated", instance="b:8000", pool="other", node="n4"),
        fired("GpuFatalXid", UUID="GPU-1", node="n5"),
        fired("GpuXid", UUID="GPU-1", node="n5"),
        fired("ControlPlaneHeld"),
    )
    until(lambda: phone.told("page-serving") >= {"GoodputBurnFast", "GoodputBurnSlow", "EngineDown"}, "pages")
    until(lambda: "KVSaturated" in phone.told("ticket-serving"), "the ticket of the other replica")
    time.sleep(1.0)
    slow = {
        labels["pool"]
        for to, _, labels in phone.rung
        if to == "page-serving" and labels["alertname"] == "GoodputBurnSlow"
    }
    full = {
        labels["instance"]
        for to, _, labels in phone.rung
        if to == "ticket-serving" and labels["alertname"] == "KVSaturated"
    }
    assert slow == {"code"}
    assert full == {"b:8000"}
    assert "PoolSaturated" not in phone.told("ticket-serving")
    assert "GpuXid" not in phone.told("ticket-hardware")
    until(
        lambda: phone.told("controlplane") >= {"GoodputBurnFast", "ControlPlaneHeld"},
        "info is shown beside decisions too",
    )
    assert not phone.told("nobody")
