"""The last gate before the wire: no NaN and no infinity passes it."""

import math

from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.snapshot import Number


def finite(value: float | None) -> float | None:
    """The value, or None where it is none that JSON can carry (an open bound, a NaN)."""
    return value if value is not None and math.isfinite(value) else None


def finite_reading(reading: Number) -> Number:
    """The reading, or an unknown one that says what was wrong with its value."""
    if isinstance(reading, Unknown) or math.isfinite(reading.value):
        return reading
    reason = Reason.NOT_A_NUMBER if math.isnan(reading.value) else Reason.NOT_FINITE
    return Unknown(reason, reading.at)
