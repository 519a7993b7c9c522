"""One connection to the API: what a slow or silent client may hold on to, and for how long.

uvicorn waits for ever for a request to be complete and for an answer to be taken, and refuses everybody
while too many connections are open, health probes among them. Here a connection has some seconds for each
request line with its headers and some for taking what was written; where all are taken, the one that has
waited longest for a request makes room for a new one.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 512
LONGEST_HEAD_SECONDS = 10.0
LONGEST_STALL_SECONDS = 40.0  # of a client that takes nothing; the event stream gives up before


class Connection(H11Protocol):
    """uvicorn's protocol with bounds. `waiting_since` is when the wait for a request began, in loop time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting_since = 0.0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether no request is under way: it is idle, or its next request is not complete."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()
        if len(self.connections) > MOST_CONNECTIONS:
            _make_room(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(LONGEST_STALL_SECONDS, self.give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def give_up(self) -> None:
        """End it at once; what was not taken is lost."""
        self.connections.discard(self)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self.waiting_since = self.loop.time()
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(LONGEST_HEAD_SECONDS, self._end_wait)

    def _end_wait(self) -> None:
        if self.waits:
            self.give_up()


def _make_room(new: Connection) -> None:
    """Give up the connection that has waited longest for a request; `new` itself where none other waits."""
    others = (other for other in new.connections if isinstance(other, Connection) and other is not new)
    oldest = min((other for other in others if other.waits), key=lambda one: one.waiting_since, default=new)
    oldest.give_up()
