"""What all our objects have in common: names, labels, how containers are locked down."""

from hashlib import sha256
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

DAEMON, GATEWAY = "controlplane", "controlplane-gateway"
API_PORT, SCALER_PORT, AGENT_PORT = 9090, 9092, 9498
SCALER = f"{DAEMON}-scaler"
"""The Service that KEDA asks by gRPC, and the secret with the daemon's certificate for that name."""
TOKEN_FILE = "/run/controlplane/token/token"  # noqa: S105 - where it is
CONFIG_FILE = "/etc/controlplane/controlplane.yaml"
STATE = "/var/lib/controlplane"
USER = 65532
"""As in deploy/Containerfile."""


def made(api_version: str, kind: str, name: str, namespace: str = "", **rest: Any) -> Object:
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/part-of": "controlplane", **rest.pop("labels", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def named(name: str) -> dict[str, str]:
    """The label that selects pods of ours."""
    return {"app.kubernetes.io/name": name}


def checksum(text: str) -> dict[str, str]:
    """The annotation of a pod that makes new pods of what it reads once, at its start, and has changed."""
    return {"controlplane.llm/configuration": sha256(text.encode()).hexdigest()[:16]}


def secret(name: str) -> Object:
    """The source of a volume with the files of a secret."""
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def pod_security(user: int = USER) -> Object:
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def locked() -> Object:
    """A container that can gain nothing and writes only where a volume is."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def probe(path: str, port: str, period: int, failures: int, timeout: int = 5) -> Object:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def spread(labels: dict[str, str]) -> list[Object]:
    """Pods of one kind on different nodes, as far as there are some."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
    ]


def service(
    name: str, namespace: str, selector: dict[str, str], ports: dict[str, int], **spec: Any
) -> Object:
    listed = [{"name": port, "port": number, "targetPort": port} for port, number in ports.items()]
    # The label is what a ServiceMonitor looks for; the headless ones are not to be scraped as well.
    labels = {} if "clusterIP" in spec else named(name)
    return made(
        "v1", "Service", name, namespace, labels=labels, spec={"selector": selector, "ports": listed, **spec}
    )


def budget(name: str, namespace: str, labels: dict[str, str]) -> Object:
    """One at a time may be taken away; one that does not work may always, so that it holds up no drain."""
    return made(
        "policy/v1",
        "PodDisruptionBudget",
        name,
        namespace,
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels},
        },
    )


def from_namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def from_pods(namespace: str, labels: dict[str, str]) -> Object:
    return {**from_namespace(namespace), "podSelector": {"matchLabels": labels}}


def ingress(name: str, namespace: str, labels: dict[str, str], rules: list[Object]) -> Object:
    """Who may reach pods of ours. Nothing is said of where they may go: the API server has no label."""
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": rules}
    return made("networking.k8s.io/v1", "NetworkPolicy", name, namespace, spec=spec)


def allowed(ports: list[int | str], *who: Object) -> Object:
    """A rule of `ingress`; without `who`: everybody."""
    rule: Object = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {**rule, "from": list(who)} if who else rule
