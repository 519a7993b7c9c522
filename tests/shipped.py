"""The objects under deploy/kubernetes, as they are checked in."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"


def documents(path: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / path).read_text()) if one is not None]


def paths() -> list[str]:
    return sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml"))


def objects() -> list[tuple[str, dict[str, Any]]]:
    """Every object with its path, without what is kustomize's own."""
    return [
        (path, one) for path in paths() if not path.endswith("kustomization.yaml") for one in documents(path)
    ]


def of_kind(kind: str, path: str = "") -> list[dict[str, Any]]:
    return [one for where, one in objects() if one["kind"] == kind and where.startswith(path)]


def rights(*components: str) -> list[dict[str, Any]]:
    """Roles and bindings of the base and of components, as `KubeApi.service_account` takes them."""
    files = ["base/rbac.yaml", *(f"components/{name}/rbac.yaml" for name in components)]
    return [one for path in files for one in documents(path)]
