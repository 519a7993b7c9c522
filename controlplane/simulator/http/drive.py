"""An engine in real time: it is carried along with the event loop's clock and tells each request its tokens.

The driver sleeps until the step that runs is due to end. If it wakes late, it does everything that was due
meanwhile at once, at the times at which it was due: the engine itself is never late, only its listeners are.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

import msgspec

from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event, Finished, Preempted, Progress, Request

_LATENESSES = 4096


class Flow:
    """One sequence as it comes: `tokens` are out so far, `reason` says why it has ended, if it has.

    `changed` is set when it ends, and with `tells_each` at every token.
    """

    __slots__ = ("changed", "id", "reason", "tells_each", "tokens")

    def __init__(self, request_id: str, changed: asyncio.Event, *, tells_each: bool) -> None:
        self.id = request_id
        self.changed = changed
        self.tells_each = tells_each
        self.tokens = 0
        self.reason: str | None = None


class Lateness(msgspec.Struct, frozen=True):
    """How long after they were due the newest tokens were told, in seconds."""

    p50_seconds: float
    p99_seconds: float
    longest_seconds: float


class Timer(Protocol):
    """What a clock gives for a call to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that the driver needs."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Drive:
    """One engine, from its second 0 on, which is now."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self._clock = clock
        self._began_at = clock.time()
        self._reached = 0.0
        self._flows: dict[str, Flow] = {}
        self._due = inf
        self._timer: Timer | None = None
        self._lateness: deque[float] = deque(maxlen=_LATENESSES)

    def now(self) -> float:
        """Seconds since the engine started."""
        # A timer may be early by the clock's resolution; the engine's time must not go back for that.
        return max(self._clock.time() - self._began_at, self._reached)

    def submit(self, request: Request, changed: asyncio.Event, *, tells_each: bool = True) -> Flow:
        """A request arrives."""
        self.engine.submit(request, self.now())
        flow = self._flows[request.id] = Flow(request.id, changed, tells_each=tells_each)
        self._sleep()
        return flow

    def abort(self, flow: Flow) -> None:
        """The client of a request has gone. One that has ended is left alone."""
        if self._flows.pop(flow.id, None) is not None:
            self.engine.abort(flow.id, self.now())
            self._sleep()

    def change(self, change: Callable[[Engine], None]) -> None:
        """Change the engine as of now, after all that was due before."""
        self._advance(self.now())
        change(self.engine)
        self._sleep()

    def lateness(self) -> Lateness:
        """Of the last few thousand wake-ups."""
        times = sorted(self._lateness) or [0.0]
        p50, p99 = (times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
        return Lateness(p50, p99, times[-1])

    def end_all(self) -> None:
        """The server ends: so do all requests, as they are."""
        for flow in list(self._flows.values()):
            self.abort(flow)
            flow.reason = "abort"
            flow.changed.set()

    def stop(self) -> None:
        """No token comes any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._flows.clear()

    def _sleep(self) -> None:
        due = self.engine.next_event_time()
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due < inf:
            self._timer = self._clock.call_at(self._began_at + due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        due, self._due = self._due, inf
        now = self.now()
        self._lateness.append(max(now - due, 0.0))
        self._advance(max(now, due))
        self._sleep()

    def _advance(self, to: float) -> None:
        self._reached = to
        for event in self.engine.advance(to):
            self._tell(event)

    def _tell(self, event: Event) -> None:
        flow = self._flows.get(event.request_id)
        if flow is None or isinstance(event, Preempted):
            return
        if isinstance(event, Progress):
            flow.tokens = event.generated
        elif isinstance(event, Finished):
            flow.tokens = event.output_tokens
            flow.reason = event.reason
            del self._flows[event.request_id]
        else:
            flow.tokens = 1
        if flow.tells_each or flow.reason is not None:
            flow.changed.set()
