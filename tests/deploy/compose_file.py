"""deploy/compose.yaml as a test reads it: what is mounted where, and what each service runs."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "compose.yaml"
OURS, THEIRS = ("token", "engines", "gateway", "daemon", "clients"), ("prometheus", "alertmanager", "grafana")


@cache
def compose() -> dict[str, Any]:
    """The file, with the anchors merged."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def mounts(service: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Source, path inside, and `ro` or `rw`, of each volume."""
    parts = [volume.split(":") for volume in service.get("volumes", ())]
    return [(source, inside, rest[0] if rest else "rw") for source, inside, *rest in parts]


def is_file_mount(source: str) -> bool:
    return source.startswith(".")


def on_this_machine(source: str) -> Path:
    """What a bind mount's source is."""
    return (FILE.parent / source).resolve()
