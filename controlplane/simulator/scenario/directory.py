"""What the daemon tells the gateway of the replicas: which there are, their sizes, what scrapes showed.

A replica comes into rotation with its first good page and stays: a scrape that fails says nothing about
whether it can serve. Whether it is taken out again is the gateway's breaker's business.
"""

from collections.abc import Iterator, Sequence

from controlplane.gateway.admission.replica import ReplicaReading, ReplicaSpec, Rotation
from controlplane.signals.reading import Known
from controlplane.signals.snapshot import Number, ReplicaSnapshot, ReplicaState
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.replica import Replica
from controlplane.simulator.scenario.watch import Watch


class Directory:
    """Reads `watch` after each of its looks. Without `kv_budget` the gateway is not told KV sizes."""

    def __init__(self, replicas: Sequence[Replica], watch: Watch, *, kv_budget: bool) -> None:
        self._replicas = replicas
        self._watch = watch
        self._kv_budget = kv_budget
        self._ready_since: dict[str, float | None] = {}
        self._restarts: dict[str, int] = {}

    def specs(self, now: float) -> tuple[ReplicaSpec, ...]:
        """All replicas that were discovered."""
        return tuple(self._spec(replica, now) for replica in self._replicas if replica.discovered)

    def readings(self) -> Iterator[ReplicaReading]:
        """The newest gauges, as far as they are known."""
        for replica in self._replicas:
            seen = self._watch.replica(replica.name)
            if seen is None or not isinstance(seen.load.running, Known):
                continue
            yield ReplicaReading(
                name=replica.name,
                at=seen.load.running.at - UNIX_START,
                running=seen.load.running.value,
                waiting=_value(seen.load.waiting),
                kv_usage=_value(seen.load.kv_usage),
            )

    def _spec(self, replica: Replica, now: float) -> ReplicaSpec:
        name = replica.name
        seen = self._watch.replica(name)
        if seen is not None and seen.state is ReplicaState.UP:
            self._note_ready(seen, now)
        tokens = self._watch.kv_capacity_tokens(name) if self._kv_budget else None
        return ReplicaSpec(
            name=name,
            pool=replica.pool,
            rotation=Rotation.IN if name in self._ready_since else Rotation.STARTING,
            kv_tokens=None if tokens is None else int(tokens),
            max_model_len=replica.settings.max_model_len,
            ready_since=self._ready_since.get(name),
        )

    def _note_ready(self, seen: ReplicaSnapshot, now: float) -> None:
        """What is up at second 0 has been for long; later it is fresh, and after each restart again."""
        name = seen.name
        if name not in self._ready_since:
            self._ready_since[name] = now or None
        elif seen.restarts > self._restarts[name]:
            self._ready_since[name] = now
        self._restarts[name] = seen.restarts


def _value(reading: Number) -> float | None:
    return reading.value if isinstance(reading, Known) else None
