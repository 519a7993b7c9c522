"""A page for each alert: what it means, how to confirm it, what to do."""

from collections.abc import Iterable

from controlplane.render.alerts import all_alerts
from controlplane.render.rule import Alert
from controlplane.render.settings import RenderSettings

_TOLD = {
    "page": "Somebody is woken.",
    "ticket": "To be looked at in working hours.",
    "info": "Shown, and nobody is called.",
}


def pages(settings: RenderSettings) -> dict[str, str]:
    """By file name, with a list of all of them."""
    alerts = all_alerts(settings)
    return {"README.md": _list(alerts), **{f"{alert.name}.md": _page(alert) for alert in alerts}}


def _page(alert: Alert) -> str:
    return f"""# {alert.name}

{_TOLD[alert.severity]} Team: {alert.team}. Dashboard: `/d/controlplane-{alert.board}`.

## What it means

{alert.meaning}

It fires when this has held for {alert.wait}:

```promql
{alert.expr}
```

## How to confirm

{_items(alert.confirm)}

## What to do

{_items(alert.action)}
"""


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _list(alerts: tuple[Alert, ...]) -> str:
    rows = "\n".join(f"| [{a.name}]({a.name}.md) | {a.severity} | {a.team} | {a.layer} |" for a in alerts)
    return f"""# Runbooks

One page for each alert in `alerts/`. Written by `controlplane render runbooks`.

| alert | severity | team | layer |
| --- | --- | --- | --- |
{rows}
"""
