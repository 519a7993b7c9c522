"""The objects, and every write as the registry of kube-apiserver makes it. Knows no HTTP."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kube_api import patches, validation
from kube_api.errors import ApiError, bad_request, conflict, invalid, not_found
from kube_api.managed_fields import recorded
from kube_api.resources import Resource

Object = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for what belongs to the cluster) and name

PATCHES = {
    "application/json-patch+json": patches.json_patch,
    "application/merge-patch+json": patches.merge,
    "application/strategic-merge-patch+json": patches.strategic,
}
_MOST_CHANGES = 20_000


@dataclass(frozen=True)
class Change:
    """One change of one object; `old` is None where it was added, `new` where it was removed."""

    version: int
    resource: Resource
    old: Object | None
    new: Object | None


class Store:
    """All objects. `version` is that of the last change; the changes up to `compacted` are gone."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.version = 100
        self.compacted = 0
        self.changes: deque[Change] = deque()
        self.objects: dict[tuple[str, str], dict[Key, Object]] = {}
        self._now = now
        self._listeners: list[Callable[[Change], None]] = []

    # -- reading -----------------------------------------------------------------------------------------

    def all(self, resource: Resource) -> dict[Key, Object]:
        return self.objects.setdefault(resource.key, {})

    def get(self, resource: Resource, key: Key) -> Object:
        found = self.all(resource).get(key)
        if found is None:
            raise not_found(resource.plural, key[1])
        return found

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Be told of every change from now on, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def compact(self) -> None:
        """Forget the changes up to now, as etcd does every five minutes."""
        self.changes.clear()
        self.compacted = self.version

    # -- writing -----------------------------------------------------------------------------------------

    def create(
        self, resource: Resource, namespace: str, given: Object, manager: str, *, dry: bool = False
    ) -> Object:
        obj = self._shaped(resource, namespace, given)
        metadata = obj["metadata"]
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise invalid(
                    resource.kind, "", "metadata.name", "Required value: name or generateName is required"
                )
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        key = (namespace, metadata["name"])
        if key in self.all(resource):
            message = f'{resource.plural} "{key[1]}" already exists'
            raise ApiError(409, "AlreadyExists", message, details={"name": key[1], "kind": resource.plural})
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.timestamp()}
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
            metadata.pop(field, None)
        if "spec" in obj:
            metadata["generation"] = 1
        validation.check(resource, obj, None)
        metadata["managedFields"] = recorded(None, obj, manager, "", self.timestamp())
        return self._put(resource, key, None, obj, dry)

    def replace(
        self,
        resource: Resource,
        key: Key,
        given: Object,
        manager: str,
        *,
        subresource: str = "",
        dry: bool = False,
    ) -> Object:
        old = self.get(resource, key)
        obj = self._shaped(resource, key[0], given)
        metadata = obj["metadata"]
        if metadata.get("name") != key[1]:
            name = metadata.get("name")
            raise bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({key[1]})"
            )
        version, current = metadata.get("resourceVersion"), old["metadata"]["resourceVersion"]
        if not version and not resource.unconditional:
            why = "Invalid value: 0x0: must be specified for an update"
            raise invalid(resource.kind, key[1], "metadata.resourceVersion", why)
        if version and version != current:
            why = (
                "the object has been modified; please apply your changes to the latest version and try again"
            )
            raise conflict(resource.plural, key[1], why)
        if metadata.get("uid") and metadata["uid"] != old["metadata"]["uid"]:
            wanted, there = metadata["uid"], old["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {there}"
            raise conflict(resource.plural, key[1], why)
        obj = _merged_write(resource, old, obj, subresource)
        validation.check(resource, obj, old)
        if _content(obj) == _content(old):
            return old
        if obj.get("spec") != old.get("spec"):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        obj["metadata"]["managedFields"] = recorded(old, obj, manager, subresource, self.timestamp())
        leaving = "deletionTimestamp" in obj["metadata"] and resource.plural != "pods"
        if leaving and not obj["metadata"].get("finalizers"):
            return self._put(resource, key, old, None, dry)
        return self._put(resource, key, old, obj, dry)

    def patch(
        self,
        resource: Resource,
        key: Key,
        body: Any,
        kind: str,
        manager: str,
        *,
        subresource: str = "",
        dry: bool = False,
    ) -> Object:
        """`kind` is a content type of PATCHES."""
        if kind not in PATCHES or (resource.custom and kind.startswith("application/strategic")):
            message = f"the body of the request was in an unknown format - accepted: {', '.join(PATCHES)}"
            raise ApiError(415, "UnsupportedMediaType", message)
        old = self.get(resource, key)
        if kind != "application/json-patch+json" and not isinstance(body, dict):
            raise bad_request("error decoding patch: json: cannot unmarshal array into a map")
        patched = PATCHES[kind](old, body)
        # A patch that leaves the version alone is a write to whatever stands there now.
        return self.replace(resource, key, patched, manager, subresource=subresource, dry=dry)

    def scale(self, resource: Resource, key: Key) -> Object:
        """The Scale of a workload."""
        obj = self.get(resource, key)
        metadata = obj["metadata"]
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        labels = obj.get("spec", {}).get("selector", {}).get("matchLabels", {})
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {field: metadata[field] for field in kept},
            "spec": {"replicas": obj.get("spec", {}).get("replicas", 1)},
            "status": {"replicas": obj.get("status", {}).get("replicas", 0), "selector": selector},
        }

    def set_scale(
        self, resource: Resource, key: Key, given: Object, manager: str, *, dry: bool = False
    ) -> Object:
        """Replace the Scale of a workload: its spec.replicas."""
        obj = deepcopy(self.get(resource, key))
        validation.check_replicas("Scale", {"metadata": {"name": key[1]}, **given})
        obj["spec"]["replicas"] = given.get("spec", {}).get("replicas", 0)
        version = given.get("metadata", {}).get("resourceVersion")
        if version:
            obj["metadata"]["resourceVersion"] = version
        self.replace(resource, key, obj, manager, subresource="scale", dry=dry)
        return self.scale(resource, key)

    def delete(
        self, resource: Resource, key: Key, options: Object | None = None, *, dry: bool = False
    ) -> Object:
        """Remove an object, or begin to: a pod on a node leaves when its kubelet says so (`finish`)."""
        old, options = self.get(resource, key), options or {}
        metadata = old["metadata"]
        for field, value in (options.get("preconditions") or {}).items():
            if metadata.get(field) != value:
                there = metadata.get(field)
                why = f"Precondition failed: {field} in precondition: {value}, in object meta: {there}"
                raise conflict(resource.plural, key[1], why)
        if resource.key == ("", "pods") and old["spec"].get("nodeName"):
            grace = options.get("gracePeriodSeconds")
            grace = old["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
            if grace < 0:
                raise invalid("DeleteOptions", "", "gracePeriodSeconds", f"Invalid value: {grace}")
        else:
            grace = 0
        if grace == 0 and not metadata.get("finalizers"):
            self._put(resource, key, old, None, dry)
            return old
        earlier = metadata.get("deletionGracePeriodSeconds")
        if earlier is not None and earlier <= grace:
            return old
        obj = deepcopy(old)
        obj["metadata"]["deletionTimestamp"] = _text(self._now() + timedelta(seconds=grace))
        obj["metadata"]["deletionGracePeriodSeconds"] = grace
        return self._put(resource, key, old, obj, dry)

    def finish(self, resource: Resource, key: Key) -> None:
        """Remove an object at once, whatever stands in the way: what a kubelet or a finalizer ends with."""
        self._put(resource, key, self.get(resource, key), None, False)

    def evict(
        self, pods: Resource, budgets: Resource, key: Key, eviction: Object, *, dry: bool = False
    ) -> None:
        """Delete a pod, if the disruption budgets over it allow one more to be missing."""
        pod = self.get(pods, key)
        if eviction.get("metadata", {}).get("name") not in (None, key[1]):
            raise bad_request(f"name in URL does not match name in Eviction object: {key[1]}")
        over = [
            budget
            for (namespace, _), budget in self.all(budgets).items()
            if namespace == key[0] and _selects(budget["spec"].get("selector") or {}, pod)
        ]
        is_free = (
            pod.get("status", {}).get("phase") in ("Pending", "Succeeded", "Failed")
            or "deletionTimestamp" in pod["metadata"]
        )
        if len(over) > 1 and not is_free:
            message = "This pod has more than one PodDisruptionBudget, which is not supported."
            raise ApiError(500, "InternalError", message)
        if over and not is_free:
            budget = over[0]
            covered = [
                one
                for (namespace, _), one in self.all(pods).items()
                if namespace == key[0] and _selects(budget["spec"]["selector"], one)
            ]
            healthy = sum(_is_healthy(one) for one in covered)
            always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
            allowed = healthy - _desired(budget["spec"], len(covered))
            # An unhealthy pod may go while the budget is met: taking it away disrupts nothing.
            if not (always and not _is_healthy(pod)) and (allowed < 0 or (allowed == 0 and _is_healthy(pod))):
                cause = {
                    "reason": "DisruptionBudget",
                    "message": f"The disruption budget {budget['metadata']['name']} needs "
                    f"{_desired(budget['spec'], len(covered))} healthy pods and has {healthy} currently",
                }
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise ApiError(429, "TooManyRequests", message, details={"causes": [cause]})
        self.delete(pods, key, eviction.get("deleteOptions"), dry=dry)

    def timestamp(self) -> str:
        return _text(self._now())

    # -- inside ------------------------------------------------------------------------------------------

    def _shaped(self, resource: Resource, namespace: str, given: Any) -> Object:
        if not isinstance(given, dict) or not isinstance(given.get("metadata", {}), dict):
            raise bad_request("the object provided is unrecognized (must be of type Object)")
        obj = deepcopy(given)
        for field, right in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            if obj.setdefault(field, right) != right:
                why = f"{obj[field]} in the body does not match the expected {right}"
                raise bad_request(f"the API version or kind in the data does not match the URL: {why}")
        metadata = obj.setdefault("metadata", {})
        if resource.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        return obj

    def _put(self, resource: Resource, key: Key, old: Object | None, new: Object | None, dry: bool) -> Object:
        if dry:
            return new or old or {}
        self.version += 1
        kept = new if new is not None else {**(old or {}), "metadata": dict((old or {})["metadata"])}
        kept["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            del self.all(resource)[key]
        else:
            self.all(resource)[key] = new
        # A removed object is shown as it was, at the version of its removal.
        change = Change(self.version, resource, kept if new is None else old, new)
        self.changes.append(change)
        if len(self.changes) > _MOST_CHANGES:
            self.compacted = self.changes.popleft().version
        for listener in tuple(self._listeners):
            listener(change)
        return kept


def _merged_write(resource: Resource, old: Object, obj: Object, subresource: str) -> Object:
    """What a write may change: status only through /status, and through /status little else."""
    obj = dict(obj)
    metadata = dict(obj["metadata"])
    if subresource == "status":
        for field in set(old) | set(obj):
            if field not in ("metadata", "status"):
                obj[field] = old.get(field)
        obj = {field: value for field, value in obj.items() if value is not None}
        if not resource.status_takes_labels:
            metadata = dict(old["metadata"])
    elif "status" in resource.subresources:
        obj.pop("status", None)
        if "status" in old:
            obj["status"] = old["status"]
    for field in (
        "uid",
        "creationTimestamp",
        "generation",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
    ):
        metadata.pop(field, None)
        if field in old["metadata"]:
            metadata[field] = old["metadata"][field]
    return {**obj, "metadata": metadata}


def _content(obj: Object) -> Object:
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key != "managedFields" and value not in ({}, [])
    }
    return {**obj, "metadata": metadata}


def _selects(selector: Object, obj: Object) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return all(
        labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items()
    ) and all(_meets(expression, labels) for expression in selector.get("matchExpressions") or ())


def _meets(expression: Object, labels: dict[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _is_healthy(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions: Iterable[Object] = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _desired(spec: Object, covered: int) -> int:
    """How many pods must stay healthy. Percentages round up, for both fields."""
    if "maxUnavailable" in spec:
        return max(0, covered - _number(spec["maxUnavailable"], covered))
    return _number(spec.get("minAvailable", 1), covered)


def _number(value: int | str, covered: int) -> int:
    if isinstance(value, str):
        return -(-int(value.removesuffix("%")) * covered // 100)
    return value


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
