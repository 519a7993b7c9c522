"""Whether an HTTP answer is a page of metrics: status, content type and body judged together.

The body decides, not its label: a good page under a wrong content type is read with a warning, and a
sign-in page is no page of metrics whatever it is called. Pure, so that files and live answers are judged
alike.
"""

import re
import zlib
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from controlplane.signals.reading import Reason

LIMIT_BYTES = 16 * 1024 * 1024
"""Largest page that is read, after decompression; pages within the other bounds are smaller."""

_OPENMETRICS = "application/openmetrics-text"
_METRICS_TYPES = ("text/plain", _OPENMETRICS)
_HINTS = {
    404: "; SGLang prints metrics only with --enable-metrics, Ollama never does (say engine: ollama)",
    501: "; llama.cpp prints metrics only with --metrics",
}
_JSON_HINT = "; the metrics page of TensorRT-LLM is /prometheus/metrics"
_JSON = "JSON"
_LAST_BYTES = 64
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The first line of an exposition: a comment, `name{`, `name value`, or the quoted form `{"name",` (a JSON
# object, which has a colon after its first string, is none).
_EXPOSITION = re.compile(
    rb"""\s* ( \#
            | [A-Za-z_:][\w:.]* (\s*\{ | [ \t]+[-+]?(\d | \.\d | nan\b | inf))
            | \{\s*"[^"\n]*"\s*[,}] )""",
    re.IGNORECASE | re.VERBOSE,
)


class Good(msgspec.Struct, frozen=True):
    """A body to hand to the exposition reader (decompressed), and what is odd about the answer."""

    body: bytes
    warnings: tuple[str, ...] = ()


class Bad(msgspec.Struct, frozen=True):
    """No metrics; `detail` is a sentence part that names what came instead."""

    reason: Reason
    detail: str


Judgement: TypeAlias = Good | Bad


def judge(
    status: int, headers: Mapping[str, str], body: bytes, *, limit_bytes: int = LIMIT_BYTES
) -> Judgement:
    """Judge a whole HTTP answer. `headers` may be in any case; `body` may be gzip or decompressed already."""
    if status != 200:
        return _failed(not_ok(status))
    page = _unpacked(body, limit_bytes)
    if isinstance(page, Bad):
        return page
    if not page or page.isspace():
        return _failed("empty body")
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    content_type, encoding = lower.get("content-type", ""), lower.get("content-encoding", "")
    called = f"content type {_quoted(content_type)}" if content_type else "no content type"
    if not _EXPOSITION.match(page):
        packed = f", content encoding {_quoted(encoding)}" if encoding else ""
        nature = _nature(page)
        hint = _JSON_HINT if nature == _JSON else ""
        return _failed(f"not metrics but {nature} ({called}{packed}){hint}")
    if _bare(content_type) in _METRICS_TYPES:
        return Good(page)
    # Without its text: a target that calls its page something else each time makes no new warning each time.
    odd = "the content type is not one of metrics" if content_type else "no content type"
    return Good(page, (f"{odd}: read all the same, the body is a page of metrics",))


def not_ok(status: int) -> str:
    """A sentence part on an HTTP status that is not 200, where a page of metrics was asked for."""
    return f"HTTP status {status}{_HINTS.get(status, '')}"


def cut(page: bytes, headers: Mapping[str, str]) -> str:
    """Why a page that was judged good is not whole; empty where it is.

    Both formats end each line with a line feed, but for the last one of OpenMetrics, which is `# EOF`.
    """
    *_, last = page[-_LAST_BYTES:].rstrip(b"\r\n").rpartition(b"\n")
    if last.strip() == b"# EOF":
        return ""
    if not page.endswith(b"\n"):
        return "the page was cut short: its last line has no end"
    content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    if _bare(content_type) == _OPENMETRICS:
        return "the page was cut short: an OpenMetrics page ends with # EOF"
    return ""


def light(body: bytes, limit_bytes: int) -> bytes | None:
    """The body, unpacked, if it has at most so many bytes; None where it has more, or is no whole gzip."""
    page = _unpacked(body, limit_bytes)
    return page if isinstance(page, bytes) else None


def _bare(content_type: str) -> str:
    return content_type.split(";", maxsplit=1)[0].strip().lower()


def _failed(detail: str) -> Bad:
    return Bad(Reason.SCRAPE_FAILED, detail)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")


def _nature(body: bytes) -> str:
    """What the body looks like. Its text is not told: a sign-in page may hold secrets."""
    start = body[:64].lstrip()
    if start.startswith(b"<"):
        return "a page of HTML or XML"
    if start.startswith((b"{", b"[")):
        return _JSON
    return "something else"


def _unpacked(body: bytes, limit_bytes: int) -> bytes | Bad:
    """The body as text bytes: decompressed, without a byte order mark, and not too long."""
    page = _gunzip(body, limit_bytes) if body.startswith(_GZIP) else body
    if isinstance(page, Bad):
        return page
    if len(page) > limit_bytes:
        return _failed(f"the body is over {limit_bytes} bytes")
    return page.removeprefix(_BYTE_ORDER_MARK)


def _gunzip(body: bytes, limit_bytes: int) -> bytes | Bad:
    """All members of a gzip body, never more than `limit_bytes` + 1 bytes at once."""
    inflated = b""
    while body.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            inflated += member.decompress(body, limit_bytes + 1 - len(inflated))
        except zlib.error:
            return _failed("the gzip body is damaged")
        if len(inflated) > limit_bytes:
            break
        if not member.eof:
            return _failed("the gzip body is cut")
        body = member.unused_data
    return inflated
