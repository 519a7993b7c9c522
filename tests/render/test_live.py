"""Every panel and rule on a live fleet: simulated GPUs, real daemon, gateway, clients and Prometheus."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_fleet import ALERTMANAGER, PROMETHEUS, LiveFleet, get, until
from preview import panels, substituted

BOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[2] / "dashboards").glob("*.json"))
}

EMPTY = {
    "Conditions": "no condition holds",
    "Conditions of pools": "no condition holds",
    "Faults": "no fault need be held against a GPU",
    "Firing alerts": "nothing need fire",
    "Would refuse": "admission enforces",
    "Errors by replica": "the simulator's engines answer no 5xx",
    "Queued requests": "nothing has to wait at this load",
    "Queued tokens": "nothing has to wait at this load",
    "Overload by class": "nothing has to wait at this load",
    "Use of the limit": "no limit is set in this configuration",
    "Age of the gateways' orders": "the daemon steers no gateway in this configuration",
    "Remapped rows": "not in the simulator's CSV",
    "NVLink retries": "not in the simulator's CSV",
    "GPUs by pod": "no Kubernetes here",
    "Unknown readings by reason": "all may be known",
    "Boundary": "no two pools are parted in this configuration",
    "What moves or holds it": "no two pools are parted in this configuration",
    "Replicas that get no new request": "all may get them",
}
"""Panels that may be empty here, and why. A panel of another name must have data."""

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    with LiveFleet(tmp_path_factory.mktemp("fleet"), rate=6.0, impatient=True).running() as running:
        yield running


def queries() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    for name, board in BOARDS.items():
        for panel in panels(board):
            if panel["type"] != "row":
                yield name, panel, [substituted(target["expr"]) for target in panel["targets"]]


def empty_panels(fleet: LiveFleet) -> set[str]:
    """Titles of panels none of whose queries gives a finite value just now."""
    empty = set()
    for name, panel, asked in queries():
        results = [one for expr in asked for one in fleet.query(expr)]
        assert not any(one["value"][1] == "NaN" for one in results), f"{name}: {panel['title']} draws NaN"
        if not results:
            empty.add(panel["title"])
    return empty


@needs_prometheus
def test_every_panel_has_data_or_a_reason(fleet: LiveFleet) -> None:
    missing: set[str] = set()

    def asked() -> bool:
        missing.clear()
        missing.update(empty_panels(fleet) - EMPTY.keys())
        return not missing or time.monotonic() > deadline

    deadline = time.monotonic() + 90.0
    until(asked, "an answer", 150.0)
    assert not missing


@needs_prometheus
def test_variables_offer_what_is_there_and_no_strangers(fleet: LiveFleet) -> None:
    def offered(name: str) -> set[str]:
        (variable,) = [v for v in BOARDS["replicas"]["templating"]["list"] if v["name"] == name]
        match = re.match(r"label_values\((.+), (\w+)\)$", substituted(variable["query"]["query"]))
        assert match is not None
        return {one["metric"][match[2]] for one in fleet.query(match[1]) if match[2] in one["metric"]}

    engines = {fleet.engine("chat"), fleet.engine("chat", 1), fleet.engine("code")}
    for name, there in (
        ("pool", {"chat", "code"}),
        ("model", {"acme/chat-8b", "acme/code-8b"}),
        ("instance", engines),
    ):
        # A page that is late is missed for a moment; strangers are never offered.
        until(lambda name=name, there=there: offered(name) >= there, f"each {name} offered")
        assert offered(name) <= there


@needs_prometheus
def test_annotations_can_be_asked(fleet: LiveFleet) -> None:
    for board in BOARDS.values():
        for annotation in board["annotations"]["list"]:
            if "expr" in annotation["target"]:
                fleet.query(annotation["target"]["expr"])


@needs_prometheus
def test_no_rule_fails(fleet: LiveFleet) -> None:
    groups = fleet.ask("rules")["groups"]
    assert sum(len(group["rules"]) for group in groups) > 250
    assert not [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]
    assert not fleet.query("prometheus_rule_evaluation_failures_total > 0")


@needs_prometheus
def test_a_broken_gpu_is_told_with_its_place(fleet: LiveFleet) -> None:
    fleet.break_replica("code", xid={"0": 79}, thermal_factor=1.5)

    def told() -> Any:
        return [one for one in fleet.ask("alerts")["alerts"] if one["labels"]["alertname"] == "GpuFatalXid"]

    (alert,) = until(told, "the XID is told")
    assert re.fullmatch(
        r"GPU 0 \(NVIDIA H100 80GB HBM3, GPU-[0-9a-f-]+\) of node-code reports XID 79, .+",
        alert["annotations"]["summary"],
    )
    assert alert["annotations"]["dashboard"] == f"/d/controlplane-gpus?var-UUID={alert['labels']['UUID']}"
    until(lambda: fleet.query("llm:gpu_hw_thermal == 1"), "the heat is seen")
    if ALERTMANAGER is not None:
        # The whole round: rule, Prometheus, Alertmanager, and the daemon that shows it beside its decisions.
        shown = until(lambda: _shown(fleet), "the daemon shows the alert")
        assert shown["severity"] == "page"
        assert shown["labels"]["node"] == "node-code"
        assert shown["summary"] == alert["annotations"]["summary"]


def _shown(fleet: LiveFleet) -> Any:
    items = json.loads(get(f"{fleet.api}/api/v1/alerts") or b"{}").get("items", [])
    return next((item for item in items if item["name"] == "GpuFatalXid"), None)


@needs_prometheus
def test_without_the_daemon_engines_gpus_and_gateway_are_still_seen(fleet: LiveFleet) -> None:
    """The last test: it ends the daemon."""
    before = empty_panels(fleet)
    fleet.stop("daemon")
    until(
        lambda: fleet.query('ALERTS{alertname="ControlPlaneDown",alertstate="firing"}'), "its absence is told"
    )
    until(lambda: not fleet.query("controlplane_ticks_total"), "its own series are stale")
    daemons = {
        panel["title"]
        for _, panel, asked in queries()
        if all(re.search(r"controlplane_(?!gateway_)|llm:pool_goodput_ratio", expr) for expr in asked)
    }
    # An idle moment empties a ratio; a panel that needs the daemon stays empty.
    until(lambda: empty_panels(fleet) - before <= daemons | EMPTY.keys(), "the others have data")
    for name in (
        "running_requests",
        "kv_usage_ratio",
        "generation_tokens:rate2m",
        "gpu_power_watts",
        "pool_bad_ratio:5m",
    ):
        until(lambda name=name: fleet.query(f"llm:{name}"), name)
