"""All files under deploy/kubernetes, as text by path."""

from controlplane.render.manifests import admission, control, engines, keda, kueue, node_agent, parts, rbac
from controlplane.render.manifests.parts import DAEMON, SCALER, Object, made
from controlplane.render.manifests.settings import ManifestSettings
from controlplane.render.yaml_file import yaml_file

_MADE = "Written by `controlplane render manifests`: change the source or the settings, not this file."

_SETS_REPLICAS = frozenset({"scale", "keda-external", "keda-metrics-api"})
_WITHOUT_REPLICAS = {
    # Else each `kubectl apply` would set them back.
    "target": {"kind": "Deployment", "name": "engines-.*"},
    "patch": "- {op: remove, path: /spec/replicas}\n",
}

_MOUNTED = {
    # What api.external_scaler, api.autoscaling_token_file and gpus.agent_token name.
    "keda-external": SCALER,
    "keda-metrics-api": keda.TOKEN,
    "node-agent": node_agent.AGENT,
}
"""Secrets that the daemon reads, by component."""


def manifest_files(settings: ManifestSettings) -> dict[str, str]:
    """Raises engine_plan.DoesNotFitError."""
    base = {
        "namespaces": [_namespace(settings.namespace), _namespace(settings.serving)],
        "rbac": rbac.base(settings),
        "configuration": control.shared(settings),
        "daemon": control.daemon(settings),
        "gateway": control.gateway(settings),
    }
    pools = {
        "network": [engines.network(settings)],
        **{f"pool-{name}": engines.engines(settings, name, pool) for name, pool in settings.pools.items()},
    }
    texts = {
        **_kustomized(
            "base", base, "Daemon and gateway, which observe. They need a secret controlplane-token."
        ),
        **_kustomized(
            "engines",
            pools,
            f"Pools of vLLM. They need a volume claim {settings.model.volume} with the models.",
        ),
        **_kustomized(
            "kueue", {"queues": kueue.queues(settings)}, "For clusters with Kueue (0.15 or newer)."
        ),
        "kustomization.yaml": yaml_file(
            f"{_MADE}\nThe whole: kubectl apply -k deploy/kubernetes. Components are what more may happen.",
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": ["base", "engines"],
            },
        ),
    }
    for name, (found, why) in _components(settings).items():
        texts |= _kustomized(f"components/{name}", found, why, component=True)
    return texts


def _components(settings: ManifestSettings) -> dict[str, tuple[dict[str, list[Object]], str]]:
    """What may be added: its files, and what it lets happen."""
    return {
        "gpu-pods": ({"rbac": rbac.gpu_pods(settings)}, "Find dcgm-exporter's pods: gpus.dcgm_pods."),
        "node-agent": (
            {"daemonset": node_agent.agents(settings), "rbac": rbac.agent_pods(settings)},
            "Read the GPUs themselves: gpus.agent_pods, gpus.agent_token. "
            f"It needs a secret {node_agent.AGENT}.",
        ),
        "rotation": (
            {"rbac": rbac.rotation(settings), "admission": admission.pod_marks(settings)},
            "Take replicas out of their Service by the pod's label: daemon.modes.pod.",
        ),
        "readiness-gate": (
            {"rbac": rbac.readiness_gate(settings), "admission": admission.pod_conditions(settings)},
            "The same by a readiness gate, for pods that have it.",
        ),
        "eviction": ({"rbac": rbac.eviction(settings)}, "Evict pods: daemon.modes.eviction."),
        "quarantine": (
            {"rbac": rbac.quarantine(settings), "admission": admission.nodes(settings)},
            "Taint and cordon nodes with broken GPUs: daemon.modes.node.",
        ),
        "scale": (
            {
                "rbac": rbac.scale(settings),
                "admission": admission.pod_marks(settings, name="controlplane-pod-costs"),
            },
            "Set replicas directly: daemon.modes.scale. Not together with KEDA.",
        ),
        "objects": ({"rbac": rbac.objects(settings)}, "Set limits in Istio's and Envoy Gateway's objects."),
        "events": ({"rbac": rbac.events(settings)}, "Tell decisions as Events."),
        "keda-external": (
            {"scaled-objects": keda.external(settings)},
            f"KEDA (2.17 or newer) by gRPC: api.external_scaler, daemon.modes.autoscaler.\n"
            f"It needs a secret {SCALER}, and {keda.CLIENT} where the engines are.",
        ),
        "keda-metrics-api": (
            {"scaled-objects": keda.metrics_api(settings)},
            "KEDA (2.17 or newer) by HTTP: api.autoscaling_token_file, daemon.modes.autoscaler.\n"
            f"It needs a secret {keda.TOKEN}, also where the engines are. Either this or keda-external.",
        ),
    }


def _kustomized(
    folder: str, found: dict[str, list[Object]], why: str, *, component: bool = False
) -> dict[str, str]:
    head: Object = {
        "apiVersion": f"kustomize.config.k8s.io/v1{'alpha' if component else 'beta'}1",
        "kind": "Component" if component else "Kustomization",
        "resources": [f"{name}.yaml" for name in found],
    }
    name = folder.rpartition("/")[2]
    patches = [_WITHOUT_REPLICAS] if name in _SETS_REPLICAS else []
    if name in _MOUNTED:
        patches.append(_mounted(_MOUNTED[name]))
    if patches:
        head["patches"] = patches
    texts = {f"{folder}/{name}.yaml": yaml_file(_MADE, *objects) for name, objects in found.items()}
    return {f"{folder}/kustomization.yaml": yaml_file(f"{_MADE}\n{why}", head), **texts}


def _mounted(secret: str) -> Object:
    """A patch of the daemon: the files of the secret, where the configuration names them."""
    name = secret.removeprefix(f"{DAEMON}-")
    folder = f"/run/controlplane/{name}"
    added = {
        "volumes": {"name": name, **parts.secret(secret)},
        "containers/0/volumeMounts": {"name": name, "mountPath": folder, "readOnly": True},
    }
    patch = [
        {"op": "add", "path": f"/spec/template/spec/{path}/-", "value": value}
        for path, value in added.items()
    ]
    return {
        "target": {"kind": "StatefulSet", "name": DAEMON},
        "patch": yaml_file(f"The secret {secret} at {folder}.", patch),
    }


def _namespace(name: str) -> Object:
    """What is in it runs without privilege, and the API server holds it to that."""
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    return made("v1", "Namespace", name, labels=enforced)
