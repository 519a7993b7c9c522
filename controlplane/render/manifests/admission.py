"""Which fields the daemon may change, where RBAC knows whole objects only: ValidatingAdmissionPolicy (1.30).

    nodes         its own taint, its own annotation, unschedulable
    pods          its own label and annotation, where it may flip them; the deletion cost, where it may scale
    pods/status   its own condition

Each rule compares what is not ours before and after. Nobody else is bound by it.
"""

from controlplane.render.manifests import rbac
from controlplane.render.manifests.parts import DAEMON, Object, made
from controlplane.render.manifests.settings import ManifestSettings
from controlplane.signals import marks, serving
from controlplane.signals.pod import DELETION_COST

_GROUP = "admissionregistration.k8s.io/v1"


def nodes(settings: ManifestSettings) -> list[Object]:
    key = marks.TAINT_KEY
    return _policy(
        "controlplane-nodes",
        "nodes",
        settings,
        _map_but("metadata.labels", []),
        _map_but("metadata.annotations", [marks.ANNOTATION]),
        *_metadata(),
        _list_but("spec", "taints", "key", key),
        (
            f"!has(object.spec.taints) || object.spec.taints.all(t, t.key != '{key}' || "
            f"t.effect == '{marks.TAINT_EFFECT}')",
            f"the taint {key} has the effect {marks.TAINT_EFFECT}",
        ),
        *(
            _same("spec", field)
            for field in ("podCIDR", "podCIDRs", "providerID", "configSource", "externalID")
        ),
    )


def pod_marks(settings: ManifestSettings, *, name: str = "controlplane-pods") -> list[Object]:
    return _policy(
        name,
        "pods",
        settings,
        _map_but("metadata.labels", [serving.LABEL]),
        (
            f"!has(object.metadata.labels) || !('{serving.LABEL}' in object.metadata.labels) || "
            f"object.metadata.labels['{serving.LABEL}'] in ['true', 'false']",
            f"the label {serving.LABEL} is true or false",
        ),
        _map_but("metadata.annotations", [serving.ANNOTATION, DELETION_COST]),
        _with_right("labels", serving.LABEL, rbac.ROTATION),
        _with_right("annotations", serving.ANNOTATION, rbac.ROTATION),
        _with_right("annotations", DELETION_COST, rbac.DELETION_COSTS),
        *_metadata(),
        ("object.spec == oldObject.spec", "spec is not the daemon's to change"),
    )


def pod_conditions(settings: ManifestSettings) -> list[Object]:
    return _policy(
        "controlplane-pod-conditions",
        "pods/status",
        settings,
        # The server takes other labels, annotations and finalizers too that come with a change of the status.
        _map_but("metadata.labels", []),
        _map_but("metadata.annotations", []),
        *_metadata(),
        _list_but("status", "conditions", "type", serving.GATE),
        _map_but("status", ["conditions"]),
    )


def _policy(name: str, resource: str, settings: ManifestSettings, *rules: tuple[str, str]) -> list[Object]:
    user = f"system:serviceaccount:{settings.namespace}:{DAEMON}"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}
            ]
        },
        "matchConditions": [{"name": "the-daemon", "expression": f"request.userInfo.username == '{user}'"}],
        "validations": [{"expression": expression, "message": message} for expression, message in rules],
    }
    return [
        made(_GROUP, "ValidatingAdmissionPolicy", name, spec=spec),
        made(
            _GROUP,
            "ValidatingAdmissionPolicyBinding",
            name,
            spec={"policyName": name, "validationActions": ["Deny"]},
        ),
    ]


def _metadata() -> tuple[tuple[str, str], ...]:
    return _same("metadata", "finalizers"), _same("metadata", "ownerReferences")


def _same(part: str, field: str) -> tuple[str, str]:
    new, old = f"object.{part}.{field}", f"oldObject.{part}.{field}"
    return (
        f"has({new}) == has({old}) && (!has({new}) || {new} == {old})",
        f"{part}.{field} is not the daemon's to change",
    )


def _map_but(path: str, ours: list[str]) -> tuple[str, str]:
    """All of a map but our keys is as it was: what is there was there, and what was there is."""
    new, old = f"object.{path}", f"oldObject.{path}"
    keys = f"k in {_list(ours)} || " if ours else ""
    there = f"!has({new}) || {new}.all(k, {keys}(has({old}) && k in {old} && {old}[k] == {new}[k]))"
    was = f"!has({old}) || {old}.all(k, {keys}(has({new}) && k in {new}))"
    but = f" but {', '.join(ours)}" if ours else ""
    return f"({there}) && ({was})", f"{path}{but} are not the daemon's to change"


def _with_right(field: str, key: str, resource: str) -> tuple[str, str]:
    """One of our keys is as it was, or the account has the right to `resource`: one component grants it."""

    def value(which: str) -> str:
        whole = f"{which}.metadata.{field}"
        return f"(has({whole}) && '{key}' in {whole} ? [{whole}['{key}']] : [])"

    right = (
        f"authorizer.group('{rbac.FIELDS}').resource('{resource}').namespace(object.metadata.namespace)"
        f".check('{rbac.WRITE}').allowed()"
    )
    return (
        f"{value('object')} == {value('oldObject')} || {right}",
        f"metadata.{field} {key} needs the right to {rbac.WRITE} {resource}.{rbac.FIELDS}",
    )


def _list_but(part: str, field: str, key: str, ours: str) -> tuple[str, str]:
    """All of a list but the item with our key is as it was, in the same order."""

    def others(which: str) -> str:
        whole = f"{which}.{part}.{field}"
        return f"(has({whole}) ? {whole}.filter(i, i.{key} != '{ours}') : [])"

    return (
        f"{others('object')} == {others('oldObject')}",
        f"{part}.{field} but {ours} are not the daemon's to change",
    )


def _list(texts: list[str]) -> str:
    return f"[{', '.join(repr(text) for text in texts)}]"
