"""How Prometheus must scrape so that the rules find what they look for: job names, pool and node labels."""

from typing import Any

from controlplane.render.settings import RenderSettings

# A page may come with `vllm_x` for `vllm:x`; the rules know both, so nothing is rewritten here. Only
# prometheus_client's _created series (a tenth of a page) are dropped.
_DROP = [{"source_labels": ["__name__"], "regex": ".+_created", "action": "drop"}]


def configuration(settings: RenderSettings) -> dict[str, Any]:
    """A whole prometheus.yml for a fleet that is listed in files: see the comment above it."""
    engines = [{"files": ["targets/engines-*.yaml"]}]
    return {
        "global": {
            "scrape_interval": "15s",
            "evaluation_interval": "15s",
            "external_labels": {"cluster": "main"},
        },
        "rule_files": ["recording-rules.yaml", "alert-rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]},
        "scrape_configs": [
            {"job_name": settings.engine_job, "file_sd_configs": engines, "metric_relabel_configs": _DROP},
            {"job_name": settings.gpu_job, "file_sd_configs": [{"files": ["targets/gpus-*.yaml"]}]},
            {"job_name": settings.daemon_job, "static_configs": [{"targets": ["127.0.0.1:9090"]}]},
            {"job_name": settings.gateway_job, "static_configs": [{"targets": ["127.0.0.1:8080"]}]},
            {"job_name": "prometheus", "static_configs": [{"targets": ["127.0.0.1:9095"]}]},
        ],
    }
