"""A request under way, from the moment that its client sends it."""

from bisect import bisect_right

from controlplane.gateway.admission.ticket import Ticket
from controlplane.simulator.clients import Send
from controlplane.simulator.request import Request
from controlplane.simulator.workload import Source

_EDGES = (256, 1024, 4096, 16384)
LENGTH_CLASSES = ("under_256", "under_1k", "under_4k", "under_16k", "from_16k")
"""Classes by prompt and output tokens together, so that shedding the long can be seen."""
NOWHERE = -1


class Live:
    """One try of a client. `replica` is where it was sent to, `NOWHERE` while it waits before the engines.

    `in_flight` is how many there were when it came there, itself included; `first_step` how many steps the
    engine had made when its first token came out.
    """

    __slots__ = (
        "first_step",
        "first_token_at",
        "in_flight",
        "length_class",
        "replica",
        "request",
        "sent_at",
        "source",
        "ticket",
        "to_engine_at",
        "tokens",
    )

    def __init__(self, send: Send) -> None:
        self.request: Request = send.request
        self.source: Source = send.offer.source
        self.tokens = self.request.prompt_tokens + self.request.output_tokens
        self.length_class = bisect_right(_EDGES, self.tokens)
        self.sent_at = send.at
        self.ticket: Ticket | None = None
        self.replica = NOWHERE
        self.to_engine_at = 0.0
        self.first_token_at = -1.0
        self.first_step = 0
        self.in_flight = 0
