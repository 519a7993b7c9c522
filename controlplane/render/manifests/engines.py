"""Pools of vLLM, each a Deployment with a Service that a replica is taken out of by a label.

How a replica goes (vLLM refuses new requests from SIGTERM on, with its probes still well):

    it is taken out: the gateway, the Service   preStop waits `settle` for that
    SIGTERM                                     --shutdown-timeout lets answers end; 0, the default, cuts
    SIGKILL                                     terminationGracePeriodSeconds: longer than both
"""

from math import ceil

from controlplane.render.manifests import parts
from controlplane.render.manifests.engine_plan import CPUS, MEMORY_GIB, arguments
from controlplane.render.manifests.kueue import QUEUE_LABEL
from controlplane.render.manifests.parts import DAEMON, GATEWAY, Object, made, named
from controlplane.render.manifests.settings import ManifestSettings, Pool
from controlplane.signals import serving

POOL_LABEL = "controlplane.llm/pool"
_PORT = 8000
_USER = 2000
_AFTER_SECONDS = 30  # for what the engine does after the last answer
_LOADING_SECONDS = 1800  # a large model from a cold disk


def engines(settings: ManifestSettings, name: str, pool: Pool) -> list[Object]:
    labels = named(f"engines-{name}")
    return [
        _deployment(settings, name, pool, labels),
        parts.service(
            f"engines-{name}", settings.serving, {**labels, serving.LABEL: "true"}, {"http": _PORT}
        ),
        parts.budget(f"engines-{name}", settings.serving, labels),
    ]


def network(settings: ManifestSettings) -> Object:
    """Nobody gets past the gateway, but for those who are named."""
    return parts.ingress(
        "engines",
        settings.serving,
        {"app.kubernetes.io/component": "engine"},
        [
            parts.allowed(
                [_PORT],
                parts.from_pods(settings.namespace, named(GATEWAY)),
                parts.from_pods(settings.namespace, named(DAEMON)),
                *map(parts.from_namespace, (settings.monitoring, *settings.engine_clients)),
            )
        ],
    )


def drain_seconds(settings: ManifestSettings) -> int:
    return ceil(settings.longest_generation)


def grace_seconds(settings: ManifestSettings) -> int:
    return ceil(settings.settle) + drain_seconds(settings) + _AFTER_SECONDS


def _deployment(settings: ManifestSettings, name: str, pool: Pool, labels: dict[str, str]) -> Object:
    # The selector must not name the label that is flipped: the pod would have no owner any more.
    marked = {
        **labels,
        "app.kubernetes.io/part-of": "controlplane",
        "app.kubernetes.io/component": "engine",
        POOL_LABEL: name,
        serving.LABEL: "true",
    }
    return made(
        "apps/v1",
        "Deployment",
        f"engines-{name}",
        settings.serving,
        labels={**labels, QUEUE_LABEL: name},
        spec={
            "replicas": pool.replicas,
            "progressDeadlineSeconds": _LOADING_SECONDS + 600,
            # There may be no free GPU for one more.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": marked}, "spec": _pod(settings, pool, labels)},
        },
    )


def _pod(settings: ManifestSettings, pool: Pool, labels: dict[str, str]) -> Object:
    return {
        "automountServiceAccountToken": False,
        "securityContext": parts.pod_security(_USER),
        "terminationGracePeriodSeconds": grace_seconds(settings),
        "nodeSelector": {"nvidia.com/gpu.product": settings.gpu.product},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": parts.spread(labels),
        "containers": [_container(settings, pool)],
        # Weights are on a volume: an image with them would be pulled anew with every version of the engine.
        # How a claim that many nodes can mount is made differs between clusters, so it is not made here.
        "volumes": [
            {
                "name": "models",
                "persistentVolumeClaim": {"claimName": settings.model.volume, "readOnly": True},
            },
            {"name": "cache", "emptyDir": {"sizeLimit": "20Gi"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
        ],
    }


def _container(settings: ManifestSettings, pool: Pool) -> Object:
    derived, gpus = arguments(settings, pool), str(settings.gpu.count)
    return {
        "name": "engine",
        "image": settings.engine_image,
        "command": ["vllm", "serve", f"/models/{settings.model.folder}"],
        "args": [
            f"--served-model-name={settings.model.name}",
            f"--port={_PORT}",
            f"--tensor-parallel-size={settings.gpu.count}",
            f"--max-model-len={derived.max_model_len}",
            f"--gpu-memory-utilization={derived.gpu_memory_utilization:g}",
            f"--max-num-seqs={derived.max_num_seqs}",
            f"--shutdown-timeout={drain_seconds(settings)}",
        ],
        "env": [
            {"name": name, "value": value}
            for name, value in {
                "HF_HUB_OFFLINE": "1",
                "HOME": "/cache",
                "USER": "vllm",  # torch asks for it on import, and not every image has an entry for the user
                "VLLM_CACHE_ROOT": "/cache/vllm",
                "TRITON_CACHE_DIR": "/cache/triton",
                "VLLM_NO_USAGE_STATS": "1",
            }.items()
        ],
        "ports": [{"name": "http", "containerPort": _PORT}],
        # Loading takes minutes and is nobody's fault; only afterwards silence is one. An engine under load
        # answers late: readiness is quick to doubt, liveness is not.
        "startupProbe": parts.probe("/health", "http", 10, _LOADING_SECONDS // 10),
        "livenessProbe": parts.probe("/health", "http", 20, 6, timeout=10),
        "readinessProbe": parts.probe("/health", "http", 5, 3),
        "lifecycle": {"preStop": {"sleep": {"seconds": ceil(settings.settle)}}},
        "resources": {
            "requests": {"cpu": str(CPUS), "memory": f"{MEMORY_GIB}Gi", "nvidia.com/gpu": gpus},
            "limits": {"memory": f"{2 * MEMORY_GIB}Gi", "nvidia.com/gpu": gpus},
        },
        "securityContext": parts.locked(),
        "volumeMounts": [
            {"name": "models", "mountPath": "/models", "readOnly": True},
            {"name": "cache", "mountPath": "/cache"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a volume of the pod's own
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
