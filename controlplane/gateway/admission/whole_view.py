"""What a gateway alone takes the whole of its replicas to look like, from its own part.

A law's limit is of a whole replica, and so are the engine's gauges. A gateway (or one of its workers) sees
only the requests that it sent, and may fill only its share of each limit. So its own law is told

    in flight    what is ours, divided by our share: full is where our own slots are full
    what came    likewise: tokens, and answers that ended, are set against what is in flight
    times        as they are: whoever shares an engine shares its pace
    gauges       as they are: they are the whole engine's

Then gateways that cannot hear each other act as one. Each cuts its own part, by the factor by which the whole
has to shrink; each grows its own part, where its own part is full; and as no law goes over the whole's
ceilings and shares never add up to more than 1, neither does what they do together. What others have beyond
their shares, or send past all gateways, still shows in the gauges and is taken from ours (`replica.py`).
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from controlplane.gateway.admission.replica import Replica
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow

_IDLE = ReplicaWindow()


def whole_view(
    windows: Iterable[OutcomeWindow], replicas: Mapping[str, Replica], share: float
) -> Iterator[OutcomeWindow]:
    """Our own windows, of one share of the replicas (over 0), made into those of the whole."""
    for window in windows:
        seen = {
            name: _whole(window.replicas.get(name, _IDLE), share, replica.limit)
            for name, replica in replicas.items()
            if replica.spec.pool == window.pool
        }
        yield replace(window, replicas=seen, is_alone=True)


def _whole(seen: ReplicaWindow, share: float, limit: float | None) -> ReplicaWindow:
    """With the limit in force also where nothing happened: the law goes on from it."""
    if share >= 1.0:
        return replace(seen, limit=limit)
    in_flight, most = round(seen.in_flight / share), round(seen.max_in_flight / share)
    mean = None if seen.mean_in_flight is None else seen.mean_in_flight / share
    return replace(
        seen,
        in_flight=in_flight,
        max_in_flight=most,
        mean_in_flight=mean,
        reserved_tokens=round(seen.reserved_tokens / share),
        max_reserved_tokens=round(seen.max_reserved_tokens / share),
        paced=round(seen.paced / share),
        slow=round(seen.slow / share),
        gaps=round(seen.gaps / share),
        gap_seconds=seen.gap_seconds / share,
        whole_tokens=round(seen.whole_tokens / share),
        limit=limit,
    )
