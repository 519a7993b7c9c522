"""Circuit breaker of one replica: takes one that fails out of the choice, and tries it again with a few.

Everything that changes its state is in this table; what is not in it changes nothing.

    state      event                                            next
    ---------  -----------------------------------------------  ----------------------------------------
    closed     a success                                        closed, failures in a row = 0
    closed     a failure: `in_a_row` without a success          open
    closed     a failure: `failed_ratio` of at least `enough`   open
               requests that ended within `window` failed
    open       `open_for` is over (doubled each time in a row)  half-open
    half-open  a request is sent: `trials` at once at most      half-open, its trial runs
    half-open  a trial has its first byte or ends well          half-open; closed after `trials` of them
    half-open  a trial fails, or runs `trial_timeout` without   open, for twice as long
               a first byte
    half-open  a trial ends without a verdict                   half-open, its place is free again
    any but    a trial that ran for too long has its first      closed
    closed     byte or ends well after all

Which requests count:
* Failures are the replica's own: no connection, an answer of 5xx, an error event or a cut inside a stream.
* A failure that is an answer may be the request's: engines say 500 to an image that they cannot fetch
  (vllm#47163). One tenant with many of those would shut the whole fleet. So such a failure opens no breaker
  (`may_open`) where less than half of the replicas would be left: one that fails unlike the others is broken;
  where most fail alike, it is not they.
* A client's error (4xx) and a client that hangs up say nothing. An overload answer (429, 503) is news for
  the limit, not a fault: a breaker that counted it would turn a full fleet into a dead one.
* A request speaks only of the state in which it was sent: streams that were cut when the breaker opened
  do not open it again when it is half-open, and those that go on well do not close it. Trials that ran for
  too long do: an answer that comes whole shows its first byte with its last, minutes later. Where all answers
  do, the breaker would never close.

Both thresholds are needed. A ratio alone is slow on a replica that has just died under load, since all its
successes are still in the window; a row alone never sees a replica that fails every second request.
"""

from enum import StrEnum

from controlplane.gateway.admission.rolling import RollingSum
from controlplane.gateway.admission.settings import BreakerSettings


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The breaker of one replica. `send` gives each request a number, by which its end is told."""

    __slots__ = (
        "_failed",
        "_first",
        "_in_a_row",
        "_last",
        "_late",
        "_open_seconds",
        "_passed",
        "_settings",
        "_succeeded",
        "_trials",
        "_until",
        "state",
    )

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self.state = BreakerState.CLOSED
        self._last = 0  # the number given last
        self._first = 1  # requests with a smaller number were sent in an earlier state
        self._in_a_row = 0
        self._succeeded = RollingSum(settings.window)
        self._failed = RollingSum(settings.window)
        self._open_seconds = settings.open_for
        self._until = 0.0
        self._trials: dict[int, float] = {}  # when they were sent
        self._late: set[int] = set()  # trials that ran for too long, and still run
        self._passed = 0

    def allows(self, now: float) -> bool:
        """Whether a request may be sent."""
        if self.state is BreakerState.CLOSED:
            return True
        self._look(now)
        return self.state is BreakerState.HALF_OPEN and self._places() > 0

    def next_trial_at(self, now: float) -> float:
        """When a request may be sent, if nothing happens before."""
        if self.allows(now):
            return now
        if self.state is BreakerState.OPEN:
            return self._until
        # All trials run. If they pass it is sooner, if they time out it is open for longer.
        return min(self._trials.values(), default=now) + self._settings.trial_timeout

    def send(self, now: float) -> int:
        """A request is sent, which `allows` permits. Returns its number."""
        self._last += 1
        if self.state is BreakerState.HALF_OPEN:
            self._trials[self._last] = now
        return self._last

    def first_byte(self, number: int, now: float) -> None:
        """The answer has begun. A trial has passed with it: streams take minutes to end."""
        if self.state is not BreakerState.CLOSED:
            self._pass(number)

    def succeeded(self, number: int, now: float) -> None:
        if self.state is BreakerState.CLOSED:
            if number >= self._first:
                self._in_a_row = 0
                self._succeeded.add(now)
        else:
            self._pass(number)

    def failed(self, number: int, now: float, *, may_open: bool = True) -> None:
        self._late.discard(number)
        if number < self._first:
            return
        if self.state is BreakerState.CLOSED:
            self._in_a_row += 1
            self._failed.add(now)
            if may_open and self._is_bad(now):
                self._open(now)
        elif number in self._trials:
            self._open(now)

    def ended(self, number: int) -> None:
        """A request ended without a verdict on the replica."""
        self._late.discard(number)
        self._trials.pop(number, None)

    def _is_bad(self, now: float) -> bool:
        settings = self._settings
        if self._in_a_row >= settings.in_a_row:
            return True
        failed = self._failed.total(now)
        known = failed + self._succeeded.total(now)
        return known >= settings.enough and failed >= settings.failed_ratio * known

    def _look(self, now: float) -> None:
        """What time alone does."""
        if self.state is BreakerState.OPEN and now >= self._until:
            self.state = BreakerState.HALF_OPEN
            self._first = self._last + 1
            self._passed = 0
        elif self.state is BreakerState.HALF_OPEN and self._trials:
            timeout = self._settings.trial_timeout
            if now - min(self._trials.values()) >= timeout:
                self._late.update(self._trials)
                self._open(now)

    def _places(self) -> int:
        return self._settings.trials - self._passed - len(self._trials)

    def _pass(self, number: int) -> None:
        if number in self._late:
            self._close()
            return
        if self._trials.pop(number, None) is None:
            return
        self._passed += 1
        if self._passed >= self._settings.trials:
            self._close()

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._until = now + self._open_seconds
        self._open_seconds = min(2 * self._open_seconds, self._settings.open_for_at_most)
        self._first = self._last + 1
        self._trials.clear()

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._trials.clear()
        self._late.clear()
        self._open_seconds = self._settings.open_for
        self._first = self._last + 1
        self._in_a_row = 0
        self._succeeded = RollingSum(self._settings.window)
        self._failed = RollingSum(self._settings.window)
