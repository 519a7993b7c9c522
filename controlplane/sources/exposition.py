r"""Prometheus exposition text in, numbers out: fast for the page that one target prints again and again.

One reader takes the classic text format 0.0.4 and OpenMetrics 1.0 alike, whatever the content type says:

    page     = { line "\n" }                       a "\r" before the "\n" is dropped
    line     = blank | "#" anything | series value [timestamp] [exemplar]
    series   = name ["{" labels "}"] | "{" labels "}"     the second form holds a quoted "name"
    exemplar = "#" "{" anything

HELP and TYPE are comments here: in the field they do not always match the samples below them, so nothing
may depend on them. Timestamps must be numbers and exemplars must look like exemplars; neither is used.
`# EOF` ends the page: a sample behind it is an error, because half a page must not pass for a whole one.

Why it is fast: between two scrapes most lines stay as they were, and in the others only the number moves.

1. *Patch.* The lines are compared with those of the page before, index by index, in C. An equal line keeps
   its value; a line that still begins with its old text up to the value needs one `float()`.
2. *Learn.* Where that fails for any line (one was added, or moved, or is odd), each line is looked up by its
   text through the last space in a memo of the series already parsed. Only unknown text meets the grammar.

Both are shortcuts to what the grammar would say: known text is a complete series with what separates it from
its value, so when nothing but one number follows, the line has no other reading; when anything else follows,
the grammar decides. The memo is dropped when it is full, because labels come and go (adapters, process ids):
a target that keeps inventing labels costs time, not memory.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from math import isfinite
from operator import ne
from typing import Final, NamedTuple

Labels = tuple[tuple[str, str], ...]

# Every repetition is possessive (`*+`): no text, however broken, makes these patterns go back and try again.
_GAP: Final = r"[ \t]*+"
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL: Final = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_INSIDE: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*+'
_TERM: Final = rf'(?:(?:{_LABEL}|"{_INSIDE}"){_GAP}={_GAP})?+"{_INSIDE}"{_GAP}(?:,{_GAP}|(?=\}}))'
_SERIES: Final = rf"{_GAP}({_NAME}(?=[ \t{{]))?+{_GAP}(?:\{{({_GAP}(?:{_TERM})*+)\}}{_GAP})?+"  # name, labels
_SAMPLE: Final = re.compile(
    rf"({_SERIES})"
    r"([^ \t#{]++)"  # value
    r"(?:[ \t]++([^ \t#]++))?+"  # timestamp
    rf"(?:[ \t]++#{_GAP}\{{.*+)?+{_GAP}"  # exemplar
)
_LABELS: Final = re.compile(rf'(?:({_LABEL}|"{_INSIDE}"){_GAP}={_GAP})?+"({_INSIDE})"')
_ESCAPE: Final = re.compile(r'\\([\\n"])')
_EXCERPT_CHARS: Final = 80

MOST_LINES: Final = 50_000
MOST_SERIES: Final = 20_000
LONGEST_LINE: Final = 64 * 1024
"""Bounds of a page: lines, wanted series, characters of a line. A page over one of them is refused."""


class ExpositionError(ValueError):
    """The body is not an exposition page; the message says where and why, with a short quotation.

    It is the only exception that reading raises because of what the body holds.
    """


class UnfamiliarError(Exception):
    """The page differs from the one before in more than numbers, and was not to be read then."""


class Series(NamedTuple):
    """Identity of one time series: the sample name as printed, the unescaped labels sorted by label name."""

    name: str
    labels: Labels


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The wanted series of a page, in printed order. Compare by identity (see `Page`)."""

    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What one read found.

    `layout` is the object of the read before if the sequence of wanted series is the same, so that consumers
    work out once per layout where their numbers are. `values[i]` belongs to `layout.series[i]` and may be NaN
    or infinite, as printed; `non_finite` says how many are. `samples` counts all sample lines, wanted or not.
    """

    layout: Layout
    values: list[float]
    samples: int
    non_finite: int


class _Known(NamedTuple):
    """The last good page, line by line, as the patch needs it.

    `prefixes[i]` is the text of line i up to its value, "" where the line is no sample; `slots[i]` is the
    index of its value in `values`, -1 where nobody wants it.
    """

    lines: list[str]
    prefixes: list[str]
    slots: list[int]
    values: list[float]
    layout: Layout
    samples: int


_UNWANTED: Final = Series("", ())


class Reader:
    """Reads the pages of one target, one after the other. Not to be shared between threads.

    `wanted` is asked once for each sample name (again only after `max_memo` other names) and must always give
    the same answer; None wants every sample. `max_memo` bounds the memo: so many series, or twice those of a
    page that has more, and one page more.
    """

    def __init__(self, wanted: Callable[[str], bool] | None = None, *, max_memo: int = 20_000) -> None:
        self._wanted = wanted
        self._max_memo = max_memo
        self._series: dict[str, Series] = {}  # by the text up to the value; _UNWANTED where nobody wants it
        self._braces: dict[str, tuple[str, Labels]] = {}  # by the text between the braces
        self._names: dict[str, str] = {}  # the one copy of each wanted name, "" for the others
        self._known = _Known([], [], [], [], Layout(()), 0)

    def read(self, body: bytes | str, *, quickly: bool = False) -> Page:
        """Read one page. ExpositionError if any line is malformed; the reader is then as it was before.

        Where it is to be read `quickly` and more than numbers differs from the page before, UnfamiliarError:
        to learn a page may take a hundred times longer than to patch it.
        """
        lines = _lines(body)
        known = self._patch(lines)
        if known is None and quickly:
            raise UnfamiliarError
        known = self._known = known or self._learn(lines)
        # The caller gets a list of its own: what it does to it must not reach the next page.
        return Page(known.layout, known.values.copy(), known.samples, _non_finite(known.values))

    def _patch(self, lines: list[str]) -> _Known | None:
        """Read a page that differs from the one before in numbers only; None if it differs in more."""
        known = self._known
        if len(lines) != len(known.lines):
            return None
        changed = list(map(ne, lines, known.lines))
        new_lines = list(compress(lines, changed))
        prefixes = list(compress(known.prefixes, changed))
        if "" in prefixes or not all(map(str.startswith, new_lines, prefixes)):
            return None
        numbers = _numbers(list(map(str.removeprefix, new_lines, prefixes)))
        if numbers is None:
            return None
        values = known.values.copy()
        for slot, number in zip(compress(known.slots, changed), numbers, strict=True):
            if slot >= 0:
                values[slot] = number
        return known._replace(lines=lines, values=values)

    def _learn(self, lines: list[str]) -> _Known:
        """Read any page: each line by the memo where that will do, else by the grammar."""
        self._forget()
        prefixes = [""] * len(lines)
        slots = [-1] * len(lines)
        found: list[Series] = []
        values: list[float] = []
        samples = 0
        ended = False
        for place, line in enumerate(lines):
            if line[:1] in "# \t" and _is_comment(line):
                ended = ended or line == "# EOF"
                continue
            prefix = line[: line.rfind(" ") + 1]
            series = self._series.get(prefix)
            value = None if series is None else _number(line[len(prefix) :])
            if series is None or value is None:
                try:
                    prefix, series, value = self._parse(line)
                except ExpositionError as error:
                    raise _located(place, line, str(error)) from None
            if ended:
                raise _located(place, line, "a sample after # EOF")
            samples += 1
            prefixes[place] = prefix
            if series is not _UNWANTED:
                if len(values) == MOST_SERIES:
                    raise ExpositionError(f"the page has over {MOST_SERIES} series that are wanted")
                slots[place] = len(values)
                found.append(series)
                values.append(value)
        series_found = tuple(found)
        same = series_found == self._known.layout.series
        layout = self._known.layout if same else Layout(series_found)
        return _Known(lines, prefixes, slots, values, layout, samples)

    def _parse(self, line: str) -> tuple[str, Series, float]:
        """Read one sample line by the grammar: the text up to the value, the series, the value."""
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ExpositionError("not a series with a value")
        prefix, name, braces, value, timestamp = match.groups()
        number = _number(value)
        if number is None or (timestamp is not None and _number(timestamp) is None):
            raise ExpositionError("not a number")
        series = self._series.get(prefix)
        if series is None:
            series = self._series[prefix] = self._identity(name, braces)
        return prefix, series, number

    def _identity(self, name: str | None, braces: str | None) -> Series:
        """The series of a name and the text between its braces; _UNWANTED if nobody wants the name."""
        braces = braces or ""
        parsed = self._braces.get(braces)
        if parsed is None:
            parsed = self._braces[braces] = _parse_braces(braces)
        quoted, labels = parsed
        if name and quoted:
            raise ExpositionError("two metric names")
        name = name or quoted
        kept = self._names.get(name)
        if kept is None:
            if not name:
                raise ExpositionError("no metric name")
            kept = self._names[name] = name if self._wanted is None or self._wanted(name) else ""
        return Series(kept, labels) if kept else _UNWANTED

    def _forget(self) -> None:
        """Empty what is full. What is known of the last page stays, so its layout does not change by this."""
        most = max(self._max_memo, 2 * len(self._known.lines))  # one that a page fills would be of no use
        for memo in (self._series, self._braces, self._names):
            if len(memo) > most:
                memo.clear()


def _lines(body: bytes | str) -> list[str]:
    """The lines of a page that is not too long."""
    if (body.count(b"\n") if isinstance(body, bytes) else body.count("\n")) > MOST_LINES:
        raise ExpositionError(f"the page has over {MOST_LINES} lines")
    if isinstance(body, bytes):
        try:
            body = body.decode()
        except UnicodeDecodeError as error:
            raise ExpositionError(f"not UTF-8 at byte {error.start}: {error.reason}") from None
    if "\r" in body:
        body = body.replace("\r\n", "\n").removesuffix("\r")
    lines = body.split("\n")
    longest = max(map(len, lines))
    if longest > LONGEST_LINE:
        raise ExpositionError(f"a line has {longest} characters, over the limit of {LONGEST_LINE}")
    return lines


def _is_comment(line: str) -> bool:
    stripped = line.strip(" \t")
    return not stripped or stripped[0] == "#"


def _parse_braces(text: str) -> tuple[str, Labels]:
    """The metric name that stands between the braces ("" if none does) and the labels, sorted by name."""
    labels: dict[str, str] = {}
    for label, value in _LABELS.findall(text):
        name = label
        if label[:1] in '"':  # quoted, or nothing: a string that stands alone is the metric name
            name = _unescape(label[1:-1]) if label else "__name__"
        if not name or name in labels:
            raise ExpositionError("a label name is empty or there twice")
        labels[name] = _unescape(value) if "\\" in value else value
    return labels.pop("__name__", ""), tuple(sorted(labels.items()))


def _unescape(text: str) -> str:
    """Text between quotes as it was meant; an escape that the format does not know stays as printed."""
    return _ESCAPE.sub(_unescaped, text)


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def _numbers(texts: list[str]) -> list[float] | None:
    """The floats that these texts print, with or without spaces round them; None if one is not a number.

    Python alone reads `1_000`, digits of other scripts and numbers between form feeds; Prometheus does not.
    """
    joined = "".join(texts)
    if "_" in joined or not joined.isascii() or not joined.isprintable():
        return None
    try:
        return list(map(float, texts))
    except ValueError:
        return None


def _number(text: str) -> float | None:
    if "_" in text or not text.isascii() or not text.isprintable():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _non_finite(values: list[float]) -> int:
    # NaN and Inf are contagious, so one sum clears most pages. (A finite page may overflow: then count, too.)
    return 0 if isfinite(sum(values)) else sum(not isfinite(value) for value in values)


def _located(place: int, line: str, reason: str) -> ExpositionError:
    excerpt = repr(line[:_EXCERPT_CHARS])
    if len(excerpt) > _EXCERPT_CHARS or len(line) > _EXCERPT_CHARS:
        excerpt = excerpt[: _EXCERPT_CHARS - 3] + "..."
    return ExpositionError(f"line {place + 1}: {reason}: {excerpt}")
