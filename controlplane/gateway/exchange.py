"""One request from its arrival to its end: sized, let in, sent, passed on, accounted for.

What may be run twice, and when. A request goes to another engine only while not a byte of an answer has
reached the client, within the retry budget that admission keeps. One that changes something where it runs
(`store`, `previous_response_id`, `background`) is only sent again where it was certainly not delivered: when
there was no connection.
"""

import asyncio
import time

import msgspec

from controlplane.gateway import wire
from controlplane.gateway.admission.body_edit import (
    JsonObject,
    Unreadable,
    read_body,
    wants_stream_usage,
    with_limits,
    with_stream_usage,
)
from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.refusal import (
    Refusal,
    RefusalReason,
    bad_request,
    upstream_overloaded,
)
from controlplane.gateway.admission.request import RANK, Fault, ServiceClass
from controlplane.gateway.admission.request import Request as Offer
from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.admission.verdict import Admitted, Queued, Refused
from controlplane.gateway.attempt import Attempt, Broken, EngineRefused, Opened, Wishes
from controlplane.gateway.inbound import Answer, Header, Reply, Request, refuse
from controlplane.gateway.outbound import Connection, UnreachableError
from controlplane.gateway.piece_size import PieceCount, PieceSize
from controlplane.gateway.record import End, Record
from controlplane.gateway.settings import Tenant
from controlplane.gateway.sizing import Size, prefix_hash
from controlplane.gateway.surroundings import Surroundings

_OVERLOADED = frozenset({429, 503, 529})
_OVERLOAD_SECONDS = 5.0
_CLASSES = {each.value.encode(): each for each in ServiceClass}
_STATEFUL = ("store", "previous_response_id", "background", "conversation")


class _Early(msgspec.Struct, frozen=True):
    """Why a request ends before its time; `fault` is what is held against the engine, None: nothing."""

    end: End
    status: int
    code: str
    sentence: str
    fault: Fault | None


