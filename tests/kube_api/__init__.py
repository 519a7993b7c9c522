"""A Kubernetes API server for tests: a real HTTP server with the laws that a client can trip over.

It keeps objects in memory and behaves like kube-apiserver where a controller notices: resourceVersion and
409, the four kinds of patch (no server-side apply), what may be written where (`/status`, `/scale`,
`/eviction`), RBAC from the Role objects that are in it, validation of what our product writes, watches with
bookmarks, expiry and selectors, and managedFields that name who changed what. It has no controllers, no
scheduler and no kubelet, evaluates no admission policies, converts between no versions, and knows of a
schema only what `validation` says. Tests switch faults on and play the rest of the cluster through `KubeApi`.

Behaviour follows the API concepts (https://kubernetes.io/docs/reference/using-api/api-concepts/), the API
conventions (https://github.com/kubernetes/community, devel/sig-architecture/api-conventions.md) and the
registry strategies of kube-apiserver.
"""

from kube_api.server import KubeApi

__all__ = ["KubeApi"]
