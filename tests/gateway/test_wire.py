"""Headers, deadlines, marks of retries, error events."""

import json

import pytest

from controlplane.gateway import wire
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.inbound import Request
from controlplane.gateway.keyring import Keyring, hashed
from controlplane.gateway.settings import Tenant


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(b"POST", b"/v1/chat/completions", b"1.1", pairs)


@pytest.mark.parametrize(
    ("value", "takes"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("identity", False),
        ("br, deflate", False),
        ("", False),
    ],
)
def test_who_takes_gzip(value: str, takes: bool) -> None:
    assert wire.takes_gzip(request(accept_encoding=value)) is takes
    assert wire.takes_gzip(request()) is False


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"x_request_timeout": "30"}, 30),
        ({"x_request_timeout": "1.5"}, 1.5),
        ({"x_request_timeout": "250ms"}, 0.25),
        ({"x_request_timeout": "2s"}, 2),
        ({"grpc_timeout": "2S"}, 2),
        ({"grpc_timeout": "100m"}, 0.1),
        ({"grpc_timeout": "3M"}, 180),
        ({"grpc_timeout": "1H"}, 3600),
        ({"grpc_timeout": "500u"}, 0.0005),
        ({"grpc_timeout": "500n"}, 5e-7),
        ({"x_request_timeout": "5", "grpc_timeout": "1H"}, 5),
        ({"x_request_timeout": "soon"}, None),
        ({"x_request_timeout": "-1"}, None),
        ({"x_request_timeout": "1e9"}, None),
        ({"grpc_timeout": "123456789S"}, None),
        ({}, None),
    ],
)
def test_deadlines(headers: dict[str, str], seconds: float | None) -> None:
    told = wire.timeout_seconds(request(**headers))
    assert told == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "is_retry"),
    [
        ({}, False),
        ({"x_envoy_attempt_count": "1"}, False),
        ({"x_envoy_attempt_count": "2"}, True),
        ({"x_stainless_retry_count": "0"}, False),
        ({"x_stainless_retry_count": "1"}, True),
        ({"x_stainless_retry_count": "many"}, False),
    ],
)
def test_marks_of_retries(headers: dict[str, str], is_retry: bool) -> None:
    assert wire.is_retry(request(**headers)) is is_retry


def test_our_own_mark_is_one_that_we_know() -> None:
    name, value = wire.RETRY_MARK
    assert wire.is_retry(Request(b"POST", b"/", b"1.1", [(name, value)]))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("17", 17),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    at = 1_445_412_480.0  # 2015-10-21 07:28:00
    assert wire.retry_after_seconds(value, at) == seconds


@pytest.mark.parametrize("endpoint", Endpoint)
def test_error_events_are_read_by_the_clients_of_the_endpoint(endpoint: Endpoint) -> None:
    event = wire.error_event(endpoint, 'the "engine" broke\noff', "upstream_cut")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    data = json.loads(event.split(b"data: ")[1])
    assert "broke" in json.dumps(data)
    if endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES):
        assert event.startswith(b"event: error\n")
        assert data["type"] == "error"
    else:
        assert data["error"]["code"] == "upstream_cut"


def test_a_keyring_without_keys_is_open_and_one_with_keys_is_not() -> None:
    assert Keyring({"a": Tenant()}).tenant(request()) == "anybody"
    ring = Keyring({"a": Tenant(keys=(hashed(b"1"),)), "b": Tenant(keys=(hashed(b"2"), hashed(b"3")))})
    assert ring.tenant(request(authorization="Bearer 1")) == "a"
    assert ring.tenant(request(authorization="Bearer  3 ")) == "b"
    assert ring.tenant(request(x_api_key="2", authorization="Bearer 1")) == "b"
    assert ring.tenant(request(authorization="Bearer 4")) is None
    assert ring.tenant(request(authorization="Bearer ")) is None
    assert ring.tenant(request()) is None
