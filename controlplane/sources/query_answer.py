"""What an answer of the Prometheus query API means.

Pure: the HTTP answer comes in as status, content type and body, and everything it may be goes out as a value.
NaN, nothing, several series where one is needed, a wrong query, a busy server and a sign-in page are
different things here; none of them is 0 and none is an exception.
"""

import math
import re
from enum import StrEnum
from typing import Final

import msgspec

from controlplane.signals.reading import Known, Quality, Reason, Unknown
from controlplane.signals.snapshot import Number

CLOCK_TOLERANCE_SECONDS: Final = 5.0
"""The server's clock may differ by this much before it is worth a note: an answer takes that long, too."""

_EXCERPT_CHARS: Final = 200
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?(e[+-]?\d+)?|\.\d+|Inf)", re.ASCII)


class Retry(StrEnum):
    """Whether the same query may be asked again."""

    NO = "no"
    BACKOFF = "backoff"


class QuerySeries(msgspec.Struct, frozen=True):
    """One series: its labels (`__name__` among them where it has one) and its (Unix seconds, value) points.

    Points come oldest first; a value may be NaN or infinite. The one point of an instant vector bears the
    time of the evaluation: the sample under it may be five minutes older.
    """

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


class Answer(msgspec.Struct, frozen=True):
    """An interpreted answer, received at Unix time `at` (seconds, our clock).

    `failure` says why there is none and `retry` whether asking again may help; else `series` holds what was
    found and `kind` how ("vector", "scalar", "matrix"). `partial` marks an answer with warnings: a lower
    bound. `clock_ahead_seconds` is how far the server's clock is ahead of ours, where that is known.
    """

    at: float
    kind: str = ""
    series: tuple[QuerySeries, ...] = ()
    failure: Unknown | None = None
    retry: Retry = Retry.NO
    partial: bool = False
    clock_ahead_seconds: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> Number:
        """The answer where one number is needed."""
        if self.failure is not None:
            return self.failure
        point = self.series[0].points[-1] if self.series and self.series[0].points else (math.nan, math.nan)
        if self.kind == "matrix":
            why = Reason.WRONG_RESULT_TYPE, "a range of samples where one number is needed"
        elif not self.series:
            why = Reason.NO_DATA, "no series matches"
        elif len(self.series) > 1:
            shown = ", ".join(_excerpt(_braces(series.labels)) for series in self.series[:2])
            why = Reason.AMBIGUOUS, f"{len(self.series)} series where one is needed: {shown}"
        elif not self.series[0].points:
            why = Reason.WRONG_RESULT_TYPE, "a histogram where one number is needed"
        elif math.isnan(point[1]):
            why = Reason.NOT_A_NUMBER, "the value is NaN"
        elif math.isinf(point[1]):
            why = Reason.NOT_FINITE, f"the value is {point[1]:+}"
        else:
            # In our clock: a difference is told in the notes, and must not make the value look old or young.
            far = abs(point[0] - self.at) > CLOCK_TOLERANCE_SECONDS
            at = self.at if far else min(point[0], self.at)
            return Known(point[1], at, Quality.LOWER_BOUND if self.partial else Quality.EXACT)
        return Unknown(why[0], self.at, why[1])


def interpret(status: int, content_type: str | None, body: bytes, now: float) -> Answer:
    """Interpret a whole HTTP answer that arrived at Unix time `now` (seconds, our clock).

    The notes on the server's clock hold for an instant query that named no time of its own.

    The body decides, not its label: JSON in the API's shape is read under any content type.
    """
    try:
        envelope = _ENVELOPE.decode(body)
    except _UNREADABLE:
        envelope = None
    told = f"HTTP {status}"
    if status == 200:
        if envelope is None or (envelope.status == "success" and envelope.data is None):
            called = _excerpt(content_type) if content_type else "no content type"
            size = f"{len(body)} bytes" if body else "an empty body"
            detail = f"{told}, but not an answer of the query API: {size}, {called}"
            return _failed(now, Reason.UNAVAILABLE, detail, Retry.BACKOFF)
        if envelope.data is not None and envelope.status == "success":
            return _success(envelope, envelope.data, now)
        status = _STATUS_OF_ERROR.get(envelope.error_type, 500)
    reason, retry = _MEANING.get(status, (Reason.UNAVAILABLE, Retry.BACKOFF))
    if envelope is None:  # said by a proxy on the way, which knows nothing of queries
        retry = Retry.BACKOFF
    said = f": {_excerpt(envelope.error)}" if envelope is not None and envelope.error else ""
    return _failed(now, reason, f"{told}{_HINTS.get(status, '')}{said}", retry)


