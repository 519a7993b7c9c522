"""Which resources there are, and how their registry treats a write."""

from dataclasses import dataclass

STATUS, SCALE = frozenset({"status"}), frozenset({"status", "scale"})


@dataclass(frozen=True)
class Resource:
    """One resource type.

    `custom`: made by a CustomResourceDefinition, so there is no strategic merge patch. `unconditional`: may
    be replaced without a resourceVersion. `status_takes_labels`: a write through /status changes labels and
    annotations too, as for pods and nodes.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    custom: bool = False
    unconditional: bool = True
    status_takes_labels: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


def custom(
    group: str, version: str, plural: str, kind: str, *, subresources: frozenset[str] = STATUS
) -> Resource:
    """A resource that a CustomResourceDefinition makes."""
    return Resource(group, version, plural, kind, subresources=subresources, custom=True, unconditional=False)


RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    Resource("", "v1", "pods", "Pod", subresources=STATUS | {"eviction"}, status_takes_labels=True),
    Resource("", "v1", "nodes", "Node", namespaced=False, subresources=STATUS, status_takes_labels=True),
    Resource("", "v1", "namespaces", "Namespace", namespaced=False, subresources=STATUS),
    Resource("", "v1", "services", "Service", subresources=STATUS),
    Resource("", "v1", "endpoints", "Endpoints"),
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("", "v1", "events", "Event"),
    Resource("events.k8s.io", "v1", "events", "Event"),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Resource("apps", "v1", "deployments", "Deployment", subresources=SCALE),
    Resource("apps", "v1", "statefulsets", "StatefulSet", subresources=SCALE),
    Resource("apps", "v1", "replicasets", "ReplicaSet", subresources=SCALE),
    Resource("apps", "v1", "daemonsets", "DaemonSet", subresources=STATUS),
    Resource("batch", "v1", "jobs", "Job", subresources=STATUS),
    Resource("coordination.k8s.io", "v1", "leases", "Lease", unconditional=False),
    Resource(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        subresources=STATUS,
        unconditional=False,
    ),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", subresources=STATUS),
    Resource(RBAC, "v1", "roles", "Role"),
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    custom("networking.istio.io", "v1", "destinationrules", "DestinationRule"),
    custom("gateway.envoyproxy.io", "v1alpha1", "backendtrafficpolicies", "BackendTrafficPolicy"),
    custom("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
)
