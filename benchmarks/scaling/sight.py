"""What a law of scaling can see of a pool, and what it is asked."""

from collections.abc import Sequence
from typing import Protocol


class Sight:
    """At second `now`: replicas `asked` for and `ready` of them, since when the others load; requests
    `in_flight` and `queued` (at the gateway and in engines), and sums since the start: requests that
    `arrived`, that were `shed`, that `finished`, and sequence seconds in flight (`occupied`)."""

    def __init__(self, replicas: int) -> None:
        self.now = 0
        self.asked = self.ready = replicas
        self.loading_since: Sequence[float] = ()
        self.start_ups: list[float] = []
        """How long each of those took that have started since the beginning, in their order."""
        self.in_flight = self.queued = 0.0
        self.arrived = self.shed = self.finished = self.occupied = 0.0
        self.concurrency = [0.0]
        """Sums of in flight and queued over the seconds."""

    def mean_concurrency(self, seconds: int) -> float:
        """Requests in flight and queued, on average over so long until now."""
        since = max(0, self.now - seconds)
        return (self.concurrency[self.now] - self.concurrency[since]) / max(1, self.now - since)


class Scaler(Protocol):
    """A law of scaling; it looks every `interval` seconds."""

    interval: int

    def look(self, sight: Sight) -> int:
        """How many replicas there should be."""


class Turns:
    """Counts turns: a change within `within` seconds of one the other way."""

    def __init__(self, within: float) -> None:
        self.turns = self.changes = 0
        self._within = within
        self._changed: dict[bool, float] = {}

    def change(self, before: int, after: int, now: float) -> None:
        if before == after:
            return
        up = after > before
        self.changes += 1
        self.turns += now - self._changed.get(not up, -1e9) < self._within
        self._changed[up] = now
