"""Who steers: which control messages are taken, what they change, and when they lapse.

* A message of a lower term, or of the same term with a lower version, is refused: an ex-leader that was
  paused cannot undo what its successor said. The same one again is no news.
* Who was steered remembers it over a restart: the last message is kept on disk, term and version with it.
* When messages lapse, limits and budgets stay what they were, the gateway goes by its own discovery again,
  its share falls back to the standing one, and its mode to the configured one.

Sans-I/O: Unix times come with the message, the loop's time and the Unix time now are arguments.
"""

from enum import StrEnum

import msgspec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaReading
from controlplane.gateway.admission.shares import Grant
from controlplane.gateway.fleet import Fleet
from controlplane.signals.control import ControlMessage, ReplicaOrder
from controlplane.signals.decision import Mode


class Judgement(StrEnum):
    TAKEN = "taken"
    KNOWN = "known"
    OUTDATED = "outdated"
    EXPIRED = "expired"


class Steering:
    """What this process was told last. `share_of_workers` of what the gateway gets is this worker's."""

    def __init__(
        self, admission: Admission, fleet: Fleet, gateway: str, configured: Mode, share_of_workers: float
    ) -> None:
        self._admission = admission
        self._fleet = fleet
        self._gateway = gateway
        self._configured = configured
        self._part = share_of_workers
        self.message: ControlMessage | None = None
        self.taken_at = 0.0  # Unix
        self.is_alone = True

    def take(self, message: ControlMessage, now: float, unix: float, *, from_disk: bool = False) -> Judgement:
        """A message has come. One from disk counts even when it has lapsed: better than to know nothing."""
        known = self.message
        if known is not None:
            if (message.term, message.version) == (known.term, known.version):
                return Judgement.KNOWN
            if (message.term, message.version) < (known.term, known.version):
                return Judgement.OUTDATED
        if message.expires_at <= unix and not from_disk:
            return Judgement.EXPIRED
        self.message = message
        self.taken_at = message.sent_at if from_disk else unix
        self._obey(message, now, now - unix)
        return Judgement.TAKEN

    def look(self, now: float, unix: float) -> bool:
        """Time has passed. True where the messages have just lapsed."""
        message = self.message
        if self.is_alone or message is None or unix < message.expires_at:
            return False
        self.is_alone = True
        self._admission.set_mode(self._configured, now)
        return True

    def _obey(self, message: ControlMessage, now: float, offset: float) -> None:
        """`offset` makes times of our clock of Unix times."""
        self.is_alone = False
        orders = [_of_our_clock(order, offset) for order in message.replicas]
        self._fleet.obey(orders, now)
        admission = self._admission
        admission.set_replicas(self._fleet.specs(now), now)
        admission.set_limits(
            {order.name: order.limit for order in orders if order.limit is not None},
            {order.name: order.overcommit for order in orders if order.overcommit is not None},
            now,
        )
        admission.set_readings([_reading(order) for order in orders if order.read_at is not None], now)
        admission.set_mode(message.mode or self._configured, now)
        if message.boundary_tokens is not None:
            admission.set_boundary(message.boundary_tokens)
        if message.share is not None:
            share = message.share * self._part
            expires = message.expires_at + offset
            admission.take_grant(Grant(self._gateway, share, expires, message.term, message.version), now)


def _of_our_clock(order: ReplicaOrder, offset: float) -> ReplicaOrder:
    def moved(at: float | None) -> float | None:
        return None if at is None else at + offset

    return msgspec.structs.replace(
        order,
        ready_since=moved(order.ready_since),
        ready_expected_at=moved(order.ready_expected_at),
        read_at=moved(order.read_at),
    )


def _reading(order: ReplicaOrder) -> ReplicaReading:
    assert order.read_at is not None
    return ReplicaReading(
        name=order.name,
        at=order.read_at,
        running=order.running,
        waiting=order.waiting,
        kv_usage=order.kv_usage,
    )
