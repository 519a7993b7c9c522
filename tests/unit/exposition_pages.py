"""Exposition pages for tests (captured, generated, oddly printed, broken), and how readings are compared."""

import random
import string
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from controlplane.sources.exposition import ExpositionError, Page, Reader

TESTS = Path(__file__).parents[1]
CAPTURES = sorted((TESTS / "data" / "captures").rglob("*.prom"))
CASES = TESTS / "cases" / "data"

Found = tuple[str, tuple[tuple[str, str], ...], str]
"""Name, labels sorted by name, value as its repr: so NaN equals NaN, and 0.0 is not -0.0."""


def found(page: Page) -> list[Found]:
    """What a page holds, in printed order."""
    return [
        (name, labels, repr(value))
        for (name, labels), value in zip(page.layout.series, page.values, strict=True)
    ]


def expected(families: Iterable[Metric]) -> list[Found]:
    """The same of a parser of prometheus_client; it groups by family, so compare as multisets."""
    return [
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value)))
        for family in families
        for sample in family.samples
    ]


def outcome(reader: Reader, body: bytes | str) -> tuple[list[Found], int, int] | str:
    """All that a reader says about a body: the page, or the text of its error."""
    try:
        page = reader.read(body)
    except ExpositionError as error:
        return str(error)
    return found(page), page.samples, page.non_finite


def with_new_values(text: str, rng: random.Random, share: float = 0.5) -> str:
    """The page at the next scrape: about `share` of the numbers at the ends of sample lines have moved."""

    def moved(line: str) -> str:
        head, space, _ = line.rpartition(" ")
        kept = not space or line.startswith("#") or rng.random() >= share
        return (
            line
            if kept
            else f"{head} {rng.choice([str(rng.randrange(10**6)), repr(rng.uniform(0, 1e4)), '0.0'])}"
        )

    return "\n".join(map(moved, text.split("\n")))


# Pages as prometheus_client prints them

_LEGACY = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8)
_ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_QUOTABLE = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=8)
_SPECIAL = st.sampled_from(
    [" ", "{", "}", ",", "#", '"', "\\", "\n", "\\n", '"} 1', " # {", "=", "\t", "# EOF", "é"]
)
LABEL_VALUES = _ANY_TEXT | st.lists(_SPECIAL | _LEGACY, max_size=6).map("".join)
VALUES = st.floats() | st.integers(-(10**9), 10**9).map(float)


@st.composite
def _label_names(draw: st.DrawFn, utf8: bool) -> list[str]:
    legacy = _LEGACY.map("l_".__add__)  # never a reserved or a bucket label
    names = legacy | _QUOTABLE.map("u.".__add__) if utf8 else legacy
    return draw(st.lists(names, max_size=3, unique=True))


@st.composite
def _family(draw: st.DrawFn, index: int, utf8: bool) -> Metric:
    name = f"m{index}:" + draw(_LEGACY) + "_x"  # the end keeps clear of suffixes with a meaning
    if utf8 and draw(st.booleans()):
        name = f"m{index}." + draw(_QUOTABLE) + "_x"
    labels = draw(_label_names(utf8))
    rows = draw(
        st.lists(st.tuples(*[LABEL_VALUES] * len(labels)).map(list), min_size=1, max_size=3, unique_by=tuple)
    )
    text = draw(_ANY_TEXT)
    counts = st.integers(0, 10**6)
    exemplars = st.none() | st.builds(
        Exemplar,
        st.dictionaries(st.just("trace_id"), _LEGACY, max_size=1),
        st.floats(0, 1),
        st.none() | st.just(1764000000.1),
    )
    created = draw(st.none() | st.just(1.7639e9))
    match draw(st.sampled_from(["counter", "gauge", "histogram", "info", "stateset", "summary"])):
        case "counter":
            counter = CounterMetricFamily(name, text, labels=labels)
            for row in rows:
                counter.add_metric(row, draw(counts), created=created, exemplar=draw(exemplars))
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for row in rows:
                gauge.add_metric(row, draw(VALUES), timestamp=draw(st.none() | st.just(1764000000)))
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for row in rows:
                at, more = draw(counts), draw(counts)
                exemplar = draw(exemplars)
                low = ("1.0", at, exemplar) if exemplar else ("1.0", at)
                buckets = [low, ("+Inf", at + more)]
                histogram.add_metric(row, buckets, sum_value=draw(st.floats(0, 1e9)))
            return histogram
        case "info":
            info = InfoMetricFamily(name, text, labels=labels)
            for row in rows:
                info.add_metric(row, {"version": draw(LABEL_VALUES)})
            return info
        case "stateset":
            states = StateSetMetricFamily(name, text, labels=labels)
            for row in rows:
                states.add_metric(row, {"on": draw(st.booleans()), "off": draw(st.booleans())})
            return states
        case _:
            summary = SummaryMetricFamily(name, text, labels=labels)
            for row in rows:
                summary.add_metric(row, draw(counts), draw(st.floats(0, 1e9)))
            return summary


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


