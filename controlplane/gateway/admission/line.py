"""A waiting line: the queued requests that may go to the same replicas.

There is one line for each model (base model or adapter) and pool. In a line, requests stand in bands of rank
0 (served first) to 2, and in a band each tenant has its own row, first come first served; which tenant is
next is a matter of the counters (`fairness.py`).

Each request is told at its offer how long it may wait at most:

    W = objective - engine's part          engine's part: learned, at most 0.6 of the objective
    W = min(W, 0.3 * objective)            while the queue stands: those who are served were served soon

That the queue of a class stands is CoDel's word. Its detector is told, at each departure, how long the oldest
of the class has waited: a tenant who is served at once does not hide another's standing queue. It stands no
more when nobody was over the target for one interval: places become free in lumps, and one short wait
between long ones is not the end of an overload.

A request of rank r rises by one rank each W / (r + 1), so that before its time is up it is served first.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING

from controlplane.gateway.admission.engine_part import EnginePart
from controlplane.gateway.admission.fairness import Account, Backlog
from controlplane.gateway.admission.request import RANK
from controlplane.gateway.admission.service_rate import ServiceRate
from controlplane.gateway.admission.settings import AdmissionSettings, ClassSettings, QueueSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.policy.limits.codel import Detector, DetectorState

if TYPE_CHECKING:
    from controlplane.gateway.admission.replica import Replica
    from controlplane.gateway.admission.routing import SpillGate

RANKS = len(RANK)


class Standing:
    """All requests of one class in one line, in the order in which they came."""

    __slots__ = ("_detector", "_settings", "_stands_until", "_state", "objective", "tickets")

    def __init__(self, objective: ClassSettings, settings: QueueSettings) -> None:
        self.objective = objective
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._settings = settings
        interval = settings.overload_interval * objective.ttft
        target = min(settings.overload_wait_target * objective.ttft, interval)
        self._detector = Detector.model_construct(target=target, interval=interval)
        self._state = DetectorState()
        self._stands_until = -inf

    def is_overloaded(self, now: float) -> bool:
        """Whether its queue stands."""
        return now < self._stands_until

    def wait_bound_seconds(self, engine_part_seconds: float, now: float) -> float:
        """How long a request that comes now may wait."""
        ttft, settings = self.objective.ttft, self._settings
        bound = ttft - min(engine_part_seconds, settings.engine_part_at_most * ttft)
        return min(bound, settings.wait_while_overloaded * ttft) if self.is_overloaded(now) else bound

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
        "bands",
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
        objectives = (settings.interactive, settings.agent, settings.batch)
        self.standings = [Standing(each, settings.queue) for each in objectives]
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
