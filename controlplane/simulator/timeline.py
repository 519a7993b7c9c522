"""Who of many acts next. A run costs as much for each engine whatever their number (but for a logarithm)."""

import heapq
from collections.abc import Sequence
from math import inf
from typing import Protocol


class Actor(Protocol):
    """Something that does things at times of its own."""

    def next_event_time(self) -> float: ...


class Timeline:
    """The next event times of `actors`, which are known by their place in the sequence.

    `changed` must be called for an actor whose next event time may have changed.
    """

    def __init__(self, actors: Sequence[Actor]) -> None:
        self._actors = actors
        self._times = [inf] * len(actors)
        self._heap: list[tuple[float, int]] = []
        for place in range(len(actors)):
            self.changed(place)

    def changed(self, place: int) -> None:
        """Look again when the actor at `place` acts next."""
        at = self._actors[place].next_event_time()
        if at != self._times[place]:
            self._times[place] = at
            if at < inf:
                heapq.heappush(self._heap, (at, place))

    def next_time(self) -> float:
        """When the next of them acts; infinity if none does."""
        heap = self._heap
        while heap and heap[0][0] != self._times[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def due(self, now: float) -> list[int]:
        """The places of all that act up to `now`, in order of time and then of place.

        Each is told once; its next time counts from the call of `changed` that follows.
        """
        places = []
        while self.next_time() <= now:
            _, place = heapq.heappop(self._heap)
            self._times[place] = inf
            places.append(place)
        return places
