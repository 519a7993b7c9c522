"""Sets how many replicas a workload has, by its `scale` subresource, and says which of its pods may go.

    GET    the workload: spec.replicas, and who wrote it last
    GET    the autoscalers of its namespace: one that owns it already is not fought with
    PATCH  the pods that should go first: their controller.kubernetes.io/pod-deletion-cost
    PATCH  {workload}/scale

Somebody who writes the count too is told of, and answered as `contention` has it. The count is looked at
again and again: a value that stays does no harm, and one that does not is a reset.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from controlplane.actuators import contention, objects
from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.cluster_object import GoneError, Object, change, read
from controlplane.actuators.contention import Contention
from controlplane.actuators.limit import Newest, RefusedError
from controlplane.actuators.settings import ScaleSection, Workload
from controlplane.signals.decision import SCALE, Decision
from controlplane.signals.marks import MANAGER
from controlplane.signals.pod import DELETION_COST, PodFacts
from controlplane.signals.reading import known
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot

OUR_COST = "-1000"
"""What a pod costs that may go first. Another number is somebody else's and stays."""

_LEAST_FIRST_KINDS = frozenset({"Deployment", "ReplicaSet"})  # others take away the highest ordinal
_MOST_REPLICAS = 100_000
_AUTOSCALERS = "autoscaling/v2", "HorizontalPodAutoscaler"
_OWNER_SECONDS = 60.0  # for which nobody looks again for an autoscaler


