"""Asks pods to end, by the eviction interface of the cluster: disruption budgets and grace periods count.

An eviction that is asked for twice is done once: a pod that is gone, or is ending, needs nothing. Nor does
another pod of the same name, as a StatefulSet makes it elsewhere: where its UID is known, only that one goes.
A pod that nobody owns would be gone for good: it stays.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.actuators import objects
from controlplane.actuators.call import Call, CallFailedError, Send
from controlplane.actuators.cluster_object import said
from controlplane.actuators.limit import RefusedError
from controlplane.signals.decision import EVICT_PODS, RESTART_WORKLOAD, Decision
from controlplane.signals.snapshot import FleetSnapshot

_TIMEOUT_SECONDS = 4.0
_MOST_BYTES = 1 << 20
_NOT_FOUND, _ANOTHER, _BUDGET = 404, 409, 429


class EvictionActuator:
    """The actuator. `send` takes the path of the API server for an URL; `snapshot` has the replicas' pods."""

    name = "eviction"
    actions = frozenset({EVICT_PODS, RESTART_WORKLOAD})

    def __init__(self, send: Send, snapshot: Callable[[], FleetSnapshot | None]) -> None:
        self._send, self._snapshot = send, snapshot

    def takes(self, target: str, pool: str | None) -> bool:
        """Everything."""
        return True

    async def apply(self, decision: Decision) -> None:
        """Ask all of them; raises RefusedError, or CallFailedError that names those which could not go."""
        pods = decision.new.split() if decision.action == EVICT_PODS else [self._pod(decision.target)]
        stay: list[str] = []
        for pod in pods:
            why = await self._evict(pod)
            if why:
                stay.append(f"{pod}: {why}")
        if stay:
            raise CallFailedError(f"{len(stay)} of {len(pods)} pods stay for now: {'; '.join(stay)}")

    def _pod(self, target: str) -> str:
        seen = self._snapshot()
        replica = seen.replicas.get(target) if seen is not None else None
        pod = target if replica is None else replica.pod
        if pod.count("/") != 1:
            raise RefusedError(f"{target}: its pod is not known, so nobody can restart it from here")
        return pod

    async def _evict(self, pod: str) -> str:
        """Why it stays for now; empty where it goes."""
        namespace, _, name = pod.partition("/")
        body: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        seen = self._snapshot()
        known = seen.pods.get(pod) if seen is not None else None
        if known is not None and not known.owner:
            return "it has no owner that would make another"
        if known is not None and known.uid:
            body["deleteOptions"] = {"preconditions": {"uid": known.uid}}
        path = f"{objects.pod(pod)}/eviction"
        call = Call("POST", path, _TIMEOUT_SECONDS, _MOST_BYTES, body=msgspec.json.encode(body))
        reply = await self._send(call)
        if 200 <= reply.status < 300 or reply.status == _NOT_FOUND:
            return ""
        if reply.status == _ANOTHER and "deleteOptions" in body:
            return ""
        if reply.status == _BUDGET:
            return f"its disruption budget forbids it ({said(reply)})"
        return f"the API server answers {reply.status}: {said(reply)}"
