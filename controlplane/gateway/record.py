"""How one request went, for counting. Nothing of what was asked or answered."""

from enum import StrEnum

import msgspec

from controlplane.gateway.admission.endpoint import Endpoint
from controlplane.gateway.admission.request import ServiceClass


class End(StrEnum):
    """How a request ended, for counting."""

    FINISHED = "finished"
    FAILED = "failed"  # the engine's fault, told to the client or not
    CUT = "cut"  # by our own stop
    TIMED_OUT = "timed_out"
    CANCELLED = "client_cancelled"
    REFUSED = "refused"  # by admission
    CLIENT_ERROR = "client_error"  # by us or by the engine


class Record(msgspec.Struct):
    """What is counted of a request. Times are the loop's; 0 where that did not happen."""

    endpoint: Endpoint
    tenant: str
    service_class: ServiceClass
    began: float
    end: End = End.CANCELLED
    status: int = 499
    reason: str = ""
    pool: str = ""
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int = 0
    streams: bool = False
