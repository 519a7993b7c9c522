"""Durations and shares as people write them: `250ms`, `2s`, `5m`, `95%`."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def seconds(text: object) -> float:
    """Seconds of a duration like `90s` or `1m30s`; a bare 0 is allowed. Raises ValueError otherwise."""
    if isinstance(text, int | float) and not isinstance(text, bool) and text == 0:
        return 0.0
    if not isinstance(text, str):
        raise ValueError(f"a duration needs a unit, like 2s or 5m (got {text!r})")
    parts = _DURATION.findall(text.strip())
    if not parts or _DURATION.sub("", text).strip():
        raise ValueError(f"not a duration like 250ms, 2s, 5m, 1h30m or 7d (got {text!r})")
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def share(value: object) -> float:
    """A ratio 0..1 from `95%` or 0.95. Raises ValueError otherwise."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            number = float(value.strip()[:-1]) / 100
        except ValueError:
            raise ValueError(f"not a percentage (got {value!r})") from None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    else:
        raise ValueError(f"not a share like 95% or 0.95 (got {value!r})")
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"a share lies between 0 and 1 (got {value!r})")
    return number


def duration_text(value: float) -> str:
    """Seconds as the shortest text that `seconds` reads back."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s" if value >= 1 else f"{value * 1e3:g}ms"


def _exact_text(value: float) -> str:
    """A text that `seconds` reads back as the very same float, so that stored settings replay the same."""
    text = duration_text(value)
    exact = _DURATION.fullmatch(text) and seconds(text) == value
    return text if exact else f"{Decimal(repr(value)):f}s"


Duration = Annotated[float, BeforeValidator(seconds), PlainSerializer(_exact_text, str, when_used="json")]
Share = Annotated[float, BeforeValidator(share)]
