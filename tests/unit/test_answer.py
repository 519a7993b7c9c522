"""Which HTTP answers are pages of metrics."""

import gzip
from pathlib import Path

import pytest

from controlplane.signals.reading import Reason
from controlplane.sources.answer import Bad, Good, cut, judge, light
from controlplane.sources.http_file import read_http

CAPTURES = sorted((Path(__file__).parents[1] / "data" / "captures").rglob("*.prom"))
PAGE = b'# TYPE up gauge\nup{job="a"} 1\n'
TEXT = {"Content-Type": "text/plain; version=0.0.4"}


def bad(status: int, headers: dict[str, str], body: bytes, **limits: int) -> str:
    answer = judge(status, headers, body, **limits)
    assert isinstance(answer, Bad)
    assert answer.reason is Reason.SCRAPE_FAILED
    return answer.detail


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captured_pages_are_good_packed_or_not(path: Path) -> None:
    body = path.read_bytes()
    headers = {"content-type": "text/plain; version=1.0.0; charset=utf-8"}
    assert judge(200, headers, body) == Good(body)
    assert judge(200, headers, gzip.compress(body)) == Good(body)


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "TEXT/PLAIN;version=0.0.4", "application/openmetrics-text; version=1.0.0; charset=utf-8"],
)
def test_a_metrics_content_type_needs_no_warning(content_type: str) -> None:
    assert judge(200, {"CONTENT-TYPE": content_type}, PAGE) == Good(PAGE)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "no content type"),
        ({"Content-Type": ""}, "no content type"),
        ({"Content-Type": "text/html"}, "the content type is not one of metrics"),
        ({"Content-Type": "application/octet-stream"}, "the content type is not one of metrics"),
    ],
)
def test_a_wrong_label_on_a_good_page_is_one_warning(headers: dict[str, str], said: str) -> None:
    answer = judge(200, headers, PAGE)
    assert isinstance(answer, Good)
    assert answer.body == PAGE
    assert len(answer.warnings) == 1
    assert said in answer.warnings[0]


@pytest.mark.parametrize(
    "body",
    [
        b"up 1",
        b"\n\nup 1\n",
        b"up\t+Inf\n",
        b"up NaN 123\n",
        b"vllm:x .5\n",
        b'up {a="b"} 1\n',
        b'{"a.b", x="y"} 1\n',
        b'{"a.b"} 1\n',
        b"#\n",
        b"\xef\xbb\xbfup 1\n",
    ],
)
def test_odd_beginnings_of_good_pages(body: bytes) -> None:
    answer = judge(200, TEXT, body)
    assert isinstance(answer, Good)
    assert answer.body == body.removeprefix(b"\xef\xbb\xbf")


@pytest.mark.parametrize(
    ("body", "nature"),
    [
        (b"<!DOCTYPE html><html>Sign in</html>", "a page of HTML or XML"),
        (b"  \n<?xml version='1.0'?>", "a page of HTML or XML"),
        (b'{"status": "success"}', "JSON"),
        (b"[]", "JSON"),
        (b"404 page not found", "something else"),
        (b"Unauthorized", "something else"),
        (b"please log in", "something else"),
        (b"\x0a\x07metrics\x12\x00", "something else"),
    ],
)
@pytest.mark.parametrize("content_type", ["text/plain", "text/html", "application/json"])
def test_what_is_not_metrics_is_named_whatever_it_is_called(
    body: bytes, nature: str, content_type: str
) -> None:
    detail = bad(200, {"Content-Type": content_type}, body)
    assert nature in detail
    assert content_type in detail


def test_the_text_of_a_foreign_body_is_never_told() -> None:
    assert "token" not in bad(200, TEXT, b"<html>token=s3cret</html>")


@pytest.mark.parametrize("status", [204, 206, 301, 401, 500, 503])
def test_any_status_but_200_is_a_failure(status: int) -> None:
    assert bad(status, TEXT, PAGE) == f"HTTP status {status}"


@pytest.mark.parametrize(
    ("status", "body", "hint"),
    [
        (404, b"not found", "--enable-metrics"),
        (404, b"not found", "engine: ollama"),
        (501, b'{"error": {}}', "--metrics"),
        (200, b'[{"iter": 1}]', "/prometheus/metrics"),
    ],
)
def test_an_engine_without_metrics_is_told_how_to_have_them(status: int, body: bytes, hint: str) -> None:
    assert hint in bad(status, TEXT, body)


OPENMETRICS = {"content-type": "application/openmetrics-text; version=1.0.0"}


