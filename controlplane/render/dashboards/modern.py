"""From what grafanalib writes to what Grafana 11 and later read without a migration.

grafanalib stopped at schema version 12: data sources are plain strings, targets carry keys of a graph panel
that is gone, heat maps and tables have the options of years ago, ids follow a panel's place. Each panel is
put together anew here from the parts that still mean something, with the options that its kind has today.
"""

from typing import Any
from zlib import crc32

SCHEMA_VERSION = 39
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_LEGEND_TOOLTIP = {"mode": "multi", "sort": "desc", "hideZeros": False}


def dashboard(old: dict[str, Any]) -> dict[str, Any]:
    """A dashboard as `json_of` gives it, modern."""
    return {
        "uid": old["uid"],
        "title": old["title"],
        "description": old["description"],
        "tags": old["tags"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": old["refresh"],
        "time": old["time"],
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m"]},
        "timezone": "browser",
        "weekStart": "",
        "liveNow": False,
        "fiscalYearStartMonth": 0,
        "links": [_link(link) for link in old["links"]],
        "annotations": {"list": old["annotations"]["list"]},
        "templating": {"list": [_variable(one) for one in old["templating"]["list"]]},
        "panels": [_panel(panel, old["uid"]) for panel in old["panels"]],
    }


def _panel(old: dict[str, Any], board: str) -> dict[str, Any]:
    kind = old["type"]
    common = {"id": _id(board, old["title"]), "type": kind, "title": old["title"], "gridPos": old["gridPos"]}
    if kind == "row":
        panels = [_panel(panel, board) for panel in old["panels"]]
        return {**common, "collapsed": old["collapsed"], "panels": panels}
    return {
        **common,
        "description": old["description"],
        "datasource": dict(SOURCE),
        "targets": [_target(target) for target in old["targets"]],
        "fieldConfig": _KINDS[kind][0](old),
        "options": _KINDS[kind][1](old),
        "transformations": old["transformations"],
        "pluginVersion": "11.0.0",
    }


def _id(board: str, title: str) -> int:
    """The same as long as board and title stay, wherever the panel stands."""
    return crc32(f"{board}/{title}".encode()) & 0x7FFFFFFF


def _target(old: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "refId": old["refId"],
        "datasource": dict(SOURCE),
        "expr": old["expr"],
        "format": old["format"],
        "legendFormat": old["legendFormat"],
        "editorMode": "code",
        "range": not old["instant"],
        "instant": old["instant"],
        "exemplar": False,
    }
    if old["format"] != "table" and "_over_time" not in old["expr"] and "$__rate_interval" not in old["expr"]:
        made["interval"] = "15s"  # recording rules have a value every 15 s: finer steps would only repeat it
    return made


def _variable(old: dict[str, Any]) -> dict[str, Any]:
    common = {"name": old["name"], "label": old["label"], "hide": 0, "skipUrlSync": False}
    if old["type"] == "datasource":
        return {
            **common,
            "type": "datasource",
            "query": old["query"],
            "regex": "",
            "multi": False,
            "includeAll": False,
            "options": [],
            "refresh": 1,
        }
    everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        **common,
        "type": "query",
        "datasource": dict(SOURCE),
        "query": {"query": old["query"], "refId": f"Variable-{old['name']}"},
        "current": everything,
        "includeAll": True,
        "allValue": old["allValue"],
        "multi": True,
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "options": [],
    }


def _link(old: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": old["title"],
        "tags": old["tags"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _field(old: dict[str, Any], custom: dict[str, Any], **more: Any) -> dict[str, Any]:
    defaults = old["fieldConfig"]["defaults"]
    made = {
        "unit": old.get("_unit") or defaults.get("unit") or "short",
        "color": {"mode": "thresholds"},
        "thresholds": old.get("_steps") or {"mode": "absolute", "steps": [{"color": "green", "value": None}]},
        "mappings": old.get("_says", []),
        "noValue": old.get("_empty") or defaults.get("noValue") or "no data",
        "custom": custom,
        "links": _opens(old.get("_link", "")),
        **more,
    }
    return {
        "defaults": {name: value for name, value in made.items() if value is not None},
        "overrides": old["fieldConfig"].get("overrides", []),
    }


def _opens(board: str) -> list[dict[str, str]]:
    if not board:
        return []
    return [
        {
            "title": f"Open {board}",
            "url": f"/d/controlplane-{board}?${{datasource:queryparam}}&${{__url_time_range}}",
        }
    ]


def _lines_field(old: dict[str, Any]) -> dict[str, Any]:
    defaults = old["fieldConfig"]["defaults"]
    was = defaults["custom"]
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": was["fillOpacity"],
        "gradientMode": "none",
        "showPoints": "auto",
        "pointSize": 4,
        "spanNulls": False,
        "insertNulls": False,
        "stacking": was["stacking"],
        "axisPlacement": "auto",
        "axisLabel": "",
        "axisColorMode": "text",
        "axisBorderShow": False,
        "axisCenteredZero": False,
        "scaleDistribution": {"type": "linear"},
        "thresholdsStyle": was["thresholdsStyle"],
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
        "barAlignment": 0,
    }
    return _field(old, custom, color={"mode": "palette-classic"}, min=defaults["min"], max=defaults["max"])


def _lines_options(old: dict[str, Any]) -> dict[str, Any]:
    legend = old["options"]["legend"]
    return {
        "legend": {**legend, "showLegend": True, "sortBy": "Last *", "sortDesc": True},
        "tooltip": dict(_LEGEND_TOOLTIP),
    }


def _stat_field(old: dict[str, Any]) -> dict[str, Any]:
    return _field(old, {}, decimals=old["fieldConfig"]["defaults"]["decimals"])


def _stat_options(old: dict[str, Any]) -> dict[str, Any]:
    was = old["options"]
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": was["colorMode"],
        "graphMode": was["graphMode"],
        "textMode": was["textMode"],
        "justifyMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }


def _heat_field(old: dict[str, Any]) -> dict[str, Any]:
    custom = {
        "scaleDistribution": {"type": "linear"},
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
    }
    return _field(old, custom, unit="reqps")


def _heat_options(old: dict[str, Any]) -> dict[str, Any]:
    return {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "reqps"},
        "color": {
            "mode": "scheme",
            "scheme": "Turbo",
            "fill": "dark-orange",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": old["_unit"]},
    }


def _states_field(old: dict[str, Any]) -> dict[str, Any]:
    custom = {
        "lineWidth": 0,
        "fillOpacity": 80,
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
    }
    return _field(old, custom)


def _states_options(_: dict[str, Any]) -> dict[str, Any]:
    return {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.85,
        "perPage": 40,
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }


def _table_field(old: dict[str, Any]) -> dict[str, Any]:
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False}
    return _field(old, custom)


def _table_options(_: dict[str, Any]) -> dict[str, Any]:
    return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "enablePagination": True, "sortBy": []}


_KINDS = {
    "timeseries": (_lines_field, _lines_options),
    "stat": (_stat_field, _stat_options),
    "heatmap": (_heat_field, _heat_options),
    "state-timeline": (_states_field, _states_options),
    "table": (_table_field, _table_options),
}
