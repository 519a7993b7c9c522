"""The three kinds of patch that the server takes, each as a pure function of an object and a patch."""

from copy import deepcopy
from typing import Any

from kube_api.errors import ApiError, bad_request

# Lists that a strategic merge patch merges, and by which key; every other list is replaced whole, among them
# a node's spec.taints and a pod's tolerations and readinessGates.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "addresses": "type",
    "ownerReferences": "uid",
    "topologySpreadConstraints": "topologyKey",
}
_CONTAINERS = {"containers", "initContainers", "ephemeralContainers"}
_MERGED_PRIMITIVES = {"finalizers", "podCIDRs"}


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386): maps merge, null deletes, everything else replaces."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def json_patch(target: Any, patch: Any) -> Any:
    """JSON patch (RFC 6902). What does not fit the object is 422, as kube-apiserver has it."""
    if not isinstance(patch, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    document = deepcopy(target)
    for operation in patch:
        document = _operate(document, operation)
    return document


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    kind, path = operation.get("op"), _pointer(operation.get("path", ""))
    if kind in ("move", "copy"):
        value = _at(document, _pointer(operation["from"]))
        if kind == "move":
            document = _remove(document, _pointer(operation["from"]))
        return _add(document, path, deepcopy(value))
    if kind == "test":
        if _at(document, path) != operation.get("value"):
            raise _unprocessable(f"testing path {operation['path']} failed")
        return document
    if kind == "remove":
        return _remove(document, path)
    if kind == "replace":
        _at(document, path)
        return (
            _add(_remove(document, path), path, deepcopy(operation.get("value")))
            if path
            else operation["value"]
        )
    if kind == "add":
        return _add(document, path, deepcopy(operation.get("value")))
    raise _unprocessable(f"unexpected kind: {kind}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise _unprocessable(f"path {text!r} does not begin with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _at(document: Any, path: list[str]) -> Any:
    for part in path:
        try:
            document = document[int(part)] if isinstance(document, list) else document[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _unprocessable(f"there is nothing at /{'/'.join(path)}") from None
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent, last = _at(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        index = len(parent) if last == "-" else int(last)
        if not 0 <= index <= len(parent):
            raise _unprocessable(f"index {last} is out of bounds")
        parent.insert(index, value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _unprocessable(f"/{'/'.join(path[:-1])} holds neither a map nor a list")
    return document


def _remove(document: Any, path: list[str]) -> Any:
    _at(document, path)
    parent = _at(document, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return document


def _unprocessable(message: str) -> ApiError:
    return ApiError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {message}"
    )


def strategic(target: Any, patch: Any, field: str = "", parent: str = "") -> Any:
    """Strategic merge patch: as `merge`, but some lists merge by a key, and $patch says otherwise."""
    if isinstance(patch, dict):
        return _strategic_map(target if isinstance(target, dict) else {}, patch, parent)
    if isinstance(patch, list):
        key = _merge_key(field, parent)
        if key is not None:
            return _strategic_list(target or [], patch, key, field)
        if field in _MERGED_PRIMITIVES:
            return list(dict.fromkeys([*(target or []), *patch]))
    return deepcopy(patch)


def _merge_key(field: str, parent: str) -> str | None:
    if field == "ports":
        return "containerPort" if parent in _CONTAINERS else "port"
    return _MERGE_KEYS.get(field)


def _strategic_map(target: dict[str, Any], patch: dict[str, Any], parent: str) -> dict[str, Any] | None:
    patch = dict(patch)
    match patch.pop("$patch", "merge"):
        case "replace":
            return patch
        case "delete":
            return None
        case "merge":
            pass
        case other:
            raise bad_request(f"unknown patch type {other!r}")
    merged = dict(target)
    kept = patch.pop("$retainKeys", None)
    if kept is not None:
        merged = {key: value for key, value in merged.items() if key in kept}
    for key, value in patch.items():
        name = key.partition("/")[2]
        if key.startswith("$setElementOrder/"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            merged[name] = [one for one in merged.get(name, []) if one not in value]
        elif value is None:
            merged.pop(key, None)
        else:
            new = strategic(merged.get(key), value, key, parent)
            if new is None:
                merged.pop(key, None)
            else:
                merged[key] = new
    return merged


def _strategic_list(target: list[Any], patch: list[Any], key: str, field: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    merged = [dict(item) for item in target]
    for item in patch:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, one in enumerate(merged) if one.get(key) == item[key]), None)
        new = _strategic_map(merged[at] if at is not None else {}, item, field)
        if at is None:
            merged += [] if new is None else [new]
        elif new is None:
            del merged[at]
        else:
            merged[at] = new
    return merged
