"""How long an engine takes from being sent a request to its first token: what a deadline must leave for it.

The 75th percentile of the last first tokens. Where too few came within the last minute it is 0, which is how
it forgets: if it were so large that nothing was let in any more, nothing would come to correct it.
"""

from collections import deque

_SAMPLES = 200
_ENOUGH = 5
_MEMORY_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.5


class EnginePart:
    """The engine's part of the time to first token, of one line of requests."""

    __slots__ = ("_known_until", "_samples", "_seconds")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._known_until = 0.0
        self._seconds = 0.0

    def add(self, now: float, seconds: float) -> None:
        """A first token came, so many seconds after the request was sent."""
        self._samples.append((now, seconds))

    def seconds(self, now: float) -> float:
        """The 75th percentile, looked up twice a second."""
        if now >= self._known_until:
            self._known_until = now + _LOOK_AGAIN_SECONDS
            young = sorted(seconds for at, seconds in self._samples if now - at <= _MEMORY_SECONDS)
            self._seconds = young[(3 * len(young)) // 4] if len(young) >= _ENOUGH else 0.0
        return self._seconds
