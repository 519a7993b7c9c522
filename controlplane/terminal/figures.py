"""Numbers as people read them: three digits that mean something, and a unit that fits."""

from collections.abc import Callable
from datetime import UTC, datetime

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


def count(value: float) -> str:
    """A number of things: `7`, `3.5`, `8,240`, `12.3k`, `4.56M`."""
    for size, letter in _STEPS:
        if abs(value) >= size:
            scaled = value / (1e3 if letter == "k" else size)
            return f"{scaled:.{_decimals(scaled)}f}{letter}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.{_decimals(value)}f}"


def seconds(value: float) -> str:
    """A time: `840 us`, `12.3 ms`, `1.24 s`, `95 s`, `12 min`, `3.5 h`, `2.1 d`."""
    for limit, size, unit in (
        (1e-3, 1e-6, "us"),
        (1.0, 1e-3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172800.0, 3600.0, "h"),
    ):
        if abs(value) < limit:
            return "0 s" if value == 0 else f"{value / size:.{_decimals(value / size)}f} {unit}"
    days = value / 86400.0
    return f"{days:.{_decimals(days)}f} d"


def within(value: float, lowest: float | None, highest: float | None, words: Callable[[float], str]) -> str:
    """A quantile in `words`, as far as a histogram with these finite bounds can tell: `<300 ms`, `>60 s`.

    Under its lowest bound, and over its highest, a histogram knows no more than that.
    """
    if highest is not None and value >= highest:
        return f">{words(highest)}"
    if lowest is not None and lowest > 0 and value <= lowest:
        return f"<{words(lowest)}"
    return words(value)


def age(value: float) -> str:
    """How long ago, in whole units as the configuration has them: `2s`, `42s`, `4m`, `3h`, `2d`."""
    for limit, size, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "m"), (172800.0, 3600.0, "h")):
        if value < limit:
            return f"{max(0.0, value) / size:.0f}{unit}"
    return f"{value / 86400.0:.0f}d"


def percent(ratio: float) -> str:
    """A ratio 0..1: `7.5%`, `62%`, `100%`; 100% only where it is all, 0% only where it is nothing."""
    if 0.995 <= ratio < 1:
        return ">99%"
    if 0 < ratio < 0.001:
        return "<0.1%"
    return f"{ratio:.1%}" if 0 < ratio < 0.0995 else f"{ratio:.0%}"


def moment(unix_seconds: float) -> str:
    """A point in time, `2026-11-30 01:17:05Z`; the bare number where it is none."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds:g}"


def plain(text: str) -> str:
    """Text from outside without what a terminal would obey."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _decimals(scaled: float) -> int:
    """How many decimals leave three digits."""
    size = abs(scaled)
    return 2 if size < 9.995 else 1 if size < 99.95 else 0
