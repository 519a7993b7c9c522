"""The query API's answers: whatever they hold, a value comes out, and never a 0 that nobody said."""

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.sources.query_answer import Answer, Retry, interpret

NOW = 1_764_000_600.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def ask(body: Any, status: int = 200) -> Answer:
    return interpret(status, "application/json", json.dumps(body).encode(), NOW)


def success(kind: str, result: Any, **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}, **more}


def one(value: Any) -> dict[str, Any]:
    return success("vector", [{"metric": {}, "value": [NOW, value]}])


def reason(answer: Answer) -> Reason:
    number = answer.number
    assert isinstance(number, Unknown), number
    return number.reason


@settings(deadline=None)
@given(st.integers(100, 599) | st.just(200), st.none() | st.text(), st.binary())
@example(200, None, b"")
@example(200, None, b"[" * 100_000)
@example(200, None, b'{"status":"success","data":{"resultType":"vector","result":' + b"[" * 100_000)
@example(200, None, b'{"status":"success","data":{"resultType":"scalar","result":[1,NaN]}}')
@example(200, None, b'{"status":"\xff"}')
@example(200, None, b'{"status":"success","data":{"resultType":"scalar","result":[1e999,"7"]}}')
def test_arbitrary_bytes_are_unknown(status: int, content_type: str | None, body: bytes) -> None:
    answer = interpret(status, content_type, body, NOW)
    assert isinstance(answer.number, Unknown)
    assert answer.number.at == NOW
    assert answer.number.detail.isprintable()
    assert len(answer.number.detail) < 300


@settings(deadline=None)
@given(JSON)
def test_arbitrary_json_is_unknown(body: Any) -> None:
    assert isinstance(ask(body).number, Unknown)


@settings(deadline=None)
@given(st.sampled_from(["vector", "matrix", "scalar", "string", "streams"]), JSON, JSON)
def test_arbitrary_results_and_warnings_never_raise(kind: str, result: Any, warnings: Any) -> None:
    number = ask(success(kind, result, warnings=warnings)).number
    if isinstance(number, Known):  # by chance the right shape
        assert kind in ("vector", "scalar")
        assert str(number.value) == str(float(text_in(result)))


def text_in(result: Any) -> str:
    """The text of the number in a scalar or in a vector of one."""
    pair = result[0]["value"] if isinstance(result[0], dict) else result
    assert isinstance(pair[1], str)
    return pair[1]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_number_is_read_as_printed(value: float) -> None:
    assert ask(one(repr(value))).number == Known(value, NOW)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_number_or_unknown(text: str) -> None:
    number = ask(one(text)).number
    if isinstance(number, Known):
        assert float(text) == number.value
        assert math.isfinite(number.value)


@pytest.mark.parametrize("text", ["1_000", " 7", "7 ", "٧", "0x10", "infinity", "", "seven", "1e", "--1"])
def test_text_that_only_python_would_read_is_no_number(text: str) -> None:
    assert reason(ask(one(text))) is Reason.NOT_A_NUMBER


@pytest.mark.parametrize("text", ["+Inf", "-Inf", "1" + "0" * 400, "1e999"])
def test_what_no_float_holds_is_not_finite(text: str) -> None:
    assert reason(ask(one(text))) is Reason.NOT_FINITE


def test_a_number_where_its_text_should_be_is_not_the_api() -> None:
    assert reason(ask(one(7))) is Reason.UNAVAILABLE


def test_a_string_result_is_of_the_wrong_type() -> None:
    assert reason(ask(success("string", [NOW, "7"]))) is Reason.WRONG_RESULT_TYPE


def test_a_native_histogram_is_no_number_and_no_zero() -> None:
    answer = ask(success("vector", [{"metric": {}, "histogram": [NOW, {"count": "3", "sum": "1"}]}]))
    assert reason(answer) is Reason.WRONG_RESULT_TYPE
    assert answer.notes == ("native histograms are not read",)
    assert not answer.partial


def test_success_without_data_is_not_the_api() -> None:
    assert reason(ask({"status": "success"})) is Reason.UNAVAILABLE


def test_an_error_that_lost_its_status_on_the_way_is_still_the_error() -> None:
    wrong = ask({"status": "error", "errorType": "bad_data", "error": "parse error"})
    assert (reason(wrong), wrong.retry) == (Reason.CONFIGURATION_ERROR, Retry.NO)
    odd = ask({"status": "error", "errorType": "odd"})
    assert (reason(odd), odd.retry) == (Reason.UNAVAILABLE, Retry.BACKOFF)


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (302, Reason.UNAVAILABLE),
        (400, Reason.CONFIGURATION_ERROR),
        (401, Reason.CONFIGURATION_ERROR),
        (403, Reason.CONFIGURATION_ERROR),
        (404, Reason.CONFIGURATION_ERROR),
        (429, Reason.UNAVAILABLE),
        (500, Reason.UNAVAILABLE),
        (502, Reason.UNAVAILABLE),
    ],
)
def test_other_statuses_are_asked_again_later(status: int, what: Reason) -> None:
    answer = interpret(status, "text/html", b"<html>", NOW)
    assert (reason(answer), answer.retry) == (what, Retry.BACKOFF)
    assert str(status) in answer.number.detail  # type: ignore[union-attr]


def test_an_error_text_is_told_in_one_short_line() -> None:
    answer = ask(
        {"status": "error", "errorType": "execution", "error": "too\nmany \x1b[31m" + "x" * 9000}, 422
    )
    assert isinstance(answer.number, Unknown)
    assert answer.number.detail.startswith("HTTP 422: too many [31mxxx")
    assert len(answer.number.detail) < 300
    assert answer.number.detail.isprintable()


@pytest.mark.parametrize(("ahead", "at"), [(-4.0, NOW - 4), (3.0, NOW), (-90.0, NOW), (90.0, NOW)])
def test_a_value_is_stamped_in_our_clock_and_never_in_the_future(ahead: float, at: float) -> None:
    answer = ask(success("scalar", [NOW + ahead, "7"]))
    assert answer.number == Known(7.0, at)
    assert answer.clock_ahead_seconds == ahead
    assert bool(answer.notes) == (abs(ahead) > 5)


def test_a_matrix_keeps_its_points_and_their_times() -> None:
    series = {"metric": {"__name__": "up"}, "values": [[NOW - 5, "1"], [NOW, "NaN"]]}
    answer = ask(success("matrix", [series]))
    assert answer.series[0].labels == {"__name__": "up"}
    assert answer.series[0].points[0] == (NOW - 5, 1.0)
    assert math.isnan(answer.series[0].points[1][1])
    assert (answer.clock_ahead_seconds, answer.notes) == (None, ())
