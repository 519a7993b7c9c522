"""From the series of a page to a plan for reading it: whose page is it, and where is what?

The rules, each from a trap met in the field:

- Several engines on one page are told apart by the table's engine label; a page without it has one engine,
  "0". Series without the label belong to the server around the engines where there are several.
- Parallel ranks of one engine repeat each other's series: of the labels named `*_rank` the lowest counts.
- Processes behind one page (label `pid`) repeat gauges: the highest counts. Counters of processes add up.
- Whatever else splits a metric (models, streaming, cache tiers, ...) adds up, or is combined as its row says.
- Of two spellings of one name, and of a series that is there twice, the first counts.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from controlplane.signals.reading import Reason
from controlplane.sources.catalog import CORE_SIGNALS, INFERENCE_PATHS, Catalog, Role, Use
from controlplane.sources.dialects import SERVER, Dialect, Row, dialect
from controlplane.sources.exposition import Layout
from controlplane.sources.plan import (
    ABSURD,
    Adapters,
    Distribution,
    Number,
    Part,
    Plan,
    Scope,
    Split,
    Step,
    combine,
)
from controlplane.sources.version import VersionRange, version_range

MOST_ENGINES = 1024
"""Data-parallel engines that are read from one page; nobody runs as many."""

MOST_MODELS = 64
"""Models of one page that are named: an engine and its adapters."""

MOST_PARTS = 64
"""Parts into which one signal is split; further label values are put together as "other"."""

LONGEST_LABEL = 1024
"""Characters of a label value that are kept."""


class Found(NamedTuple):
    """One series of the page under one meaning: `at` is its place in the layout."""

    role: Role
    labels: dict[str, str]
    at: int


class Stranger(NamedTuple):
    """A page without a series of a known engine; `detail` says what is known of it all the same."""

    detail: str


def some(count: int, counted: bool) -> str:
    """How many, or only that there are some: a warning that is told once must not name a changing number."""
    return str(count) if counted else "some"


def compile_plan(catalog: Catalog, layout: Layout, *, counted: bool = False) -> Plan | Stranger:
    """Find the engine that prints this page, and where each of its signals is.

    Warnings have numbers in them only where they are `counted`.
    """
    return _Compiler(catalog, layout, counted).plan()


class _Compiler:
    """Works out the plan of one layout; used once."""

    def __init__(self, catalog: Catalog, layout: Layout, counted: bool) -> None:
        self.catalog = catalog
        self.counted = counted
        self.warnings: list[str] = []
        self.loose: dict[str, None] = {}
        self.found: dict[str, dict[Row, list[Found]]] = defaultdict(lambda: defaultdict(list))
        self.copies: dict[str, int] = defaultdict(int)
        self._find(layout)
        candidates = [engine for engine in self.found if engine != SERVER]
        self.table = dialect(max(candidates, key=self._series_of)) if candidates else dialect(SERVER)
        self.rows = {**self.found[self.table.engine], **self.found[SERVER]}
        self.engine_ids = self._engine_ids()

    def plan(self) -> Plan | Stranger:
        if self.table.engine == SERVER:
            return Stranger("; ".join(f"it has a copy of engine figures by {who}" for who in self.copies))
        own = [found for series in self.found[self.table.engine].values() for found in series]
        label = self.table.complete_with_label
        versions = version_range(
            self.table,
            {row.name for row in self.found[self.table.engine]},
            whole=not label or any(label in found.labels for found in own),
        )
        builders = {scope: _ScopeBuilder(self.table) for scope in (*self.engine_ids, SERVER)}
        for signal in dict.fromkeys(row.signal for row in self._all_rows()):
            self._place(signal, builders)
        self._capacity(builders)
        shared = builders[SERVER].signals
        for engine in self.engine_ids:
            builders[engine].missing(signal for signal in CORE_SIGNALS if signal not in shared)
        placed = {signal for builder in builders.values() for signal in builder.signals}
        models = tuple(dict.fromkeys(m for f in own if (m := f.labels.get(self.table.model_label))))
        self._warn(versions, placed, len(models))
        self.warnings += [text for builder in builders.values() for text in builder.warnings]
        return Plan(
            dialect=self.table,
            version=str(versions),
            models=models[:MOST_MODELS],
            engines={engine: builders[engine].scope() for engine in self.engine_ids},
            server=builders[SERVER].scope(),
            loose=tuple(self.loose),
            warnings=tuple(dict.fromkeys(self.warnings)),
        )

    def _warn(self, versions: VersionRange, placed: set[str], models: int) -> None:
        """Say what is odd about the page as a whole."""
        for engine in sorted(self.found.keys() - {SERVER, self.table.engine}):
            count, title = some(self._series_of(engine), self.counted), dialect(engine).title
            self.warnings.append(f"{count} series of {title} on a page of {self.table.title} are left out")
        for who, copies in self.copies.items():
            count = some(copies, self.counted)
            self.warnings.append(f"{count} series are copies by {who} and are left out")
        if models > MOST_MODELS:
            self.warnings.append(f"over {MOST_MODELS} models on one page: only {MOST_MODELS} are named")
        if not versions.possible:
            self.warnings.append(f"the names on the page belong to no single version of {self.table.title}")
        # Gauges may be missing as long as an engine has had nothing to do: then all of them are.
        names = [
            row.name for row in self.table.metrics if row.signal == "kv_usage" and versions.may_have(row)
        ]
        if names and "kv_usage" not in placed and placed & {"running", "waiting"}:
            self.warnings.append(f"kv_usage is unknown: the page has no {' and no '.join(names)}")
        if "lora_info" in placed and len(self.engine_ids) > 1:
            self.warnings.append("lora_info cannot be trusted with several data-parallel engines")

    def _find(self, layout: Layout) -> None:
        """Sort the series by engine and row; say which are there twice."""
        seen: set[tuple[int, Role, tuple[tuple[str, str], ...]]] = set()
        twice = 0
        too_long = False
        for at, series in enumerate(layout.series):
            labels = dict(series.labels)
            for label, value in labels.items():
                if len(value) > LONGEST_LABEL:
                    labels[label] = value[:LONGEST_LABEL]
                    too_long = True
            for use in self.catalog.uses.get(series.name, ()):
                if not self._genuine(use, labels):
                    continue
                identity = (id(use.row), use.role, series.labels)
                if identity in seen:
                    twice += 1
                    continue
                seen.add(identity)
                self.found[use.dialect.engine][use.row].append(Found(use.role, labels, at))
        if twice:
            self.warnings.append(
                f"{some(twice, self.counted)} series are on the page twice: the first counts"
            )
        if too_long:
            self.warnings.append(f"label values over {LONGEST_LABEL} characters were cut")

    def _genuine(self, use: Use, labels: dict[str, str]) -> bool:
        """False for a bare name that could be anyone's, and for the engine's figures told by another."""
        table = use.dialect
        if use.bare and not all(label in labels for label in table.bare_needs_labels):
            return False
        copied = table.copied_by
        if copied and copied.label in labels and table.model_label not in labels:
            self.copies[copied.who] += 1
            return False
        return True

    def _series_of(self, engine: str) -> int:
        return sum(len(found) for found in self.found[engine].values())

    def _engine_ids(self) -> list[str]:
        label = self.table.engine_label
        ids = {found.labels.get(label, "") for rows in self.rows.values() for found in rows} - {""}
        in_order = sorted(ids, key=lambda text: (not text.isdigit(), len(text), text))
        if len(in_order) > MOST_ENGINES:
            self.warnings.append(f"over {MOST_ENGINES} engines on one page: only {MOST_ENGINES} are read")
        return in_order[:MOST_ENGINES] or ["0"]

    def _all_rows(self) -> Iterable[Row]:
        return (*self.table.metrics, *dialect(SERVER).metrics, *self.catalog.extra)

    def _place(self, signal: str, builders: dict[str, "_ScopeBuilder"]) -> None:
        """Give a signal to the engines or the server, from the first of its rows that the page has."""
        for row in self._all_rows():
            if row.signal != signal or row not in self.rows:
                continue
            usable = [found for found in self.rows[row] if _usable(row, found)]
            if not usable and row.kind == "counter" and self._could_count(row):
                builders[SERVER].facts[signal] = 0.0
                return
            if not usable:
                continue
            by_scope: dict[str, list[Found]] = defaultdict(list)
            for found in usable:
                by_scope[self._scope(row, found.labels)].append(found)
            for scope in by_scope.keys() & builders.keys():
                builders[scope].add(row, by_scope[scope])
            if row.observed == "sooner":
                self.loose[signal] = None
            return

    def _could_count(self, row: Row) -> bool:
        """Whether the page proves that a counter without a series stands at 0."""
        seen = any(found.role == "value" for found in self.rows[row])
        witnessed = any(found.role == "witness" for found in self.rows[row])
        return bool(row.zero_with and witnessed) or bool((row.where or row.path_label) and seen)

    def _scope(self, row: Row, labels: dict[str, str]) -> str:
        if row.scope == "server":
            return SERVER
        alone = self.engine_ids[0] if len(self.engine_ids) == 1 else SERVER
        return labels.get(self.table.engine_label) or alone

    def _capacity(self, builders: dict[str, "_ScopeBuilder"]) -> None:
        """Blocks times their size where the capacity itself is not printed.

        Where the highest of several engines counts, each of them prints the blocks of all together.
        """
        rule = self.table.rule("kv_blocks")
        engines = len(self.engine_ids) if rule is not None and rule.over == "max" else 1
        for engine in self.engine_ids:
            facts, signals = builders[engine].facts, builders[engine].signals
            if facts.keys() >= {"kv_blocks", "kv_block_size"} and "kv_capacity_tokens" not in signals:
                facts["kv_capacity_tokens"] = facts["kv_blocks"] * facts["kv_block_size"] / engines
                self.warnings.append("kv_capacity_tokens is blocks x block size: too high for hybrid models")


class _ScopeBuilder:
    """Collects what one engine, or the server, has on the page."""

    def __init__(self, table: Dialect) -> None:
        self.table = table
        self.facts: dict[str, float] = {}
        self.unknown: dict[str, Reason] = {}
        self.steps: list[Step] = []
        self.warnings: list[str] = []
        self._signals: set[str] = set()

    @property
    def signals(self) -> set[str]:
        return self._signals | self.facts.keys()

    def add(self, row: Row, series: list[Found]) -> None:
        """Read `row`'s signal from these series."""
        self._signals.add(row.signal)
        series = self._without_repetitions(series)
        if row.kind == "fact":
            self.facts[row.signal] = combine(row.over, [float(found.labels[row.label]) for found in series])
        elif row.kind == "adapters":
            states = tuple((found.at, _adapters(found.labels)) for found in series)
            self.steps.append(Adapters(row.signal, states))
        elif any(found.role == "value" for found in series):
            self._number(row, series)
        else:
            self._distribution(row, series)

    def missing(self, core: Iterable[str]) -> None:
        """Say of each core signal that has no place on the page why it is unknown."""
        for signal in core:
            if signal not in self.signals:
                has = self.table.rule(signal) is not None
                self.unknown.setdefault(signal, Reason.ABSENT if has else Reason.UNSUPPORTED)

    def scope(self) -> Scope:
        return Scope.of(self.steps, self.facts, self.unknown)

    def _without_repetitions(self, series: list[Found]) -> list[Found]:
        """Only the lowest rank, and only the totals of gauges that are also split."""
        label = self.table.total_where_empty
        totals = [found for found in series if not found.labels.get(label)] if label else []
        series = totals or series
        own = self.table.engine_label
        ranks = sorted({r for f in series for r in f.labels if r.endswith("_rank") and r != own})
        if not ranks:
            return series
        placed = [(tuple(_rank(found.labels.get(name, "")) for name in ranks), found) for found in series]
        lowest = min(rank for rank, _ in placed)
        return [found for rank, found in placed if rank == lowest]

    def _number(self, row: Row, series: list[Found]) -> None:
        series = [found for found in series if found.role == "value"]
        if not any(row.by in found.labels for found in series):
            self.steps.append(_one_number(row, series))
            return
        parts: dict[str, list[Found]] = defaultdict(list)
        for found in series:
            value = found.labels.get(row.by, "")
            part_name = _status_class(value) if row.by_class else value
            if part_name not in parts and len(parts) >= MOST_PARTS:
                part_name = "other"
                self.warnings.append(f"{row.name} has over {MOST_PARTS} values of {row.by}: more are other")
            parts[part_name].append(found)
        numbers = tuple((value, _one_number(row, part)) for value, part in parts.items())
        self.steps.append(Split(row.signal, numbers, not row.value_of))

    def _distribution(self, row: Row, series: list[Found]) -> None:
        """One histogram for each set of labels; they are merged when they are read."""
        groups: dict[tuple[tuple[str, str], ...], list[Found]] = defaultdict(list)
        for found in series:
            key = tuple(item for item in found.labels.items() if item[0] != "le")
            groups[key].append(found)
        parts = [part for group in groups.values() if (part := _one_part(row, group))]
        if len(parts) < len(groups):
            self.warnings.append(f"{row.name} is no histogram: a bound is no number, or the end is missing")
        if len(parts) == len(groups):
            self.steps.append(Distribution(row.signal, tuple(parts)))
        else:
            self.unknown[row.signal] = Reason.NOT_A_NUMBER


