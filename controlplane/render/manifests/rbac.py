"""What the daemon's service account may do, by what it is to do.

    base             see pods of the serving namespace and nodes; the Lease in its own namespace
    gpu-pods         see the pods of dcgm-exporter
    node-agent       see the pods of the node agents
    rotation         the label of a pod          readiness-gate   the condition of a pod
    eviction         evict pods                  quarantine       taint and cordon nodes
    scale            set replicas                objects          limits in objects of other gateways
    events           tell decisions as Events

Where RBAC is too coarse, because it knows no fields, `admission` says which of them. Two components change
pods, and each is to open its own fields only, alone or beside the other. So each grants a right to a resource
that no server has (in the group `controlplane.llm`), and the policies ask for it.
"""

from controlplane.render.manifests.parts import DAEMON, GATEWAY, Object, made
from controlplane.render.manifests.settings import ManifestSettings

FIELDS, WRITE = "controlplane.llm", "write"
ROTATION, DELETION_COSTS = "rotation", "deletion-costs"
"""Fields of pods, as resources that rights can be given to."""

_RBAC = "rbac.authorization.k8s.io"
_LOOK = ["list", "watch"]


def rule(group: str, resource: str, verbs: list[str], *names: str) -> Object:
    found: Object = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    return {**found, "resourceNames": list(names)} if names else found


def role(
    name: str, namespace: str, settings: ManifestSettings, *rules: Object, account: str = DAEMON
) -> list[Object]:
    """A Role and its binding, or a ClusterRole where there is no namespace."""
    kind = "Role" if namespace else "ClusterRole"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": settings.namespace}
    return [
        made(f"{_RBAC}/v1", kind, name, namespace, rules=list(rules)),
        made(
            f"{_RBAC}/v1",
            f"{kind}Binding",
            name,
            namespace,
            roleRef={"apiGroup": _RBAC, "kind": kind, "name": name},
            subjects=[subject],
        ),
    ]


def base(settings: ManifestSettings) -> list[Object]:
    leases = "coordination.k8s.io"
    return [
        *role("controlplane-pods", settings.serving, settings, rule("", "pods", _LOOK)),
        *role("controlplane-nodes", "", settings, rule("", "nodes", _LOOK)),
        *role(
            "controlplane-lease",
            settings.namespace,
            settings,
            rule(leases, "leases", ["get", "patch"], "controlplane"),
            rule(leases, "leases", ["create"]),  # RBAC cannot name what is not there yet
        ),
        # A gateway that nobody steers finds the replicas itself.
        *role(GATEWAY, settings.serving, settings, rule("", "pods", _LOOK), account=GATEWAY),
    ]


def gpu_pods(settings: ManifestSettings) -> list[Object]:
    return role("controlplane-gpu-pods", settings.gpu_operator, settings, rule("", "pods", _LOOK))


def agent_pods(settings: ManifestSettings) -> list[Object]:
    return role("controlplane-agent-pods", settings.namespace, settings, rule("", "pods", _LOOK))


def rotation(settings: ManifestSettings) -> list[Object]:
    return role(
        "controlplane-rotation",
        settings.serving,
        settings,
        rule("", "pods", ["get", "patch"]),
        rule(FIELDS, ROTATION, [WRITE]),
    )


def readiness_gate(settings: ManifestSettings) -> list[Object]:
    return role(
        "controlplane-readiness-gate",
        settings.serving,
        settings,
        rule("", "pods", ["get"]),
        rule("", "pods/status", ["patch"]),
    )


def eviction(settings: ManifestSettings) -> list[Object]:
    return role("controlplane-eviction", settings.serving, settings, rule("", "pods/eviction", ["create"]))


def quarantine(settings: ManifestSettings) -> list[Object]:
    return role("controlplane-quarantine", "", settings, rule("", "nodes", ["get", "patch"]))


def scale(settings: ManifestSettings) -> list[Object]:
    engines = [f"engines-{pool}" for pool in settings.pools]
    return role(
        "controlplane-scale",
        settings.serving,
        settings,
        rule("apps", "deployments", ["get"], *engines),
        rule("apps", "deployments/scale", ["patch"], *engines),
        rule("autoscaling", "horizontalpodautoscalers", ["list"]),
        rule("", "pods", ["get", "patch"]),  # which of them costs least to end
        rule(FIELDS, DELETION_COSTS, [WRITE]),
    )


def objects(settings: ManifestSettings) -> list[Object]:
    return role(
        "controlplane-objects",
        settings.serving,
        settings,
        rule("networking.istio.io", "destinationrules", ["get", "patch"]),
        rule("gateway.envoyproxy.io", "backendtrafficpolicies", ["get", "patch"]),
    )


def events(settings: ManifestSettings) -> list[Object]:
    """In the namespaces of what is decided on; Events of nodes are in `default`."""
    may = rule("events.k8s.io", "events", ["create"])
    return [
        one
        for namespace in (settings.serving, settings.namespace, "default")
        for one in role("controlplane-events", namespace, settings, may)
    ]
