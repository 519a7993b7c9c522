"""The queue before the engines: who waits, who has waited in vain, who is next.

Bounded by time. Each request is told at its offer how long it may wait (`line.py`), or less where its client
says so. The test is made three times: at the offer, where a request is refused at once if what is ahead of it
takes longer than that at the measured rate of service; when its time is up; and when its turn has come, with
what is known of the engine then, so that no engine works on an answer that comes too late. Caps in requests
and tokens follow from it (`caps`) and are for people to look at; the configured ones bound memory only.

What is ahead of a newcomer, in a fair queue: of each other tenant about as much as its own tenant has
waiting with it, less what that is behind the others in service, and never more than there is. So a tenant
with a long row of its own is refused while another's first request comes in.

Claims. A head that fits nowhere claims a replica: nothing behind it may be sent there until it has got its
place. So a long prompt gets its memory together on one replica while short ones go on elsewhere, instead of
waiting for ever behind each of them or holding up the whole fleet. A tenant that is ahead of the claimant's
in service by more than a replica's worth waits with it, so that the bound of `fairness.py` holds.
"""

import heapq
from collections.abc import Iterable
from math import inf

from controlplane.gateway.admission.fairness import VirtualTokenCounters
from controlplane.gateway.admission.line import Line
from controlplane.gateway.admission.replica import Replica
from controlplane.gateway.admission.request import RANK, RANKS
from controlplane.gateway.admission.settings import QueueSettings
from controlplane.gateway.admission.ticket import Ticket


