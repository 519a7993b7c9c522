"""How long an answer asks to be left alone."""

import pytest

from controlplane.actuators.call import Reply


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("7", 7.0),
        ("999999", 999_999.0),
        ("1000000", 0.0),
        ("-1", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("", 0.0),
    ],
)
def test_a_retry_after(asked: str, seconds: float) -> None:
    assert Reply(429, {"Retry-After": asked}, b"").retry_after_seconds == seconds


def test_none_asks_for_nothing() -> None:
    assert Reply(429, {}, b"").retry_after_seconds == 0.0
