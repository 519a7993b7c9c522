"""Fairness between tenants: the Virtual Token Counter (Sheng et al., OSDI '24, arXiv 2401.00588).

Each tenant has, in each pool, one counter of service received, in weighted tokens over the tenant's weight:

    a request of u arrives, u has none queued of its rank or one that goes before it, K = credit / w_u:
        others have such:   V = max(V, smallest counter of those)
        nobody has:         V = max(V, counter of the last one that had)
                            c_u = max(c_u, V - K)
    a place is free:                    the head of the tenant with the smallest counter, if it fits
    a request is let in:                c_u += (input weight * prompt tokens) / w_u
    tokens of it come:                  c_u += (output weight * tokens) / w_u
    it ends:                            c_u += (what it really cost - what was charged) / w_u

Laws:
* **Lifted, never lowered.** Time without requests earns nothing but a small credit, so nobody can save up for
  a great burst. The paper has no credit, but its requests can wait. Ours have a few tenths of a second, so
  without it a tenant that asks for half of its share, in small bursts as all do, loses a fifth of its
  requests to one that floods the queue.
* **Like is compared with like.** Who waits for another pool, or behind all of a higher rank, is served late
  however little it got. It is no measure for those who come, and to wait like that earns nothing here: else
  a request a second that may wait saves up for a burst that keeps everybody out for minutes. A request that
  rises arrives at its new rank. What a tenant gets of one pool is not held against it in another.
* **Bound.** Of two tenants of weight 1 that both have requests queued all the time, of one rank and on the
  same replicas, neither gets more than 2 max(w_in L, w_out M) x replicas + credit of service over the other,
  in any interval; L is the longest prompt and M what one replica's KV holds. (The paper's bound for one
  engine; n engines are charged late for up to n times as much.) The same holds of one that comes and goes
  as it likes over one that always waits.
* Output that cannot be seen coming (an answer that is not streamed) is charged with its predicted length when
  the request is let in, and trued up at its end, as the paper's variant with length prediction does.

Counters may be shared by several gateways (`sync.py`). What happened to one here since it was last told is a
function c -> max(c + ahead, floor): a charge moves both numbers, a lift sets the floor, and functions of
several gateways applied one after the other give what one gateway would have counted. Sums would not do: a
tenant lifted by two gateways at once would be lifted twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from math import inf

import msgspec

from controlplane.gateway.admission.request import RANKS

_APART = "\t"  # between pool and tenant in the name of an account


class Move(msgspec.Struct, frozen=True):
    """What happened to a counter: c -> max(c + ahead, floor)."""

    ahead: float
    floor: float

    def __call__(self, counter: float) -> float:
        return max(counter + self.ahead, self.floor)


class Account:
    """One tenant in one pool. `up_to[r]` requests of rank r or one that goes before it are queued, with
    `queued_tokens` in all; `open` requests have not ended."""

    __slots__ = (
        "ahead",
        "backlogs",
        "contest",
        "counter",
        "floor",
        "name",
        "open",
        "queued_tokens",
        "up_to",
        "weight",
    )

    def __init__(self, name: str, weight: float, contest: Contest) -> None:
        self.name = name
        self.weight = weight
        self.contest = contest
        self.counter = 0.0
        self.ahead = 0.0  # what nobody was told yet: see Move
        self.floor = -inf
        self.up_to = [0] * RANKS
        self.queued_tokens = 0
        self.open = 0
        self.backlogs: list[Backlog] = []

    @property
    def queued(self) -> int:
        return self.up_to[-1]

    def charge(self, weighted_tokens: float) -> None:
        """Service was received; negative where less was received than was charged."""
        amount = weighted_tokens / self.weight
        self.counter += amount
        self.ahead += amount
        self.floor += amount
        if amount < 0:
            self._lowered()

    def lift(self, counter: float) -> None:
        if self.counter < counter:
            self.counter = self.floor = counter

    def set(self, counter: float) -> None:
        is_lower = counter < self.counter
        self.counter = counter
        if is_lower:
            self._lowered()

    def _lowered(self) -> None:
        for backlog in self.backlogs:
            backlog.lowered(self)


class Backlog:
    """Accounts that have something queued, the one with the smallest counter first.

    A heap in which entries may be too low: counters grow while they wait. The top is mended when it is
    looked at; a counter that was lowered gets a second entry.
    """

    __slots__ = ("_heap", "_members", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Account]] = []
        self._members: dict[Account, None] = {}  # in a fixed order, unlike a set
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._members)

    def add(self, account: Account) -> None:
        if account not in self._members:
            self._members[account] = None
            account.backlogs.append(self)
            self._push(account)

    def discard(self, account: Account) -> None:
        if account in self._members:
            del self._members[account]
            account.backlogs.remove(self)

    def lowered(self, account: Account) -> None:
        self._push(account)

    def least(self) -> Account | None:
        heap, members = self._heap, self._members
        while heap:
            counter, _, account = heap[0]
            if account not in members:
                heapq.heappop(heap)
            elif counter != account.counter:
                self._pushed += 1
                heapq.heapreplace(heap, (account.counter, self._pushed, account))
            else:
                return account
        return None

    def least_but(self, account: Account) -> float | None:
        """The smallest counter of all others, or a little less than that; None where there is nobody."""
        first = self.least()
        if first is not account:
            return None if first is None else first.counter
        others = self._heap[1:3]
        return min(others)[0] if others else None

    def _push(self, account: Account) -> None:
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = [(each.counter, i, each) for i, each in enumerate(self._members)]
            heapq.heapify(self._heap)
            self._pushed = len(self._heap)
        self._pushed += 1
        heapq.heappush(self._heap, (account.counter, self._pushed, account))


class Contest:
    """The tenants of one pool. `waiting[r]` have requests queued of rank r or one that goes before it."""

    __slots__ = ("left_last", "most", "reached", "waiting")

    def __init__(self) -> None:
        self.waiting = [Backlog() for _ in range(RANKS)]
        self.left_last: list[Account | None] = [None] * RANKS  # by rank: who was the last in `waiting`
        self.most = -inf  # the largest counter of those that wait, as of the last look
        self.reached = [-inf] * RANKS  # by rank: the highest level so far

    def level(self, rank: int) -> float | None:
        """The counter of whoever is, or was, next among those that a request of this rank competes with.

        It never falls because somebody came with a credit: else the next one would have two, and so on.
        """
        for waiting, last in zip(self.waiting[rank:], self.left_last[rank:], strict=True):
            account = waiting.least() or last
            if account is not None:
                self.reached[rank] = max(self.reached[rank], account.counter)
                return self.reached[rank]
        return None

    def look(self) -> None:
        """Find out who got most of those that wait. More than that is no level: counters may have been
        lowered, by refunds or by what other gateways know."""
        self.most = max((account.counter for account in self.waiting[-1]), default=-inf)
        if self.waiting[-1]:
            self.reached = [min(each, self.most) for each in self.reached]


class VirtualTokenCounters:
    """The counters of all tenants. `weight` gives a tenant's weight."""

    MOST_ACCOUNTS = 10_000
    """More than this, and those of the idle tenants who are owed nothing are forgotten first."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._accounts: dict[str, Account] = {}
        self._contests: dict[str, Contest] = {}

    def account(self, tenant: str, pool: str) -> Account:
        return self._account(f"{pool}{_APART}{tenant}")

    def enters(self, account: Account, rank: int, tokens: int, credit: float) -> None:
        """A request is queued. `credit`: so many weighted tokens the tenant may be behind."""
        account.queued_tokens += tokens
        if not account.up_to[rank]:
            self._lift(account, rank, credit)
        for each in range(rank, RANKS):
            self._wait(account, each)
        account.contest.most = max(account.contest.most, account.counter)

    def rises(self, account: Account, rank: int, credit: float) -> None:
        """A queued request goes up to `rank`, from the one below it; `credit` as of `enters`."""
        if not account.up_to[rank]:
            self._lift(account, rank, credit)
        self._wait(account, rank)

    def look(self) -> None:
        """Find out who got most of those that wait; now and then, as it takes a look at all of them."""
        for contest in self._contests.values():
            contest.look()

    def leaves(self, account: Account, rank: int, tokens: int) -> None:
        """A request is queued no more, for whatever reason."""
        account.queued_tokens -= tokens
        for each in range(rank, RANKS):
            account.up_to[each] -= 1
            if not account.up_to[each]:
                account.contest.waiting[each].discard(account)
                account.contest.left_last[each] = account

    def passes(self, account: Account, rank: int, credit: float) -> None:
        """A request is let in without having waited; `credit` as of `enters`."""
        if not account.up_to[rank]:
            self._lift(account, rank, credit)
            for each in range(rank, RANKS):
                account.contest.left_last[each] = account

    def moved(self) -> Iterator[str]:
        """The accounts, by name, whose counters have changed since they were told."""
        for account in self._accounts.values():
            if account.ahead or account.floor > -inf:
                yield account.name

    def tell(self, name: str) -> tuple[Move, float]:
        """What happened to a counter since this was last asked, and the counter itself."""
        account = self._accounts.get(name)
        if account is None:
            return Move(0.0, -inf), 0.0
        move = Move(account.ahead, account.floor)
        account.ahead, account.floor = 0.0, -inf
        return move, account.counter

    def adopt(self, name: str, counter: float) -> None:
        """The counter of all gateways together, with everything that was told."""
        if counter or name in self._accounts:
            account = self._account(name)
            account.set(max(counter + account.ahead, account.floor))

    def retell(self) -> None:
        """What was told is lost: all counters are to be told again, as what they are at least."""
        for account in self._accounts.values():
            if account.counter:
                account.floor = account.counter

    def others(self, account: Account, rank: int) -> int:
        """How many other tenants a request of this rank competes with."""
        return len(account.contest.waiting[rank]) - (1 if account.up_to[rank] else 0)

    def owed(self, account: Account, rank: int, credit: float) -> float:
        """Weighted tokens that the tenant got less than the one of those waiting that got most."""
        behind = (account.contest.most - account.counter) * account.weight
        return self._credited(account, rank, behind, credit)

    def ahead(self, account: Account, rank: int, credit: float) -> float:
        """Weighted tokens that the tenant may get before anybody else is next; infinite if nobody waits."""
        least = account.contest.waiting[rank].least_but(account)
        if least is None:
            return inf
        return self._credited(account, rank, (least - account.counter) * account.weight, credit)

    def _credited(self, account: Account, rank: int, behind: float, credit: float) -> float:
        """How far behind a tenant is, or will be once it is lifted."""
        return max(0.0, behind if account.up_to[rank] else min(behind, credit))

    def _wait(self, account: Account, rank: int) -> None:
        if not account.up_to[rank]:
            account.contest.waiting[rank].add(account)
        account.up_to[rank] += 1

    def _lift(self, account: Account, rank: int, credit: float) -> None:
        level = account.contest.level(rank)
        if level is not None:
            account.lift(level - credit / account.weight)

    def _account(self, name: str) -> Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self.MOST_ACCOUNTS:
                self._forget()
            pool, _, tenant = name.partition(_APART)
            contest = self._contests.setdefault(pool, Contest())
            account = self._accounts[name] = Account(name, self._weight(tenant), contest)
        return account

    def _forget(self) -> None:
        idle = [account for account in self._accounts.values() if not account.open]
        idle.sort(key=lambda account: account.counter)
        # Who has a small counter is lifted on return: nothing is lost. Who has a large one gets off lightly.
        for account in idle[: max(1, len(idle) // 2)]:
            del self._accounts[account.name]
