"""The node agent on every GPU node, for the daemon and for Prometheus.

It reads NVML, for which the device nodes suffice, so it needs no privilege; it changes nothing on the node.
"""

from controlplane.render.manifests import parts
from controlplane.render.manifests.parts import AGENT_PORT, DAEMON, TOKEN_FILE, Object, made, named
from controlplane.render.manifests.settings import ManifestSettings
from controlplane.render.yaml_file import yaml_file

AGENT = "controlplane-node-agent"
"""Its pods, its configuration, and the secret with the token that callers must bear."""

_CONFIG = "/etc/controlplane"


def agents(settings: ManifestSettings) -> list[Object]:
    labels = named(AGENT)
    configuration = {"node_agent": {"listen": f"0.0.0.0:{AGENT_PORT}", "token": {"file": TOKEN_FILE}}}
    text = yaml_file("Every key is in docs/configuration.md.", configuration)
    return [
        made("v1", "ConfigMap", AGENT, settings.namespace, data={"node-agent.yaml": text}),
        made(
            "apps/v1",
            "DaemonSet",
            AGENT,
            settings.namespace,
            labels=labels,
            spec={
                "selector": {"matchLabels": labels},
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "10%"}},
                "template": {
                    "metadata": {
                        "labels": {**labels, "app.kubernetes.io/part-of": "controlplane"},
                        "annotations": parts.checksum(text),
                    },
                    "spec": _pod(settings),
                },
            },
        ),
        parts.ingress(
            AGENT,
            settings.namespace,
            labels,
            [
                parts.allowed(
                    [AGENT_PORT],
                    {"podSelector": {"matchLabels": named(DAEMON)}},
                    parts.from_namespace(settings.monitoring),
                )
            ],
        ),
    ]


def _pod(settings: ManifestSettings) -> Object:
    return {
        "automountServiceAccountToken": False,
        "securityContext": parts.pod_security(),
        # Set by NVIDIA's GPU feature discovery.
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        # A node that was taken out of the fleet must still be seen.
        "tolerations": [{"operator": "Exists"}],
        # The NVIDIA runtime puts libnvidia-ml.so.1 and the device nodes into the container.
        "runtimeClassName": "nvidia",
        "priorityClassName": "system-node-critical",
        "containers": [_container(settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": AGENT}},
            {"name": "token", **parts.secret(AGENT)},
        ],
    }


def _container(settings: ManifestSettings) -> Object:
    return {
        "name": "node-agent",
        "image": settings.image,
        "args": ["node-agent", "--config", f"{_CONFIG}/node-agent.yaml"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            # All GPUs, none of them taken from the scheduler.
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "ports": [{"name": "http", "containerPort": AGENT_PORT}],
        # All ask whether the agent runs, not whether the driver answers: a restart helps against no driver.
        "startupProbe": parts.probe("/healthz", "http", 2, 30),
        "livenessProbe": parts.probe("/healthz", "http", 20, 3),
        "readinessProbe": parts.probe("/healthz", "http", 10, 3),
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": parts.locked(),
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG, "readOnly": True},
            {"name": "token", "mountPath": TOKEN_FILE.rpartition("/")[0], "readOnly": True},
        ],
    }
