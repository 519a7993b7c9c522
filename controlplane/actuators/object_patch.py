"""Sets limits in objects of a cluster: one field of each, moved in steps and read back.

    DestinationRule        spec.trafficPolicy.connectionPool.http.http2MaxRequests
    BackendTrafficPolicy   spec.circuitBreaker.maxParallelRequests

Only the field is written, and only where the object still reads as it was when we looked; what else stands in
it, also in the same map, stays.
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from controlplane.actuators import objects
from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.cluster_object import Object, change, read
from controlplane.actuators.envoy_runtime import pool_limit
from controlplane.actuators.limit import Newest, RefusedError, UnfinishedError, limit_of
from controlplane.actuators.pace import Backoff, step
from controlplane.actuators.settings import ObjectField, ObjectsSettings
from controlplane.signals.decision import SET_LIMIT, Decision
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot


class ObjectPatch:
    """The actuator. `snapshot` gives the newest view of the fleet: which replicas a pool has."""

    name = "objects"
    actions = frozenset({SET_LIMIT})

    def __init__(
        self,
        settings: ObjectsSettings,
        send: Send,
        snapshot: Callable[[], FleetSnapshot | None],
        *,
        steady: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._settings, self._send, self._snapshot = settings, send, snapshot
        self._steady, self._luck = steady, luck
        self._fields = {field.pool or field.replica: field for field in settings.fields}
        self._moved_at: dict[str, float] = {}  # by object
        self._backoffs: dict[str, Backoff] = {}  # by object
        self._newest = Newest()

    def takes(self, target: str, pool: str | None) -> bool:
        """What a field is there for."""
        return target in self._fields or pool in self._fields

    async def apply(self, decision: Decision) -> None:
        """Raises RefusedError, UnfinishedError or CallFailedError."""
        limit = limit_of(decision)
        seen = self._snapshot()
        replicas = seen.replicas if seen is not None else {}
        field = self._field_of(decision.target, replicas)
        self._newest.take(decision)
        if field.pool is not None:
            members = [replica for replica in replicas.values() if replica.pool == field.pool]
            limit = pool_limit(members, decision.target, limit)
        where = field.named
        backoff = self._backoffs.get(where, Backoff())
        if away := backoff.sentence(self._steady()):
            raise CallFailedError(away)
        try:
            value = await self._move(field, limit)
        except CallFailedError as error:
            backoff = self._backoffs[where] = backoff.failed(
                str(error),
                self._steady(),
                self._luck(),
                first_seconds=self._settings.backoff_first,
                limit_seconds=self._settings.backoff_limit,
                asked_seconds=error.asked_seconds,
            )
            raise CallFailedError(str(error), backoff.until - self._steady()) from None
        self._backoffs.pop(where, None)
        if value != limit:
            raise UnfinishedError(
                f"{where} is at {value} on its way to {limit}: "
                f"a limit moves {self._settings.max_change:.0%} a second at most"
            )

    def _field_of(self, replica: str, replicas: Mapping[str, ReplicaSnapshot]) -> ObjectField:
        pool = replicas[replica].pool if replica in replicas else None
        field = self._fields.get(replica) or self._fields.get(pool)
        if field is None:
            raise RefusedError(f"objects.fields has none for replica {replica}")
        return field

    async def _move(self, field: ObjectField, wanted: int) -> int:
        """Bring the field as near to `wanted` as may be now, and return how near that is."""
        path = objects.path(field.api_version, field.kind, field.namespace, field.name)
        now, written = self._steady(), wanted
        elapsed = now - self._moved_at.get(field.named, -math.inf)

        def edit(found: Object) -> Object | None:
            nonlocal written
            current = value(found, field)
            # Without a value the gateway's own default counts: a guess, not a limit.
            written = wanted if current is None else step(current, wanted, elapsed, self._settings.max_change)
            return None if written == current else _nested(field.keys, written)

        if await change(self._send, path, edit):
            self._moved_at[field.named] = now
            shown = value(await read(self._send, path), field)
            if shown != written:
                what = "nothing" if shown is None else shown
                raise CallFailedError(f"{field.named}: shows {what} after {written} was taken")
        return written


def value(found: Object, field: ObjectField) -> int | None:
    """What the field says; None where it is not there. Raises RefusedError where it is no whole number."""
    here: Any = found
    for depth, key in enumerate(field.keys):
        if here is None:
            return None
        if not isinstance(here, dict):
            raise RefusedError(f"{field.named}: {'.'.join(field.keys[:depth])} is no map")
        here = here.get(key)
    if here is not None and (not isinstance(here, int) or isinstance(here, bool)):
        raise RefusedError(f"{field.named}: it is no whole number")
    return here


def _nested(keys: tuple[str, ...], number: int) -> Object:
    patch: Any = number
    for key in reversed(keys):
        patch = {key: patch}
    found: Object = patch
    return found
