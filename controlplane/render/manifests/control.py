"""Daemon and gateway: two of each, locked down; stateful, for the journal and for addresses that stay."""

from collections.abc import Mapping
from typing import Any

from controlplane.render.manifests import parts
from controlplane.render.manifests.parts import (
    API_PORT,
    CONFIG_FILE,
    DAEMON,
    GATEWAY,
    SCALER,
    SCALER_PORT,
    STATE,
    TOKEN_FILE,
    Object,
    made,
    named,
)
from controlplane.render.manifests.settings import ManifestSettings
from controlplane.render.yaml_file import yaml_file

_PUBLIC, _CONTROL = 8080, 9101
_JOURNAL = "5Gi"
_STOP_SECONDS = 30
_GATEWAY_READS = frozenset({"pools", "scrape", "policy", "kubernetes", "gateway"})
"""The sections that a gateway goes by. A change of others replaces none: each waits for its last answer."""


def configuration(settings: ManifestSettings) -> Object:
    """The daemon's and the gateways' one file. Unless the settings give a mode, all of it observes."""
    return _laid_over(_generated(settings), settings.configuration)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Object:
    """Mappings are put together key by key; of anything else the one above counts."""
    both = {
        key: _laid_over(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **both}


def _generated(settings: ManifestSettings) -> Object:
    engine = {"namespace": settings.serving, "port": "http"}
    return {
        "pools": {
            pool: {
                "targets": {"kubernetes": {"selector": f"app.kubernetes.io/name=engines-{pool}", **engine}},
                "slo": {"ttft": "2.5s", "tpot": "75ms", "objective": "95%"},
                "scale": {"min": shape.least, "max": shape.most},
            }
            for pool, shape in settings.pools.items()
        },
        "kubernetes": {"namespace": settings.namespace},
        "daemon": {"journal": f"{STATE}/journal.db"},
        "api": {"listen": f"0.0.0.0:{API_PORT}", "token_file": TOKEN_FILE},
        "gateways": [
            {
                "url": f"http://{GATEWAY}-{i}.{GATEWAY}-control.{settings.namespace}.svc:{_CONTROL}",
                "token": {"file": TOKEN_FILE},
            }
            for i in range(settings.gateways)
        ],
        "gateway": {
            "listen": f"0.0.0.0:{_PUBLIC}",
            "control": {
                "listen": f"0.0.0.0:{_CONTROL}",
                "token": {"file": TOKEN_FILE},
                "state_file": f"{STATE}/gateway-control.json",
            },
            "drain": {"settle": f"{settings.settle:g}s", "deadline": f"{_deadline(settings):g}s"},
        },
    }


def _deadline(settings: ManifestSettings) -> float:
    """From the signal to the cut: every answer may end that had begun when the last request came."""
    return settings.settle + settings.longest_generation


def shared(settings: ManifestSettings) -> list[Object]:
    text = _text(configuration(settings))
    return [
        made("v1", "ConfigMap", DAEMON, settings.namespace, data={"controlplane.yaml": text}),
        *(_account(name, settings) for name in (DAEMON, GATEWAY)),
    ]


def _text(sections: Object) -> str:
    return yaml_file(
        "Every key is in docs/configuration.md. Without daemon.modes everything observes.", sections
    )


def _account(name: str, settings: ManifestSettings) -> Object:
    """Its token is mounted by the pods that name it, nowhere else."""
    return made("v1", "ServiceAccount", name, settings.namespace, automountServiceAccountToken=False)


def daemon(settings: ManifestSettings) -> list[Object]:
    namespace, labels = settings.namespace, named(DAEMON)
    container = {
        "name": "daemon",
        "image": settings.image,
        "args": ["run", CONFIG_FILE],
        "ports": [
            {"name": "api", "containerPort": API_PORT},
            {"name": "scaler", "containerPort": SCALER_PORT},
        ],
        "startupProbe": parts.probe("/healthz", "api", 2, 60),
        "livenessProbe": parts.probe("/healthz", "api", 10, 6),
        "readinessProbe": parts.probe("/readyz", "api", 5, 2),
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    }
    read = configuration(settings)
    return [
        _stateful(DAEMON, 2, container, settings, read, grace=_STOP_SECONDS, claim=_JOURNAL),
        parts.service(DAEMON, namespace, labels, {"api": API_PORT}),
        # Headless: KEDA's gRPC client tries each address, and stays with the one where the leader listens.
        parts.service(SCALER, namespace, labels, {"scaler": SCALER_PORT}, clusterIP="None"),
        parts.budget(DAEMON, namespace, labels),
        parts.ingress(
            DAEMON,
            namespace,
            labels,
            [
                parts.allowed([API_PORT], {"namespaceSelector": {}}),
                parts.allowed([SCALER_PORT], parts.from_namespace(settings.keda)),
            ],
        ),
    ]


def gateway(settings: ManifestSettings) -> list[Object]:
    namespace, labels = settings.namespace, named(GATEWAY)
    container = {
        "name": "gateway",
        "image": settings.image,
        "args": ["gateway", "-c", CONFIG_FILE],
        "ports": [{"name": "http", "containerPort": _PUBLIC}, {"name": "control", "containerPort": _CONTROL}],
        "startupProbe": parts.probe("/health", "http", 2, 30),
        "livenessProbe": parts.probe("/health", "http", 10, 6),
        "readinessProbe": parts.probe("/ready", "http", 2, 1, timeout=2),
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
    }
    grace = int(_deadline(settings)) + _STOP_SECONDS
    read = {name: part for name, part in configuration(settings).items() if name in _GATEWAY_READS}
    return [
        _stateful(GATEWAY, settings.gateways, container, settings, read, grace=grace),
        parts.service(GATEWAY, namespace, labels, {"http": _PUBLIC}),
        parts.service(
            f"{GATEWAY}-control",
            namespace,
            labels,
            {"control": _CONTROL},
            clusterIP="None",
            publishNotReadyAddresses=True,  # one that is not ready is told what to do all the same
        ),
        parts.budget(GATEWAY, namespace, labels),
        parts.ingress(
            GATEWAY,
            namespace,
            labels,
            [
                parts.allowed([_PUBLIC]),
                parts.allowed([_CONTROL], {"podSelector": {"matchLabels": named(DAEMON)}}),
            ],
        ),
    ]


def _stateful(
    name: str,
    replicas: int,
    container: Object,
    settings: ManifestSettings,
    read: Object,
    *,
    grace: int,
    claim: str = "",
) -> Object:
    """`read` is what its pods go by in the configuration."""
    labels = named(name)
    mounts = [
        {"name": "config", "mountPath": "/etc/controlplane", "readOnly": True},
        {"name": "token", "mountPath": TOKEN_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "state", "mountPath": STATE},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the pod's own
    ]
    volumes: list[Object] = [
        {"name": "config", "configMap": {"name": DAEMON}},
        {"name": "token", **parts.secret("controlplane-token")},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
    ]
    rest: dict[str, Any] = {}
    if claim:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": claim}}}
        rest["volumeClaimTemplates"] = [{"metadata": {"name": "state"}, "spec": spec}]
    else:
        volumes.append({"name": "state", "emptyDir": {"sizeLimit": "64Mi"}})
    pod = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "securityContext": parts.pod_security(),
        "terminationGracePeriodSeconds": grace,
        "topologySpreadConstraints": parts.spread(labels),
        "containers": [{**container, "securityContext": parts.locked(), "volumeMounts": mounts}],
        "volumes": volumes,
    }
    return made(
        "apps/v1",
        "StatefulSet",
        name,
        settings.namespace,
        labels=labels,
        spec={
            "serviceName": f"{name}-control" if name == GATEWAY else SCALER,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": {**labels, "app.kubernetes.io/part-of": "controlplane"},
                    "annotations": parts.checksum(_text(read)),
                },
                "spec": pod,
            },
            **rest,
        },
    )
