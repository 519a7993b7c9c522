"""From the series of a page to signals: worked out once per layout, applied to every page of it.

The rules, each from a trap met in the field:

- Several engines on one page are told apart by the table's engine label; a page without it has one engine,
  "0". Series without the label belong to the server around the engines where there are several.
- Parallel ranks of one engine repeat each other's series: of the labels named `*_rank` the lowest counts.
- Processes behind one page (label `pid`) repeat gauges: the highest counts. Counters of processes add up.
- Whatever else splits a metric (models, streaming, cache tiers, ...) adds up, or is combined as its row says.
- Of two spellings of one name, and of a series that is there twice, the first counts.
- A value that is NaN or infinite makes its signal unknown, never part of a sum. A histogram can do without
  its sum: only the mean is unknown then.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from controlplane.signals.histogram import Histogram, merge
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Signals
from controlplane.sources.catalog import CORE_SIGNALS, INFERENCE_PATHS, Catalog, Part, Use
from controlplane.sources.dialects import SERVER, Combine, Dialect, Row, dialect
from controlplane.sources.exposition import Layout, Series
from controlplane.sources.version import version_range

Values = Sequence[float]


class Found(NamedTuple):
    """One series of the page under one meaning: `at` is its place in the layout."""

    part: Part
    labels: dict[str, str]
    at: int


class Number(NamedTuple):
    """A signal from several series, or from one that needs scaling.

    `groups` are combined by `over`; within a group stand repetitions, of which the highest counts.
    """

    signal: str
    over: Combine
    scale: float
    disabled: float | None
    groups: tuple[tuple[int, ...], ...]

    def value(self, values: Values) -> float:
        return combine(self.over, [max(values[i] for i in group) for group in self.groups]) * self.scale


class Split(NamedTuple):
    """A signal split by a label; `total` says whether its parts have a sum that means something."""

    signal: str
    parts: tuple[tuple[str, Number], ...]
    total: bool


class Distribution(NamedTuple):
    """One of the histograms that make up a signal; without buckets it is a sum and a count only."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: tuple[int, ...]
    scale: float

    def histogram(self, values: Values) -> Histogram:
        """Counts made cumulative: the engine may observe between the printing of two buckets."""
        counts = tuple(accumulate([values[i] for i in self.counts], max))
        total = math.fsum(values[i] for i in self.total) * self.scale
        return Histogram(self.bounds, counts, total if self.total and math.isfinite(total) else None)


class Adapters(NamedTuple):
    """LoRA adapters: of many series the one with the highest value (a time) holds."""

    signal: str
    states: tuple[tuple[int, dict[str, float]], ...]


class Scope(NamedTuple):
    """What to read for one engine, or for the server around the engines."""

    plain_signals: tuple[str, ...]
    plain_values: Callable[[Values], tuple[float, ...]]
    plain_places: tuple[int, ...]
    numbers: tuple[Number, ...]
    splits: tuple[Split, ...]
    distributions: tuple[tuple[str, tuple[Distribution, ...]], ...]
    adapters: tuple[Adapters, ...]
    facts: dict[str, float]
    unknown: dict[str, Reason]

    def signals(self, values: Values, bad: frozenset[int]) -> Signals:
        """The signals of one page; `bad` are the places of the values that are NaN or infinite."""
        numbers = dict(zip(self.plain_signals, self.plain_values(values), strict=True)) | self.facts
        by: dict[str, dict[str, float]] = {}
        unknown = dict(self.unknown)
        for number in self.numbers:
            _read_number(number, values, bad, numbers, unknown)
        for split in self.splits:
            parts: dict[str, float] = {}
            lost: dict[str, Reason] = {}
            for value, number in split.parts:
                _read_number(number, values, bad, parts, lost, key=value)
            by[split.signal] = parts
            if lost:
                unknown[split.signal] = next(iter(lost.values()))
            elif split.total:
                numbers[split.signal] = math.fsum(parts.values())
        for adapters in self.adapters:
            _, newest = max(adapters.states, key=lambda state: values[state[0]])
            by[adapters.signal] = newest
            numbers[adapters.signal] = math.fsum(newest.values())
        histograms: dict[str, Histogram] = {}
        for signal, distributions in self.distributions:
            reason = _reason(values, bad, (i for part in distributions for i in part.counts))
            if reason:
                unknown[signal] = reason
            elif whole := merge([part.histogram(values) for part in distributions]):
                histograms[signal] = whole
        if bad:
            for signal, place in zip(self.plain_signals, self.plain_places, strict=True):
                if reason := _reason(values, bad, (place,)):
                    del numbers[signal]
                    unknown[signal] = reason
        return Signals(numbers, by, histograms, unknown)


class Plan(NamedTuple):
    """How to read every page of one layout."""

    dialect: Dialect
    version: str
    models: tuple[str, ...]
    engines: dict[str, Scope]
    server: Scope
    warnings: tuple[str, ...]


class Stranger(NamedTuple):
    """A page without a series of a known engine; `detail` says what is known of it all the same."""

    detail: str


def combine(over: Combine, values: Sequence[float]) -> float:
    """Several figures of one signal as one."""
    if over == "sum":
        return math.fsum(values)
    if over == "mean":
        return math.fsum(values) / len(values)
    return max(values) if over == "max" else min(values)


def compile_plan(catalog: Catalog, layout: Layout) -> Plan | Stranger:
    """Find the engine that prints this page, and where each of its signals is."""
    return _Compiler(catalog, layout).plan()
