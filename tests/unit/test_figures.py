"""Numbers as people read them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.terminal.figures import age, count, moment, percent, plain, seconds


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (count, 0.0, "0"),
        (count, 7.0, "7"),
        (count, 3.456, "3.46"),
        (count, 42.31, "42.3"),
        (count, 1116.0, "1,116"),
        (count, 38277.0, "38.3k"),
        (count, 999_999.0, "1000k"),
        (count, 4_560_000.0, "4.56M"),
        (count, 6.6e8, "660M"),
        (seconds, 0.0, "0 s"),
        (seconds, 0.00084, "840 us"),
        (seconds, 0.0123, "12.3 ms"),
        (seconds, 1.2375, "1.24 s"),
        (seconds, 95.0, "95.0 s"),
        (seconds, 720.0, "12.0 min"),
        (seconds, 12600.0, "3.50 h"),
        (seconds, 1e6, "11.6 d"),
        (age, 0.4, "0s"),
        (age, 42.4, "42s"),
        (age, 240.0, "4m"),
        (age, 10_800.0, "3h"),
        (age, 200_000.0, "2d"),
        (age, -1.0, "0s"),
        (percent, 0.0, "0%"),
        (percent, 0.0004, "<0.1%"),
        (percent, 0.0749, "7.5%"),
        (percent, 0.0999, "10%"),
        (percent, 0.62, "62%"),
        (percent, 0.997, ">99%"),
        (percent, 1.0, "100%"),
        (moment, 1764000912.0, "2025-11-24 16:15:12Z"),
        (moment, 1e300, "1e+300"),
    ],
)
def test_figures(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


@given(st.floats(0.0, 1e15))
def test_no_figure_is_long(value: float) -> None:
    assert len(count(value)) <= 6
    assert len(seconds(value)) <= 16
    assert len(age(value)) <= 12


def test_text_from_outside_cannot_command_the_terminal() -> None:
    assert plain("a\x1b[2Jb\nc") == "a\ufffd[2Jb\ufffdc"
