"""Groups of rules as Prometheus reads them."""

from typing import Any

from controlplane.render import alerts, engine_rules, gpu_rules, own_rules
from controlplane.render.rule import Alert, Group, Recording
from controlplane.render.settings import RenderSettings


def recording_groups(settings: RenderSettings) -> tuple[Group, ...]:
    """Those that others build on come first."""
    return (
        *engine_rules.groups(settings.engine_job),
        *gpu_rules.groups(settings.gpu_job),
        *own_rules.groups(),
    )


def recordings(settings: RenderSettings) -> tuple[Recording, ...]:
    return tuple(r for g in recording_groups(settings) for r in g.rules if isinstance(r, Recording))


def recording_file(settings: RenderSettings) -> dict[str, Any]:
    return {"groups": [_group(group, settings) for group in recording_groups(settings)]}


def alert_file(settings: RenderSettings) -> dict[str, Any]:
    return {"groups": [_group(group, settings) for group in alerts.groups(settings)]}


def _group(group: Group, settings: RenderSettings) -> dict[str, Any]:
    rules = [_alert(r, settings) if isinstance(r, Alert) else _recording(r) for r in group.rules]
    return {"name": group.name, "interval": group.interval, "rules": rules}


def _recording(rule: Recording) -> dict[str, Any]:
    made: dict[str, Any] = {"record": rule.name, "expr": rule.expr}
    if rule.labels:
        made["labels"] = dict(rule.labels)
    return made


def _alert(alert: Alert, settings: RenderSettings) -> dict[str, Any]:
    board = f"/d/controlplane-{alert.board}"
    if alert.about:
        board += "?" + "&".join(f"var-{label}={{{{ $labels.{label} | urlquery }}}}" for label in alert.about)
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity, "team": alert.team, "layer": alert.layer},
        "annotations": {
            "summary": alert.summary,
            "description": alert.meaning,
            "runbook_url": f"{settings.runbooks.rstrip('/')}/{alert.name}.md",
            "dashboard": board,
        },
    }
