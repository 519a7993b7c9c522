"""All files that are rendered, as text by path under the folder they go to."""

import json

from controlplane.render import alertmanager, operator, rule_files, scrape
from controlplane.render.settings import RenderSettings
from controlplane.render.yaml_file import yaml_file

_MADE = "Written by `controlplane render {}`: change the source, not this file."


def alert_files(settings: RenderSettings) -> dict[str, str]:
    made = _MADE.format("alerts")
    return {
        "recording-rules.yaml": yaml_file(
            f"{made}\nllm:* from the engines', the GPU exporters' and the product's own series.",
            rule_files.recording_file(settings),
        ),
        "alert-rules.yaml": yaml_file(
            f"{made}\nThe alerts; docs/runbooks has a page for each.", rule_files.alert_file(settings)
        ),
        "alertmanager.yaml": yaml_file(
            f"{made}\nSecrets are files in {alertmanager.SECRETS}: put yours there, or replace the "
            f"receivers.",
            alertmanager.configuration(),
        ),
        "scrape.yaml": yaml_file(
            f"{made}\nA prometheus.yml to start from. The rules go by the job names, and by the labels "
            f"`pool` and\n"
            "`node` of engines and GPU exporters. A target file looks like this:\n"
            "  - {targets: ['10.0.0.1:8000'], labels: {pool: chat, node: gpu-1}}",
            scrape.configuration(settings),
        ),
        "operator/rules.yaml": yaml_file(made, *operator.prometheus_rules(settings)),
        "operator/monitors.yaml": yaml_file(
            f"{made}\nAn engine's pod carries the label controlplane.llm/pool.", *operator.monitors(settings)
        ),
        "operator/alertmanager-config.yaml": yaml_file(made, operator.alertmanager_config()),
    }


def dashboard_files() -> dict[str, str]:
    """Grafana's JSON by file name."""
    from controlplane.render.dashboards import dashboards  # noqa: PLC0415 - only this needs grafanalib

    return {
        f"{name}.json": json.dumps(one, indent=1, ensure_ascii=False) + "\n"
        for name, one in dashboards().items()
    }
