"""The clock, the dice and the waiting room around `admission`: what the sans-I/O library is not to have.

Times are the event loop's. Whoever holds a ticket tells its end through here, so that the next in the queue
hears of the room at once.
"""

import asyncio
import random
from math import inf

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.request import Fault, Request
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused, Verdict


class Door:
    """One admission, in this event loop."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self._loop = asyncio.get_running_loop()
        self._draw = random.Random().random  # noqa: S311 (spreads load, guards nothing)
        self._waiting: dict[int, asyncio.Future[Admitted | Refused]] = {}
        self._poll_is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return self._loop.time()

    def draw(self) -> float:
        """Uniform in [0, 1)."""
        return self._draw()

    def offer(self, request: Request) -> Verdict:
        verdict = self.admission.offer(request, self.now(), self._draw())
        if not isinstance(verdict, Refused):
            self.poll_soon()
        return verdict

    async def let_in(self, verdict: Admitted | Queued) -> Admitted | Refused:
        """What becomes of it in the end. Whoever gives up waiting must tell that the client is gone."""
        if isinstance(verdict, Admitted):
            return verdict
        future: asyncio.Future[Admitted | Refused] = self._loop.create_future()
        self._waiting[verdict.ticket.id] = future
        self.poll_soon()
        try:
            return await future
        finally:
            del self._waiting[verdict.ticket.id]

    def first_token(self, ticket: Ticket) -> None:
        self.admission.first_token(ticket, self.now())

    def tokens(self, ticket: Ticket, count: int) -> None:
        self.admission.tokens(ticket, count, self.now())

    def finished(self, ticket: Ticket, usage: Usage | None, cached_tokens: int) -> None:
        self.admission.finished(ticket, self.now(), usage, cached_tokens=cached_tokens)
        self.poll_soon()

    def failed(
        self,
        ticket: Ticket,
        fault: Fault,
        *,
        may_retry: bool = False,
        retry_after_seconds: float | None = None,
    ) -> Admitted | Queued | None:
        """What to do instead, None: tell the client."""
        instead = self.admission.failed(
            ticket, self.now(), fault, may_retry=may_retry, retry_after_seconds=retry_after_seconds
        )
        self.poll_soon()
        return instead

    def may_resend(self, ticket: Ticket) -> bool:
        return self.admission.may_resend(ticket, self.now())

    def client_gone(self, ticket: Ticket) -> None:
        self.admission.client_gone(ticket, self.now())
        self.poll_soon()

    def poll_soon(self) -> None:
        """Look for what may be let in, once this batch of events is done."""
        if not self._poll_is_due:
            self._poll_is_due = True
            self._loop.call_soon(self._poll)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        self._poll_is_due = False
        now = self.now()
        for verdict in self.admission.poll(now):
            ticket = verdict.ticket
            future = None if ticket is None else self._waiting.get(ticket.id)
            if future is None or future.done():
                if ticket is not None:  # nobody waits for it any more
                    self.admission.client_gone(ticket, now)
            elif not isinstance(verdict, Queued):
                future.set_result(verdict)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.admission.next_poll_at(now)
        if at < inf:
            self._timer = self._loop.call_at(at, self.poll_soon)