def _usable(row: Row, found: Found) -> bool:
    """Whether a series takes part in its row's signal."""
    if found.role == "witness":
        return False
    if any(found.labels.get(label) not in allowed for label, allowed in row.where.items()):
        return False
    if row.path_label and found.labels.get(row.path_label, "").rstrip("/") not in INFERENCE_PATHS:
        return False
    return row.kind != "fact" or _countable(found.labels.get(row.label, ""))


def _one_number(row: Row, series: list[Found]) -> Number:
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for found in series:
        # Counters of several processes add up; a gauge is the same figure seen by each of them.
        repeats = row.kind != "counter"
        key = tuple(item for item in found.labels.items() if not (repeats and item[0] == "pid"))
        groups[key].append(found.at)
    places = tuple(tuple(group) for group in groups.values())
    return Number(row.signal, row.over, row.scale, row.disabled, places, row.least, row.most)


def _one_part(row: Row, series: list[Found]) -> Part | None:
    """None if a bound is no number, or neither +Inf nor a count is there."""
    places: dict[float, int] = {}
    for found in series:
        if found.role == "bucket":
            bound = _bound(found.labels.get("le", ""))
            if bound is None:
                return None
            places.setdefault(bound * row.scale, found.at)
    for found in series:
        if found.role == "count":
            places.setdefault(math.inf, found.at)
    if math.inf not in places:
        return None
    bounds = tuple(sorted(places))
    totals = tuple(found.at for found in series if found.role == "sum")
    return Part(bounds, tuple(places[bound] for bound in bounds), totals, row.scale)


def _adapters(labels: dict[str, str]) -> dict[str, float]:
    """1 for each adapter that runs, 0 for each that only waits."""
    waiting = dict.fromkeys(_names(labels.get("waiting_lora_adapters", "")), 0.0)
    return waiting | dict.fromkeys(_names(labels.get("running_lora_adapters", "")), 1.0)


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _rank(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def _status_class(status: str) -> str:
    return f"{status[0]}xx" if len(status) == 3 and status.isdecimal() else status


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound == math.inf or abs(bound) <= ABSURD else None


def _countable(text: str) -> bool:
    bound = _bound(text)
    return bound is not None and 0 <= bound < math.inf
