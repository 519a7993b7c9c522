"""What stands with the lease for the next leader: people's orders, what was spent, where things stood.

Spent first, then done: an action that counts waits until its count stands with the lease. So whoever leads
after a crash at any moment counts at least what was done.
"""

from typing import Literal

import msgspec

from controlplane.actuators.contention import Contention
from controlplane.daemon.leader import Leader
from controlplane.daemon.orders import OrderBook
from controlplane.policy import keeping
from controlplane.policy.memory import Memory
from controlplane.signals.decision import QUARANTINE_NODE, RESTART_WORKLOAD, SCALE, Decision, Orders
from controlplane.signals.kept import Handed, Kept

COUNTED = frozenset({QUARANTINE_NODE, RESTART_WORKLOAD, SCALE})
"""The actions of which the next leader must know before they are done."""

LIMITS_SECONDS = 30.0
"""How often limits, which move all the time, are written where nothing else has changed."""


class Left(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text. `contentions` are by pool, their times Unix seconds. `orders` are None where nothing is
    known."""

    version: Literal[1]
    orders: Orders | None = None
    kept: Kept = Kept()
    contentions: dict[str, Contention] = {}


_decoder = msgspec.json.Decoder(Left)


class Handover:
    """Takes over what the leader leaves, and leaves it where we lead."""

    def __init__(self, leader: Leader, book: OrderBook) -> None:
        self.contentions: dict[str, Contention] = {}
        """What is remembered of replica counts that others write too, by pool; whoever scales changes it."""
        self.trouble = ""
        """A sentence where something cannot be taken over or left, else empty."""
        self._leader, self._book = leader, book
        self._read = ""  # the text, as last read
        self._adopted = Orders()  # the orders, as last taken over
        self._left: Left | None = None  # as last written
        self._limits_at = float("-inf")

    def take_over(self, *, begins: bool) -> Handed | None:
        """What policy must know of what has been left since the last call; None where that is nothing.

        People's orders to the leader stand here from now on. `begins` is whether we lead from now on.
        """
        text = self._leader.kept
        if text == self._read and not begins:
            return None
        self._read, self.trouble = text, ""
        try:
            left = _decoder.decode(text) if text else Left(1, Orders())
        except msgspec.DecodeError as error:
            self.trouble = f"what the leader leaves cannot be read: {error}"
            return Handed(leads=True) if begins else None
        self.contentions.update(left.contentions)
        if left.orders is not None:
            try:
                self._book.adopt(self._adopted, left.orders)
                self._adopted = left.orders
            except (ValueError, OSError) as error:
                self.trouble = f"the leader's orders are not taken over: {error}"
        return Handed(left.kept, begins)

    def leave(self, orders: Orders, memory: Memory) -> None:
        """Leave all of it to the next leader, as far as there is room."""
        kept, before = keeping.left(memory), self._left
        if before is not None and memory.now - self._limits_at < LIMITS_SECONDS:
            kept = msgspec.structs.replace(kept, limits=before.kept.limits)
        else:
            self._limits_at = memory.now
        self._write(Left(1, orders, kept, dict(self.contentions)))
        self._adopted = orders

    def lose(self) -> None:
        """We lead no longer: what we left is not ours any more."""
        self._left, self._read = None, self._leader.kept

    async def stand(self) -> None:
        """Return once what must be left stands with the lease. Raises LeadLostError."""
        if self._left is not None:
            self._write(msgspec.structs.replace(self._left, contentions=dict(self.contentions)))
        await self._leader.stands()

    async def first(self, decision: Decision) -> None:
        """What comes before a decision is carried out. Raises LeadLostError."""
        if decision.action in COUNTED:
            await self.stand()

    def _write(self, left: Left) -> None:
        if left == self._left:
            return
        self._left = left
        self.trouble = ""
        # Where it is too long, what is found again in a while goes first, and what was spent stays.
        fewer = msgspec.structs.replace(left, kept=msgspec.structs.replace(left.kept, limits={}))
        for one in (left, fewer, msgspec.structs.replace(fewer, orders=None)):
            try:
                self._leader.keep(msgspec.json.encode(one).decode())
                return
            except ValueError as error:
                if one is not left:
                    self.trouble = f"the next leader will not know the orders: {error}"
