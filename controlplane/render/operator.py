"""The same as objects of the Prometheus Operator."""

from collections.abc import Iterable
from typing import Any

from controlplane.render import alertmanager, rule_files
from controlplane.render.settings import RenderSettings

_LABELS = {"app.kubernetes.io/part-of": "controlplane"}
_NODE = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
_POOL = {"sourceLabels": ["__meta_kubernetes_pod_label_controlplane_llm_pool"], "targetLabel": "pool"}
_DROP = {"sourceLabels": ["__name__"], "regex": ".+_created", "action": "drop"}


def prometheus_rules(settings: RenderSettings) -> list[dict[str, Any]]:
    files = {"recording": rule_files.recording_file(settings), "alerts": rule_files.alert_file(settings)}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"controlplane-{name}", "labels": dict(_LABELS)},
            "spec": spec,
        }
        for name, spec in files.items()
    ]


def monitors(settings: RenderSettings) -> list[dict[str, Any]]:
    """Who is scraped. The job label is set, because the rules go by it; node and pool come from the pod."""
    engine, gpu = settings.engine_job, settings.gpu_job
    pods = {"app.kubernetes.io/component": "engine"}
    return [
        _monitor(
            "PodMonitor",
            "engines",
            pods,
            _endpoint("http", engine, [_POOL, _NODE], drop=True),
            key="podMetricsEndpoints",
        ),
        _monitor(
            "ServiceMonitor", "gpus", {"app": "nvidia-dcgm-exporter"}, _endpoint("gpu-metrics", gpu, [_NODE])
        ),
        _monitor(
            "ServiceMonitor",
            "daemon",
            {"app.kubernetes.io/name": "controlplane"},
            _endpoint("api", settings.daemon_job, []),
        ),
        _monitor(
            "ServiceMonitor",
            "gateway",
            {"app.kubernetes.io/name": "controlplane-gateway"},
            {**_endpoint("http", settings.gateway_job, []), **_with_token(settings.gateway_secret)},
        ),
    ]


def _with_token(secret: str) -> dict[str, Any]:
    return {"authorization": {"credentials": {"name": secret, "key": "token"}}} if secret else {}


def _endpoint(
    port: str, job: str, relabelings: Iterable[dict[str, Any]], *, drop: bool = False
) -> dict[str, Any]:
    named = {"targetLabel": "job", "replacement": job}
    made: dict[str, Any] = {
        "port": port,
        "path": "/metrics",
        "interval": "15s",
        "honorLabels": False,
        "relabelings": [named, *relabelings],
    }
    if drop:
        made["metricRelabelings"] = [_DROP]
    return made


def _monitor(
    kind: str, name: str, labels: dict[str, str], endpoint: dict[str, Any], *, key: str = "endpoints"
) -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": {"name": f"controlplane-{name}", "labels": dict(_LABELS)},
        "spec": {
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": labels},
            key: [endpoint],
        },
    }


def alertmanager_config() -> dict[str, Any]:
    """Routes and inhibitions. With alertmanagerConfigMatcherStrategy None it sees all namespaces."""
    plain = alertmanager.configuration()
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {"name": "controlplane", "labels": dict(_LABELS)},
        "spec": {
            "route": _route(plain["route"]),
            "inhibitRules": [
                {
                    "sourceMatch": [_matcher(text) for text in rule["source_matchers"]],
                    "targetMatch": [_matcher(text) for text in rule["target_matchers"]],
                    "equal": rule["equal"],
                }
                for rule in plain["inhibit_rules"]
            ],
            "receivers": [_receiver(receiver["name"]) for receiver in plain["receivers"]],
        },
    }


def _route(route: dict[str, Any]) -> dict[str, Any]:
    names = {
        "group_by": "groupBy",
        "group_wait": "groupWait",
        "group_interval": "groupInterval",
        "repeat_interval": "repeatInterval",
    }
    made = {
        names.get(name, name): value for name, value in route.items() if name not in ("matchers", "routes")
    }
    if "matchers" in route:
        made["matchers"] = [_matcher(text) for text in route["matchers"]]
    if "routes" in route:
        made["routes"] = [_route(inner) for inner in route["routes"]]
    return made


def _matcher(text: str) -> dict[str, str]:
    """`name=~"value"` as an object."""
    operator = "=~" if "=~" in text else "="
    name, _, value = text.partition(operator)
    return {"name": name, "value": value.strip('"'), "matchType": operator}


def _secret(key: str) -> dict[str, str]:
    return {"name": "controlplane-alerting", "key": key}


def _receiver(name: str) -> dict[str, Any]:
    severity, _, team = name.partition("-")
    if name == "controlplane":
        return {
            "name": name,
            "webhookConfigs": [
                {
                    "url": "http://controlplane:9090/api/v1/alerts",
                    "sendResolved": True,
                    "maxAlerts": 30,
                    "httpConfig": {"authorization": {"credentials": _secret("controlplane-token")}},
                }
            ],
        }
    if severity == "page":
        return {"name": name, "pagerdutyConfigs": [{"routingKey": _secret(f"pagerduty-{team}")}]}
    if severity == "ticket":
        return {
            "name": name,
            "slackConfigs": [
                {"apiURL": _secret(f"slack-{team}"), "channel": f"#{team}", "sendResolved": True}
            ],
        }
    return {"name": name}
