"""metadata.managedFields: who last changed which field. Lists count as one field."""

from typing import Any

_OTHERS_OF_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")

Path = tuple[str, ...]


def leaves(obj: dict[str, Any]) -> dict[Path, Any]:
    """Every field that somebody can own, by its path."""
    metadata = {key: obj["metadata"][key] for key in _OTHERS_OF_METADATA if key in obj["metadata"]}
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind", "metadata")}
    found: dict[Path, Any] = {}
    _collect({"metadata": metadata, **rest}, (), found)
    return found


def _collect(value: Any, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            _collect(item, (*path, key), found)
    elif path:
        found[path] = value


def recorded(
    old: dict[str, Any] | None, new: dict[str, Any], manager: str, subresource: str, time: str
) -> list[dict[str, Any]]:
    """The managedFields of `new`, which `manager` made out of `old`."""
    before, after = leaves(old) if old else {}, leaves(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    entries = {}
    for entry in (old or {}).get("metadata", {}).get("managedFields", ()):
        entries[entry["manager"], entry.get("subresource", "")] = (_paths(entry["fieldsV1"]), entry["time"])
    ours = entries.get((manager, subresource), (set(), time))[0]
    entries = {who: (paths - changed, at) for who, (paths, at) in entries.items()}
    if changed:
        entries[manager, subresource] = (ours | changed, time)
    return [
        {
            "manager": who,
            "operation": "Update",
            "apiVersion": new["apiVersion"],
            "time": at,
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths & after.keys()),
            **({"subresource": sub} if sub else {}),
        }
        for (who, sub), (paths, at) in entries.items()
        if paths & after.keys()
    ]


def _fields(paths: set[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        at = tree
        for part in path:
            at = at.setdefault(f"f:{part}", {})
    return tree


def _paths(tree: dict[str, Any], above: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for key, below in tree.items():
        path = (*above, key[2:])
        found |= _paths(below, path) if below else {path}
    return found
