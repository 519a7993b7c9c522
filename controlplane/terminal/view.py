"""What one look at the daemon found: all that `controlplane top` shows."""

from collections.abc import Sequence
from typing import NamedTuple

from controlplane.api.shapes import Alert, Decision, Event, Fleet, Node, Replica


class View(NamedTuple):
    """`replicas` may be fewer than `total`; `now` is the daemon's clock, in Unix seconds.

    `records` are the last few events and decisions, for the fleet's page; `decisions` those of the last hour.
    """

    url: str
    now: float
    fleet: Fleet
    replicas: Sequence[Replica]
    total: int
    records: Sequence[Event | Decision] = ()
    decisions: Sequence[Decision] = ()
    nodes: Sequence[Node] = ()
    alerts: Sequence[Alert] = ()
