"""Objects as the rest of a cluster would make them, for tests."""

from typing import Any

Object = dict[str, Any]

_NODE_INFO = (
    "architecture",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)


def node(
    name: str, *, ready: bool = True, labels: dict[str, str] | None = None, boot_id: str = "boot-1"
) -> Object:
    status = "True" if ready else "False"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": status, "reason": "KubeletReady"}],
            "nodeInfo": {**dict.fromkeys(_NODE_INFO, "x"), "bootID": boot_id},
            "allocatable": {"nvidia.com/gpu": "8"},
        },
    }


def pod(
    name: str,
    *,
    namespace: str = "serving",
    node: str = "node-0",
    ip: str = "10.0.0.1",
    port: int = 8000,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
    ready: bool = True,
    started: bool = True,
    owner: tuple[str, str] | None = None,
    image: str = "vllm/vllm-openai:v0.32.0",
    gates: tuple[str, ...] = (),
    grace: int = 30,
) -> Object:
    """An engine's pod. `owner` is the kind and name of its controller; `node` "" is not scheduled yet."""
    metadata: Object = {"name": name, "namespace": namespace, "labels": labels or {"app": "vllm"}}
    if annotations:
        metadata["annotations"] = annotations
    if owner:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": owner[0],
                "name": owner[1],
                "uid": f"uid-{owner[1]}",
                "controller": True,
            }
        ]
    spec: Object = {
        "terminationGracePeriodSeconds": grace,
        "containers": [
            {"name": "engine", "image": image, "ports": [{"name": "http", "containerPort": port}]}
        ],
    }
    if node:
        spec["nodeName"] = node
    if gates:
        spec["readinessGates"] = [{"conditionType": gate} for gate in gates]
    running = phase == "Running"
    states = {"ContainersReady": ready, "Ready": ready, "PodScheduled": bool(node)}
    status: Object = {
        "phase": phase,
        "conditions": [{"type": kind, "status": str(bool(holds))} for kind, holds in states.items()],
        "containerStatuses": [
            {
                "name": "engine",
                "image": image,
                "imageID": f"sha256:{image}",
                "started": running and started,
                "ready": ready,
                "restartCount": 0,
            }
        ],
    }
    if running and ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}], "startTime": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def deployment(
    name: str, replicas: int, *, namespace: str = "serving", labels: dict[str, str] | None = None
) -> Object:
    labels = labels or {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "engine", "image": "vllm"}]},
            },
        },
        "status": {"replicas": replicas, "readyReplicas": replicas},
    }


def reader(namespace: str) -> list[Object]:
    """Lets the account "controlplane" of the namespace list and watch the pods of it."""
    name, group = "reader", "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": namespace},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": "controlplane"}],
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        },
    ]


def budget(name: str, labels: dict[str, str], *, namespace: str = "serving", **spec: int | str) -> Object:
    """A PodDisruptionBudget; `spec` is minAvailable or maxUnavailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, **spec},
    }
