"""The door: who is sent to which replica now, who waits, who is refused, and why.

Everything is told to one `Admission` object, one for each model and its adapters, by whoever has the
connections (the HTTP gateway, an Envoy processor, the simulator). It does no I/O, and knows no clock: every
method takes `now`, seconds of a clock that never goes back (Unix time, if its windows go to the daemon).

    verdict = admission.offer(request, now, draw)       # Admitted, Queued or Refused
    admission.first_token(ticket, now)
    admission.tokens(ticket, count, now)                # as they stream
    admission.finished(ticket, now, usage)              # or failed(...), or client_gone(...)
    for verdict in admission.poll(now): ...             # Admitted and Refused of those that were queued

`poll` is called after each batch of calls that may have made room or changed the fleet, and at
`next_poll_at` at the latest. A ticket ends exactly once: telling its end again does nothing.

Observe mode runs all of this, queue and deadlines included, on requests that were sent at once. What is
queued runs already; it gets its reservation when it would have been let in, and keeps it from then for as
long as it really ran, so that the books are those of a gateway that enforces. What is refused runs without
one (a *shadow*), and `would_shed` counts it. Only what nobody can serve (no such model, no replica) is
refused. On engines that are overrun requests run longer than they would if we enforced: there the books go by
the pace of a full engine (`pace.py`), and the share that would be served is right to within about a tenth.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf

from controlplane.gateway.admission import goodness, grounds
from controlplane.gateway.admission.fairness import VirtualTokenCounters
from controlplane.gateway.admission.ghosts import Ghosts
from controlplane.gateway.admission.line import Line
from controlplane.gateway.admission.outcomes import Outcomes, PoolTally
from controlplane.gateway.admission.queue import Queue
from controlplane.gateway.admission.quota import Quotas
from controlplane.gateway.admission.refusal import Refusal, RefusalReason
from controlplane.gateway.admission.replica import Replica, ReplicaReading, ReplicaSpec
from controlplane.gateway.admission.request import RANKS, Fault, Request
from controlplane.gateway.admission.retries import RetryBudget
from controlplane.gateway.admission.routing import Routes
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.status import Status, line_status, replica_status
from controlplane.gateway.admission.ticket import NOWHERE, Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused, Verdict
from controlplane.gateway.admission.whole_view import whole_view
from controlplane.policy.shares import Share
from controlplane.signals.control import Grant
from controlplane.signals.decision import Mode
from controlplane.signals.samples import OutcomeWindow

_UPKEEP_SECONDS = 1.0
_POLL_SECONDS = 0.1  # while something is queued: time alone opens breakers, grows replicas, ends waits
_NO_END = 1 << 60
_MOST_TURNS = 16  # of an engine with its own tools in one answer (/v1/responses): usage is their sum
_FOR_LOAD = frozenset({RefusalReason.QUEUE_FULL, RefusalReason.KV_RESERVATION_FULL})


class Admission:
    """See above. `quotas` may be one object for several of these; `gateway` names this process in windows."""

    def __init__(
        self, settings: AdmissionSettings, *, gateway: str, now: float, quotas: Quotas | None = None
    ) -> None:
        self.mode = settings.mode
        self._settings = settings
        self._input_weight, self._output_weight = settings.input_weight, settings.output_weight
        self.quotas = quotas or Quotas(settings.tenant)
        self.counters = VirtualTokenCounters(lambda tenant: settings.tenant(tenant).weight)
        self._routes = Routes(settings)
        self._queue = Queue(settings.queue, self.counters)
        self._retries = RetryBudget(settings.retries)
        self._outcomes = Outcomes(gateway, now, settings.interactive.ttft)
        self.share = Share(settings.standing_share, now=now)
        self._held = self.share.held(now)
        self._ceilings = tuple(1.0 - settings.queue.hold_back * rank / (RANKS - 1) for rank in range(RANKS))
        self._tickets = 0
        self._freed: dict[Replica, None] = {}  # got room since the last poll
        self._ghosts = Ghosts()
        self._unsent = 0  # of the queued
        self._upkeep_at = now
        self._look_at_all_at = now
        self._counts = dict.fromkeys(("retries", "retries_refused", "resends", "spilled", "claimed"), 0)

    # What there is

    def set_replicas(self, specs: Iterable[ReplicaSpec], now: float) -> None:
        """All replicas of this model. What runs on one that is gone or out of rotation goes on."""
        before = self._routes.replicas
        self._routes.set_replicas(specs, self._held)
        for replica in self._routes.replicas.values():
            self._outcomes.pool(replica.spec.pool)  # told of from now on, whatever happens there
        self._outcomes.parted = self._routes.parted
        self._freed.update(dict.fromkeys(before.values()))  # claims on those that are gone are given up
        self._free_all()

    def set_empty_pools(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Pools without any replica, and what they are known to serve (nothing: not known).

        What is refused for want of a replica is counted there: it is what brings the first one.
        """
        self._routes.set_empty_pools(pools)
        for pool in pools:
            self._outcomes.pool(pool)

    def set_limits(self, limits: Mapping[str, float], overcommit: Mapping[str, float], now: float) -> None:
        """Sequences at once, and the factor on the KV budget, by replica; the others keep what they have."""
        for name, replica in self._routes.replicas.items():
            replica.limit = limits.get(name, replica.limit)
            replica.overcommit = overcommit.get(name, replica.overcommit)
            replica.divide(self._held)
        self._outcomes.limits = {
            name: replica.limit
            for name, replica in self._routes.replicas.items()
            if replica.limit is not None
        }
        self._free_all()

    def set_readings(self, readings: Iterable[ReplicaReading], now: float) -> None:
        """What scrapes have shown."""
        for reading in readings:
            replica = self._routes.replicas.get(reading.name)
            if replica is not None:
                replica.see(reading)
        self._free_all()

    def set_boundary(self, tokens: int) -> None:
        """Requests up to so many tokens go to the short pool; those that are queued stay where they are."""
        self._routes.set_boundary(tokens)
        self._outcomes.parted = self._routes.parted

    def take_grant(self, grant: Grant, now: float) -> bool:
        """A share of all replicas was granted; False for one that is not newer than the one that is known."""
        taken = self.share.take(grant)
        self._divide(now)
        return taken

    def set_mode(self, mode: Mode, now: float) -> None:
        """Observe or enforce, from now on. What waits when observing begins is sent by the next poll."""
        if mode is self.mode:
            return
        self.mode = mode
        self._lay_ghosts(inf)
        for ticket in self._queue.tickets():
            if ticket.replica is not None:  # it runs: to enforce, it is not queued any more
                self._unqueue(ticket, now)
                ticket.shadow = True

    # One request

    def offer(self, request: Request, now: float, draw: float) -> Verdict:
        """A request has come; `draw` is a random number, uniform in [0, 1)."""
        if now >= self._outcomes.ends_at or now >= self._upkeep_at:
            self._keep_up(now)
        ticket = self._ticket(request, now, draw)
        if ticket is None:
            known = self._routes.replicas
            return Refused(grounds.unknown_model(request.model) if known else grounds.no_replica_known(draw))
        line, account = ticket.line, ticket.account
        account.open += 1
        refusal = None if line.is_served else grounds.no_replica(line, now, draw)
        refusal = refusal or grounds.wrong(ticket) or self._take_quota(ticket, now)
        if refusal is not None:
            return self._refuse(ticket, refusal, now)
        self._outcomes.pool(line.pool).ask(ticket.tokens)
        replica = None
        if not self._queue.requests:
            self._freed.clear()  # nobody waits for it
        if not self._freed and not self._queue.is_before(ticket):
            replica = self._routes.choose(ticket, now, self._ceilings[ticket.rank])
            ticket.tried = True
        if replica is not None:
            self.counters.passes(account, ticket.rank, line.credit)
            line.rate.served(now, ticket.tokens)
            return self._admit(ticket, replica, now)
        self._queue.set_start_by(ticket, now)
        refusal = grounds.cannot_wait(ticket, self._queue, now)
        if refusal is not None:
            return self._refuse(ticket, refusal, now)
        if self.mode is Mode.OBSERVE:
            return self._pin(ticket, now)
        self._enqueue(ticket, now)
        return Queued(ticket)

    def poll(self, now: float) -> list[Admitted | Refused]:
        """What has become of those that were queued: Admitted or Refused, each once."""
        if now >= self._outcomes.ends_at or now >= self._upkeep_at:
            self._keep_up(now)
        verdicts: list[Admitted | Refused] = []
        if self._waits_unsent():
            self._let_go(now, verdicts)
        self._lay_ghosts(now)
        if self._queue.requests:
            for ticket in self._queue.pass_time(now):
                self._drop(ticket, now, verdicts)
            if now >= self._look_at_all_at:
                self._look_at_all_at = now + _POLL_SECONDS
                self._free_all()
            self._dispatch(now, verdicts)
        self._freed.clear()
        return verdicts

    def next_poll_at(self, now: float) -> float:
        """When to poll next if nothing else happens; infinity if there is nothing to wait for."""
        if self._waits_unsent():
            return now
        at = now + _POLL_SECONDS if self._queue.requests else inf
        return min(at, self._ghosts.next_at)

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The engine has made a first token, whether or not it can be seen yet."""
        if ticket.first_token_at is not None or ticket.has_ended or ticket.sent_at is None:
            return
        assert ticket.replica is not None
        if now >= self._outcomes.ends_at:
            self._keep_up(now)
        ticket.first_token_at = ticket.last_token_at = now
        seconds = now - ticket.sent_at
        ticket.tally.first_tokens.append(seconds)
        ticket.tally.late += goodness.is_late(ticket, now)
        ticket.tally.awaited.pop(ticket.id, None)
        ticket.line.engine_part.add(now, seconds)
        ticket.replica.breaker.first_byte(ticket.breaker_number, now)

    def tokens(self, ticket: Ticket, count: int, now: float) -> None:
        """So many more output tokens have come, of all its sequences together."""
        if ticket.has_ended or count <= 0:
            return
        if now >= self._outcomes.ends_at:
            self._keep_up(now)
        if ticket.first_token_at is None:
            self.first_token(ticket, now)
        tally, request, before = ticket.tally, ticket.request, ticket.output_tokens
        if before:
            tally.gaps += count
            # Tokens of several sequences come in turn: each waited for as many gaps as there are of them.
            tally.gap_seconds += (now - ticket.last_token_at) * request.sequences
        else:  # what went before them was not seen
            tally.gaps += count - 1
        ticket.last_token_at = now
        ticket.output_tokens = before + count
        reservation = ticket.reservation
        if reservation is None:
            return
        used = request.prompt_tokens + before + count
        if used > reservation.tokens:
            assert ticket.reserved_at is not None
            ticket.reserved_at.ledger.extend(reservation, used)
        if request.streams:
            charge = count * self._output_weight
            ticket.account.charge(charge)
            ticket.charged += charge

    def finished(
        self, ticket: Ticket, now: float, usage: Usage | None = None, *, cached_tokens: int = 0
    ) -> None:
        """The answer is complete. Without `usage` what was seen counts.

        `cached_tokens` of the prompt were in the engine's cache: they take memory, but no service.
        """
        replica = ticket.replica
        if ticket.has_ended or replica is None:
            return
        if usage is None:
            usage = Usage(ticket.request.prompt_tokens, ticket.output_tokens)
        # An engine that tells nonsense must not put its tenant in debt for years.
        usage = usage.at_most(_MOST_TURNS * ticket.request.sequences * ticket.line.longest_tokens)
        more = max(0, usage.completion_tokens - ticket.request.sequences)
        writes = usage.completion_tokens or not ticket.request.output_tokens
        if writes and not more:  # the first token is the last, streamed or not; or none was ever to come
            self.first_token(ticket, now)
        replica.breaker.succeeded(ticket.breaker_number, now)
        self._retries.succeeded(now)
        tally, pool = ticket.tally, self._end(ticket, now, usage, lingers=self.mode is Mode.OBSERVE)
        if cached_tokens and not ticket.shadow:
            ticket.account.charge(-min(cached_tokens, usage.prompt_tokens) * self._input_weight)
        tally.finish(usage.prompt_tokens, usage.completion_tokens)
        if not ticket.request.streams:
            tally.whole_tokens += more
        if more:
            tally.paced += 1
            tally.slow += goodness.is_slow(ticket, usage.completion_tokens, now)
        pool.finished += 1
        if goodness.is_good(ticket, usage.completion_tokens, now):
            pool.good += 1
            pool.good_tokens += usage.prompt_tokens + usage.completion_tokens

    def failed(
        self,
        ticket: Ticket,
        now: float,
        fault: Fault,
        *,
        may_retry: bool = False,
        retry_after_seconds: float | None = None,
    ) -> Admitted | Queued | None:
        """The replica did not serve it. It is Admitted elsewhere, Queued, or (None) its client is to be told.

        `may_retry`: nothing of an answer has reached the client, and the request changes nothing where it is
        run twice. `retry_after_seconds` is what an overloaded engine said.
        """
        replica = ticket.replica
        if ticket.has_ended or replica is None:
            return None
        if fault in (Fault.UNREACHABLE, Fault.BROKEN, Fault.ERROR):
            may_open = fault is not Fault.ERROR or ticket.line.can_spare_one
            replica.breaker.failed(ticket.breaker_number, now, may_open=may_open)
            self._freed[replica] = None  # where its breaker has opened, a claim on it is void
            ticket.tally.failed += 1
        else:
            replica.breaker.ended(ticket.breaker_number)
        if fault is Fault.OVERLOADED:
            ticket.tally.overloaded += 1
            # It looks empty now, and would get everything.
            pause = max(self._settings.routing.pause_after_overload, min(retry_after_seconds or 0.0, 10.0))
            replica.paused_until = max(replica.paused_until, now + pause)
        if may_retry and fault is not Fault.CLIENT_ERROR and self._may_retry(ticket, now):
            return self._retry(ticket, replica, now)
        seen = ticket.first_token_at is not None
        usage = Usage(ticket.request.prompt_tokens, ticket.output_tokens) if seen else Usage(0, 0)
        pool = self._end(ticket, now, usage, lingers=self.mode is Mode.OBSERVE)
        if fault is Fault.CLIENT_ERROR:
            pool.client_errors += 1
        else:
            pool.failed += 1
        return None

    def may_resend(self, ticket: Ticket, now: float) -> bool:
        """Whether it may be sent to the same replica again: a kept connection closed as it was written to.

        Once, within the retry budget, and instead of any other retry: nobody knows if the first was read.
        """
        if ticket.has_ended or ticket.was_retried or ticket.first_token_at is not None:
            return False
        ticket.was_retried = True
        return self._take_retry("resends", now)

    def client_gone(self, ticket: Ticket, now: float) -> None:
        """The client hung up. What the request holds is free; its prompt and what was streamed is charged."""
        if ticket.has_ended:
            return
        sent = ticket.replica is not None
        if ticket.replica is not None:
            ticket.replica.breaker.ended(ticket.breaker_number)
        usage = Usage(ticket.request.prompt_tokens, ticket.output_tokens) if sent else Usage(0, 0)
        self._end(ticket, now, usage).gave_up += 1

    # What it looks like

    @property
    def models(self) -> frozenset[str]:
        """All models that some replica says it serves, in rotation or not."""
        return self._routes.models

    def windows(self, now: float) -> tuple[OutcomeWindow, ...]:
        """The windows that are over and were not taken before."""
        if now >= self._outcomes.ends_at:
            self._outcomes.close(now)
        return self._outcomes.take()

    def whole_view(self, windows: Iterable[OutcomeWindow]) -> tuple[OutcomeWindow, ...]:
        """Windows of ours as the law of a gateway alone is told of them; none while we have no share."""
        return tuple(whole_view(windows, self._routes.replicas, self._held)) if self._held > 0 else ()

    def limit(self, name: str) -> float | None:
        """The limit of a whole replica that is in force; None where nobody has set one."""
        replica = self._routes.replicas.get(name)
        return None if replica is None else replica.limit

    def limits(self) -> dict[str, float]:
        """The limits of whole replicas that are in force, by name."""
        return dict(self._outcomes.limits)

    def status(self, now: float) -> Status:
        return Status(
            mode=self.mode,
            share=self._held,
            queued_requests=self._queue.requests,
            queued_tokens=self._queue.tokens,
            claims=len(self._queue.claimants),
            replicas={name: replica_status(replica) for name, replica in self._routes.replicas.items()},
            lines=tuple(line_status(line, self._queue, now) for line in self._queue.lines()),
            counts={**self._counts, "risen": self._queue.risen},
        )

    def _ticket(self, request: Request, now: float, draw: float) -> Ticket | None:
        """A ticket in its line; None where nobody serves the model."""
        output = request.output_tokens
        each = -(-output // request.sequences)
        sequence_tokens = request.sequence_tokens
        if sequence_tokens is None:
            sequence_tokens = request.prompt_tokens + each
        full_tokens = sequence_tokens
        if request.most_output_tokens is not None:
            full_tokens += max(0, -(-request.most_output_tokens // request.sequences) - each)
        line = self._routes.line(request.model, sequence_tokens, full_tokens)
        if line is None:
            return None
        self._tickets += 1
        # What no engine can use is not reserved: it refuses a longer request by itself, in better words.
        longest = line.longest_tokens
        return Ticket(
            self._tickets,
            request,
            line=line,
            account=self.counters.account(request.tenant, line.pool),
            tokens=max(1, int(min(request.prompt_tokens + output, request.sequences * longest))),
            sequence_tokens=int(min(sequence_tokens, longest)),
            full_tokens=int(min(full_tokens, longest)),
            now=now,
            draw=draw,
        )

    # Refusing

    def _refuse(self, ticket: Ticket, refusal: Refusal, now: float) -> Verdict:
        """At the offer. Observing, it is sent all the same, where it can be."""
        self._refund(ticket, 0, now)
        if self.mode is Mode.OBSERVE and ticket.line.is_served:
            self._count_would_refuse(ticket, refusal)
            ticket.shadow = True
            return self._send_anyway(ticket, now)
        ticket.has_ended = True
        ticket.account.open -= 1
        self._count_refused(ticket, refusal)
        if refusal.reason in _FOR_LOAD:
            self._outcomes.pool(ticket.line.pool).size(ticket.sequence_tokens).offered += 1
        return Refused(refusal)

    def _count_would_refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        would_shed = self._outcomes.pool(ticket.line.pool).would_shed
        would_shed[refusal.reason] = would_shed.get(refusal.reason, 0) + 1

    def _count_refused(self, ticket: Ticket, refusal: Refusal) -> None:
        pool = self._outcomes.pool(ticket.line.pool)
        if refusal.is_clients_error:
            pool.client_errors += 1
        else:
            pool.shed[refusal.reason] = pool.shed.get(refusal.reason, 0) + 1

    # Sending

    def _admit(self, ticket: Ticket, replica: Replica, now: float) -> Admitted:
        """Reserve, and send unless it runs already."""
        request = ticket.request
        output = _NO_END if request.most_output_tokens is None else request.most_output_tokens
        ticket.reservation = replica.ledger.reserve(
            ticket.tokens, request.sequences, request.prompt_tokens + output
        )
        ticket.reserved_at = replica
        ticket.reserved_since = now
        if self.mode is Mode.OBSERVE and replica.open_load(now) > 1.0:
            self._ghosts.foretell(ticket, replica, now)
        if ticket.has_ended:
            if not ticket.is_foretold:
                self._ghosts.linger(ticket)
            return Admitted(ticket, replica.name)
        charge = request.prompt_tokens * self._input_weight - ticket.charged  # by a first try
        if not request.streams:
            charge += request.output_tokens * self._output_weight
        ticket.account.charge(charge)
        ticket.charged += charge
        if ticket.replica is None:
            self._send(ticket, replica, now)
        return Admitted(ticket, replica.name)

    def _send(self, ticket: Ticket, replica: Replica, now: float) -> None:
        sequences = ticket.request.sequences
        ticket.replica = replica
        ticket.sent_at = now
        ticket.breaker_number = replica.breaker.send(now)
        replica.opened(ticket.tokens, sequences, now)
        if self.mode is Mode.OBSERVE:
            ticket.sent_load = replica.open_load(now)
        if replica in ticket.line.spill:
            self._counts["spilled"] += 1
        tally = ticket.tally = self._outcomes.replica(replica.spec.pool, replica.name)
        tally.sent += 1
        tally.change(sequences, ticket.tokens, now)
        if ticket.request.streams:
            tally.awaited[ticket.id] = now
        pool = ticket.pool_tally = self._outcomes.pool(replica.spec.pool)
        pool.in_flight += 1
        pool.waits.append(now - ticket.offered_at)

    def _send_anyway(self, ticket: Ticket, now: float) -> Admitted | Refused:
        """Send it without a reservation."""
        replica = self._routes.any_of(ticket, now)
        if replica is None:
            refusal = grounds.no_replica(ticket.line, now, ticket.draw)
            self._end(ticket, now, Usage(0, 0))
            self._count_refused(ticket, refusal)
            return Refused(refusal, ticket)
        self._send(ticket, replica, now)
        return Admitted(ticket, replica.name)

    def _pin(self, ticket: Ticket, now: float) -> Verdict:
        """Observing: it is queued, and runs already."""
        verdict = self._send_anyway(ticket, now)
        if isinstance(verdict, Admitted):
            self._enqueue(ticket, now)
        return verdict

    # The queue

    def _waits_unsent(self) -> bool:
        """Observing has begun, and some wait that were queued before."""
        return self.mode is Mode.OBSERVE and self._unsent > 0

    def _let_go(self, now: float, verdicts: list[Admitted | Refused]) -> None:
        """Observing has begun: nobody is kept waiting."""
        for ticket in self._queue.tickets():
            if ticket.replica is None:
                self._unqueue(ticket, now)
                ticket.shadow = True
                verdicts.append(self._send_anyway(ticket, now))

    def _dispatch(self, now: float, verdicts: list[Admitted | Refused]) -> None:
        queue, routes, freed = self._queue, self._routes, self._freed
        if queue.claimants:
            self._serve_claimants(now, verdicts)
        shut: set[Line] = set()
        for rank in range(RANKS):
            ceiling = self._ceilings[rank]
            while (ticket := queue.head(rank, shut, now)) is not None:
                if queue.is_late(ticket, now):
                    self._drop(ticket, now, verdicts)
                    continue
                if ticket.tried:
                    replica = routes.choose_of(freed, ticket, now, ceiling)
                else:
                    replica = routes.choose(ticket, now, ceiling)
                    ticket.tried = True
                if replica is not None:
                    self._take(ticket, replica, now, verdicts)
                    continue
                claim = routes.claimable(ticket, now)
                if claim is None:
                    shut.add(ticket.line)
                    continue
                if claim.claimant is not None:
                    queue.give_up_claim(claim.claimant)
                queue.claim(ticket, claim)
                self._counts["claimed"] += 1

    def _serve_claimants(self, now: float, verdicts: list[Admitted | Refused]) -> None:
        """Whoever has claimed a replica that got room comes first there, and then elsewhere."""
        queue, routes, freed = self._queue, self._routes, self._freed
        self._check_claims(now)
        for replica in list(freed):
            claimant = replica.claimant
            if claimant is None:
                continue
            if queue.is_late(claimant, now):
                self._drop(claimant, now, verdicts)
            elif replica.takes(claimant, now, self._ceilings[claimant.rank]):
                self._take(claimant, replica, now, verdicts)
        free = [replica for replica in freed if replica.claimant is None and replica.ledger.has_place]
        for ticket in list(queue.claimants.values()) if free else ():
            if ticket.claim is None:
                continue  # dropped meanwhile
            other = routes.choose_of(free, ticket, now, self._ceilings[ticket.rank])
            if other is not None:
                self._take(ticket, other, now, verdicts)
        queue.look_at_claims()

    def _check_claims(self, now: float) -> None:
        """Claims on replicas that get nothing new are given up."""
        for replica in list(self._freed):
            claimant = replica.claimant
            if claimant is not None and not (
                replica.in_rotation and replica.suits(claimant) and replica.breaker.allows(now)
            ):
                self._queue.give_up_claim(claimant)

    def _take(self, ticket: Ticket, replica: Replica, now: float, verdicts: list[Admitted | Refused]) -> None:
        """Take it off the queue and let it in, unless it is dropped."""
        while (oldest := ticket.standing.to_drop(now)) is not None:
            self._drop(oldest, now, verdicts, grounds.dropped)
            if oldest is ticket:
                return
        runs_already = ticket.replica is not None
        ticket.line.rate.served(now, ticket.tokens)
        self._unqueue(ticket, now)
        admitted = self._admit(ticket, replica, now)
        if not runs_already:
            verdicts.append(admitted)

    def _drop(
        self,
        ticket: Ticket,
        now: float,
        verdicts: list[Admitted | Refused],
        why: Callable[[Ticket, Queue, float], Refusal] = grounds.waited_in_vain,
    ) -> None:
        """Its time is up, or it was dropped."""
        self._unqueue(ticket, now)
        refusal = why(ticket, self._queue, now)
        if ticket.replica is not None:
            ticket.shadow = True
            self._refund(ticket, 0, now)
            self._count_would_refuse(ticket, refusal)
            return
        self._end(ticket, now, Usage(0, 0))
        self._count_refused(ticket, refusal)
        verdicts.append(Refused(refusal, ticket))

    def _enqueue(self, ticket: Ticket, now: float, *, first: bool = False) -> None:
        self._queue.push(ticket, now, first=first)
        self._unsent += ticket.replica is None
        ticket.queue_tally = self._outcomes.pool(ticket.line.pool)
        ticket.queue_tally.queued += 1

    def _unqueue(self, ticket: Ticket, now: float) -> None:
        self._unsent -= ticket.replica is None
        claimed = self._queue.remove(ticket, now)
        if claimed is not None:
            self._freed[claimed] = None
        if ticket.queue_tally is not None:
            ticket.queue_tally.queued -= 1

    # Ending

    def _end(self, ticket: Ticket, now: float, usage: Usage, *, lingers: bool = False) -> PoolTally:
        """Give back what it holds, charge what it used. Returns the tally of its pool.

        Observing, what was let in early `lingers`: in the books it goes on, or waits, as if it had not been.
        """
        if now >= self._outcomes.ends_at:
            self._keep_up(now)
        ticket.has_ended = True
        used = usage.prompt_tokens + usage.completion_tokens
        pool = ticket.pool_tally or self._outcomes.pool(ticket.line.pool)
        size = pool.size(ticket.sequence_tokens)
        size.offered += 1
        load = 0.0
        if ticket.replica is not None:
            load = ticket.replica.open_load(now) if lingers else 0.0
            self._leave(ticket, ticket.replica, now)
            if ticket.sent_at is not None:
                size.ran(now - ticket.sent_at, ticket.request.sequences, max(ticket.tokens, used))
        if lingers and not ticket.shadow and ticket.sent_at is not None:
            assert ticket.replica is not None
            ticket.ran_seconds = ticket.replica.pace.needed(
                now - ticket.sent_at, usage.completion_tokens, (ticket.sent_load + load) / 2
            )
            if ticket.reservation is not None and not ticket.is_foretold:
                self._ghosts.linger(ticket)
                self._lay_ghosts(now)
        else:
            self._release(ticket, now, used)
        ticket.account.open -= 1
        self._refund(ticket, used, now)
        if not ticket.shadow:
            cost = usage.prompt_tokens * self._input_weight
            cost += usage.completion_tokens * self._output_weight
            if cost != ticket.charged:
                ticket.account.charge(cost - ticket.charged)
                ticket.charged = cost
        if used:
            pool.charge(ticket.request.tenant, used)
        return pool

    def _lay_ghosts(self, now: float) -> None:
        """Those whose time in the books is over hold nothing any more."""
        for ticket in self._ghosts.laid(now):
            self._release(ticket, now, 0)

    def _take_quota(self, ticket: Ticket, now: float) -> Refusal | None:
        request = ticket.request
        denied = self.quotas.take(request.tenant, ticket.tokens, request.sequences, now)
        if denied is not None:
            return grounds.over_quota(denied, ticket.draw)
        ticket.quota_tokens = ticket.tokens
        return None

    def _refund(self, ticket: Ticket, used_tokens: int, now: float) -> None:
        """Settle with the tenant's quota, once."""
        if ticket.quota_tokens is not None:
            request = ticket.request
            self.quotas.settle(request.tenant, ticket.quota_tokens, used_tokens, request.sequences, now)
            ticket.quota_tokens = None

    def _leave(self, ticket: Ticket, replica: Replica, now: float) -> None:
        """It runs on this replica no more."""
        sequences = ticket.request.sequences
        replica.closed(ticket.tokens, sequences, now)
        ticket.tally.change(-sequences, -ticket.tokens, now)
        ticket.tally.awaited.pop(ticket.id, None)
        if ticket.pool_tally is not None:
            ticket.pool_tally.in_flight -= 1

    def _release(self, ticket: Ticket, now: float, used_tokens: int) -> None:
        """It holds no place any more, neither in the queue nor on a replica."""
        if ticket.is_queued:
            self._unqueue(ticket, now)
        if ticket.reservation is not None and ticket.reserved_at is not None:
            ticket.reserved_at.ledger.settle(ticket.reservation, used_tokens)
            self._freed[ticket.reserved_at] = None
            ticket.reservation = None

    # Retrying

    def _may_retry(self, ticket: Ticket, now: float) -> bool:
        if ticket.request.retry or ticket.was_retried or ticket.first_token_at is not None:
            return False
        others = any(
            replica.in_rotation
            and replica is not ticket.replica
            and ticket.least_tokens <= replica.holds_tokens
            for replica in ticket.line.reach
        )
        return others and self._take_retry("retries", now)

    def _take_retry(self, kind: str, now: float) -> bool:
        within = self._retries.take(now)
        self._counts[kind if within else "retries_refused"] += 1
        return within

    def _retry(self, ticket: Ticket, failed: Replica, now: float) -> Admitted | Queued | None:
        """Send it to another replica, or let it wait for one, before all others of its tenant."""
        ticket.was_retried = True
        self._leave(ticket, failed, now)
        self._release(ticket, now, 0)
        ticket.replica, ticket.sent_at, ticket.tally, ticket.pool_tally = None, None, NOWHERE, None
        ticket.excluded = (failed,)
        if self.mode is Mode.OBSERVE:
            verdict = self._send_anyway(ticket, now)
            return verdict if isinstance(verdict, Admitted) else None
        replica = self._routes.choose(ticket, now, self._ceilings[ticket.rank])
        if replica is not None:
            return self._admit(ticket, replica, now)
        self._queue.set_start_by(ticket, now)
        self._enqueue(ticket, now, first=True)
        return Queued(ticket)

    # Upkeep

    def _keep_up(self, now: float) -> None:
        """What has to be done now and then."""
        if now >= self._outcomes.ends_at:
            self._outcomes.close(now)
        if now >= self._upkeep_at:
            self._upkeep_at = min(now + _UPKEEP_SECONDS, self.share.changes_at(now))
            for replica in self._routes.replicas.values():
                replica.look(now)
            self.counters.look()
            self._divide(now)

    def _divide(self, now: float) -> None:
        held = self.share.held(now)
        self._upkeep_at = min(self._upkeep_at, self.share.changes_at(now))
        if held != self._held:
            self._held = held
            for replica in self._routes.replicas.values():
                replica.divide(held)
            self._free_all()

    def _free_all(self) -> None:
        self._freed.update(dict.fromkeys(self._routes.replicas.values()))
