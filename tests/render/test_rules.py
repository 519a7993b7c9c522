"""The rule files: what promtool and amtool say of them, cases, and what Prometheus makes of real pages."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from promtool import SETTINGS, needs_promtool, run

from controlplane.render import alerts, files, operator, rule_files
from controlplane.render.own_rules import BURNS, WINDOWS, seconds
from controlplane.render.settings import RenderSettings
from controlplane.sources.dialects import engines

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from prometheus_server import Exporter, Prometheus, job, needs_prometheus, prometheus, until

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1]
PAGES = {f"/{path.stem}": path.read_bytes() for path in sorted((DATA / "data/captures").rglob("*.prom"))}


def written(name: str) -> str:
    return (ROOT / "alerts" / name).read_text()


def both_files() -> dict[str, str]:
    return {name: written(name) for name in ("recording-rules.yaml", "alert-rules.yaml")}


def order() -> list[str]:
    return [g.name for g in (*rule_files.recording_groups(SETTINGS), *alerts.groups(SETTINGS))]


def test_every_recorded_name_that_a_rule_uses_is_recorded() -> None:
    recorded = {rule.name for rule in rule_files.recordings(SETTINGS)}
    for text in both_files().values():
        assert set(re.findall(r"\bllm:[a-z0-9_:]+", text)) <= recorded


def test_rules_come_after_what_they_rest_on() -> None:
    """Prometheus evaluates a group from top to bottom; across groups a value may be one interval old."""
    for group in rule_files.recording_groups(SETTINGS):
        names = [rule.name for rule in group.rules]
        for at, rule in enumerate(group.rules):
            later = set(names[at + 1 :]) - set(names[: at + 1])
            assert not set(re.findall(r"\bllm:[a-z0-9_:]+", rule.expr)) & later, rule.name


def test_every_name_that_an_engine_has_had_is_in_some_rule() -> None:
    """Of the signals that are recorded, in every spelling but the bare one."""
    text = written("recording-rules.yaml")
    signals = {
        "running",
        "waiting",
        "kv_usage",
        "preemptions_total",
        "generation_tokens_total",
        "ttft",
        "tpot",
        "e2e",
        "queue_time",
    }
    for table in engines():
        for row in table.metrics:
            if row.signal in signals and row.kind in ("gauge", "counter", "histogram"):
                name = row.name + ("_bucket" if row.kind == "histogram" else "")
                expected = [s + name for s in table.spellings if s]
                if row.signal == "preemptions_total" and row.kind == "gauge":
                    continue  # a gauge that counts; its rate would be that of a gauge
                for spelled in expected:
                    assert re.search(rf"(?<![\w:]){re.escape(spelled)}[{{\[ )]", text), spelled


def test_burn_factors_can_fire_for_every_objective() -> None:
    """At no objective is a threshold 100 % of the requests, and a faster burn never has a lower one."""
    for objective in (0.01, 0.5, 0.8, 0.9, 0.9306, 0.95, 0.99, 0.999, 0.9999):
        budget = 1 - objective
        thresholds = [min(b.factor * budget, 1 - (1 - b.cap) * objective) for b in BURNS]
        assert all(budget <= t < 1 for t in thresholds)
        assert thresholds == sorted(thresholds, reverse=True)
    assert max(seconds(window) for window in WINDOWS) <= 3 * 86400, "longer than Prometheus may keep"


def test_each_alert_has_a_page_a_board_and_a_team() -> None:
    boards = {path.stem for path in (ROOT / "dashboards").glob("*.json")}
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")}
    for alert in alerts.all_alerts(SETTINGS):
        assert alert.board in boards
        assert alert.name in pages
        assert alert.confirm
        assert alert.action
    assert pages == {alert.name for alert in alerts.all_alerts(SETTINGS)} | {"README"}


def test_other_job_names_reach_every_rule_that_goes_by_jobs() -> None:
    mine = files.alert_files(
        RenderSettings(engine_job="my-vllm", gpu_job="my-gpu", daemon_job="my-cp", gateway_job="my-gw")
    )
    text = mine["recording-rules.yaml"] + mine["alert-rules.yaml"] + mine["operator/rules.yaml"]
    assert not re.search(r'job=~"(llm-engine|llm-gpu|controlplane)', text)
    assert 'job=~"my-vllm"' in text


def test_the_operators_objects_hold_the_same_rules() -> None:
    documents = list(yaml.safe_load_all(written("operator/rules.yaml")))
    groups = [group for document in documents for group in document["spec"]["groups"]]
    plain = [group for text in both_files().values() for group in yaml.safe_load(text)["groups"]]
    assert groups == plain
    for document in (*documents, *operator.monitors(SETTINGS), operator.alertmanager_config()):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        assert document["apiVersion"].startswith("monitoring.coreos.com/v1")
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_operators_monitor_of_gateways_shows_a_token_where_one_is_named() -> None:
    def shown(settings: RenderSettings) -> dict[str, object]:
        found = {one["metadata"]["name"]: one["spec"] for one in operator.monitors(settings)}
        secrets = {name: spec["endpoints"][0] for name, spec in found.items() if "endpoints" in spec}
        return {name: end["authorization"] for name, end in secrets.items() if "authorization" in end}

    assert shown(SETTINGS) == {}
    named = {"credentials": {"name": "controlplane-token", "key": "token"}}
    assert shown(RenderSettings(gateway_secret="controlplane-token")) == {"controlplane-gateway": named}


@needs_promtool
def test_promtool_takes_the_written_files(tmp_path: Path) -> None:
    """All rules at once on no data: the alerts on absence fire, nothing else does, nothing fails."""
    tests = [
        {
            "interval": "1m",
            "input_series": [],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "15m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1}
                        for name in ("ControlPlaneDown", "EngineTargetsMissing")
                    ],
                }
            ],
        }
    ]
    done = run(tmp_path, both_files(), {"evaluation_interval": "1m", "tests": tests}, order())
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_G3_joins_never_fail_and_a_hot_gpu_is_one_alert(tmp_path: Path) -> None:
    """The product joins no info metric of somebody else, so that two of them cannot break it."""
    case = yaml.safe_load((DATA / "cases/data/G3/joined_series.yaml").read_text())
    firing = 'count(ALERTS{alertname="GpuHot",alertstate="firing"})'
    checks = [
        {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for minute in range(6, 30)
    ]
    tests = [{"interval": case["interval"], "input_series": case["input_series"], "promql_expr_test": checks}]
    done = run(tmp_path, both_files(), {"evaluation_interval": "1m", "tests": tests}, order())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "many-to-many" not in done.stdout + done.stderr


# --- a real Prometheus on real pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Every captured page is a replica; one more comes with underscores, and one with both spellings."""
    body = PAGES["/vllm-0.32-overload"]
    mangled = re.sub(rb"^vllm:", b"vllm_", body, flags=re.MULTILINE)
    with Exporter({**PAGES, "/mangled": mangled, "/twice": body + mangled}).running() as exporter:
        folder = tmp_path_factory.mktemp("pages")
        for name, text in both_files().items():
            (folder / name).write_text(text.replace("interval: 15s", "interval: 500ms"))
        targets = {path[1:]: path for path in exporter.pages}
        config = {
            "global": {"evaluation_interval": "500ms"},
            "rule_files": ["recording-rules.yaml", "alert-rules.yaml"],
            "scrape_configs": [
                job(exporter, targets, name="llm-engine", interval="500ms", labels={"pool": "chat"})
            ],
        }
        with prometheus(folder, json.dumps(config)) as running:
            until(lambda: len(running.query("llm:engine_up == 1")) == len(targets), "all pages are read")
            until(lambda: running.query("llm:generation_tokens:rate2m"), "first rates")
            yield running


