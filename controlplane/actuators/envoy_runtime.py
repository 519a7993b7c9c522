"""Sets limits in Envoy: the runtime key of a cluster's circuit breaker, in a file, read back from the admin.

    circuit_breakers.CLUSTER.default.max_requests = N     renamed into place; Envoy takes it up at once
    the breaker of CLUSTER goes by N                      asked of the admin until it does

A lower limit cuts no stream: new requests are refused until enough have ended. Envoy takes any text for a
value and any name for a cluster's, and goes by the threshold of its configuration instead; so only numbers
are written, and what Envoy really does is read back each time, and again every few seconds: the file may be
lost, Envoy started without it, a person step in.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.envoy_admin import EnvoyAdmin
from controlplane.actuators.limit import Newest, RefusedError, UnfinishedError, limit_of
from controlplane.actuators.pace import LOOK_AGAIN_SECONDS, Backoff, step
from controlplane.actuators.runtime_file import RuntimeFile, max_requests_key
from controlplane.actuators.settings import EnvoyCluster, EnvoySettings
from controlplane.signals.decision import SET_LIMIT, Decision
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot, ReplicaState

_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.02, 0.2  # from one look at a value that does not show to the next
_ONCE_WRONG_SECONDS = 0.1
"""For a value to show where the one before did not: Envoy takes 10 to 60 ms, and other decisions wait."""

_log = logging.getLogger(__name__)


class EnvoyError(Exception):
    """What Envoy does is not, or not known to be, what was written; the text says where."""


class EnvoyRuntime:
    """The actuator. `snapshot` gives the newest view of the fleet: which replicas a pool has.

    The file is written whether an admin answers or not: it counts for an Envoy that starts later, too.
    """

    name = "envoy"
    actions = frozenset({SET_LIMIT})
    repeat_seconds = 0.0

    def __init__(
        self,
        settings: EnvoySettings,
        send: Send,
        snapshot: Callable[[], FleetSnapshot | None],
        *,
        steady: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._snapshot = settings, snapshot
        self._steady, self._luck = steady, luck
        self._file = RuntimeFile(settings.runtime_file)
        self._admins = [EnvoyAdmin(url, send, settings.timeout) for url in settings.admin]
        self._clusters = {cluster.pool or cluster.replica: cluster for cluster in settings.clusters}
        self._newest = Newest()
        self._moved_at: dict[str, float] = {}  # by cluster
        self._shown: dict[str, tuple[int, float]] = {}  # what every Envoy was seen to go by, when; by cluster
        self._backoffs = {admin.url: Backoff() for admin in self._admins}
        self._wrong: set[tuple[str, str]] = set()  # admin and cluster where the last value did not show

    def takes(self, target: str, pool: str | None) -> bool:
        """What is behind one of its clusters."""
        return target in self._clusters or pool in self._clusters

    def is_undone(self, decision: Decision) -> bool:
        """Whether its cluster was not seen to go by what was written lately."""
        cluster = self._cluster(decision.target, self._replicas())
        return cluster is not None and self._seen_ago(cluster.name) >= LOOK_AGAIN_SECONDS

    async def apply(self, decision: Decision) -> None:
        """Raises RefusedError, UnfinishedError, RuntimeFileError or EnvoyError."""
        limit = limit_of(decision)
        replicas = self._replicas()
        cluster = self._cluster(decision.target, replicas)
        if cluster is None:
            pool = replicas[decision.target].pool if decision.target in replicas else None
            whose = f"replica {decision.target}" + ("" if pool is None else f" nor for pool {pool}")
            raise RefusedError(f"envoy.clusters has none for {whose}")
        self._newest.take(decision)
        if cluster.pool is not None:
            members = [replica for replica in replicas.values() if replica.pool == cluster.pool]
            limit = pool_limit(members, decision.target, limit)
        wanted = max(1, limit // len(self._admins))
        value = await self._write(cluster.name, wanted)
        await self._verify(cluster.name, value)
        if value != wanted:
            raise UnfinishedError(
                f"cluster {cluster.name} is at {value} on its way to {wanted}: "
                f"a limit moves {self._settings.max_change:.0%} a second at most"
            )

    def _replicas(self) -> Mapping[str, ReplicaSnapshot]:
        seen = self._snapshot()
        return seen.replicas if seen is not None else {}

    def _cluster(self, replica: str, replicas: Mapping[str, ReplicaSnapshot]) -> EnvoyCluster | None:
        pool = replicas[replica].pool if replica in replicas else None
        return self._clusters.get(replica) or self._clusters.get(pool)

    async def _write(self, cluster: str, wanted: int) -> int:
        """Bring the file as near to `wanted` as may be now; the value that it has then."""
        key, now = max_requests_key(cluster), self._steady()
        current = await self._file.value(key)
        if current is None:  # so far the threshold in Envoy's configuration counts: a guess, not a limit
            value = wanted
        else:
            elapsed = now - self._moved_at.get(cluster, -math.inf)
            value = step(current, wanted, elapsed, self._settings.max_change)
        if value != current:
            await self._file.put(key, value)
            self._moved_at[cluster] = now
            shown, _ = self._shown.pop(cluster, (current, 0.0))
            if shown != current:
                has = "nothing" if current is None else current
                _log.warning(
                    "%s had %s for cluster %s, not the %d of before", self._file.path, has, cluster, shown
                )
        return value

    def _seen_ago(self, cluster: str) -> float:
        """Seconds since all Envoys went by what was written."""
        return self._steady() - self._shown.get(cluster, (0, -math.inf))[1]

    async def _verify(self, cluster: str, value: int) -> None:
        """Return once every Envoy goes by `value`. Raises EnvoyError.

        One that was seen to lately is not asked: a pool has as many decisions as replicas, and one cluster.
        """
        before, _ = self._shown.get(cluster, (0, 0.0))
        if before == value and self._seen_ago(cluster) < LOOK_AGAIN_SECONDS:
            return
        self._shown.pop(cluster, None)
        wrong = await asyncio.gather(*(self._look(admin, cluster, value) for admin in self._admins))
        if any(wrong):
            raise EnvoyError("; ".join(filter(None, wrong)))
        self._shown[cluster] = value, self._steady()

    async def _look(self, admin: EnvoyAdmin, cluster: str, value: int) -> str:
        """Why this Envoy is not known to go by `value`; empty where it is."""
        away = self._backoffs[admin.url].sentence(self._steady())
        if away:
            return f"{value} is written for cluster {cluster}, not read back: {away}"
        place = admin.url, cluster
        try:
            wrong = await self._wait_for(admin, cluster, value, once_wrong=place in self._wrong)
        except CallFailedError as error:
            self._backoffs[admin.url] = self._backoffs[admin.url].failed(
                str(error),
                self._steady(),
                self._luck(),
                first_seconds=self._settings.backoff_first,
                limit_seconds=self._settings.backoff_limit,
            )
            return f"{value} is written for cluster {cluster}, not read back: {error}"
        self._backoffs[admin.url] = Backoff()
        (self._wrong.add if wrong else self._wrong.discard)(place)
        return wrong

    async def _wait_for(self, admin: EnvoyAdmin, cluster: str, value: int, *, once_wrong: bool) -> str:
        """As `_look`, asking. Raises CallFailedError."""
        within = _ONCE_WRONG_SECONDS if once_wrong else self._settings.verify_within
        deadline, wait = self._steady() + within, _LOOK_SECONDS
        while (shown := await admin.max_requests(cluster)) != value:
            if shown is None:
                return f"Envoy at {admin.url} has no cluster {cluster!r}"
            if self._steady() + wait > deadline:
                return await self._why(admin, cluster, value, shown)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_LOOK_SECONDS)
        return ""

    async def _why(self, admin: EnvoyAdmin, cluster: str, value: int, shown: int) -> str:
        layer, said = await admin.winning_layer(cluster)
        holds = f"Envoy at {admin.url} holds cluster {cluster} to {shown}, not to the {value} that is written"
        if said == str(shown):
            return f"{holds}: so says its runtime layer {layer!r}"
        return f"{holds}: does it watch {self._settings.runtime_file}?"


def pool_limit(members: Sequence[ReplicaSnapshot], decided: str, limit: int) -> int:
    """The limit of a whole pool: the sum over the members that answer, or over all where none does.

    `limit` is what was just decided for the member `decided`; the snapshot may know of a newer one. A member
    without a limit counts as the mean of those that have one.
    """
    answering = [member for member in members if member.state is ReplicaState.UP] or list(members)
    known = [member.limit.slots for member in answering if member.limit is not None]
    known += [limit for member in answering if member.limit is None and member.name == decided]
    known = known or [limit]
    return len(answering) * sum(known) // len(known)
