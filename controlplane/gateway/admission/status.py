"""Admission as it is at one moment, for metrics and for people."""

from math import inf

import msgspec

from controlplane.gateway.admission.breaker import BreakerState
from controlplane.gateway.admission.line import Line
from controlplane.gateway.admission.queue import Queue
from controlplane.gateway.admission.replica import Replica, Rotation
from controlplane.gateway.admission.request import RANKS
from controlplane.signals.decision import Mode


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica. Budget (None: not known) and limit are this gateway's share."""

    pool: str
    rotation: Rotation
    breaker: BreakerState
    reserved_tokens: int
    budget_tokens: float | None
    grown_tokens: int
    extensions: int
    sequences: int
    limit: float
    foreign_sequences: float
    foreign_tokens: float
    open_sequences: int


class LineStatus(msgspec.Struct, frozen=True):
    """One waiting line. By class: what may wait at today's rate (None: not known), and overload."""

    pool: str
    requests: int
    tokens: int
    cap_requests: tuple[float | None, ...]
    cap_tokens: tuple[float | None, ...]
    overloaded: tuple[bool, ...]
    engine_part_seconds: float


class Status(msgspec.Struct, frozen=True):
    """`share` of every replica is ours, `claims` of the queued keep one. `counts` are since the start."""

    mode: Mode
    share: float
    queued_requests: int
    queued_tokens: int
    claims: int
    replicas: dict[str, ReplicaStatus]
    lines: tuple[LineStatus, ...]
    counts: dict[str, int]


def replica_status(replica: Replica) -> ReplicaStatus:
    ledger = replica.ledger
    return ReplicaStatus(
        pool=replica.spec.pool,
        rotation=replica.spec.rotation,
        breaker=replica.breaker.state,
        reserved_tokens=ledger.reserved_tokens,
        budget_tokens=_finite(ledger.budget_tokens),
        grown_tokens=ledger.grown_tokens,
        extensions=ledger.extensions,
        sequences=ledger.sequences,
        limit=ledger.limit,
        foreign_sequences=ledger.foreign_sequences,
        foreign_tokens=ledger.foreign_tokens,
        open_sequences=replica.open_sequences,
    )


def line_status(line: Line, queue: Queue, now: float) -> LineStatus:
    caps = [queue.caps(line, rank, now) for rank in range(RANKS)]
    return LineStatus(
        pool=line.pool,
        requests=sum(line.queued),
        tokens=sum(line.queued_tokens),
        cap_requests=tuple(_finite(requests) for requests, _ in caps),
        cap_tokens=tuple(_finite(tokens) for _, tokens in caps),
        overloaded=tuple(standing.is_overloaded(now) for standing in line.standings),
        engine_part_seconds=line.engine_part.seconds(now),
    )


def _finite(number: float) -> float | None:
    return None if number == inf else number