def instances(server: Prometheus, expr: str) -> set[str]:
    return {one["metric"]["instance"] for one in server.query(expr)}


def answered(server: Prometheus, expr: str) -> list[dict[str, Any]]:
    """What it comes to where there is something: a page that is late leaves a gap."""
    return until(lambda: server.query(expr), expr)


@needs_prometheus
def test_every_version_has_the_core_series_under_one_name(pages: Prometheus) -> None:
    everybody = instances(pages, "llm:engine_up")
    assert len(everybody) == len(PAGES) + 2
    # Two API servers share this page before the first step: its gauges are not there yet.
    silent = {name for name in everybody if "api2-idle" in name}
    loggers = {name for name in everybody if re.match(r"vllm-0\.(8|10|12|17|22)", name)}
    for name in ("running_requests", "waiting_requests", "kv_usage_ratio"):
        # Rules are evaluated one after the other: a page may come between two of them.
        until(
            lambda name=name: everybody - instances(pages, f"llm:{name}") <= silent,
            f"llm:{name} of every page",
        )
    for name in ("generation_tokens:rate2m", "prompt_tokens:rate2m", "preemptions:rate2m"):
        until(
            lambda name=name: everybody - instances(pages, f"llm:{name}") <= silent | loggers,
            f"every replica has llm:{name}, but for {silent | loggers}",
        )


@needs_prometheus
def test_no_rule_fails_and_both_spellings_count_once(pages: Prometheus) -> None:
    assert not pages.query("prometheus_rule_evaluation_failures_total > 0")
    health = json.loads(_get(f"{pages.url}/api/v1/rules"))["data"]["groups"]
    broken = [rule["lastError"] for group in health for rule in group["rules"] if rule.get("lastError")]
    assert not broken
    by = {}
    for name in ("twice", "mangled", "vllm-0.32-overload"):
        (one,) = answered(pages, f'llm:running_requests{{instance="{name}"}}')
        by[name] = one["value"][1]
    assert by["twice"] == by["mangled"] == by["vllm-0.32-overload"] != "0"


@needs_prometheus
def test_two_engines_on_one_page_add_up_and_the_fullest_counts(pages: Prometheus) -> None:
    page = PAGES["/vllm-0.32-dp2-api2-overload"].decode()
    running = _largest_by_engine(page, "vllm:num_requests_running")
    kv = _largest_by_engine(page, "vllm:kv_cache_usage_perc")
    assert len(running) == 2
    (told,) = answered(pages, 'llm:running_requests{instance="vllm-0.32-dp2-api2-overload"}')
    assert float(told["value"][1]) == sum(running.values())
    (told,) = answered(pages, 'llm:kv_usage_ratio{instance="vllm-0.32-dp2-api2-overload"}')
    assert float(told["value"][1]) == pytest.approx(max(kv.values()))


def _largest_by_engine(page: str, name: str) -> dict[str, float]:
    """Processes repeat a gauge: the largest of an engine counts."""
    found: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}\{{(.+)\}} (\S+)$", page, re.MULTILINE):
        engine = re.search(r'engine="(\d+)"', labels)
        assert engine is not None
        found[engine[1]] = max(found.get(engine[1], 0.0), float(value))
    return found


def _get(url: str) -> bytes:
    import urllib.request

    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())