class Queue:
    def __init__(self, settings: QueueSettings, counters: VirtualTokenCounters) -> None:
        self._settings = settings
        self._newest_first = settings.newest_first_while_overloaded
        self._counters = counters
        self._lines: dict[Line, None] = {}  # those that have something queued
        self._timers: list[tuple[float, int, Ticket]] = []  # when somebody rises, or has waited in vain
        self.claimants: dict[int, Ticket] = {}
        self._least: dict[Line, list[float]] = {}  # by rank: the smallest counter of its claimants' tenants
        self.requests = 0
        self.tokens = 0
        self.risen = 0  # since the start

    def lines(self) -> tuple[Line, ...]:
        """The lines that have something queued."""
        return tuple(self._lines)

    def tickets(self) -> list[Ticket]:
        """All that are queued, by line and class, each in the order in which they came."""
        return [
            ticket
            for line in self._lines
            for standing in line.standings
            for ticket in standing.tickets.values()
        ]

    def is_before(self, ticket: Ticket) -> bool:
        """Whether somebody is queued before this newcomer, so that it must not be sent at once."""
        line = ticket.line
        if not self.requests:
            return False
        for rank in range(ticket.rank + 1):
            if line.bands[rank].rows:
                return True
        return self._must_wait(ticket)

    def wait_seconds(self, ticket: Ticket, now: float) -> float:
        """How long what is ahead of a newcomer will take; 0 where that is not known."""
        line, account = ticket.line, ticket.account
        rates = line.rate.per_second(now, ticket.tokens)
        if rates is None:
            return 0.0
        row = account.queued_tokens + ticket.tokens
        in_turn = 0.0
        others = self._counters.others(account, ticket.rank)
        if others:
            # They take turns with it only for what is left of its row when it has caught up with them.
            ahead = line.tokens_of(self._counters.ahead(account, ticket.rank, line.credit))
            in_turn = others * max(0.0, 1.0 - ahead / row)
        ranks = ticket.rank + 1
        requests = min(sum(line.queued[:ranks]), account.queued + in_turn * (account.queued + 1))
        tokens = min(sum(line.queued_tokens[:ranks]), account.queued_tokens + in_turn * row)
        # Sizes differ: where the two disagree, the milder one decides, and the test at the poll corrects it.
        return min(requests / rates[0], tokens / rates[1] if rates[1] > 0 else inf)

    def is_owed(self, ticket: Ticket) -> bool:
        """Whether its tenant got less than another that waits, by more than all it has waiting."""
        line, account = ticket.line, ticket.account
        owed = line.tokens_of(self._counters.owed(account, ticket.rank, line.credit))
        return account.queued_tokens + ticket.tokens <= owed

    def set_start_by(self, ticket: Ticket, now: float) -> None:
        """How long it may wait, from its offer on."""
        part = ticket.line.engine_part.seconds(now)
        bound = ticket.standing.wait_bound_seconds(part, now, is_owed=self.is_owed(ticket))
        ticket.start_by = ticket.offered_at + bound
        deadline = ticket.request.deadline_at
        if deadline is not None:
            most = self._settings.engine_part_at_most * (deadline - ticket.offered_at)
            ticket.start_by = min(ticket.start_by, deadline - max(0.0, min(part, most)))

    def is_late(self, ticket: Ticket, now: float) -> bool:
        """Whether an answer could not begin in time any more, by what is known of the engine now."""
        part = min(ticket.line.engine_part.seconds(now), ticket.standing.most_engine_part_seconds)
        return now > ticket.start_by or now - ticket.offered_at + part > ticket.standing.ttft

    def is_full(self, ticket: Ticket) -> bool:
        """Whether memory's bounds leave no place for one more."""
        return (
            self.requests >= self._settings.most_requests
            or self.tokens + ticket.tokens > self._settings.most_tokens
        )

    def caps(self, line: Line, rank: int, now: float) -> tuple[float, float]:
        """(requests, tokens) that a class may have waiting at today's rate; infinite if that is unknown."""
        rates = line.rate.per_second(now, 0)
        if rates is None:
            return inf, inf
        bound = line.standings[rank].wait_bound_seconds(line.engine_part.seconds(now), now)
        return rates[0] * bound, rates[1] * bound

    def push(self, ticket: Ticket, now: float, *, first: bool = False) -> None:
        """Queue it; `first` for one that comes back after it had its turn."""
        line, rank = ticket.line, ticket.rank
        line.rate.pass_time(now, is_backlogged=True)
        self._lines[line] = None
        line.queued[rank] += 1
        line.queued_tokens[rank] += ticket.tokens
        self.requests += 1
        self.tokens += ticket.tokens
        self._counters.enters(ticket.account, rank, ticket.tokens, line.credit)
        ticket.standing.add(ticket, first=first)
        line.bands[rank].add(ticket, first=first)
        ticket.is_queued = True
        self._set_timer(ticket)

    def remove(self, ticket: Ticket, now: float) -> Replica | None:
        """It is queued no more, for whatever reason. Returns the replica that it had claimed."""
        line, rank = ticket.line, ticket.rank
        line.queued[rank] -= 1
        line.queued_tokens[rank] -= ticket.tokens
        self.requests -= 1
        self.tokens -= ticket.tokens
        ticket.standing.remove(ticket, now)
        claimed = ticket.claim
        if claimed is None:
            line.bands[rank].remove(ticket)
        else:
            self._unclaim(ticket)
        self._counters.leaves(ticket.account, rank, ticket.tokens)
        ticket.is_queued = False
        if not any(line.queued):
            del self._lines[line]
            line.rate.pass_time(now, is_backlogged=False)
        return claimed

    def pass_time(self, now: float) -> list[Ticket]:
        """Let those rise who have waited long enough. Returns those who have waited in vain."""
        late: dict[int, Ticket] = {}  # one that was queued twice has two timers
        timers = self._timers
        while timers and timers[0][0] < now:
            ticket = heapq.heappop(timers)[2]
            if not ticket.is_queued or ticket.id in late:
                continue
            if now > ticket.start_by:
                late[ticket.id] = ticket
            else:
                self._rise(ticket)
                self._set_timer(ticket)
        return list(late.values())

    def look_at_claims(self) -> None:
        """The counters have moved since the last time."""
        self._least.clear()
        self._note_claims(self.claimants.values())

    def claim(self, ticket: Ticket, replica: Replica) -> None:
        """Keep the replica for it."""
        ticket.line.bands[ticket.rank].remove(ticket)
        ticket.claim = replica
        replica.claimant = ticket
        self.claimants[ticket.id] = ticket
        self._note_claims((ticket,))

    def give_up_claim(self, ticket: Ticket) -> None:
        """It goes back to the head of its row."""
        self._unclaim(ticket)
        ticket.tried = False
        ticket.line.bands[ticket.rank].add(ticket, first=True)

    def head(self, rank: int, shut: set[Line], now: float) -> Ticket | None:
        """Who is next of this rank, in the lines that are not shut."""
        best: Ticket | None = None
        for line in self._lines:
            if line in shut:
                continue
            newest = self._newest_first and line.standings[rank].is_overloaded(now)
            head = line.bands[rank].head(newest=newest)
            if head is None:
                continue
            if self._must_wait(head):
                shut.add(line)
            elif best is None or head.account.counter < best.account.counter:
                best = head
        return best

    def _must_wait(self, ticket: Ticket) -> bool:
        """Whether its tenant is too far ahead of one whose head has claimed a replica."""
        least = self._least.get(ticket.line)
        if least is None:
            return False
        return ticket.account.counter > min(least[: ticket.rank + 1]) + ticket.line.slack

    def _note_claims(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            least = self._least.get(ticket.line)
            if least is None:
                least = self._least[ticket.line] = [inf] * RANKS
            least[ticket.rank] = min(least[ticket.rank], ticket.account.counter)

    def _set_timer(self, ticket: Ticket) -> None:
        """For its next rise, or for when its time is up."""
        ranks = RANK[ticket.request.service_class] + 1
        wait = ticket.start_by - ticket.offered_at
        at = ticket.offered_at + wait * (ranks - ticket.rank) / ranks if ticket.rank else ticket.start_by
        heapq.heappush(self._timers, (at, ticket.id, ticket))
        if len(self._timers) > 2 * self.requests + 64:  # of many who have left before their time
            self._timers[:] = [timer for timer in self._timers if timer[2].is_queued]
            heapq.heapify(self._timers)

    def _rise(self, ticket: Ticket) -> None:
        line, old, new = ticket.line, ticket.rank, ticket.rank - 1
        if ticket.claim is None:
            line.bands[old].remove(ticket)
        ticket.rank = new
        ticket.tried = False
        self._counters.rises(ticket.account, new, line.credit)
        if ticket.claim is None:
            line.bands[new].add(ticket, first=False)
        for counts, amount in ((line.queued, 1), (line.queued_tokens, ticket.tokens)):
            counts[old] -= amount
            counts[new] += amount
        self.risen += 1

    def _unclaim(self, ticket: Ticket) -> None:
        assert ticket.claim is not None
        ticket.claim.claimant = None
        ticket.claim = None
        del self.claimants[ticket.id]
        if not self.claimants:  # the counters of claims that are over must hold nobody back
            self._least.clear()
