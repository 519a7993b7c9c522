#!/usr/bin/env python3
"""Writes docs/configuration.md: every key of the configuration file, from the models that read it.

.venv/bin/python scripts/configuration_reference.py
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from controlplane.config import NOT_IN_POLICY, SECTIONS
from controlplane.signals.units import duration_text, seconds
from controlplane.sources.secrets import Secret

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """# Configuration

One YAML file; `controlplane check FILE` says in words what it would do, or what is wrong with it. Durations
are like `250ms`, `2s`, `5m`, `1h30m`, `7d`, shares like `95%` or `0.95`, sizes like `64MiB`. Relative paths
start at the file. A secret is never in the file: it is `{file: PATH}` or `{env: NAME}`, read when it is used.

`NAME` stands for a name of your own, `[]` for each item of a list.
(`scripts/configuration_reference.py` writes this page.)
"""


class Row(NamedTuple):
    key: str
    default: str
    meaning: str


def page() -> str:
    """The whole page."""
    told: set[type[BaseModel]] = set()
    return "\n".join([HEAD, *(_section(name, kind, told) for name, kind in SECTIONS.items())])


def _section(name: str, kind: Any, told: set[type[BaseModel]]) -> str:
    notes: list[str] = []
    rows = list(_rows(name, kind, notes, told))
    table = [f"| `{row.key}` | {row.default} | {row.meaning} |" for row in rows]
    return "\n".join(
        [f"## {name}\n", *notes, "| key | default | meaning |", "| --- | --- | --- |", *table, ""]
    )


def _rows(key: str, kind: Any, notes: list[str], told: set[type[BaseModel]]) -> Iterator[Row]:
    """The keys under `key`, depth first; what models say of themselves goes to `notes`, once."""
    suffix, models = _models(kind)
    for model in models:
        if model.__doc__ and model not in told:
            told.add(model)
            notes.append(f"`{key}{suffix}`: {inspect.cleandoc(model.__doc__)}\n")
        for name, field in model.model_fields.items():
            inner = f"{key}{suffix}.{name}"
            if key == "policy" and name in NOT_IN_POLICY:
                continue
            if Secret in (field.annotation, *get_args(field.annotation)):
                yield Row(inner, "", field.description or "a secret")
            elif _models(field.annotation)[1]:
                yield from _rows(inner, field.annotation, notes, told)
            else:
                yield Row(inner, _default(field), (field.description or "").replace("|", r"\|"))


def _models(kind: Any) -> tuple[str, list[type[BaseModel]]]:
    """The models that can stand there, and how a key leads to them: `.NAME` in a mapping, `[]` in a list."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "", [kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin is dict:
        suffix, models = _models(inside[1])
        return f".NAME{suffix}", models
    found = [_models(part) for part in inside]
    suffix = "[]" if origin in (tuple, list) else ""
    return suffix + "".join(deeper for deeper, _ in found), [model for _, models in found for model in models]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    if field.default_factory is not None or field.default in (None, (), {}):
        return ""  # what a factory makes may be another on each machine
    value = field.default
    if any(getattr(each, "func", None) is seconds for each in field.metadata):
        return f"`{duration_text(value)}`"
    if isinstance(value, ByteSize):
        return f"`{value.human_readable()}`"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
