"""Replicas that come and go when asked for: what an orchestrator makes of a decision on a replica count.

One that is asked for is discovered at once and answers after its cold start. One that is taken away (of
those that load the newest, else the one with the fewest requests) is no target any more, finishes what it
has, and is gone.
"""

from collections.abc import Callable, Sequence

from controlplane.simulator.scenario.replica import Replica


class Elastic:
    """The replicas of a run that can be asked for. `start` brings up a process, `at` calls a function at a
    time, `is_barred` says whether a replica may not be started where it would be.

    `replica_seconds` adds up how long replicas were there, from being asked for until they are gone.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        start: Callable[[Replica, float], None],
        at: Callable[[float, Callable[[float], None]], None],
        is_barred: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.replica_seconds = 0.0
        self._replicas = replicas
        self._start = start
        self._at = at
        self._is_barred = is_barred
        self._asked_at: dict[str, float] = {}

    def ask(self, pool: str, wanted: int, now: float) -> None:
        """From now on there should be so many replicas in a pool, or as many as there can be."""
        there = [replica for replica in self._replicas if replica.pool == pool and replica.discovered]
        could = (
            replica
            for replica in self._replicas
            if replica.pool == pool
            and not replica.discovered
            and replica.engine is None
            and not self._is_barred(replica.name)
        )
        for _, replica in zip(range(wanted - len(there)), could, strict=False):
            self._bring(replica, now)
        for replica in sorted(there, key=self._most_dispensable)[: max(0, len(there) - wanted)]:
            replica.discovered = False
            self._asked_at.pop(replica.name, None)

    def second(self) -> None:
        """A second has passed: those that have finished what they had are gone."""
        for replica in self._replicas:
            if not replica.discovered and replica.engine is not None and not replica.requests:
                replica.die()
            self.replica_seconds += replica.discovered or replica.engine is not None

    def _bring(self, replica: Replica, now: float) -> None:
        replica.discovered = True
        self._asked_at[replica.name] = now

        def come(then: float) -> None:
            if self._asked_at.get(replica.name) == now:  # not taken away, nor asked for again meanwhile
                self._start(replica, then)

        self._at(now + replica.cold_start_seconds, come)

    def _most_dispensable(self, replica: Replica) -> tuple[bool, float]:
        if replica.engine is None:
            return False, -self._asked_at.get(replica.name, 0.0)
        return True, float(len(replica.requests))
