"""What all exchanges of a process share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from controlplane.gateway.admission.ticket import Ticket
from controlplane.gateway.door import Door
from controlplane.gateway.fleet import Fleet
from controlplane.gateway.inbound import Header
from controlplane.gateway.keyring import Keyring
from controlplane.gateway.metrics import Metrics
from controlplane.gateway.outbound import Pool
from controlplane.gateway.settings import GatewayProcessSettings
from controlplane.gateway.sizing import Sizer


class Running(Protocol):
    """A request under way, as the rest of the process sees it."""

    @property
    def task(self) -> asyncio.Task[None]: ...

    @property
    def ticket(self) -> Ticket | None: ...

    def cut(self, sentence: str) -> None: ...

    def beat(self, now: float, silence_seconds: float) -> None: ...


@dataclass
class Surroundings:
    """`withheld_headers` are names of headers that no engine gets from a client. `upstream_headers` is what
    each gets from us; it raises `UnreachableError` where our own credentials cannot be read."""

    settings: GatewayProcessSettings
    loop: asyncio.AbstractEventLoop
    door: Door
    pool: Pool
    fleet: Fleet
    sizer: Sizer
    keyring: Keyring
    metrics: Metrics
    withheld_headers: frozenset[bytes]
    upstream_headers: Callable[[], list[Header]]
    exchanges: set[Running] = field(default_factory=set)
