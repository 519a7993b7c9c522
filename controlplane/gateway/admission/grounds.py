"""Grounds for refusing a request, each with the words and the time that the client is told."""

from controlplane.gateway.admission.breaker import BreakerState
from controlplane.gateway.admission.line import Line
from controlplane.gateway.admission.queue import Queue
from controlplane.gateway.admission.quota import Denied
from controlplane.gateway.admission.refusal import Refusal, RefusalReason, bad_request, come_back
from controlplane.gateway.admission.replica import Rotation
from controlplane.gateway.admission.ticket import Ticket

_NO_REPLICA_SECONDS = 5.0


def no_replica_known(draw: float) -> Refusal:
    """We have just started, and nobody has told us of any."""
    message = "no replica is known yet"
    return come_back(RefusalReason.NO_READY_REPLICA, message, _NO_REPLICA_SECONDS, draw)


def unknown_model(model: str) -> Refusal:
    message = f"no model is called {model[:200]!r}"
    return bad_request(RefusalReason.UNKNOWN_MODEL, message, "model")


def no_replica(line: Line, now: float, draw: float) -> Refusal:
    """None is in rotation."""
    starting = [
        replica.spec.ready_expected_at
        for replica in line.reach
        if replica.spec.rotation is Rotation.STARTING and replica.spec.ready_expected_at is not None
    ]
    if starting:
        seconds = max(1.0, min(starting) - now)
        message = f"no replica runs; the next is expected to be ready in {seconds:.0f} s"
        return come_back(RefusalReason.REPLICA_STARTING_FROM_ZERO, message, seconds, draw)
    message = "no replica is ready"
    return come_back(RefusalReason.NO_READY_REPLICA, message, _NO_REPLICA_SECONDS, draw)


def wrong(ticket: Ticket) -> Refusal | None:
    """What nobody could ever do. An estimated prompt is let pass: the engine counts it exactly."""
    request, line = ticket.request, ticket.line
    if request.deadline_at is not None and ticket.offered_at >= request.deadline_at:
        return bad_request(RefusalReason.DEADLINE_OVER, "the deadline of this request was over when it came")
    if request.prompt_exact and request.sequences == 1 and request.prompt_tokens >= line.longest_tokens:
        message = (
            f"the prompt has {request.prompt_tokens} tokens; with one of output at least, "
            f"the model takes {line.longest_tokens:.0f} together"
        )
        return bad_request(RefusalReason.REQUEST_TOO_LARGE, message, "prompt")
    if ticket.least_tokens > line.most_tokens:
        each = " for each sequence" if request.sequences > 1 else ""
        message = (
            f"the request needs {ticket.least_tokens} tokens of KV cache{each}; "
            f"the largest replica holds {line.most_tokens:.0f}"
        )
        return bad_request(RefusalReason.REQUEST_TOO_LARGE, message, "max_tokens")
    return None


def over_quota(denied: Denied, draw: float) -> Refusal:
    if denied.reason is RefusalReason.TENANT_TOKEN_QUOTA:
        message = f"your tokens a minute are used up; this request fits in {denied.seconds:.0f} s"
    else:
        message = "you have as many requests in flight as you may have"
    return come_back(denied.reason, message, denied.seconds, draw)


def cannot_wait(ticket: Ticket, queue: Queue, now: float) -> Refusal | None:
    """Why a request that cannot be sent now should not be queued either; None if it should."""
    wait, bound = queue.wait_seconds(ticket, now), ticket.start_by - ticket.offered_at
    refusal = _all_breakers_open(ticket.line, now, ticket.draw)
    if refusal is not None or (wait <= bound and not queue.is_full(ticket)):
        return refusal
    message = f"{wait:.1f} s of work are queued before this request, which can wait for {bound:.1f} s"
    reason = RefusalReason.QUEUE_FULL
    if _is_short_of_tokens(ticket):
        reason = RefusalReason.KV_RESERVATION_FULL
        message += f"; no replica has {ticket.tokens} tokens of KV cache free"
    return come_back(reason, message, wait - bound, ticket.draw)


def waited_in_vain(ticket: Ticket, queue: Queue, now: float) -> Refusal:
    """It was queued, and its time is up."""
    line = ticket.line
    if not line.is_served:
        return no_replica(line, now, ticket.draw)
    refusal = _all_breakers_open(line, now, ticket.draw)
    if refusal is not None:
        return refusal
    waited = now - ticket.offered_at
    message = f"waited for {waited:.1f} s, and an answer could not begin in time any more"
    return come_back(RefusalReason.QUEUE_WAIT_EXPIRED, message, queue.wait_seconds(ticket, now), ticket.draw)


def dropped(ticket: Ticket, queue: Queue, now: float) -> Refusal:
    """It was the oldest in a queue that stands, and CoDel's schedule had come to it."""
    waited = now - ticket.offered_at
    message = f"waited for {waited:.1f} s in a queue that has become too long"
    return come_back(RefusalReason.QUEUE_WAIT_EXPIRED, message, queue.wait_seconds(ticket, now), ticket.draw)


def _all_breakers_open(line: Line, now: float, draw: float) -> Refusal | None:
    inside = []
    for replica in line.reach:
        if replica.in_rotation:
            if replica.breaker.state is BreakerState.CLOSED:
                return None
            inside.append(replica)
    at = min((replica.breaker.next_trial_at(now) for replica in inside), default=now)
    if at <= now:
        return None
    message = "all replicas have failed lately and are being tried again one by one"
    return come_back(RefusalReason.BREAKER_OPEN, message, at - now, draw)


def _is_short_of_tokens(ticket: Ticket) -> bool:
    inside = [replica for replica in ticket.line.home if replica.in_rotation and replica.suits(ticket)]
    return bool(inside) and all(replica.ledger.is_short_of_tokens(ticket.tokens) for replica in inside)
