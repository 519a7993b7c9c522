"""Who steers: which control messages are taken, what they change, and when they lapse.

* A message of a lower term, or of the same term with a lower version, is refused: an ex-leader that was
  paused cannot undo what its successor said. The same one again is no news.
* Who was steered remembers it over a restart: the last message is kept on disk, term and version with it.
* When messages lapse, limits and budgets are what they were, the gateway goes by its own discovery again,
  its share falls back to the standing one, and its mode to the configured one. From then on its own law moves
  the limits; so it does while it is steered where no limit is told (the daemon only observes).

Unix times come with the message; the gateway's own time and the Unix time now are arguments.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaReading, ReplicaSpec
from controlplane.signals.control import ControlMessage, GatewayState, Grant, ReplicaOrder
from controlplane.signals.decision import Mode


class Judgement(StrEnum):
    TAKEN = "taken"
    KNOWN = "known"
    OUTDATED = "outdated"
    EXPIRED = "expired"


class Roster(Protocol):
    """The replicas as this gateway knows them, by orders or by itself. Times are its own."""

    def obey(self, orders: Iterable[ReplicaOrder], now: float) -> None:
        """Steered: these there are."""

    def specs(self, now: float) -> list[ReplicaSpec]:
        """All of them as admission is told of them."""


class Steering:
    """What this process was told last. `share_of_workers` of what the gateway gets is this worker's."""

    def __init__(
        self, admission: Admission, roster: Roster, gateway: str, configured: Mode, share_of_workers: float
    ) -> None:
        self._admission = admission
        self._roster = roster
        self._specs: list[ReplicaSpec] = []  # that admission was told last
        self._told: frozenset[str] = frozenset()  # replicas whose limits are told
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
        self._told = frozenset()
        self._admission.set_mode(self._configured, now)
        return True

    def look_at_replicas(self, now: float) -> bool:
        """Tell admission which replicas there are. True where that is news."""
        specs = self._roster.specs(now)
        if specs == self._specs:
            return False
        self._specs = specs
        self._admission.set_replicas(specs, now)
        return True

    def state(self, gateway: str, standing_share: float) -> GatewayState:
        """How this process stands, as the daemon asks for it; `gateway` is the name of the whole of it."""
        message = self.message
        told = GatewayState(gateway, self.is_alone, standing_share, limits=self._admission.limits())
        if message is None:
            return told
        return msgspec.structs.replace(
            told,
            term=message.term,
            version=message.version,
            expires_at=message.expires_at,
            share=message.share,
            mode=message.mode,
        )

    @property
    def finds_limits(self) -> bool:
        """Whether the limit of some replica is this gateway's own business."""
        return any(spec.name not in self._told for spec in self._specs)

    def set_own_limits(
        self, limits: Mapping[str, float], overcommit: Mapping[str, float], now: float
    ) -> None:
        """What the own law has come to, for those that nobody else limits."""
        own = {name: limit for name, limit in limits.items() if name not in self._told}
        self._admission.set_limits(own, {name: overcommit.get(name, 1.0) for name in own}, now)

    def _obey(self, message: ControlMessage, now: float, offset: float) -> None:
        """`offset` makes times of our clock of Unix times."""
        self.is_alone = False
        orders = [of_our_clock(order, offset) for order in message.replicas]
        self._roster.obey(orders, now)
        self.look_at_replicas(now)
        self._told = frozenset(order.name for order in orders if order.limit is not None)
        admission = self._admission
        admission.set_limits(
            {order.name: order.limit for order in orders if order.limit is not None},
            {order.name: order.overcommit for order in orders if order.overcommit is not None},
            now,
        )
        admission.set_readings(readings(orders), now)
        admission.set_mode(message.mode or self._configured, now)
        if message.boundary_tokens is not None:
            admission.set_boundary(message.boundary_tokens)
        if message.share is not None:
            share = message.share * self._part
            expires = message.expires_at + offset
            admission.take_grant(Grant(self._gateway, share, expires, message.term, message.version), now)


def of_our_clock(order: ReplicaOrder, offset: float) -> ReplicaOrder:
    """The order with the times of another clock, which `offset` makes ours."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + offset

    return msgspec.structs.replace(
        order,
        ready_since=moved(order.ready_since),
        ready_expected_at=moved(order.ready_expected_at),
        read_at=moved(order.read_at),
    )


def readings(orders: Iterable[ReplicaOrder]) -> list[ReplicaReading]:
    """What the orders tell of the replicas' gauges. Times must be of our clock."""
    return [
        ReplicaReading(
            name=order.name,
            at=order.read_at,
            running=order.running,
            waiting=order.waiting,
            kv_usage=order.kv_usage,
        )
        for order in orders
        if order.read_at is not None
    ]
