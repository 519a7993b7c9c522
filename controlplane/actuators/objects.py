"""Where objects of a cluster are: from apiVersion, kind, namespace and name to the path of the API server."""

import re
from urllib.parse import quote

_VOWELS = "aeiou"


def path(api_version: str, kind: str, namespace: str, name: str) -> str:
    """The path of one object of a namespace. `api_version` is like "apps/v1" or "v1"."""
    return f"{collection(api_version, kind, namespace)}/{quote(name, safe='')}"


def pod(key: str) -> str:
    """The path of the pod "namespace/name"."""
    namespace, _, name = key.partition("/")
    return path("v1", "Pod", namespace, name)


def collection(api_version: str, kind: str, namespace: str) -> str:
    """The path of all objects of a kind in a namespace."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/namespaces/{quote(namespace, safe='')}/{plural(kind)}"


def plural(kind: str) -> str:
    """The name of a resource as it stands in paths, from its kind: as English, which CRDs keep to as well."""
    name = kind.lower()
    if name.endswith("y") and name[-2:-1] not in _VOWELS:
        return f"{name[:-1]}ies"
    return f"{name}es" if re.search(r"(s|x|z|ch|sh)$", name) else f"{name}s"
