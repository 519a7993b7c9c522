"""What of a window may be believed, what is new in it, and what should be seen and is not."""

import math

from controlplane.policy.limits.law import Window
from controlplane.signals.reading import Known, Reason, Unknown, aged
from controlplane.signals.snapshot import Distribution, Number, Quantiles

# Unknown, but not lost: there is no such signal here, or nothing happened that it could tell of.
_SILENT = frozenset(
    {
        Reason.ABSENT,
        Reason.UNSUPPORTED,
        Reason.NO_TRAFFIC,
        Reason.TOO_FEW,
        Reason.FIRST_SAMPLE,
        Reason.RESTARTED,
    }
)


def fresh(reading: Number, window: Window, stale_after_seconds: float) -> float | None:
    """The value of a reading that is young enough at the end of the window; None of any other."""
    reading = aged(reading, window.end, stale_after_seconds)
    return reading.value if isinstance(reading, Known) and math.isfinite(reading.value) else None


def news(reading: Number, window: Window) -> float | None:
    """The value of a reading that was measured in this window; None of any other."""
    if isinstance(reading, Known) and reading.at > window.start and math.isfinite(reading.value):
        return reading.value
    return None


def news_of_first_tokens(window: Window) -> Known[Quantiles] | None:
    """The first tokens that came in this window; None where none did, or nobody saw them."""
    seen = window.first_token
    return seen if isinstance(seen, Known) and seen.at > window.start else None


def lost(window: Window, stale_after_seconds: float) -> list[str]:
    """Names of the signals that should be seen and are not."""
    signals = {
        "step gap": window.step_gap,
        "first tokens": window.first_token,
        "KV usage": window.kv_usage,
        "waiting": window.waiting,
        "preemptions": window.preemptions,
    }
    return [name for name, reading in signals.items() if _is_lost(reading, window, stale_after_seconds)]


def _is_lost(reading: Number | Distribution, window: Window, stale_after_seconds: float) -> bool:
    if isinstance(reading, Unknown):
        return reading.reason not in _SILENT
    if window.end - reading.at > stale_after_seconds:
        return True
    return isinstance(reading.value, float) and not math.isfinite(reading.value)