@pytest.mark.parametrize(
    ("page", "headers", "whole"),
    [
        (PAGE, TEXT, True),
        (PAGE[:-1], TEXT, False),
        (PAGE + b"# EOF", TEXT, True),
        (PAGE + b"# EOF\n", OPENMETRICS, True),
        (PAGE + b"# EOF", OPENMETRICS, True),
        (PAGE + b"# EOF\r\n", OPENMETRICS, True),
        (PAGE, OPENMETRICS, False),
        (PAGE + b"x" * 100 + b" 1# EOF", OPENMETRICS, False),
        (b"# EOF", OPENMETRICS, True),
        (PAGE, {}, True),
    ],
)
def test_a_page_is_whole_if_its_last_line_is(page: bytes, headers: dict[str, str], whole: bool) -> None:
    assert (cut(page, headers) == "") == whole


def test_a_light_body_is_unpacked_and_a_heavy_or_broken_one_is_left() -> None:
    assert light(PAGE, len(PAGE)) == light(gzip.compress(PAGE), len(PAGE)) == PAGE
    assert light(PAGE, len(PAGE) - 1) is light(gzip.compress(PAGE), len(PAGE) - 1) is None
    assert light(gzip.compress(PAGE)[:-9], 1000) is None


@pytest.mark.parametrize("body", [b"", b"\n \r\n", gzip.compress(b"")], ids=["none", "white", "packed"])
def test_an_empty_body_is_a_failure(body: bytes) -> None:
    assert bad(200, TEXT, body) == "empty body"


def test_a_cut_or_damaged_gzip_body_is_a_failure_never_half_a_page() -> None:
    packed = gzip.compress(PAGE * 100)
    assert bad(200, TEXT, packed[:-9]) == "the gzip body is cut"
    assert bad(200, TEXT, packed[:10] + b"\xff" * 20) == "the gzip body is damaged"


def test_two_gzip_members_are_one_body() -> None:
    assert judge(200, TEXT, gzip.compress(PAGE) + gzip.compress(b"down 0\n")) == Good(PAGE + b"down 0\n")


def test_a_body_over_the_limit_is_a_failure_also_when_it_is_packed_small() -> None:
    assert judge(200, TEXT, PAGE, limit_bytes=len(PAGE)) == Good(PAGE)
    limit = len(PAGE) - 1
    assert bad(200, TEXT, PAGE, limit_bytes=limit) == f"the body is over {limit} bytes"
    bomb = gzip.compress(b"a" * 1_000_000)
    assert bad(200, TEXT, bomb, limit_bytes=1000) == "the body is over 1000 bytes"
    assert (
        bad(200, TEXT, gzip.compress(PAGE) * 2, limit_bytes=len(PAGE))
        == f"the body is over {len(PAGE)} bytes"
    )


def test_a_content_encoding_that_nobody_asked_for_is_named() -> None:
    assert "content encoding 'br'" in bad(200, TEXT | {"Content-Encoding": "br"}, b"\x8b\x02\x80")


def test_a_long_header_is_not_repeated_whole() -> None:
    assert len(bad(200, {"Content-Type": "x" * 10_000}, b"<html>")) < 300


def response(body: bytes, *headers: str, line: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode() + body


def test_a_raw_response_is_read_with_either_line_end() -> None:
    raw = response(PAGE, "Content-Type: text/plain", f"Content-Length: {len(PAGE)}")
    for text in (raw, raw.replace(b"\r\n", b"\n")):
        read = read_http(text)
        assert not isinstance(read, Bad)
        assert (read.status, read.headers["Content-Type"], read.body) == (200, "text/plain", PAGE)


def test_a_raw_response_without_a_length_ends_with_the_file() -> None:
    read = read_http(response(PAGE))
    assert not isinstance(read, Bad)
    assert read.body == PAGE


def test_a_chunked_raw_response_is_put_together() -> None:
    chunks = (
        b"10\r\n" + PAGE[:16] + b"\r\n" + f"{len(PAGE) - 16:x}\r\n".encode() + PAGE[16:] + b"\r\n0\r\n\r\n"
    )
    read = read_http(response(chunks, "Transfer-Encoding: chunked"))
    assert not isinstance(read, Bad)
    assert read.body == PAGE


def test_a_cut_raw_response_is_a_failure() -> None:
    short = read_http(response(PAGE[:-5], f"Content-Length: {len(PAGE)}"))
    assert short == Bad(Reason.SCRAPE_FAILED, f"the body is cut: {len(PAGE) - 5} of {len(PAGE)} bytes came")
    chunks = b"10\r\n" + PAGE[:16] + b"\r\n"
    endless = read_http(response(chunks, "Transfer-Encoding: chunked"))
    assert isinstance(endless, Bad)
    assert "the body is cut" in endless.detail


@pytest.mark.parametrize(
    "raw", [b"", PAGE, b"HTTP/1.1 nonsense\r\n\r\n", response(b"x\r\n", "Transfer-Encoding: chunked")]
)
def test_what_is_no_response_is_a_failure(raw: bytes) -> None:
    assert isinstance(read_http(raw), Bad)
