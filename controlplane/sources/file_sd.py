"""Targets from Prometheus-style discovery files.

A file is a JSON or YAML list of groups, `{targets: [host:port, ...], labels: {name: value}}`; see
https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config. Files are read
at each look (they are small, and a change that keeps time and size is seen too) and parsed when their
bytes changed.
"""

import glob
from pathlib import Path
from typing import TypeAlias

import msgspec
import yaml

from controlplane.sources.last_good import Found, Trouble
from controlplane.sources.urls import engine_url, shown

LIMIT_BYTES = 8 * 1024 * 1024
"""Largest discovery file that is read: 10,000 targets are 1 MB."""

Answer: TypeAlias = tuple[Found, ...] | Trouble


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class DiscoveryFiles:
    """The files of one pool. Blocking: look from a worker thread, one look at a time."""

    def __init__(self, patterns: tuple[str, ...], scheme: str, path: str) -> None:
        self._patterns = patterns
        self._scheme = scheme
        self._path = path
        self._read: dict[str, tuple[bytes, Answer]] = {}
        self._matched: set[str] = set()

    def look(self) -> dict[str, Answer]:
        """What each file that is there says now, by its path."""
        answers: dict[str, Answer] = {}
        for pattern in self._patterns:
            paths = sorted(glob.glob(pattern))
            if paths:
                self._matched.add(pattern)
            for path in paths:
                answers[path] = self._answer(path)
        for path in self._read.keys() - answers.keys():
            del self._read[path]
        return answers

    @property
    def never_matched(self) -> tuple[str, ...]:
        """Patterns that no file has matched at any look."""
        return tuple(pattern for pattern in self._patterns if pattern not in self._matched)

    def _answer(self, path: str) -> Answer:
        try:
            with Path(path).open("rb") as file:
                body = file.read(LIMIT_BYTES + 1)
        except OSError as error:
            return Trouble(f"cannot be read ({(error.strerror or str(error)).lower()})")
        before = self._read.get(path)
        if before is None or before[0] != body:
            before = body, self._parse(path, body)
            self._read[path] = before
        return before[1]

    def _parse(self, path: str, body: bytes) -> Answer:
        if len(body) > LIMIT_BYTES:
            return Trouble(f"is over {LIMIT_BYTES} bytes")
        try:
            groups = _groups(path, body)
            found = [
                Found(
                    engine_url(
                        _address(target),
                        group.labels.get("__scheme__", self._scheme),
                        group.labels.get("__metrics_path__", self._path),
                    ),
                    group.labels.get("pool", ""),
                )
                for group in groups
                for target in group.targets
            ]
        except ValueError as error:
            return Trouble(f"is broken or half written ({error})")
        return tuple(dict.fromkeys(found))


def _groups(path: str, body: bytes) -> list[_Group]:
    """The groups of a file; ValueError with a one-line sentence where it holds something else."""
    try:
        if path.endswith(".json"):
            return msgspec.json.decode(body, type=list[_Group])
        # Every scalar stays text, as for Prometheus: a label `shard: 1` is "1", `on` is "on".
        content = yaml.load(body, yaml.CBaseLoader)  # noqa: S506 (it makes nothing but text, lists and maps)
        return msgspec.convert(content, type=list[_Group])
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ValueError(f"line {line}: {error.problem}") from None
    except (msgspec.DecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _address(target: str) -> str:
    if "/" in target:
        raise ValueError(f"target {shown(target)[:100]!r} is not host:port")
    return target
