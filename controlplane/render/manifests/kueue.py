"""Kueue: GPUs of all pools in one cohort, each with what it may lend to the others and take back.

A lending limit is of a ClusterQueue, so each pool has one, with the LocalQueue that its Deployment names.
No pod is admitted that asks for what its queue does not cover, so processors and memory go with the GPUs.
"""

from controlplane.render.manifests.engine_plan import CPUS, MEMORY_GIB
from controlplane.render.manifests.parts import Object, made
from controlplane.render.manifests.settings import ManifestSettings, Pool

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""On the Deployment, and a label: as an annotation it is ignored."""

_GROUP = "kueue.x-k8s.io/v1beta2"
_FLAVOR = "serving-gpu"


def queues(settings: ManifestSettings) -> list[Object]:
    labels = {"nvidia.com/gpu.product": settings.gpu.product}
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    return [
        made(_GROUP, "ResourceFlavor", _FLAVOR, spec={"nodeLabels": labels, "tolerations": [toleration]}),
        *(_cluster_queue(settings, name, pool) for name, pool in settings.pools.items()),
        *(
            made(_GROUP, "LocalQueue", name, settings.serving, spec={"clusterQueue": f"serving-{name}"})
            for name in settings.pools
        ),
    ]


def _cluster_queue(settings: ManifestSettings, name: str, pool: Pool) -> Object:
    replica = {"cpu": (CPUS, ""), "memory": (MEMORY_GIB, "Gi"), "nvidia.com/gpu": (settings.gpu.count, "")}
    quotas = [
        {
            "name": resource,
            "nominalQuota": f"{pool.most * count}{unit}",
            "lendingLimit": f"{pool.lend * count}{unit}",
        }
        for resource, (count, unit) in replica.items()
    ]
    spec = {
        "cohortName": "serving",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.serving}},
        "resourceGroups": [
            {"coveredResources": list(replica), "flavors": [{"name": _FLAVOR, "resources": quotas}]}
        ],
        # What was lent comes back when it is needed; within a pool nobody is thrown out for another.
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "Never"},
    }
    return made(_GROUP, "ClusterQueue", f"serving-{name}", spec=spec)
