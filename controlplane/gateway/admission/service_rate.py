"""How fast a queue is served, in requests and tokens a second, while there is one.

Measured over the last ten seconds during which something was queued. An idle fleet's rate is the rate of its
arrivals and says nothing of what it could do, so before a second of queueing nothing is known. What is served
next is counted as if it were served now: where nothing was for two seconds, half a request a second is what
can be hoped for, and not none for ever.
"""

from controlplane.gateway.admission.rolling import RollingSum

_WINDOW_SECONDS = 10.0
_ENOUGH_SECONDS = 1.0


class ServiceRate:
    __slots__ = ("_busy", "_is_backlogged", "_last", "_requests", "_tokens")

    def __init__(self) -> None:
        self._busy = RollingSum(_WINDOW_SECONDS)
        self._requests = RollingSum(_WINDOW_SECONDS)
        self._tokens = RollingSum(_WINDOW_SECONDS)
        self._last = 0.0
        self._is_backlogged = False

    def pass_time(self, now: float, *, is_backlogged: bool) -> None:
        """From now on there is, or is not, something queued."""
        if self._is_backlogged:
            self._busy.add(now, min(now - self._last, _WINDOW_SECONDS / 10))
        self._last = now
        self._is_backlogged = is_backlogged

    def served(self, now: float, tokens: int) -> None:
        """One of the requests was let in."""
        if self._is_backlogged:
            self._requests.add(now)
            self._tokens.add(now, tokens)

    def per_second(self, now: float, next_tokens: int) -> tuple[float, float] | None:
        """(requests, tokens) a second, with a next one of so many tokens; None where that is not known."""
        if self._is_backlogged:
            self.pass_time(now, is_backlogged=True)
        busy = self._busy.total(now)
        if busy < _ENOUGH_SECONDS:
            return None
        return (self._requests.total(now) + 1) / busy, (self._tokens.total(now) + next_tokens) / busy
