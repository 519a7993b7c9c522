"""Runs that were made before are not made again, as long as neither the scenario nor the code has changed.

The code of a run is every module of ours that it imports, without its comments and docstrings; of the laws,
the one that it runs (and, where it is steered by the daemon, nothing of the others). So a change to one law
leaves the runs of all others, and with them the oracle, as they are.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

import controlplane
from benchmarks.control.figures import Figures, Job, run
from controlplane.policy.limits.laws import AnyLaw
from controlplane.policy.limits.slo_gradient import SloGradient
from controlplane.policy.limits.windowed import Windowed

_ROOT = Path(controlplane.__file__).parents[1]
_RUN = "benchmarks.control.figures"
_LAWS = "controlplane.policy.limits."
_ALL_LAWS, _ONE_LAW = f"{_LAWS}laws", f"{_LAWS}law"  # the one names them all, the other is their interface


class Key(NamedTuple):
    """A run: what is run, and the code that runs it."""

    job: str
    code: str


class Runs:
    """Makes runs on all cores and keeps them in a file, one a line. Safe to use from several threads.

    With `trust` the kept runs of all laws but the default one stand, whatever has changed in the code since.
    """

    def __init__(self, path: Path, processes: int | None = None, *, trust: bool = False) -> None:
        self.processes = processes or os.cpu_count() or 1
        self.made = 0
        self._trust = trust
        self._known: dict[Key, Figures] = {}
        self._newest: dict[str, Key] = {}  # by job
        for key, figures in _lines(path):
            self._note(key, figures)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._lock = Lock()
        self._under_way: dict[Key, Future[Figures]] = {}
        # A fresh interpreter inherits no threads; a run makes no cycles to collect.
        spawn = get_context("spawn")
        self._pool = ProcessPoolExecutor(self.processes, mp_context=spawn)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()

    def has(self, job: Job) -> bool:
        """Whether the run is kept."""
        return self._key(job) in self._known

    def results(self, jobs: Sequence[Job]) -> list[Figures]:
        """Of all of them, in their order."""
        keys = [self._key(job) for job in jobs]
        with self._lock:
            for key, job in zip(keys, jobs, strict=True):
                if key not in self._known and key not in self._under_way:
                    self._under_way[key] = self._pool.submit(run, job)
            waiting = [(key, job, self._under_way.get(key)) for key, job in zip(keys, jobs, strict=True)]
        for key, job, future in waiting:
            if future is not None:
                self._keep(key, _result(future, job))
        return [self._known[key] for key in keys]

    def _key(self, job: Job) -> Key:
        law = job.scenario.policy.law
        what = f"{job.scenario.model_dump_json(by_alias=True)} {job.harm} {job.series}"
        key = Key(hashlib.sha256(what.encode()).hexdigest()[:20], code_of(law)[:20])
        if self._trust and not isinstance(law, SloGradient):
            return self._newest.get(key.job, key)
        return key

    def _keep(self, key: Key, figures: Figures) -> None:
        with self._lock:
            if self._under_way.pop(key, None) is None:
                return  # another thread waited for it too
            self._note(key, figures)
            self.made += 1
            line = {**key._asdict(), "figures": msgspec.to_builtins(figures)}
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()

    def _note(self, key: Key, figures: Figures) -> None:
        self._known[key] = figures
        self._newest[key.job] = key


def _result(future: Future[Figures], job: Job) -> Figures:
    try:
        return future.result()
    except Exception as error:
        scenario = job.scenario
        error.add_note(f"in {scenario.title!r}, seed {scenario.seed}, {scenario.policy.law!r}")
        raise


def _lines(path: Path) -> Iterator[tuple[Key, Figures]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
                yield Key(row["job"], row["code"]), msgspec.convert(row["figures"], Figures)
            except (ValueError, KeyError, TypeError):
                continue  # half a line of a run that was killed, or one of an older form


def code_of(law: AnyLaw) -> str:
    """A digest of the code that runs where this law does."""
    laws = [type(law).__module__]
    if isinstance(law, Windowed):
        laws.append(type(law.inner).__module__)
    return _digest(tuple(laws))


@cache
def _digest(laws: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for module in sorted(_reached(laws)):
        digest.update(f"{module}\n{_code(module)}".encode())
    for table in sorted((_ROOT / "controlplane" / "simulator").rglob("*.toml")):
        digest.update(table.read_bytes())
    return digest.hexdigest()


def _reached(laws: Sequence[str]) -> set[str]:
    """Our modules that a run imports, directly or not; of laws only those given."""
    others = {name for name in _imports(_ALL_LAWS) if name.startswith(_LAWS)} - {_ONE_LAW, *laws}
    found: set[str] = set()
    todo = [_RUN, *laws]
    while todo:
        module = todo.pop()
        if module not in found and module not in others and _file(module) is not None:
            found.add(module)
            todo += _imports(module)
    return found


@cache
def _imports(module: str) -> frozenset[str]:
    """What a module of ours imports: modules, and names that may be modules. All our imports are absolute."""
    found: set[str] = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{name.name}" for name in node.names)
    return frozenset(found)


@cache
def _code(module: str) -> str:
    tree = _tree(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _tree(module: str) -> ast.Module:
    file = _file(module)
    assert file is not None
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _file(module: str) -> Path | None:
    """Where a module of ours lies; None of what is none."""
    if module.partition(".")[0] not in ("controlplane", "benchmarks"):
        return None
    place = _ROOT.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()), None)
