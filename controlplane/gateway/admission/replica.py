"""One replica as this gateway knows it: what it may take, what is in it, how it looks from here.

Load is what a replica would hold with one request more, as a share of its budget or its limit, whichever is
fuller. It is made of what we know at once and what we are told late:

    ours     everything that we have sent and that has not ended: exact, and of this moment
    others   what the last scrape showed beyond what was ours *at the time of that scrape*, and beyond the
             part of the replica that is not our share anyhow: it is there for them

So a burst between two scrapes is seen at once, and is not counted a second time when a scrape shows it.
Readings that grow old weigh against a replica a little; too old, they are forgotten, and only ours is left.

A fresh replica (slow start) takes, and looks, as if it were smaller: a tenth at first, all of it after
`slow_start`. Where all replicas of a pool are fresh there is nobody to spare them for, so ages count against
the oldest of the pool.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from controlplane.gateway.admission.breaker import Breaker, BreakerState
from controlplane.gateway.admission.ledger import Ledger
from controlplane.gateway.admission.pace import Pace
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.trail import Trail
from controlplane.policy.limits.law import UNLIMITED

if TYPE_CHECKING:
    from controlplane.gateway.admission.ticket import Ticket

_LEAST_RAMP = 0.1
_STALE_WEIGHT = 1.5  # of a load whose readings are about to be forgotten
_MEMORY = 0.95  # of the mean size of a sequence


class Rotation(StrEnum):
    """Whether a replica gets anything new."""

    IN = "in"
    STARTING = "starting"
    UNREADY = "unready"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


class ReplicaSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a replica. It may span pods and nodes; it is one endpoint.

    `models` it serves (base model and adapters; empty: any). `kv_tokens` of its whole KV cache,
    `max_model_len` and `max_num_seqs` are None where not known. `ready_since` is when it became ready, None
    for long ago; `ready_expected_at` is for one that is starting.
    """

    name: str
    pool: str
    models: tuple[str, ...] = ()
    rotation: Rotation = Rotation.IN
    kv_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    ready_since: float | None = None
    ready_expected_at: float | None = None


class ReplicaReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a scrape of a replica at time `at` showed; None for what it did not."""

    name: str
    at: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class Replica:
    __slots__ = (
        "_foreign_sequences",
        "_foreign_tokens",
        "_oldest_since",
        "_ramped_at",
        "_sequence_tokens",
        "_settings",
        "_share",
        "_weight",
        "breaker",
        "claimant",
        "holds_tokens",
        "in_rotation",
        "ledger",
        "limit",
        "longest_tokens",
        "name",
        "open_sequences",
        "open_tokens",
        "overcommit",
        "pace",
        "paused_until",
        "seed",
        "seen_at",
        "spec",
        "trail",
    )

    def __init__(self, spec: ReplicaSpec, settings: AdmissionSettings) -> None:
        self._settings = settings.routing
        self.name = spec.name
        self.seed = crc32(spec.name.encode()) | crc32(spec.name[::-1].encode()) << 32
        self.ledger = Ledger(settings.extension_tokens)
        self.breaker = Breaker(settings.breaker)
        self.trail = Trail()
        self.pace = Pace()
        self.limit: float | None = None  # the engine's own, until somebody says
        self.overcommit = 1.0
        self.claimant: Ticket | None = None
        self.paused_until = 0.0
        self.seen_at = -inf
        # What of ours runs here. Enforcing, that is what the ledger holds; observing, it is what was sent
        # here, while the ledger holds what would have been.
        self.open_sequences = 0
        self.open_tokens = 0
        self._sequence_tokens = 0.0
        self._ramped_at = -inf
        self._oldest_since = -inf
        self._weight = 1.0
        self._share = 1.0
        self._foreign_sequences = self._foreign_tokens = 0.0  # as seen
        self.describe(spec, 1.0)

    def describe(self, spec: ReplicaSpec, share: float) -> None:
        """What is told of it has changed, or how much of it is ours."""
        self.spec = spec
        self.in_rotation = spec.rotation is Rotation.IN
        self.holds_tokens = spec.kv_tokens or inf
        self.longest_tokens = spec.max_model_len or inf
        self.divide(share)

    def divide(self, share: float) -> None:
        """Budget and limit follow from the whole, the over-commit factor and our share.

        A share of a small limit is at least one sequence: with less we could never send anything.
        """
        self._share = share
        whole, limit = self._whole()
        self.ledger.budget_tokens = whole * share if share > 0 else 0.0
        self.ledger.limit = max(1.0, limit * share) if share > 0 else 0.0
        self._count_others()

    def _whole(self) -> tuple[float, float]:
        """Budget and limit of all gateways together."""
        whole = inf if self.spec.kv_tokens is None else self.spec.kv_tokens * self.overcommit
        return whole, self.limit or self.spec.max_num_seqs or UNLIMITED

    def _count_others(self) -> None:
        """Only what others have beyond their own part is taken from ours."""
        tokens, sequences = self._foreign_tokens, self._foreign_sequences
        if self._share < 1.0:
            whole, limit = self._whole()
            tokens = max(0.0, tokens - whole * (1.0 - self._share))
            sequences = max(0.0, sequences - limit * (1.0 - self._share))
        self.ledger.foreign_tokens, self.ledger.foreign_sequences = tokens, sequences

    def age_against(self, oldest_since: float) -> None:
        """Its pool's oldest replica that is in rotation has been ready since then."""
        since = self.spec.ready_since
        self._oldest_since = oldest_since
        self._ramped_at = -inf if since is None else since + self._settings.slow_start

    @property
    def is_busy(self) -> bool:
        """Whether something of ours runs here."""
        return self.open_sequences > 0 or self.ledger.sequences > 0

    def see(self, reading: ReplicaReading) -> None:
        """A scrape has arrived; an older one than the last is not taken."""
        if reading.at <= self.seen_at:
            return
        self.seen_at = reading.at
        self._weight = 1.0
        sequences, tokens = self.trail.at(reading.at)
        if reading.running is not None:
            there = reading.running + (reading.waiting or 0.0)
            self._foreign_sequences = max(0.0, there - sequences)
        # Another's request whose size nobody tells is taken to be like ours.
        foreign = self._foreign_sequences * self._sequence_tokens
        if reading.kv_usage is not None and self.spec.kv_tokens is not None:
            foreign = max(foreign, reading.kv_usage * self.spec.kv_tokens - tokens)
        self._foreign_tokens = foreign
        self._count_others()

    def takes(self, ticket: Ticket, now: float, ceiling: float) -> bool:
        """Whether the request may be sent here now, filling the replica up to `ceiling` at most."""
        if not self.in_rotation or now < self.paused_until:
            return False
        claimant = self.claimant
        if claimant is not None and claimant is not ticket and claimant.rank <= ticket.rank:
            return False
        if not self.suits(ticket):
            return False
        if self.breaker.state is not BreakerState.CLOSED and not self.breaker.allows(now):
            return False
        if now < self._ramped_at:
            ceiling *= self.ramp(now)
        return self.ledger.fits(ticket.tokens, ticket.request.sequences, ceiling)

    def suits(self, ticket: Ticket) -> bool:
        """Whether the request could ever be sent here.

        By all that its client allows: with less context an engine refuses it, or cuts its answer short.
        """
        if ticket.least_tokens > self.holds_tokens or ticket.full_tokens > self.longest_tokens:
            return False
        return not ticket.excluded or self not in ticket.excluded

    def load(self, tokens: int, sequences: int, now: float) -> float:
        """Its load with a request more of so many tokens and sequences."""
        ledger = self.ledger
        return self._load(ledger.reserved_tokens + tokens, ledger.sequences + sequences, now)

    def open_load(self, now: float) -> float:
        """The same of what was really sent."""
        return self._load(self.open_tokens, self.open_sequences, now)

    def _load(self, tokens: int, sequences: int, now: float) -> float:
        ledger = self.ledger
        limit = ledger.limit
        load = (sequences + ledger.foreign_sequences) / (limit if limit > 1.0 else 1.0)
        if ledger.budget_tokens > 0:
            by_tokens = (tokens + ledger.foreign_tokens) / ledger.budget_tokens
            load = max(load, by_tokens)
        if now < self._ramped_at:
            load /= self.ramp(now)
        return load * self._weight

    def ramp(self, now: float) -> float:
        """How much of a grown replica it is, against the oldest of its pool."""
        if now >= self._ramped_at:
            return 1.0
        slow_start = self._settings.slow_start
        own = max(_LEAST_RAMP, 1.0 - (self._ramped_at - now) / slow_start)
        return own / min(1.0, max(_LEAST_RAMP, (now - self._oldest_since) / slow_start))

    def opened(self, tokens: int, sequences: int, now: float) -> None:
        """A request of ours was sent here."""
        self.open_tokens += tokens
        self.open_sequences += sequences
        self.trail.note(now, self.open_sequences, self.open_tokens)
        keep = _MEMORY if self._sequence_tokens else 0.0
        self._sequence_tokens = keep * self._sequence_tokens + (1 - keep) * tokens / sequences

    def closed(self, tokens: int, sequences: int, now: float) -> None:
        """It has ended."""
        self.open_tokens -= tokens
        self.open_sequences -= sequences
        self.trail.note(now, self.open_sequences, self.open_tokens)

    def look(self, now: float) -> None:
        """Time has passed: readings grow old."""
        settings, age = self._settings, now - self.seen_at
        if age < settings.stale_after or self.seen_at == -inf:
            self._weight = 1.0
        elif age < settings.forget_after:
            way = (age - settings.stale_after) / (settings.forget_after - settings.stale_after)
            self._weight = 1.0 + (_STALE_WEIGHT - 1.0) * way
        else:
            self._weight = 1.0
            self._foreign_sequences = self._foreign_tokens = 0.0
            self._count_others()
