"""Fairness between tenants: the Virtual Token Counter (Sheng et al., OSDI '24, arXiv 2401.00588).

Each tenant has one counter of service received, in weighted tokens over the tenant's weight:

    a request of u arrives, u has none queued:
        somebody else has one queued:   c_u = max(c_u, smallest counter of those)
        nobody has:                     c_u = max(c_u, counter of the one whose queue was empty last)
    a place is free:                    the head of the tenant with the smallest counter, if it fits
    a request is let in:                c_u += (input weight * prompt tokens) / w_u
    tokens of it come:                  c_u += (output weight * tokens) / w_u
    it ends:                            c_u += (what it really cost - what was charged) / w_u

Laws:
* **Lifted, never lowered.** Time without requests earns no credit, so nobody can save up for a burst.
* **Bound.** Of two tenants of weight 1 that both have requests queued all the time, on the same replicas,
  neither gets more than 2 max(w_in L, w_out M) x replicas of service over the other, in any interval;
  L is the longest prompt and M what one replica's KV holds. (The paper's bound for one engine; n engines are
  charged late for up to n times as much.)
* Output that cannot be seen coming (an answer that is not streamed) is charged with its predicted length when
  the request is let in, and trued up at its end, as the paper's variant with length prediction does.

Counters may be shared by several gateways: `collect` gives what was added here since the last call, to be
added up somewhere; `adopt` takes the sums of all.
"""

import heapq
from collections.abc import Callable, Mapping


class Account:
    """One tenant. `queued` and `queued_tokens` are in the queue, `open` requests have not ended."""

    __slots__ = ("backlogs", "counter", "open", "queued", "queued_tokens", "tenant", "uncollected", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.counter = 0.0
        self.uncollected = 0.0
        self.queued = 0
        self.queued_tokens = 0
        self.open = 0
        self.backlogs: list[Backlog] = []

    def charge(self, weighted_tokens: float) -> None:
        """Service was received; negative where less was received than was charged."""
        amount = weighted_tokens / self.weight
        self.counter += amount
        self.uncollected += amount
        if amount < 0:
            self._lowered()

    def lift(self, counter: float) -> None:
        if self.counter < counter:
            self.uncollected += counter - self.counter
            self.counter = counter

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

    def _push(self, account: Account) -> None:
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = [(each.counter, i, each) for i, each in enumerate(self._members)]
            heapq.heapify(self._heap)
            self._pushed = len(self._heap)
        self._pushed += 1
        heapq.heappush(self._heap, (account.counter, self._pushed, account))


class VirtualTokenCounters:
    """The counters of all tenants. `weight` gives a tenant's weight."""

    MOST_ACCOUNTS = 10_000
    """More than this, and those of the idle tenants who are owed nothing are forgotten first."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._accounts: dict[str, Account] = {}
        self._waiting = Backlog()
        self._left_last: Account | None = None

    @property
    def waiting(self) -> int:
        """How many tenants have something queued."""
        return len(self._waiting)

    def account(self, tenant: str) -> Account:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self.MOST_ACCOUNTS:
                self._forget()
            account = self._accounts[tenant] = Account(tenant, self._weight(tenant))
        return account

    def enters(self, account: Account, tokens: int) -> None:
        """A request is queued."""
        if account.queued == 0:
            self._lift(account)
            self._waiting.add(account)
        account.queued += 1
        account.queued_tokens += tokens

    def leaves(self, account: Account, tokens: int) -> None:
        """A request is queued no more, for whatever reason."""
        account.queued -= 1
        account.queued_tokens -= tokens
        if account.queued == 0:
            self._waiting.discard(account)
            self._left_last = account

    def passes(self, account: Account) -> None:
        """A request is let in without having waited."""
        if account.queued == 0:
            self._lift(account)
            self._left_last = account

    def collect(self) -> dict[str, float]:
        """What was added to the counters since the last call."""
        collected = {}
        for account in self._accounts.values():
            if account.uncollected:
                collected[account.tenant] = account.uncollected
                account.uncollected = 0.0
        return collected

    def adopt(self, sums: Mapping[str, float]) -> None:
        """The counters of all gateways together, as of the last `collect`."""
        for tenant, total in sums.items():
            account = self.account(tenant)
            account.set(total + account.uncollected)

    def _lift(self, account: Account) -> None:
        least = self._waiting.least()
        if least is not None:
            account.lift(least.counter)
        elif self._left_last is not None:
            account.lift(self._left_last.counter)

    def _forget(self) -> None:
        idle = [account for account in self._accounts.values() if not account.open]
        idle.sort(key=lambda account: account.counter)
        # Who has a small counter is lifted on return: nothing is lost. Who has a large one gets off lightly.
        for account in idle[: max(1, len(idle) // 2)]:
            del self._accounts[account.tenant]
