"""A dashboard put together: rows of panels laid out from left to right, variables, links, annotations."""

from typing import Any

from grafanalib.core import Annotations, Dashboard, DashboardLink, GridPos, RowPanel, Template, Templating

from controlplane.render.dashboards import modern
from controlplane.render.dashboards.panels import Placed
from controlplane.render.dashboards.queries import grown

TAG = "controlplane"

VARIABLES = {
    "cluster": ("Cluster", "label_values(llm:engine_up, cluster)"),
    "pool": (
        "Pool",
        'label_values({__name__=~"llm:engine_up|controlplane_pool_replicas'
        '|controlplane_gateway_finished_requests_total"}, pool)',
    ),
    "model": ("Model", 'label_values(llm:running_requests{pool=~"$pool"}, model_name)'),
    "instance": ("Replica", 'label_values(llm:engine_up{pool=~"$pool"}, instance)'),
    "node": ("Node", "label_values(llm:gpu_exporter_up, node)"),
    "UUID": ("GPU", 'label_values(llm:gpu_temperature_celsius{node=~"$node"}, UUID)'),
}
"""Label and query of each variable, scoped by a name of ours: a power meter's `model_name` is no model."""

Row = tuple[RowPanel, tuple[Placed, ...], bool]


def board(name: str, title: str, text: str, variables: tuple[str, ...], *rows: Row) -> dict[str, Any]:
    """The dashboard `controlplane-NAME` as Grafana's JSON."""
    made = Dashboard(
        uid=f"controlplane-{name}",
        title=f"controlplane / {title}",
        description=text,
        tags=[TAG],
        refresh="30s",
        links=[DashboardLink(title="controlplane", tags=[TAG])],
        annotations=Annotations(_annotations()),
        templating=Templating([_source(), *(_variable(variable) for variable in variables)]),
        panels=_laid_out(rows),
    )
    return modern.dashboard(_plain(made))


def _laid_out(rows: tuple[Row, ...]) -> list[Any]:
    panels: list[Any] = []
    y = 0
    for head, placed, closed in rows:
        head.gridPos = GridPos(h=1, w=24, x=0, y=y)
        y += 1
        inside, y = _flow(placed, y)
        head.collapsed = closed
        head.panels = inside if closed else []
        panels += [head, *([] if closed else inside)]
    return panels


def _flow(placed: tuple[Placed, ...], y: int) -> tuple[list[Any], int]:
    """From left to right, in lines as high as their highest panel."""
    x = tallest = 0
    panels = []
    for panel, width, height in placed:
        if x + width > 24:
            x, y, tallest = 0, y + tallest, 0
        panel.gridPos = GridPos(h=height, w=width, x=x, y=y)
        panels.append(panel)
        x, tallest = x + width, max(tallest, height)
    return panels, y + tallest


def _source() -> Template:
    return Template(name="datasource", label="Data source", type="datasource", query="prometheus")


def _variable(name: str) -> Template:
    label, query = VARIABLES[name]
    # Labels that a target lacks are empty, so All must fit them too.
    return Template(name=name, label=label, query=query, includeAll=True, multi=True, allValue=".*")


def _annotations() -> list[dict[str, Any]]:
    """What was decided, with its sentence where the daemon writes annotations, and what fires."""
    return [
        {
            "name": "Decisions",
            "type": "tags",
            "datasource": {"type": "grafana", "uid": "-- Grafana --"},
            "target": {"type": "tags", "tags": ["controlplane", "decision"], "matchAny": False, "limit": 200},
            "enable": True,
            "hide": False,
            "iconColor": "purple",
        },
        {
            "name": "Decision counts",
            "datasource": dict(modern.SOURCE),
            "target": {
                "refId": "Anno",
                "expr": grown("controlplane_decisions_total", 'cluster=~".*"', "action", "reason") + " > 0",
            },
            "titleFormat": "{{action}}: {{reason}}",
            "enable": False,
            "hide": False,
            "iconColor": "blue",
        },
        {
            "name": "Alerts",
            "datasource": dict(modern.SOURCE),
            "target": {
                "refId": "Anno",
                "expr": "sum by (alertname, pool, node)"
                ' (ALERTS{layer!="",alertstate="firing",severity="page"})',
            },
            "titleFormat": "{{alertname}} {{pool}}{{node}}",
            "enable": True,
            "hide": False,
            "iconColor": "red",
        },
    ]


def _plain(thing: Any) -> Any:
    """grafanalib's objects as dicts, lists and scalars."""
    if hasattr(thing, "to_json_data"):
        return _plain(thing.to_json_data())
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_plain(value) for value in thing]
    return thing
