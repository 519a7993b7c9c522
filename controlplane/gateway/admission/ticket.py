"""One request under way, from its offer to its end. Whoever offered it holds the ticket and tells by it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from controlplane.gateway.admission.fairness import Account
from controlplane.gateway.admission.ledger import Reservation
from controlplane.gateway.admission.outcomes import PoolTally, ReplicaTally
from controlplane.gateway.admission.request import RANK, Request

if TYPE_CHECKING:
    from controlplane.gateway.admission.line import Line, Standing
    from controlplane.gateway.admission.replica import Replica

NOWHERE = ReplicaTally()  # of tickets that were not sent; nobody reads it


class Ticket:
    """To be read only, but by admission itself. Times are those of the calls, None before they happened.

    `tokens` is what its reservation is, or will be, `sequence_tokens` the longest of its sequences as it is
    likely to become, `full_tokens` the same should it use all that its client allows. `replica` is where it
    was sent, `reserved_at` where it has its reservation: the same, unless observing. `shadow` (observe mode)
    would have been refused: it runs, but is counted against nobody.
    """

    __slots__ = (
        "account",
        "breaker_number",
        "charged",
        "claim",
        "draw",
        "excluded",
        "first_token_at",
        "full_tokens",
        "has_ended",
        "id",
        "is_foretold",
        "is_queued",
        "last_token_at",
        "line",
        "offered_at",
        "output_tokens",
        "pool_tally",
        "queue_tally",
        "quota_tokens",
        "ran_seconds",
        "rank",
        "replica",
        "request",
        "reservation",
        "reserved_at",
        "reserved_since",
        "sent_at",
        "sent_load",
        "sequence_tokens",
        "shadow",
        "standing",
        "start_by",
        "tally",
        "tokens",
        "tried",
        "was_retried",
    )

    def __init__(
        self,
        number: int,
        request: Request,
        *,
        line: Line,
        account: Account,
        tokens: int,
        sequence_tokens: int,
        full_tokens: int,
        now: float,
        draw: float,
    ) -> None:
        self.id = number
        self.request = request
        self.line = line
        self.account = account
        self.tokens = tokens
        self.sequence_tokens = sequence_tokens
        self.full_tokens = full_tokens
        self.offered_at = now
        self.draw = draw
        self.rank = RANK[request.service_class]
        self.standing: Standing = line.standings[self.rank]  # of its class, whatever its rank becomes
        self.is_queued = False
        self.is_foretold = False  # when its place in the books is free again is settled (observe mode)
        self.tried = False  # on all replicas, since it was queued
        self.claim: Replica | None = None  # the replica that is kept for it
        self.start_by = inf  # it is dropped if it was not sent by then
        self.replica: Replica | None = None
        self.reservation: Reservation | None = None
        self.reserved_at: Replica | None = None
        self.reserved_since = 0.0
        self.ran_seconds = 0.0  # in the end
        self.breaker_number = 0
        self.excluded: tuple[Replica, ...] = ()
        self.tally: ReplicaTally = NOWHERE
        self.pool_tally: PoolTally | None = None
        self.queue_tally: PoolTally | None = None
        self.sent_at: float | None = None
        self.sent_load = 0.0  # of its replica, itself included (observe mode)
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.output_tokens = 0
        self.charged = 0.0  # weighted tokens
        self.quota_tokens: int | None = None  # taken from the tenant's quota
        self.was_retried = False
        self.shadow = False
        self.has_ended = False

    @property
    def least_tokens(self) -> int:
        """What a replica must hold for it at least: an engine need not run all its sequences at once."""
        return -(-self.tokens // self.request.sequences)

    @property
    def replica_name(self) -> str | None:
        return None if self.replica is None else self.replica.name

    @property
    def seen_tokens(self) -> int:
        """Prompt, and output so far."""
        return self.request.prompt_tokens + self.output_tokens
