"""Observe mode: requests that have ended, or will, and until when the books of a gateway that enforces would
have them hold their places.

One that ran on an engine within its means lingers for as long as it ran, from when it would have been let in.
On an engine that is overrun it runs longer than it would if we enforced: there its end is foretold, by the
pace of a full engine, when it would have been let in.
"""

import heapq
from collections.abc import Iterator
from math import inf

from controlplane.gateway.admission.replica import Replica
from controlplane.gateway.admission.ticket import Ticket


class Ghosts:
    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []

    @property
    def next_at(self) -> float:
        """When the first of them is to be laid; infinity of none."""
        return self._heap[0][0] if self._heap else inf

    def foretell(self, ticket: Ticket, replica: Replica, now: float) -> None:
        """Settle now when it would have ended, if that is known."""
        seconds = replica.pace.foretold(ticket.draw)
        if seconds is not None:
            ticket.is_foretold = True
            heapq.heappush(self._heap, (now + seconds, ticket.id, ticket))

    def linger(self, ticket: Ticket) -> None:
        """It has ended; in the books it runs on for as long as it ran."""
        heapq.heappush(self._heap, (ticket.reserved_since + ticket.ran_seconds, ticket.id, ticket))

    def laid(self, now: float) -> Iterator[Ticket]:
        """Those whose time in the books is over, each once."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]
