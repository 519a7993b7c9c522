"""The alerts, by what they watch. Each is a symptom or a cause that a person can do something about."""

from controlplane.render.alerts import control, engines, gpus, users
from controlplane.render.rule import Alert, Group
from controlplane.render.settings import RenderSettings


def groups(settings: RenderSettings) -> tuple[Group, ...]:
    return (
        Group("llm-alerts-users", users.alerts()),
        Group("llm-alerts-engines", engines.alerts()),
        Group("llm-alerts-gpus", gpus.alerts()),
        Group("llm-alerts-control", control.alerts(settings)),
    )


def all_alerts(settings: RenderSettings) -> tuple[Alert, ...]:
    return tuple(rule for group in groups(settings) for rule in group.rules if isinstance(rule, Alert))