class Exchange:
    """See above. `cut` may be called from outside to end it early."""

    def __init__(
        self, around: Surroundings, endpoint: Endpoint, request: Request, reply: Reply, tenant: str
    ) -> None:
        self._around = around
        self._endpoint = endpoint
        self._request = request
        self._reply = reply
        self._tenant = tenant
        self._access: Tenant = around.keyring.settings(tenant)
        self._ticket: Ticket | None = None
        self._attempt: Attempt | None = None
        self._count: PieceCount | None = None
        self._early: _Early | None = None
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[None] = task
        self.record = Record(endpoint, tenant, self._service_class(), around.door.now())

    async def run(self) -> None:
        """Answer the request. Cancelled when the client has gone."""
        around, record = self._around, self.record
        seconds = around.settings.request_timeout
        asked = wire.timeout_seconds(self._request)
        if asked is not None:
            seconds = min(seconds, asked)
        timer = around.loop.call_later(seconds, self._time_is_up, seconds, asked)
        around.exchanges.add(self)
        try:
            await self._serve(None if asked is None else record.began + asked)
        except asyncio.CancelledError:
            if self._early is None:
                raise
            self._end_early(self._early)
        finally:
            timer.cancel()
            around.exchanges.discard(self)
            if self._attempt is not None:
                self._attempt.let_go()
                self._attempt = None
            ticket = self._ticket
            if ticket is not None:
                if not ticket.has_ended:
                    around.door.client_gone(ticket)
                self._note(ticket)
            record.ended = around.door.now()
            around.metrics.record(record)

    @property
    def ticket(self) -> Ticket | None:
        return self._ticket

    def cut(self, sentence: str) -> None:
        """End it now; the client is told why. It is our doing, not the engine's."""
        self._stop(_Early(End.CUT, 503, "gateway_stopping", sentence, Fault.OVERLOADED))

    def beat(self, now: float, silence_seconds: float) -> None:
        """Keep a silent stream alive; see `Attempt.beat`."""
        if self._attempt is not None:
            self._attempt.beat(now, silence_seconds)

    # -- before it is sent ---------------------------------------------------------------------------

    async def _serve(self, deadline_at: float | None) -> None:
        document = read_body(self._request.body)
        if isinstance(document, Unreadable):
            self._refuse(bad_request(RefusalReason.BAD_JSON, document.sentence))
            return
        name = document.get("model")
        model = name if isinstance(name, str) else ""
        allowed = self._access.models
        if allowed is not None and model not in allowed:
            message = f"no model is called {model[:200]!r}"
            self._refuse(bad_request(RefusalReason.UNKNOWN_MODEL, message, "model"))
            return
        size = await self._around.sizer.size(
            self._endpoint,
            document,
            len(self._request.body),
            tenant=self._tenant,
            model=model,
            ceiling=self._access.ceiling,
            max_model_len=self._around.fleet.max_model_len(model),
        )
        if size.output.refusal is not None:
            wrong = size.output.refusal
            self._refuse(bad_request(wrong.reason, wrong.sentence, wrong.param))
            return
        self.record.streams = document.get("stream") is True
        verdict = self._around.door.offer(self._offer(document, model, size, deadline_at))
        if isinstance(verdict, Refused):
            self._refuse(verdict.refusal)
            return
        self._ticket = verdict.ticket
        await self._send(verdict, document, size)

    def _offer(self, document: JsonObject, model: str, size: Size, deadline_at: float | None) -> Offer:
        return Offer(
            tenant=self._tenant,
            prompt_tokens=size.prompt_tokens,
            output_tokens=size.output_tokens,
            most_output_tokens=size.most_output_tokens,
            model=model,
            service_class=self.record.service_class,
            sequences=size.sequences,
            prompt_exact=size.prompt.exact,
            streams=self.record.streams,
            prefix=prefix_hash(self._endpoint, document),
            deadline_at=deadline_at,
            retry=wire.is_retry(self._request),
        )

    def _service_class(self) -> ServiceClass:
        """The class asked for, but no more urgent than the tenant's."""
        own = self._access.service_class
        asked = self._request.header(b"x-request-class")
        known = None if asked is None else _CLASSES.get(asked.lower())
        return known if known is not None and RANK[known] > RANK[own] else own

    # -- sent, and sent again ------------------------------------------------------------------------

    async def _send(self, verdict: Admitted | Queued, document: JsonObject, size: Size) -> None:
        around, reply = self._around, self._reply
        body = with_limits(self._request.body, document, size.output.edits)
        cuts_usage = wants_stream_usage(self._endpoint, document)
        if cuts_usage:
            body = with_stream_usage(body, document)
        wishes = Wishes(wire.takes_gzip(self._request), cuts_usage, around.settings.hold_headers)
        stateful = any(document.get(field) not in (None, False) for field in _STATEFUL)
        following: Admitted | Queued | None = verdict
        fresh = False
        while following is not None:
            admitted = await around.door.let_in(following)
            if isinstance(admitted, Refused):
                self._refuse(admitted.refusal)
                return
            ticket, replica = admitted.ticket, admitted.replica
            is_again = fresh or following is not verdict
            piece_size = around.fleet.piece_size(replica)
            self._count = PieceCount(piece_size, size.sequences)
            result = await self._try(replica, body, wishes, is_again=is_again, fresh=fresh)
            fresh = False
            match result:
                case Opened():
                    around.fleet.answered(replica, around.door.now())
                    await self._pass_on(ticket, result, size, piece_size)
                    return
                case Broken(was_stale=True) if not stateful and around.door.may_resend(ticket):
                    following, fresh = admitted, True
                case Broken():
                    fault = Fault.BROKEN if self._attempt is not None else Fault.UNREACHABLE
                    may_retry = not stateful or fault is Fault.UNREACHABLE
                    following = around.door.failed(ticket, fault, may_retry=may_retry)
                    if following is None:
                        text = f"the engine did not answer: {result.sentence}"
                        own = refuse(502, text, "server_error", "upstream_failure")
                        self._answer_own(own, End.FAILED, "upstream_failure")
                case EngineRefused():
                    fault = self._fault_of(result)
                    told = _header(result.headers, b"retry-after")
                    following = around.door.failed(
                        ticket,
                        fault,
                        may_retry=not stateful,
                        retry_after_seconds=wire.retry_after_seconds(told, time.time()),
                    )
                    if following is None:
                        self._pass_refusal(result, fault)
        assert reply.status

    def _fault_of(self, refused: EngineRefused) -> Fault:
        if self._refuses_our_key(refused):
            return Fault.ERROR
        return _fault(refused.status, Fault.BROKEN if refused.in_stream else Fault.ERROR)

    def _refuses_our_key(self, refused: EngineRefused) -> bool:
        """A key that it does not take is ours: the client's did not reach it."""
        return refused.status == 401 and not self._around.settings.upstream.pass_client_key

    async def _try(
        self, replica: str, body: bytes, wishes: Wishes, *, is_again: bool, fresh: bool
    ) -> Opened | EngineRefused | Broken:
        """Send it to a replica. `self._attempt` is None where there was no connection."""
        around = self._around
        self._attempt = None
        try:
            origin = around.fleet.origin(replica)
            connection = await around.pool.take(origin, fresh=fresh)
        except UnreachableError as error:
            return Broken(str(error))
        self.record.sent = around.door.now()
        attempt = self._attempt = Attempt(connection, wishes, self._begun, self._pieces)
        self._write(connection, body, wishes, is_again)
        return await attempt.opened

    def _write(self, connection: Connection, body: bytes, wishes: Wishes, is_again: bool) -> None:
        around, request = self._around, self._request
        target = request.path + (b"?" + request.query if request.query else b"")
        lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (target, connection.origin.authority.encode())]
        headers = wire.request_headers(request, around.withheld_headers)
        lines += [b"%b: %b\r\n" % header for header in headers]
        lines += [b"%b: %b\r\n" % header for header in around.upstream_headers()]
        if is_again:
            lines.append(b"%b: %b\r\n" % wire.RETRY_MARK)
        lines.append(b"accept-encoding: gzip\r\n" if wishes.takes_gzip else b"accept-encoding: identity\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        lines.append(body)
        assert self._attempt is not None
        connection.send(b"".join(lines), self._attempt)

    def _begun(self) -> None:
        if self._ticket is not None:
            self._around.door.first_token(self._ticket)

    def _pieces(self, count: int) -> None:
        if self._ticket is not None and self._count is not None:
            self._around.door.tokens(self._ticket, self._count.tokens(count))

    # -- the answer ----------------------------------------------------------------------------------

    async def _pass_on(self, ticket: Ticket, opened: Opened, size: Size, piece_size: PieceSize) -> None:
        attempt, reply = self._attempt, self._reply
        assert attempt is not None
        headers = wire.answer_headers(opened.headers)
        if _header(headers, b"content-type").startswith("text/event-stream"):
            headers = [header for header in headers if header[0] != b"x-accel-buffering"]
            headers.append((b"x-accel-buffering", b"no"))
        reply.start(opened.status, headers, opened.length)
        attempt.pass_on(reply)
        ended = await attempt.ended
        account, record = attempt.account, self.record
        record.status = opened.status
        usage = account.use
        if ended.cut is None and account.is_whole:
            record.end = End.FINISHED
            if usage is not None:
                record.output_tokens = usage.completion_tokens
                self._around.sizer.learn(self._tenant, size, usage)
                piece_size.learn(account.pieces, usage.completion_tokens, size.sequences)
            self._around.door.finished(ticket, usage, account.cached_tokens)
            reply.end()
            return
        record.end = End.FAILED
        record.reason = "upstream_cut" if ended.cut is not None else "upstream_error_event"
        self._around.door.failed(ticket, _fault(account.error_status or 502, Fault.BROKEN))
        if ended.cut is None:
            reply.end()
        else:
            self._break_off(f"the engine did not end its answer: {ended.cut}", "upstream_cut")

    def _break_off(self, message: str, code: str) -> None:
        """End an answer that has begun: with an error event where one can be put in, else with a cut."""
        attempt, reply = self._attempt, self._reply
        if attempt is not None and attempt.is_between_events:
            reply.send(wire.error_event(self._endpoint, message, code))
            reply.end_broken()
        else:
            reply.cut()

    def _pass_refusal(self, refused: EngineRefused, fault: Fault) -> None:
        """Tell the client what the engine said."""
        if fault is Fault.OVERLOADED:
            named = {name.decode("latin-1"): value.decode("latin-1") for name, value in refused.headers}
            refusal = upstream_overloaded(named, refused.status, _OVERLOAD_SECONDS, self._around.door.draw())
            self._answer_refusal(refusal, End.FAILED)
            return
        if self._refuses_our_key(refused):
            text = "the engine does not take the gateway's key for it (upstream.auth)"
            own = refuse(502, text, "server_error", "upstream_unauthorized")
            self._answer_own(own, End.FAILED, "upstream_unauthorized")
            return
        headers = wire.answer_headers(refused.headers)
        if refused.in_stream:
            headers = [(b"content-type", b"application/json")]
        end = End.CLIENT_ERROR if fault is Fault.CLIENT_ERROR else End.FAILED
        self._answer_own(Answer(refused.status, tuple(headers), refused.body), end, "upstream_error")

    def _refuse(self, refusal: Refusal) -> None:
        end = End.CLIENT_ERROR if refusal.is_clients_error else End.REFUSED
        self._answer_refusal(refusal, end)

    def _answer_refusal(self, refusal: Refusal, end: End) -> None:
        headers = tuple((name.encode(), value.encode("latin-1")) for name, value in refusal.headers.items())
        self._answer_own(Answer(refusal.status, headers, refusal.body), end, str(refusal.reason))

    def _answer_own(self, answer: Answer, end: End, reason: str) -> None:
        self.record.end, self.record.status, self.record.reason = end, answer.status, reason
        self._reply.send_whole(answer)

    # -- ended early ---------------------------------------------------------------------------------

    def _time_is_up(self, seconds: float, asked: float | None) -> None:
        # An engine that takes longer than any request may has failed; one that takes longer than a client
        # would wait has not.
        fault = Fault.BROKEN if seconds != asked else None
        text = f"the request took longer than {seconds:g} s"
        self._stop(_Early(End.TIMED_OUT, 504, "request_timeout", text, fault))

    def _stop(self, early: _Early) -> None:
        if self._early is None:
            self._early = early
            self.task.cancel()

    def _end_early(self, early: _Early) -> None:
        reply, ticket = self._reply, self._ticket
        if early.fault is not None and ticket is not None and ticket.replica is not None:
            self._around.door.failed(ticket, early.fault)
        if reply.status:
            self.record.end, self.record.status, self.record.reason = early.end, reply.status, early.code
            self._break_off(early.sentence, early.code)
            return
        answer = refuse(early.status, early.sentence, "server_error", early.code)
        if early.status == 503:
            answer = msgspec.structs.replace(answer, headers=(*answer.headers, (b"retry-after", b"1")))
        self._answer_own(answer, early.end, early.code)

    def _note(self, ticket: Ticket) -> None:
        """What the ticket knows, for the record."""
        record = self.record
        if ticket.replica is not None:
            record.pool = ticket.replica.spec.pool
            record.sent = ticket.sent_at or record.sent
        record.first = ticket.first_token_at or 0.0
        record.output_tokens = max(record.output_tokens, ticket.output_tokens)
        record.prompt_tokens = ticket.request.prompt_tokens


def _fault(status: int, failed: Fault) -> Fault:
    """What a status says of the engine; `failed` where it is a 5xx.

    Inside a stream that is the engine's own: what is wrong with a request it tells before it begins.
    """
    if status in _OVERLOADED:
        return Fault.OVERLOADED
    return failed if status >= 500 else Fault.CLIENT_ERROR


def _header(headers: list[Header], name: bytes) -> str:
    return next((value.decode("latin-1") for known, value in headers if known == name), "")