class ScaleActuator:
    """The actuator. `send` takes the path of the API server for an URL; `snapshot` knows the pods."""

    name = "scale"
    actions = frozenset({SCALE})
    repeat_seconds = 15.0

    def __init__(
        self,
        settings: ScaleSection,
        send: Send,
        snapshot: Callable[[], FleetSnapshot | None],
        *,
        steady: Callable[[], float] = time.monotonic,
        contentions: dict[str, Contention] | None = None,
        stand: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`contentions` are by pool and outlive us; `stand` returns once the next leader knows of them."""
        self._settings, self._send, self._snapshot, self._steady = settings, send, snapshot, steady
        self._contentions = {} if contentions is None else contentions
        self._stand = stand
        self._workloads = {one.pool: one for one in settings.workloads}
        self._free_at: dict[str, float] = {}  # when no autoscaler owned the workload, by pool
        self._newest = Newest()

    def takes(self, target: str, pool: str | None) -> bool:
        """Pools that have a workload."""
        return target in self._workloads

    def is_undone(self, decision: Decision) -> bool:
        """Only the API server can tell, when it is asked."""
        return True

    async def apply(self, decision: Decision) -> None:
        """Raises RefusedError and CallFailedError."""
        wanted = int(decision.new) if decision.new.isdecimal() and len(decision.new) < 7 else -1
        if not 0 <= wanted <= _MOST_REPLICAS:
            raise RefusedError(
                f"the replicas of {decision.target} are a whole number (got {decision.new[:50]!r})"
            )
        workload = self._workloads[decision.target]
        self._newest.take(decision)
        await self._refuse_if_owned(workload)
        path = objects.path(workload.api_version, workload.kind, workload.namespace, workload.name)
        found = await read(self._send, path)
        observed = _replicas(found)
        pool, rules = workload.pool, self._settings.contention
        before = self._contentions.get(pool, Contention())
        after, write = contention.look(before, observed, wanted, self._steady(), rules)
        if before.stopped_at is None and after.stopped_at is not None and (who := writer(found)):
            after = msgspec.structs.replace(after, why=f"{after.why}: {who}")
        self._contentions[pool] = after
        if write is not None:
            try:
                if self._stand is not None:
                    await self._stand()
                if workload.kind in _LEAST_FIRST_KINDS:
                    await self._mark(workload, max(0, observed - write))
                await change(self._send, path, lambda now: _resized(now, observed, wanted), "/scale")
            except BaseException:
                self._contentions[pool] = before  # what was not written cannot have been reset
                raise
        if after.stopped_at is not None:
            why = f"{workload.named}: {after.why}"
            raise CallFailedError(f"{why}; nothing is written until the count is left alone")

    async def _refuse_if_owned(self, workload: Workload) -> None:
        """Raises CallFailedError where an autoscaler sets its replicas, or where nobody can tell."""
        now = self._steady()
        if now - self._free_at.get(workload.pool, float("-inf")) < _OWNER_SECONDS:
            return
        found = await read(self._send, objects.collection(*_AUTOSCALERS, workload.namespace))
        for one in found.get("items") or ():
            target = one.get("spec", {}).get("scaleTargetRef") or {}
            if (target.get("kind"), target.get("name")) == (workload.kind, workload.name):
                name = one["metadata"]["name"]
                raise CallFailedError(
                    f"{workload.named} belongs to the HorizontalPodAutoscaler {name}: nothing is written"
                )
        self._free_at[workload.pool] = now

    async def _mark(self, workload: Workload, going: int) -> None:
        """Have the pods that should go first cost least, and no other one of ours."""
        seen = self._snapshot()
        pods = () if seen is None else tuple(_members(seen, workload))
        loads = {} if seen is None else {one.pod: one for one in seen.replicas.values() if one.pod}
        victims = {pod.key for pod in sorted(pods, key=lambda pod: cheapest_first(pod, loads))[:going]}
        for pod in pods:
            cost = pod.annotations.get(DELETION_COST)
            wanted = OUR_COST if pod.key in victims else None
            if cost not in (None, OUR_COST) or cost == wanted:
                continue
            await self._cost(pod, wanted)

    async def _cost(self, pod: PodFacts, wanted: str | None) -> None:
        def edit(there: Object) -> Object | None:
            cost = (there["metadata"].get("annotations") or {}).get(DELETION_COST)
            if cost == wanted or cost not in (None, OUR_COST):
                return None
            return {"metadata": {"annotations": {DELETION_COST: wanted}}}

        with contextlib.suppress(GoneError):
            await change(self._send, objects.pod(pod.key), edit, uid=pod.uid)


def _members(seen: FleetSnapshot, workload: Workload) -> list[PodFacts]:
    return [
        pod
        for pod in seen.pods.values()
        if pod.namespace == workload.namespace
        and pod.owner == f"{workload.kind}/{workload.name}"
        and pod.terminating_since is None
        and not pod.is_over
    ]


def cheapest_first(pod: PodFacts, replicas: Mapping[str, ReplicaSnapshot]) -> tuple[Any, ...]:
    """The order in which pods should go: those that serve nobody, then those with the least work, the newest
    first. What is not known counts as much work."""
    replica = replicas.get(pod.key)
    running = None if replica is None else known(replica.load.running)
    waiting = None if replica is None else known(replica.load.waiting)
    work = float("inf") if running is None else running + (waiting or 0.0)
    serves = pod.ready and not pod.loading and (replica is None or replica.quarantined_since is None)
    return serves, work if serves else 0.0, -(pod.created_at or 0.0), pod.key


def writer(found: Object) -> str:
    """Who else wrote spec.replicas last, as its managed fields tell; empty where they do not."""
    newest = "", ""
    for entry in found["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1") or {}
        if "f:replicas" in (fields.get("f:spec") or {}) and entry.get("manager") != MANAGER:
            newest = max(newest, (str(entry.get("time", "")), str(entry.get("manager", ""))))
    return f"the field manager {newest[1]!r}" if newest[1] else ""


def _replicas(workload: Object) -> int:
    count = workload.get("spec", {}).get("replicas", 1)
    if not isinstance(count, int):
        raise RefusedError("its spec.replicas is no number")
    return count


def _resized(workload: Object, observed: int, wanted: int) -> Object | None:
    count = _replicas(workload)
    if count == wanted:
        return None
    if count != observed:
        raise CallFailedError(f"somebody changed the replicas from {observed} to {count} meanwhile")
    return {"spec": {"replicas": wanted}}
