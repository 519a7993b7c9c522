"""Counters and quotas of several gateways together, through a store that all of them reach.

Nothing on a request's way asks the store. Each gateway decides by its own copy, at once, and every interval
tells what it did (a `Push`) and hears what the others did (a `Pull`), in one exchange that the store makes
atomic. What the store keeps is in `store.lua`: by name one counter, one bucket, and by gateway the sequences
in flight. The name is a tenant's for its quotas, and that of its account (`fairness.py`) for a counter: the
same table, as neither has anything of the other.

Laws:
* **Counters.** All changes of all gateways are applied (`fairness.Move`), each once, in the order of arrival.
* **Quotas.** Let D be the longest time from one gateway's taking to all others' knowing: one interval and two
  exchanges. A request is let in only where the common bucket had room for it but for what other gateways
  took within the last D. So a quota is exceeded by at most what they can admit within D. It is a debt: the
  common bucket is below zero by as much, and nothing more is let in until it is refilled. The same holds for
  sequences in flight, where the excess lasts until as many have ended.
* **Once.** An exchange without an answer may have been carried out. The same push is sent until it is
  answered, with the same number, and the store carries out each number once.
* **Dead gateways.** A gateway that has not exchanged anything for its lease is not counted: its sequences in
  flight are nobody's.
* **A store that forgot** (restarted empty, rolled back, failed over to a copy that lags) is noticed by the
  number it knows of us. It is told everything again: counters as what they are at least, since another
  gateway may have told it more already; levels only where it has none.
* **No store.** After a lease without an answer a gateway is on its own: its own counters, its own part of
  each quota. When the store is back, what it took meanwhile is told as far as its own bucket has not been
  refilled since.

Sans-I/O: whoever has the connection calls `push`, and then `took`; or `lost` once nothing came for the lease.
"""

from collections.abc import Iterable, Sequence

import msgspec

from controlplane.gateway.admission.fairness import VirtualTokenCounters
from controlplane.gateway.admission.quota import Quotas

MOST_TENANTS = 500
"""In one push or pull; the rest follows in the next."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to one tenant, or one account of it, here since the last push.

    `counter` is all of it, `ahead` and `floor` the change (`fairness.Move`; no floor: None). The rest is
    `quota.Taking`.
    """

    tenant: str
    counter: float
    ahead: float = 0.0
    floor: float | None = None
    capacity: float | None = None
    rate: float = 0.0
    level: float = 0.0
    taken: float = 0.0
    sequences: int | None = None


class Push(msgspec.Struct, frozen=True):
    """`acknowledged` is the number of the last push that was answered, `since` the last revision heard of."""

    number: int
    acknowledged: int
    since: int
    tenants: tuple[Told, ...]


class Heard(msgspec.Struct, frozen=True):
    """One tenant, or one account of it, in the store. `level` was so many milliseconds ago; `sequences` by
    gateway."""

    tenant: str
    counter: float
    level: float | None = None
    age_ms: float = 0.0
    sequences: tuple[tuple[str, int], ...] = ()


class Pull(msgspec.Struct, frozen=True):
    """The answer. `is_new`: the store does not know us, or not as we were. `living`: other gateways."""

    is_new: bool
    revision: int
    has_more: bool
    living: tuple[str, ...]
    tenants: tuple[Heard, ...]


class Sync:
    """One gateway's side. `gateway` must be its alone, and another one after each start."""

    def __init__(self, gateway: str, counters: VirtualTokenCounters, quotas: Quotas) -> None:
        self.gateway = gateway
        self.is_alone = True
        self._counters = counters
        self._quotas = quotas
        self._number = 0
        self._acknowledged = 0
        self._revision = 0
        self._in_doubt: Push | None = None
        self._untold: dict[str, None] = {}  # tenants, in the order in which they are told
        self._elsewhere: dict[str, Sequence[tuple[str, int]]] = {}  # sequences of others, by tenant
        self._living: frozenset[str] = frozenset()

    def push(self, now: float) -> Push:
        """What to send; the same again until it is answered."""
        if self._in_doubt is None:
            self._number += 1
            if self.is_alone:
                self._quotas.forgive(now)
            tenants = tuple(self._told(tenant, now) for tenant in self._next())
            self._in_doubt = Push(self._number, self._acknowledged, self._revision, tenants)
        return self._in_doubt

    def took(self, pull: Pull, now: float) -> bool:
        """The last push was answered. Returns whether there is more to tell or to hear at once."""
        self._in_doubt = None
        self._acknowledged = self._number
        self._revision = pull.revision
        if self.is_alone:
            self.is_alone = False
            self._quotas.forgive(now)
            self._quotas.join(now)
        if pull.is_new and self._number > 1:  # else nothing was told before
            self._elsewhere.clear()
            self._counters.retell()
            self._quotas.retell()
        for heard in pull.tenants:
            self._counters.adopt(heard.tenant, heard.counter)
            if heard.level is not None:
                refilled = heard.age_ms / 1000.0 * self._quotas.rate(heard.tenant)
                self._quotas.adopt(heard.tenant, heard.level + refilled, now)
            others = tuple(pair for pair in heard.sequences if pair[0] != self.gateway)
            if others or heard.tenant in self._elsewhere:
                self._elsewhere[heard.tenant] = others
        living = frozenset(pull.living)
        moved: Iterable[str] = [heard.tenant for heard in pull.tenants]
        if living != self._living:
            self._living = living
            moved = tuple(self._elsewhere)
        self._count_elsewhere(moved, now)
        return pull.has_more or len(self._untold) > 0

    def lost(self, now: float) -> None:
        """Nothing was heard for the lease: the others may be gone, and we are to them."""
        self.is_alone = True
        self._living = frozenset()
        self._quotas.leave(now)

    def _next(self) -> list[str]:
        untold = self._untold
        untold.update(dict.fromkeys(self._counters.moved()))
        untold.update(dict.fromkeys(self._quotas.moved()))
        chosen = list(untold)[:MOST_TENANTS]
        for tenant in chosen:
            del untold[tenant]
        return chosen

    def _told(self, tenant: str, now: float) -> Told:
        move, counter = self._counters.tell(tenant)
        taking = self._quotas.tell(tenant, now)
        return Told(
            tenant=tenant,
            counter=counter,
            ahead=move.ahead,
            floor=move.floor if move.floor > float("-inf") else None,
            capacity=taking.capacity,
            rate=taking.rate,
            level=taking.level,
            taken=taking.taken,
            sequences=taking.sequences,
        )

    def _count_elsewhere(self, tenants: Iterable[str], now: float) -> None:
        for tenant in tenants:
            pairs = self._elsewhere.get(tenant)
            if pairs is None:
                continue
            sequences = sum(count for gateway, count in pairs if gateway in self._living)
            self._quotas.set_elsewhere(tenant, sequences, now)
            if not pairs:
                del self._elsewhere[tenant]