def load(ratio: Number, count: Number) -> Number:
    """Work per time from `increase(sum) / increase(count)`, which is NaN where nothing happened.

    Zero only on proof: the count must be a true 0 for the whole window, not merely absent and not the lower
    bound of a partial answer.
    """
    idle = isinstance(count, Known) and count.value == 0 and count.quality is Quality.EXACT
    if isinstance(ratio, Unknown) and ratio.reason is Reason.NOT_A_NUMBER and idle:
        return Known(0.0, count.at)
    return ratio


# What the HTTP statuses mean. All others mean that the server is not there for us just now.
_MEANING: Final = {
    400: (Reason.CONFIGURATION_ERROR, Retry.NO),
    401: (Reason.CONFIGURATION_ERROR, Retry.BACKOFF),  # tokens and grants come late sometimes
    403: (Reason.CONFIGURATION_ERROR, Retry.BACKOFF),
    404: (Reason.CONFIGURATION_ERROR, Retry.BACKOFF),
    405: (Reason.CONFIGURATION_ERROR, Retry.BACKOFF),
    422: (Reason.QUERY_FAILED, Retry.BACKOFF),
}
_HINTS: Final = (
    dict.fromkeys((301, 302, 303, 307, 308), ", a redirect, which is not followed")
    | dict.fromkeys((401, 403), ", our credentials are refused")
    | dict.fromkeys((404, 405), ", there is no query API at this address")
)
# An error under status 200 is no answer of Prometheus itself, but some proxies lose the status.
_STATUS_OF_ERROR: Final = {"bad_data": 400, "execution": 422, "timeout": 503, "unavailable": 503}


class _Element(msgspec.Struct):
    """Of a vector (`value`) or a matrix (`values`); without either it is a native histogram."""

    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] | None = None


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Envelope(msgspec.Struct, rename="camel"):
    status: str
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None
    infos: list[str] | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)
_ELEMENTS: Final = msgspec.json.Decoder(list[_Element])
_SCALAR: Final = msgspec.json.Decoder(tuple[float, str])
# Bytes that are no text are a ValueError, deeply nested JSON is a RecursionError.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def _success(envelope: _Envelope, data: _Data, now: float) -> Answer:
    kind = data.result_type
    try:
        if kind in ("vector", "matrix"):
            elements: list[_Element] = _ELEMENTS.decode(data.result)
        elif kind == "scalar":
            elements = [_Element(value=_SCALAR.decode(data.result))]
        else:
            return _failed(now, Reason.WRONG_RESULT_TYPE, f"result type {_excerpt(kind)}")
    except _UNREADABLE:
        detail = f"HTTP 200, but the {kind} in it is malformed"
        return _failed(now, Reason.UNAVAILABLE, detail, Retry.BACKOFF)
    notes = [*(envelope.warnings or ()), *(envelope.infos or ())]
    partial = bool(notes)
    series = tuple(QuerySeries(element.metric, _points(element)) for element in elements)
    if any(not one.points for one in series):
        notes.append("native histograms are not read")
    ahead = None
    if kind != "matrix" and series and series[0].points:
        ahead = series[0].points[0][0] - now
        if abs(ahead) > CLOCK_TOLERANCE_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            notes.append(f"the server's clock is {abs(ahead):.0f} s {side} ours")
    return Answer(now, kind, series, None, Retry.NO, partial, ahead, tuple(map(_excerpt, notes)))


def _points(element: _Element) -> tuple[tuple[float, float], ...]:
    raw = element.values if element.values is not None else [element.value] if element.value else []
    return tuple((at, _number(text)) for at, text in raw)


def _number(text: str) -> float:
    """The number as Prometheus prints it; NaN for other text (Python reads more than Prometheus writes)."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _failed(now: float, reason: Reason, detail: str, retry: Retry = Retry.NO) -> Answer:
    return Answer(now, failure=Unknown(reason, now, detail), retry=retry)


def _braces(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _excerpt(text: str) -> str:
    """One printable line of bounded length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * _EXCERPT_CHARS]).split())
    return line if len(line) <= _EXCERPT_CHARS else line[: _EXCERPT_CHARS - 3] + "..."
