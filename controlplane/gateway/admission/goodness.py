"""Whether a request that finished was within what its class expects in its pool."""

from controlplane.gateway.admission.ticket import Ticket

_MICROSECOND = 1e-6  # times are differences of floats


def is_good(ticket: Ticket, output_tokens: int, now: float) -> bool:
    """Whether it met both objectives of its class.

    Of an answer that is not streamed only the end is seen: it is good if its first token would have been
    in time had the others come at the objective's pace.
    """
    standing = ticket.standing
    each = max(0, output_tokens // ticket.request.sequences - 1)
    if not ticket.request.streams or ticket.first_token_at is None:
        return now - ticket.offered_at <= standing.ttft + each * standing.tpot + _MICROSECOND
    if is_late(ticket, ticket.first_token_at):
        return False
    return now - ticket.first_token_at <= each * standing.tpot + _MICROSECOND or not each


def is_late(ticket: Ticket, now: float) -> bool:
    """Whether a first token misses the TTFT objective that comes now."""
    return now - ticket.offered_at > ticket.standing.ttft + _MICROSECOND


def is_slow(ticket: Ticket, output_tokens: int, now: float) -> bool:
    """Whether a stream missed the TPOT objective, or an answer that came whole missed both together."""
    if not ticket.request.streams or ticket.first_token_at is None:
        return not is_good(ticket, output_tokens, now)
    each = output_tokens // ticket.request.sequences - 1
    return now - ticket.first_token_at > each * ticket.standing.tpot + _MICROSECOND
