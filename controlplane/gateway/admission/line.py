"""A waiting line: the queued requests that may go to the same replicas.

There is one line for each model (base model or adapter) and pool. In a line, requests stand in bands of rank
0 (served first) to 2, and in a band each tenant has its own row, first come first served; which tenant is
next is a matter of the counters (`fairness.py`).

Each request is told at its offer how long it may wait at most:

    W = objective - engine's part          engine's part: learned, at most 0.8 of the objective
    W = min(W, 0.3 * objective)            while the queue stands: those who are served were served soon

A tenant that is owed service (`Queue.is_owed`) is not why the queue stands: its requests keep the longer W.

That the queue of a class stands is CoDel's word. Its detector is told, at each departure, how long the oldest
of the class has waited: a tenant who is served at once does not hide another's standing queue. It stands no
more when nobody was over the target for one interval: places become free in lumps, and one short wait
between long ones is not the end of an overload.

With `drop: codel` W stays as it is in a queue that stands, and CoDel says before each that is let in whether
the oldest of its class is dropped instead (RFC 8289; its schedule is of the class, not of a tenant).

A request of rank r rises by one rank each W / (r + 1), so that before its time is up it is served first.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from controlplane.gateway.admission.breaker import BreakerState
from controlplane.gateway.admission.engine_part import EnginePart
from controlplane.gateway.admission.fairness import Account, Backlog
from controlplane.gateway.admission.request import RANKS, ServiceClass
from controlplane.gateway.admission.service_rate import ServiceRate
from controlplane.gateway.admission.settings import (
    AdmissionSettings,
    ClassSettings,
    Dropping,
    QueueSettings,
)
from controlplane.gateway.admission.ticket import Ticket
from controlplane.policy.limits.codel import Codel, CodelState, Detector, DetectorState

if TYPE_CHECKING:
    from controlplane.gateway.admission.replica import Replica
    from controlplane.gateway.admission.routing import SpillGate


class Standing:
    """All requests of one class in one line, in the order in which they came."""

    __slots__ = (
        "_codel",
        "_cut_wait_seconds",
        "_detector",
        "_drops",
        "_settings",
        "_stands_until",
        "_state",
        "most_engine_part_seconds",
        "tickets",
        "tpot",
        "ttft",
    )

    def __init__(self, objective: ClassSettings, settings: QueueSettings) -> None:
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._settings = settings
        self._state = DetectorState()
        self._codel: Codel | None = None
        self._drops = CodelState()
        self._stands_until = -inf
        self.aim(objective)

    def aim(self, objective: ClassSettings) -> None:
        """This is what its requests expect from now on."""
        settings, ttft = self._settings, objective.ttft
        self.ttft, self.tpot = ttft, objective.tpot
        self.most_engine_part_seconds = settings.engine_part_at_most * ttft
        self._cut_wait_seconds = settings.wait_while_overloaded * ttft
        interval = settings.overload_interval * ttft
        target = min(settings.overload_wait_target * ttft, interval)
        self._detector = Detector.model_construct(target=target, interval=interval)
        if settings.drop is Dropping.CODEL:
            self._codel = Codel.model_construct(detector=self._detector)
            self._cut_wait_seconds = ttft

    def is_overloaded(self, now: float) -> bool:
        """Whether its queue stands."""
        return now < self._stands_until

    def wait_bound_seconds(self, engine_part_seconds: float, now: float, *, is_owed: bool = False) -> float:
        """How long a request that comes now may wait; `is_owed`: its tenant got less than the others."""
        bound = self.ttft - min(engine_part_seconds, self.most_engine_part_seconds)
        is_cut = self.is_overloaded(now) and not is_owed
        return min(bound, self._cut_wait_seconds) if is_cut else bound

    def to_drop(self, now: float) -> Ticket | None:
        """Whom CoDel drops where one of them is about to be let in; to be asked until it is nobody."""
        if self._codel is None:
            return None
        oldest = next(iter(self.tickets.values()))
        left = len(self.tickets) - 1
        self._drops = self._codel.dequeued(self._drops, now, now - oldest.offered_at, left)
        return oldest if self._drops.drop else None

    def add(self, ticket: Ticket, *, first: bool) -> None:
        self.tickets[ticket.id] = ticket
        if first:
            self.tickets.move_to_end(ticket.id, last=False)

    def remove(self, ticket: Ticket, now: float) -> None:
        """It has left the queue, served or not."""
        detector = self._detector
        sojourn = now - next(iter(self.tickets.values())).offered_at
        del self.tickets[ticket.id]
        if self.tickets:
            self._state = detector.dequeued(self._state, now, sojourn, len(self.tickets))
        else:
            self._state = detector.emptied(self._state)
            if self._codel is not None:
                self._drops = self._codel.emptied(self._drops)
        if self._state.overloaded or (self.is_overloaded(now) and sojourn >= detector.target):
            self._stands_until = now + detector.interval


class Band:
    """The requests of one rank in one line, in a row for each tenant."""

    __slots__ = ("backlog", "rows")

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.rows: dict[Account, OrderedDict[int, Ticket]] = {}

    def add(self, ticket: Ticket, *, first: bool) -> None:
        row = self.rows.get(ticket.account)
        if row is None:
            row = self.rows[ticket.account] = OrderedDict()
            self.backlog.add(ticket.account)
        row[ticket.id] = ticket
        if first:
            row.move_to_end(ticket.id, last=False)

    def remove(self, ticket: Ticket) -> None:
        row = self.rows[ticket.account]
        del row[ticket.id]
        if not row:
            del self.rows[ticket.account]
            self.backlog.discard(ticket.account)

    def head(self, *, newest: bool) -> Ticket | None:
        """The next one of the tenant with the smallest counter."""
        account = self.backlog.least()
        if account is None:
            return None
        row = self.rows[account]
        return next(reversed(row.values())) if newest else next(iter(row.values()))


class Line:
    """See above. `home` are its own pool's replicas, `spill` the other pool's, both in order of name."""

    __slots__ = (
        "_output_weight",
        "_settings",
        "bands",
        "credit",
        "engine_part",
        "gate",
        "home",
        "is_served",
        "longest_tokens",
        "most_tokens",
        "pool",
        "queued",
        "queued_tokens",
        "rate",
        "reach",
        "slack",
        "spill",
        "standings",
    )

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._output_weight = settings.output_weight
        self.standings = [Standing(settings.objective("", each), settings.queue) for each in ServiceClass]
        self.bands = [Band() for _ in range(RANKS)]
        self.queued = [0] * RANKS  # by rank
        self.queued_tokens = [0] * RANKS
        self.engine_part = EnginePart()
        self.rate = ServiceRate()
        self.pool = ""
        self.home: list[Replica] = []
        self.spill: list[Replica] = []
        self.reach: frozenset[Replica] = frozenset()  # both together
        self.gate: SpillGate | None = None
        self.is_served = False  # some replica is in rotation
        self.longest_tokens = inf  # the largest max_model_len
        self.most_tokens = inf  # the largest KV cache
        self.slack = inf  # weighted tokens that a tenant may be ahead of one who waits for room
        self.credit = 0.0  # weighted tokens that a tenant may be behind when it comes back

    @property
    def can_spare_one(self) -> bool:
        """Whether at least half of its replicas would be left to choose from without one of them."""
        inside = [replica for replica in self.reach if replica.in_rotation]
        closed = sum(replica.breaker.state is BreakerState.CLOSED for replica in inside)
        return 2 * (closed - 1) >= len(inside)

    def tokens_of(self, weighted_tokens: float) -> float:
        """At least so many tokens of a request make so many weighted ones."""
        return weighted_tokens / self._output_weight

    def belong(self, pool: str) -> None:
        """It is a line of this pool: its requests expect what that pool promises, wherever they run."""
        if pool != self.pool:
            self.pool = pool
            for service_class, standing in zip(ServiceClass, self.standings, strict=True):
                standing.aim(self._settings.objective(pool, service_class))
