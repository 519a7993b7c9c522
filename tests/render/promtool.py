"""promtool's unit tests of rules, and what they print."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from controlplane.render import alerts, rule_files
from controlplane.render.rule import Alert, Group, Recording
from controlplane.render.settings import RenderSettings
from controlplane.render.yaml_file import yaml_file

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: scripts/system-packages installs Prometheus"
)
SETTINGS = RenderSettings()
ORDER = ("recordings", "alerts")
_NAME = re.compile(r"\bllm:[a-z0-9_:]+")


@cache
def _recordings() -> dict[str, tuple[Recording, ...]]:
    found: dict[str, tuple[Recording, ...]] = {}
    for rule in rule_files.recordings(SETTINGS):
        found[rule.name] = (*found.get(rule.name, ()), rule)
    return found


@cache
def alert(name: str) -> Alert:
    return next(one for one in alerts.all_alerts(SETTINGS) if one.name == name)


def needed(expr: str) -> tuple[Recording, ...]:
    """The recording rules that an expression rests on, in an order in which each comes after its own."""
    found: dict[str, None] = {}

    def visit(text: str) -> None:
        for name in _NAME.findall(text):
            if name not in found:
                for rule in _recordings()[name]:
                    visit(rule.expr)
                found[name] = None

    visit(expr)
    return tuple(rule for name in found for rule in _recordings()[name])


def rules_for(name: str) -> str:
    """A rule file with one alert and what it needs: what it does not need would only take time."""
    one = alert(name)
    groups = (Group("recordings", needed(one.expr)), Group("alerts", (one,)))
    return yaml_file("", {"groups": [rule_files._group(group, SETTINGS) for group in groups]})


def run(
    folder: Path, rules: dict[str, str], tests: dict[str, Any], order: Sequence[str] = ORDER
) -> subprocess.CompletedProcess[str]:
    for name, text in rules.items():
        (folder / name).write_text(text)
    (folder / "tests.json").write_text(
        json.dumps({"rule_files": list(rules), "group_eval_order": order, **tests})
    )  # JSON is YAML
    return subprocess.run(
        ["promtool", "test", "rules", "tests.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
