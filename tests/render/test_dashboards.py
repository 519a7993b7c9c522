"""The dashboards as files: current, valid for Grafana, without the faults of public ones (cases G1, G2)."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import promql_parser
import pytest
from click.testing import CliRunner
from preview import formatted, panels, substituted

from controlplane.commands.render import render
from controlplane.render import rule_files
from controlplane.render.alerts import all_alerts
from controlplane.render.settings import RenderSettings
from controlplane.signals.gateway_registry import METRICS as GATEWAY_METRICS
from controlplane.signals.registry import METRICS, Kind

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("*.json"))
SCHEMAS = Path(__file__).parent / "data/grafana-12"
CASES = Path(__file__).parents[1] / "cases/data"
TARGET_LABELS = {"cluster", "namespace", "job", "instance", "node", "pod", "pool"}
PROMETHEUS_OWN = {
    "ALERTS": {"alertname", "alertstate", "severity", "team", "layer", "replica", *TARGET_LABELS},
    "ALERTS_FOR_STATE": {"alertname", "severity", "team", "layer", "replica", *TARGET_LABELS},
    "prometheus_rule_group_last_duration_seconds": {"rule_group", *TARGET_LABELS},
    "prometheus_rule_group_interval_seconds": {"rule_group", *TARGET_LABELS},
}


@cache
def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in FILES}


def drawn(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in panels(board) if panel["type"] != "row"]


ALL = [
    pytest.param(name, panel, id=f"{name}: {panel['title']}")
    for name in boards()
    for panel in drawn(boards()[name])
]


def variables(board: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in board["templating"]["list"] if one["type"] == kind]


@pytest.mark.parametrize(
    ("what", "folder"), [("dashboards", "dashboards"), ("alerts", "alerts"), ("runbooks", "docs/runbooks")]
)
def test_the_files_are_current(what: str, folder: str) -> None:
    done = CliRunner().invoke(render, [what, "--out", str(ROOT / folder), "--check"])
    assert done.exit_code == 0, done.output


def test_check_names_what_is_not_current_and_writing_mends_it(tmp_path: Path) -> None:
    assert CliRunner().invoke(render, ["alerts", "--out", str(tmp_path)]).exit_code == 0
    (tmp_path / "alert-rules.yaml").write_text("groups: []\n")
    (tmp_path / "old-rules.yaml").write_text("groups: []\n")
    done = CliRunner().invoke(render, ["alerts", "--out", str(tmp_path), "--check"])
    assert done.exit_code == 1
    assert "alert-rules.yaml is not current" in done.output
    assert "old-rules.yaml is not made by this version" in done.output
    assert "1 of 7 files" in CliRunner().invoke(render, ["alerts", "--out", str(tmp_path)]).output
    (tmp_path / "old-rules.yaml").unlink()
    assert CliRunner().invoke(render, ["alerts", "--out", str(tmp_path), "--check"]).exit_code == 0


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(render, ["alerts", "--out", str(tmp_path / "file" / "below")])
    assert done.exit_code == 1
    assert str(tmp_path / "file") in done.output
    assert "Traceback" not in done.output


# --- what Grafana reads


@pytest.mark.parametrize("name", boards())
def test_it_fits_grafanas_own_schema(name: str) -> None:
    board = boards()[name]
    errors = [
        f"{list(error.absolute_path)}: {error.message}"
        for error in _validator("dashboard").iter_errors(board)
        # The schema knows an annotation's target of the built-in source only, not that of Prometheus.
        if error.absolute_path[0] != "annotations"
    ]
    assert not errors
    for panel in drawn(board):
        kind = panel["type"].replace("-", "")
        _validator(kind).validate(panel["options"])
        if (SCHEMAS / f"{kind}_field.json").exists():
            _validator(f"{kind}_field").validate(panel["fieldConfig"]["defaults"]["custom"])


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft7Validator(json.loads((SCHEMAS / f"{name}.json").read_text()))


def test_the_schema_check_would_see_what_grafanalib_itself_writes() -> None:
    from grafanalib.core import Dashboard

    from controlplane.render.dashboards.board import _plain

    old = _plain(Dashboard(title="old", panels=[]))
    assert list(_validator("dashboard").iter_errors(old))


@pytest.mark.parametrize("name", boards())
def test_ids_and_places(name: str) -> None:
    board = boards()[name]
    assert board["uid"] == f"controlplane-{name}"
    assert board["schemaVersion"] >= 39
    ids = [panel["id"] for panel in panels(board)]
    assert len(set(ids)) == len(ids), "two panels share a title"
    taken: set[tuple[int, int]] = set()
    for panel in panels(board):
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_uids_and_titles_differ() -> None:
    assert len({board["uid"] for board in boards().values()}) == len(boards())
    assert len({board["title"] for board in boards().values()}) == len(boards())


@pytest.mark.parametrize(("name", "panel"), ALL)
def test_every_panel_says_what_it_shows(name: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert re.fullmatch(r"[A-Z`].+[.]", panel["description"], re.S), panel["description"]
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert defaults["noValue"], "an empty panel says why"
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert panel["targets"]
    if panel["type"] == "timeseries":
        assert defaults["custom"]["spanNulls"] is False, "a gap is a gap"


# --- case G1


def _strings(thing: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield from _strings(value, f"{path}.{key}")
    elif isinstance(thing, list):
        for value in thing:
            yield from _strings(value, path)
    elif isinstance(thing, str):
        yield path, thing


@pytest.mark.parametrize("name", boards())
def test_G1_no_data_source_is_written_into_it(name: str) -> None:
    board = boards()[name]
    for path, text in _strings(board):
        if path.endswith("datasource.uid"):
            # The second is Grafana's own store of annotations; it is called so everywhere.
            assert text in ("${datasource}", "-- Grafana --"), path
        assert not path.endswith("datasource"), f"{path} is a string: {text}"
    (source,) = variables(board, "datasource")
    assert "current" not in source
    assert "__inputs" not in board


@pytest.mark.parametrize("name", boards())
def test_G1_variables_are_scoped_by_names_of_ours_and_begin_with_all(name: str) -> None:
    for variable in variables(boards()[name], "query"):
        query = variable["query"]["query"]
        scope = re.match(r"label_values\((.+), (\w+)\)$", query)
        assert scope is not None, f"{query} asks every series"
        for metric in re.findall(r"\b(?:llm:|controlplane_)\w+", scope[1]) or [scope[1]]:
            assert scope[2] in labels_of(metric), f"{metric} has no label {scope[2]}"
        assert variable["current"]["value"] == ["$__all"]
        assert variable["allValue"] == ".*"
        assert variable["multi"]
        assert variable["refresh"] == 2, "refreshed when the time range changes"


AWKWARD = ("acme/chat-8b", "acme/embed.v2+q(4)", "a|b", "x[1]")


def _as_grafana_sends(expr: str, values: tuple[str, ...]) -> str:
    """Several values chosen: Grafana quotes what a regex would take for itself, and joins them."""
    quoted = [re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\\\1", value) for value in values]
    joined = f"({'|'.join(quoted)})"
    for variable in ("cluster", "pool", "model", "instance", "node", "UUID"):
        expr = expr.replace(f'"${variable}"', f'"{joined}"')
    return expr.replace("$__rate_interval", "1m")


@pytest.mark.parametrize(("name", "panel"), ALL)
def test_G1_every_query_parses_whatever_is_chosen(name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for expr in (substituted(target["expr"]), _as_grafana_sends(target["expr"], AWKWARD)):
            assert "$" not in expr.replace("($", "").replace('$"', ""), expr
            promql_parser.parse(expr)
        for variable in re.findall(r'(\S+)"\$\w+"', target["expr"]):
            assert variable.endswith("=~"), f"{variable} cannot hold several values"


# --- names, labels, kinds


@cache
def _labels() -> dict[str, tuple[set[str], Kind | None]]:
    """Labels and kind of every name that a panel may ask for."""
    known: dict[str, tuple[set[str], Kind | None]] = {}
    for metric in (*METRICS, *GATEWAY_METRICS):
        labels = {*metric.labels, *TARGET_LABELS}
        names = [metric.name]
        if metric.kind is Kind.HISTOGRAM:
            names = [f"{metric.name}_{part}" for part in ("bucket", "sum", "count")]
            labels |= {"le"}
        for name in names:
            known[name] = (labels, Kind.COUNTER if metric.kind is Kind.HISTOGRAM else metric.kind)
    for rule in rule_files.recordings(RenderSettings()):
        before = known.get(rule.name, (set(), None))[0]
        known[rule.name] = (before | set(rule.keeps) | set(rule.labels), None)
    return {**known, **{name: (labels, None) for name, labels in PROMETHEUS_OWN.items()}}


def labels_of(metric: str) -> set[str]:
    return _labels()[metric][0]


def selectors(node: Any, over: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...], set[str]]]:
    """Every selector below, the functions around it, and the labels that `by` and `on` around it name."""
    kind = type(node).__name__
    if kind == "VectorSelector":
        yield node, over, set()
    elif kind == "MatrixSelector":
        yield node.vector_selector, (*over, "[]"), set()
    elif kind == "Call":
        for arg in node.args:
            yield from selectors(arg, (*over, node.func.name))
    elif kind == "AggregateExpr":
        modifier = node.modifier
        named = set(modifier.labels) if modifier is not None else set()
        for selector, functions, labels in selectors(node.expr, over):
            yield selector, functions, labels | named
    elif kind == "BinaryExpr":
        yield from selectors(node.lhs, over)
        yield from selectors(node.rhs, over)
    elif kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr"):
        yield from selectors(node.expr, over)


@pytest.mark.parametrize(("name", "panel"), ALL)
def test_every_name_and_label_exists_and_counters_are_not_drawn_as_they_are(
    name: str, panel: dict[str, Any]
) -> None:
    for target in panel["targets"]:
        found = list(selectors(promql_parser.parse(substituted(target["expr"]))))
        assert found
        anywhere: set[str] = set()
        for selector, functions, named in found:
            assert selector.name in _labels(), f"nobody exports {selector.name}"
            labels, kind = _labels()[selector.name]
            anywhere |= labels
            for matcher in selector.matchers.matchers:
                assert matcher.name in labels, f"{selector.name} has no label {matcher.name}"
            for label in named:
                assert label in labels or len(found) > 1, f"{selector.name} has no label {label}"
            if kind is Kind.COUNTER and panel["type"] != "table":
                assert {"rate", "increase", "clamp_min"} & set(functions), (
                    f"{selector.name} is drawn as it is"
                )
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label in anywhere, f"the legend names {label}, which no series has"


@pytest.mark.parametrize(("name", "panel"), ALL)
def test_rates_are_over_a_range_that_fits_the_scrape_interval(name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        for range_ in re.findall(r"rate\([^\[]+\[([^\]]+)\]", target["expr"]):
            assert range_ == "$__rate_interval"


# --- case G2

SCALES = {
    "percentunit": "ratio",
    "percent": "percent",
    "s": "seconds",
    "mbytes": "mib",
    "celsius": "celsius",
    "watt": "watts",
    "rotmhz": "mhz",
}


@cache
def _units() -> dict[str, str]:
    units = {metric.name: metric.unit for metric in (*METRICS, *GATEWAY_METRICS)}
    units |= {rule.name: rule.unit for rule in rule_files.recordings(RenderSettings())}
    return units


@pytest.mark.parametrize(("name", "panel"), ALL)
def test_the_unit_of_a_panel_is_that_of_what_it_asks_for(name: str, panel: dict[str, Any]) -> None:
    """A plain series has the panel's own unit; a ratio made in the query is never multiplied by a hundred."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        expr = substituted(target["expr"])
        assert not re.search(r"\b100\s*\*|\*\s*100\b", expr)
        parsed = promql_parser.parse(expr)
        of_all = {_units().get(selector.name, "") for selector, _, _ in selectors(parsed)}
        assert unit != "percent" or of_all == {"percent"}
        assert unit != "percentunit" or "percent" not in of_all
        while type(parsed).__name__ in ("AggregateExpr", "ParenExpr"):
            if "count" in str(getattr(parsed, "op", "")).lower():
                parsed = None
                break
            parsed = parsed.expr
        if type(parsed).__name__ == "VectorSelector" and panel["type"] not in (
            "state-timeline",
            "table",
            "heatmap",
        ):
            of_metric = _units()[parsed.name]
            assert SCALES.get(unit, of_metric) == of_metric, (
                f"{parsed.name} is in {of_metric or 'no unit'}, the panel in {unit}"
            )


