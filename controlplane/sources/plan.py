"""How to read the pages of one layout: where each value is. Worked out once in `compiler.py`.

A value that is NaN, infinite or absurd makes its signal unknown and is never part of a sum; so does one that
cannot be (a count below 0, a ratio over 1, buckets that fall). A histogram can do without its sum: only the
mean is unknown then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from controlplane.signals.histogram import Histogram, merge
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Signals
from controlplane.sources.dialects import MOST_COUNTED, Combine, Dialect

Values: TypeAlias = Sequence[float]

ABSURD = 1e150
"""Nothing that is measured is larger, and sums and products of anything smaller stay finite."""


class Read(NamedTuple):
    """The values of one page, `bad` being the places of those that are no measurements, and what they say."""

    values: Values
    bad: frozenset[int]
    signals: Signals

    def trouble(self, places: Iterable[int]) -> Reason | None:
        """Why the values at these places make their signal unknown; None if they do not."""
        if not self.bad:
            return None
        first = next((self.values[i] for i in places if i in self.bad), None)
        if first is None:
            return None
        return Reason.NOT_A_NUMBER if math.isnan(first) else Reason.NOT_FINITE


class Number(NamedTuple):
    """A signal from one or several series.

    `groups` are combined by `over`; within a group stand repetitions, of which the highest counts. Printed
    values lie from `least` to `most`, but for `disabled`.
    """

    signal: str
    over: Combine
    scale: float
    disabled: float | None
    groups: tuple[tuple[int, ...], ...]
    least: float = 0.0
    most: float = MOST_COUNTED

    @property
    def is_plain(self) -> bool:
        """Whether the signal is one value as printed, a count like most."""
        is_count = (self.scale, self.disabled, self.least, self.most) == (1, None, 0, MOST_COUNTED)
        return is_count and len(self.groups) == len(self.groups[0]) == 1

    def value(self, read: Read) -> float | Reason:
        """The figure, or why there is none."""
        reason = read.trouble(i for group in self.groups for i in group)
        if reason:
            return reason
        value = combine(self.over, [max(read.values[i] for i in group) for group in self.groups])
        if value == self.disabled:
            return Reason.UNAVAILABLE
        if not all(self.least <= read.values[i] <= self.most for group in self.groups for i in group):
            return Reason.IMPOSSIBLE
        return value * self.scale

    def read(self, read: Read) -> None:
        value = self.value(read)
        if isinstance(value, Reason):
            read.signals.unknown[self.signal] = value
        else:
            read.signals.numbers[self.signal] = value


class Split(NamedTuple):
    """A signal split by a label; `total` says whether its parts have a sum that means something."""

    signal: str
    parts: tuple[tuple[str, Number], ...]
    total: bool

    def read(self, read: Read) -> None:
        figures = {name: number.value(read) for name, number in self.parts}
        parts = {name: figure for name, figure in figures.items() if not isinstance(figure, Reason)}
        reason = next((figure for figure in figures.values() if isinstance(figure, Reason)), None)
        read.signals.by[self.signal] = parts
        if reason:
            read.signals.unknown[self.signal] = reason
        elif self.total:
            read.signals.numbers[self.signal] = math.fsum(parts.values())


class Part(NamedTuple):
    """One of the histograms that make up a distribution; without buckets it is a sum and a count only."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: tuple[int, ...]
    scale: float

    def histogram(self, values: Values) -> Histogram | None:
        """None where the counts cannot be: they are cumulative on every page that an engine prints."""
        counts = [values[i] for i in self.counts]
        if counts[0] < 0 or counts[-1] > MOST_COUNTED or counts != sorted(counts):
            return None
        total = sum(values[i] for i in self.total) * self.scale
        known = bool(self.total) and 0 <= total <= ABSURD
        return Histogram(self.bounds, tuple(counts), total if known else None)


