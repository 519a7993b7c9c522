"""What goes over the wire beside bodies: which headers pass, deadlines, marks of retries, error events."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.inbound import Header, Request

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_PASSED_ON = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding", b"x-request-class"}
_NOT_PASSED_BACK = HOP_BY_HOP | {b"content-length"}
RETRY_MARK: Header = (b"x-envoy-attempt-count", b"2")
"""What a request carries that we send a second time: gateways after us leave it at that."""

_TIMEOUT = re.compile(rb"(\d{1,8})\s*([HMSmun]|ms|s|)")
_UNIT_SECONDS = {
    b"H": 3600.0,
    b"M": 60.0,
    b"S": 1.0,
    b"s": 1.0,
    b"": 1.0,
    b"ms": 1e-3,
    b"m": 1e-3,
    b"u": 1e-6,
}
_SECONDS = re.compile(rb"\d{1,8}(\.\d{1,9})?")


def unwanted_by_engines(drop: Iterable[bytes]) -> frozenset[bytes]:
    """Names of headers that engines do not get; `drop` are those that are not of HTTP's own making."""
    return _NOT_PASSED_ON | frozenset(drop)


def request_headers(request: Request, unwanted: frozenset[bytes]) -> list[Header]:
    """The client's headers that an engine gets."""
    unwanted |= _named_in_connection(request.headers)
    return [header for header in request.headers if header[0] not in unwanted]


def answer_headers(headers: list[Header]) -> list[Header]:
    """The engine's headers that a client gets."""
    unwanted = _NOT_PASSED_BACK | _named_in_connection(headers)
    return [header for header in headers if header[0] not in unwanted]


def takes_gzip(request: Request) -> bool:
    """Whether the client offered to take gzip."""
    for name, value in request.headers:
        if name != b"accept-encoding":
            continue
        for offer in value.lower().split(b","):
            coding, _, weight = offer.partition(b";")
            if coding.strip() in (b"gzip", b"x-gzip", b"*"):
                return not re.fullmatch(rb"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False


def timeout_seconds(request: Request) -> float | None:
    """How long the client waits: `x-request-timeout` (`30`, `1.5`, `500ms`) or `grpc-timeout` (`500m`)."""
    value = request.header(b"x-request-timeout")
    if value is not None and _SECONDS.fullmatch(value.strip()):
        return float(value)
    if value is None:
        value = request.header(b"grpc-timeout")
    found = None if value is None else _TIMEOUT.fullmatch(value.strip())
    if found is None:
        return None
    return int(found[1]) * _UNIT_SECONDS.get(found[2], 1e-9)


def is_retry(request: Request) -> bool:
    """Whether somebody before us, a gateway or an SDK, has sent this request before."""
    attempts = request.header(b"x-envoy-attempt-count")
    if attempts is not None and attempts.isdigit() and int(attempts) > 1:
        return True
    retries = request.header(b"x-stainless-retry-count")
    return retries is not None and retries.isdigit() and int(retries) > 0


def retry_after_seconds(value: str | None, at: float) -> float | None:
    """Seconds from Unix time `at` of a Retry-After header, a number or a date; None where it is neither."""
    if value is None:
        return None
    if re.fullmatch("[0-9]{1,9}", value.strip()):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.fromtimestamp(at, UTC)).total_seconds())


def error_event(endpoint: Endpoint, message: str, code: str) -> bytes:
    """An error inside a stream, as the clients of that endpoint read it."""
    if endpoint is Endpoint.MESSAGES:
        error: dict[str, object] = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(error)
    if endpoint is Endpoint.RESPONSES:
        error = {"type": "error", "code": code, "message": message, "param": None}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(error)
    error = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    return b"data: %b\n\n" % msgspec.json.encode(error)


def _named_in_connection(headers: list[Header]) -> frozenset[bytes]:
    named = frozenset[bytes]()
    for name, value in headers:
        if name == b"connection":
            named |= {token.strip().lower() for token in value.split(b",")}
    return named