@st.composite
def printed_pages(draw: st.DrawFn, *, open_metrics: bool) -> str:
    """A page as prometheus_client prints it, in the classic format or as OpenMetrics."""
    utf8 = draw(st.booleans())
    families = [draw(_family(index, utf8)) for index in range(draw(st.integers(0, 4)))]
    # Without `utf8` only legacy names are there, and this scheme leaves them as they are.
    escaping = openmetrics.ALLOWUTF8
    collected = _Collected(families)
    if open_metrics:
        page: bytes = openmetrics.generate_latest(collected, escaping)  # type: ignore[no-untyped-call]
    else:
        page = exposition.generate_latest(collected, escaping)
    return page.decode()


# Lines in odd but legal spacing, with what they mean


@st.composite
def odd_lines(draw: st.DrawFn) -> tuple[str, Found]:
    """A sample line, and what is to be read from it."""
    gap = st.text(" \t", max_size=2)

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") + '"'

    labels = draw(st.dictionaries(_LEGACY.map("l".__add__), LABEL_VALUES, max_size=3))
    terms = [f"{label}{draw(gap)}={draw(gap)}{quoted(value)}" for label, value in labels.items()]
    if draw(st.booleans()):
        name = draw(st.sampled_from("abc:_")) + draw(_LEGACY)
        before = draw(gap) + name
    else:
        name = draw(_QUOTABLE)
        terms.insert(0, quoted(name))
        before = draw(gap)
    inside = (
        draw(gap) + "".join(f"{term}{draw(gap)},{draw(gap)}" for term in terms[:-1]) + "".join(terms[-1:])
    )
    trailing = draw(st.sampled_from(["", ","])) if terms else ""
    braces = f"{draw(gap)}{{{inside}{draw(gap)}{trailing}{draw(gap)}}}{draw(gap)}"
    bare = not terms and draw(st.booleans())
    value = draw(VALUES)
    number = draw(st.sampled_from([repr(value), f"{value:+e}".upper(), f"{value:g}"]))
    timestamp = draw(st.sampled_from(["", " 1764000000000", "\t1764000000.5"]))
    exemplar = draw(st.sampled_from(["", ' # {trace_id="a b"} 0.5 1764000000.1', "\t#\t{}  1"]))
    line = before + (draw(st.sampled_from([" ", "\t", " \t "])) if bare else braces)
    line += number + timestamp + exemplar + draw(gap)
    return line, (name, tuple(sorted(labels.items())), repr(float(number)))


# Broken pages


def mutations(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """`count` pairs of a piece of a captured page and the same piece broken in one to four places.

    A break is a flipped, lost, doubled or foreign run of bytes, a cut-off end, or a splice with another page.
    Most pieces are some lines long, so that the breaks are dense; some are whole pages.
    """
    rng = random.Random(seed)
    pages = [
        path.read_text().splitlines(keepends=True) for path in [*CAPTURES, *sorted(CASES.rglob("*.prom"))]
    ]

    def piece() -> str:
        page = rng.choice(pages)
        length = len(page) if rng.random() < 0.05 else rng.randint(1, 30)
        start = rng.randrange(max(1, len(page) - length))
        return "".join(page[start : start + length])

    for _ in range(count):
        good = piece()
        bad = bytearray(good.encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(bad) + 1)
            run = rng.choice([1, 1, 2, 5, 40])
            match rng.randrange(6):
                case 0:
                    bad[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del bad[at : at + run]
                case 2:
                    bad[at:at] = bad[at : at + run]
                case 3:
                    bad[at:at] = rng.choice(_FOREIGN)
                case 4:
                    del bad[max(at, len(bad) // 2) :]
                case _:
                    bad[at:] = piece().encode()[:500]
        yield good, bytes(bad)


_FOREIGN = [
    *(bytes([byte]) for byte in b'\\"{},=# \t\r\n\0_:\x0c\x1c'),
    *(
        text.encode()
        for text in ["\u0663", "\xa0", "\u2028", "\ufeff", "NaN", "1_0", "0x1p3", " 1", "# EOF\n", "\r\n"]
    ),
    b"\xff",
    b"\xed\xa0\x80",
    b'{"a.b"} 1\n',
    b" # {",
]


def check_mutations(seed: int, count: int) -> tuple[int, int]:
    """Read broken pieces with fresh readers and with one that has read all before them.

    Returns how many were read and how many were refused. Any exception but ExpositionError gets through.
    """
    warm = Reader(max_memo=2_000)
    read = 0
    for good, bad in mutations(seed, count):
        before = outcome(Reader(), good)
        assert outcome(warm, good) == before
        got = outcome(warm, bad)
        assert got == outcome(Reader(), bad), bad
        assert outcome(warm, good) == before, bad
        read += not isinstance(got, str)
    return read, count - read
