"""What becomes of a request."""

from typing import TypeAlias

import msgspec

from controlplane.gateway.admission.refusal import Refusal
from controlplane.gateway.admission.ticket import Ticket


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """Send it to this replica now."""

    ticket: Ticket
    replica: str


class Queued(msgspec.Struct, frozen=True, gc=False):
    """It waits: a later `poll` says what becomes of it."""

    ticket: Ticket


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Answer this. `ticket` is None where it was refused at the offer."""

    refusal: Refusal
    ticket: Ticket | None = None


Verdict: TypeAlias = Admitted | Queued | Refused