class Distribution(NamedTuple):
    """A signal from one or several histograms, which are merged."""

    signal: str
    parts: tuple[Part, ...]

    def read(self, read: Read) -> None:
        reason = read.trouble(i for part in self.parts for i in part.counts)
        if reason:
            read.signals.unknown[self.signal] = reason
            return
        histograms = [part.histogram(read.values) for part in self.parts]
        whole = merge(histogram for histogram in histograms if histogram is not None)
        if whole is None or None in histograms:
            read.signals.unknown[self.signal] = Reason.IMPOSSIBLE
        else:
            read.signals.histograms[self.signal] = whole


class Adapters(NamedTuple):
    """LoRA adapters: of many series the one with the highest value (a time) holds."""

    signal: str
    states: tuple[tuple[int, dict[str, float]], ...]

    def read(self, read: Read) -> None:
        reason = read.trouble(place for place, _ in self.states)
        if reason:
            read.signals.unknown[self.signal] = reason
            return
        _, newest = max(self.states, key=lambda state: read.values[state[0]])
        read.signals.by[self.signal] = newest
        read.signals.numbers[self.signal] = math.fsum(newest.values())


Step: TypeAlias = Number | Split | Distribution | Adapters


class Scope(NamedTuple):
    """What to read for one engine, or for the server around the engines.

    The plain numbers, each one value as printed, are taken all at once; `facts` stand in labels and are the
    same on every page; `unknown` are the signals that have no place in the layout.
    """

    plain: tuple[tuple[str, int], ...]
    pick: Callable[[Values], tuple[float, ...]]
    steps: tuple[Step, ...]
    facts: dict[str, float]
    unknown: dict[str, Reason]

    @classmethod
    def of(cls, steps: Sequence[Step], facts: dict[str, float], unknown: dict[str, Reason]) -> "Scope":
        """A scope that reads by these steps."""
        plain = [step for step in steps if isinstance(step, Number) and step.is_plain]
        places = tuple(number.groups[0][0] for number in plain)
        names = (number.signal for number in plain)
        rest = tuple(step for step in steps if step not in plain)
        return cls(tuple(zip(names, places, strict=True)), _picker(places), rest, facts, unknown)

    def signals(self, values: Values, bad: frozenset[int]) -> Signals:
        """The signals of one page; `bad` are the places of the values that are no measurements."""
        picked = self.pick(values)
        numbers = {signal: value for (signal, _), value in zip(self.plain, picked, strict=True)}
        signals = Signals(numbers | self.facts, {}, {}, dict(self.unknown))
        read = Read(values, bad, signals)
        for step in self.steps:
            step.read(read)
        if bad or min(picked, default=0.0) < 0 or max(picked, default=0.0) > MOST_COUNTED:
            for signal, place in self.plain:
                reason = read.trouble((place,))
                if reason or not 0 <= values[place] <= MOST_COUNTED:
                    del signals.numbers[signal]
                    signals.unknown[signal] = reason or Reason.IMPOSSIBLE
        return signals


class Plan(NamedTuple):
    """How to read every page of one layout, and what the layout alone tells."""

    dialect: Dialect
    version: str
    models: tuple[str, ...]
    engines: dict[str, Scope]
    server: Scope
    loose: tuple[str, ...]
    warnings: tuple[str, ...]


def combine(over: Combine, values: Sequence[float]) -> float:
    """Several figures of one signal as one."""
    if over == "sum":
        return math.fsum(values)
    if over == "mean":
        return math.fsum(values) / len(values)
    return max(values) if over == "max" else min(values)


def not_measured(values: Values) -> frozenset[int]:
    """The places of values that are NaN, infinite or absurd."""
    return frozenset(i for i, value in enumerate(values) if not abs(value) <= ABSURD)


def _picker(places: tuple[int, ...]) -> Callable[[Values], tuple[float, ...]]:
    """A function that takes the values at these places, as a tuple also of one or none."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple(values[i] for i in places)
