"""What the server refuses of an object's content: the rules that what we write can break."""

import re
from collections import Counter
from copy import deepcopy
from typing import Any

from kube_api.errors import ApiError, bad_request, invalid
from kube_api.resources import Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
# metav1.MicroTime is read by the layout 2006-01-02T15:04:05.000000Z07:00: six digits and a zone, no less.
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_ANNOTATION_BYTES = 256 * 1024
_EFFECTS = {"NoSchedule", "PreferNoSchedule", "NoExecute"}
_MUTABLE_POD_SPEC = (
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "tolerations",
    "schedulingGates",
)


def check(resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    """Raises ApiError where `obj` cannot be stored in place of `old`."""
    _check_metadata(resource, obj)
    looks = {
        ("coordination.k8s.io", "leases"): _check_lease,
        ("", "nodes"): _check_node,
        ("", "pods"): _check_pod,
        ("", "events"): _check_event,
        ("events.k8s.io", "events"): _check_new_event,
    }
    _check_conditions(obj)
    if "scale" in resource.subresources:
        check_replicas(resource.kind, obj)
    look = looks.get(resource.key)
    if look is not None:
        look(obj, old)


def check_replicas(kind: str, obj: dict[str, Any]) -> None:
    replicas = obj.get("spec", {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request(f"{kind}.spec.replicas: cannot unmarshal {replicas!r} into Go value of type int32")
    if replicas < 0:
        why = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid(kind, obj["metadata"]["name"], "spec.replicas", why)


def _check_metadata(resource: Resource, obj: dict[str, Any]) -> None:
    metadata, kind = obj["metadata"], resource.kind
    name = metadata["name"]
    rbac_name = resource.group == "rbac.authorization.k8s.io" and "/" not in name  # these may hold colons
    if not rbac_name and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
        raise invalid(kind, name, "metadata.name", f'Invalid value: "{name}": not an RFC 1123 subdomain')
    for key, value in (metadata.get("labels") or {}).items():
        _check_text(value, f"metadata.labels[{key}]")
        if not _QUALIFIED.fullmatch(key):
            raise invalid(kind, name, "metadata.labels", f'Invalid value: "{key}": not a qualified name')
        if not _LABEL_VALUE.fullmatch(value):
            raise invalid(kind, name, "metadata.labels", f'Invalid value: "{value}": not a valid label value')
    annotations = metadata.get("annotations") or {}
    for key, value in annotations.items():
        _check_text(value, f"metadata.annotations[{key}]")
        if not _QUALIFIED.fullmatch(key):
            raise invalid(kind, name, "metadata.annotations", f'Invalid value: "{key}": not a qualified name')
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATION_BYTES:
        raise invalid(
            kind, name, "metadata.annotations", f"Too long: must have at most {_ANNOTATION_BYTES} bytes"
        )


def _check_text(value: Any, field: str) -> None:
    if not isinstance(value, str):
        raise bad_request(f"{field}: cannot unmarshal {type(value).__name__} into Go value of type string")


def _check_conditions(obj: dict[str, Any]) -> None:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        for field in ("lastTransitionTime", "lastProbeTime", "lastHeartbeatTime"):
            _check_time(condition.get(field), _TIME, "2006-01-02T15:04:05Z07:00")
        if condition.get("status") not in ("True", "False", "Unknown"):
            why = f'Unsupported value: "{condition.get("status")}"'
            raise invalid(obj["kind"], obj["metadata"]["name"], "status.conditions[].status", why)


def _check_time(value: Any, shape: re.Pattern[str], layout: str) -> None:
    if value is not None and not (isinstance(value, str) and shape.fullmatch(value)):
        raise bad_request(f'parsing time "{value}" as "{layout}": cannot parse')


def _check_micro_time(value: Any) -> None:
    _check_time(value, _MICRO_TIME, "2006-01-02T15:04:05.000000Z07:00")


def _check_lease(obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    spec, name = obj.get("spec") or {}, obj["metadata"]["name"]
    for field in ("acquireTime", "renewTime"):
        _check_micro_time(spec.get(field))
    for field, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        value = spec.get(field)
        if value is not None and not isinstance(value, int):
            raise bad_request(f"Lease.spec.{field}: cannot unmarshal {value!r} into Go value of type int32")
        if value is not None and value < least:
            word = "greater than 0" if least else "greater than or equal to 0"
            raise invalid("Lease", name, f"spec.{field}", f"Invalid value: {value}: must be {word}")


def _check_node(obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    taints, name = obj.get("spec", {}).get("taints") or [], obj["metadata"]["name"]
    for taint in taints:
        if not _QUALIFIED.fullmatch(taint.get("key", "")):
            raise invalid("Node", name, "spec.taints[].key", f'Invalid value: "{taint.get("key")}"')
        if not _LABEL_VALUE.fullmatch(taint.get("value", "")):
            raise invalid("Node", name, "spec.taints[].value", f'Invalid value: "{taint["value"]}"')
        if taint.get("effect") not in _EFFECTS:
            raise invalid("Node", name, "spec.taints[].effect", f'Unsupported value: "{taint.get("effect")}"')
        _check_time(taint.get("timeAdded"), _TIME, "2006-01-02T15:04:05Z07:00")
    twice = [key for key, count in Counter((t["key"], t["effect"]) for t in taints).items() if count > 1]
    if twice:
        raise invalid(
            "Node",
            name,
            "spec.taints",
            f"Duplicate value: {twice[0]}: taints must be unique by key and effect",
        )


def _check_pod(obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    if old is None:
        return
    if _fixed(obj.get("spec", {})) != _fixed(old.get("spec", {})):
        why = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,..."
        raise invalid("Pod", obj["metadata"]["name"], "spec", why)


def _fixed(spec: dict[str, Any]) -> dict[str, Any]:
    fixed = {key: deepcopy(value) for key, value in spec.items() if key not in _MUTABLE_POD_SPEC}
    for container in (*fixed.get("containers", ()), *fixed.get("initContainers", ())):
        container.pop("image", None)
    return fixed


def _check_event(obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    involved, metadata = obj.get("involvedObject") or {}, obj["metadata"]
    expected = involved.get("namespace") or "default"
    if metadata.get("namespace") != expected:
        why = f'Invalid value: "{involved.get("namespace", "")}": does not match event.namespace'
        raise invalid("Event", metadata["name"], "involvedObject.namespace", why)
    _check_micro_time(obj.get("eventTime"))
    for field in ("firstTimestamp", "lastTimestamp"):
        _check_time(obj.get(field), _TIME, "2006-01-02T15:04:05Z07:00")
    if obj.get("eventTime") is not None:  # written by the rules of events.k8s.io
        _check_event_words(obj, obj.get("reportingComponent"), obj.get("message", ""))


def _check_new_event(obj: dict[str, Any], old: dict[str, Any] | None) -> None:
    name = obj["metadata"]["name"]
    _check_micro_time(obj.get("eventTime"))
    if obj.get("eventTime") is None:
        raise invalid("Event", name, "eventTime", "Required value")
    expected = (obj.get("regarding") or {}).get("namespace") or "default"
    if obj["metadata"].get("namespace") != expected:
        raise invalid("Event", name, "regarding.namespace", "does not match event.namespace")
    _check_event_words(obj, obj.get("reportingController"), obj.get("note", ""))


def _check_event_words(obj: dict[str, Any], controller: str | None, note: str) -> None:
    name = obj["metadata"]["name"]
    if not controller or not _QUALIFIED.fullmatch(controller):
        raise invalid("Event", name, "reportingController", "Required value, a qualified name")
    for field in ("reportingInstance", "action", "reason"):
        value = obj.get(field) or ""
        if not 0 < len(value) <= 128:
            raise invalid("Event", name, field, f"must have 1 to 128 characters (has {len(value)})")
    if len(note) > 1024:
        raise invalid("Event", name, "note", "can have at most 1024 characters")
    if obj.get("type") not in ("Normal", "Warning"):
        raise invalid("Event", name, "type", f'has invalid value: "{obj.get("type")}"')


def refuse_apply() -> ApiError:
    return ApiError(415, "UnsupportedMediaType", "this server does not take server-side apply")