def test_G2_values_read_as_they_must() -> None:
    """The panels that show these metrics have the unit with which the raw value reads right."""
    hits = "vllm:prefix_cache"
    shown_by = {
        "vllm:kv_cache_usage_perc": "llm:kv_usage_ratio",
        "DCGM_FI_DEV_GPU_UTIL": "llm:gpu_utilization_percent",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "llm:gpu_active_ratio",
        "DCGM_FI_DEV_FB_USED": "llm:gpu_memory_used_mib",
        f"rate({hits}_hits_total) / rate({hits}_queries_total)": "llm:pool_prefix_hit_ratio",
        "vllm:time_to_first_token_seconds p95": "llm:ttft_seconds:p95",
    }
    rows = json.loads((CASES / "G2/units.json").read_text())["rows"]
    checked = 0
    for row in rows:
        if "alert" in row:
            continue
        name = shown_by[row["metric"]]
        showing = [
            panel
            for board in boards().values()
            for panel in drawn(board)
            if panel["type"] == "timeseries"
            and any(re.search(rf"{name}\b(?!:)", t["expr"]) for t in panel["targets"])
            and "/ (avg" not in panel["targets"][0]["expr"]
        ]
        assert showing, name
        for panel in showing:
            unit = panel["fieldConfig"]["defaults"]["unit"]
            assert formatted(row["raw"], unit, 1 if unit == "mbytes" else None) == row["must_read"], panel[
                "title"
            ]
            checked += 1
    assert checked >= 6


def test_G2_alerts_compare_in_the_metrics_own_scale() -> None:
    """No alert on a ratio has a limit over 1, and none on percent has one of 1 or less."""
    for alert in all_alerts(RenderSettings()):
        for name, limit in re.findall(
            r"(llm:\w+_ratio\b|llm:gpu_utilization_percent)[^<>=\n]*[<>]=?\s*([0-9.]+)(?!\s*\*|[0-9.])",
            alert.expr,
        ):
            assert (float(limit) <= 1) == name.endswith("_ratio"), alert.expr
    (kv,) = [alert for alert in all_alerts(RenderSettings()) if alert.name == "KVSaturated"]
    assert "> 0.95" in kv.expr
