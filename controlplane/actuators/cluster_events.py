"""Decisions as Events of the cluster, for `kubectl describe` and `kubectl get events`.

    regarding   the replica's pod, the node, or the workload of a pool
    reason      what was decided, like SetRotation; note: the decision's sentence
    type        Normal, or Warning where an actuator failed

Only what was carried out, or should have been, is written, and little of it: what a fleet does in a storm is
in the journal, and so are limits, which move all the time. Nothing else goes in than the sentence that the
journal has.
"""

import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Send
from controlplane.actuators.cluster_object import said
from controlplane.actuators.settings import Workload
from controlplane.signals.decision import (
    EVICT_PODS,
    QUARANTINE_NODE,
    RELEASE_NODE,
    SET_LIMIT,
    Decision,
)
from controlplane.signals.marks import MANAGER
from controlplane.signals.snapshot import FleetSnapshot

_BURST, _PER_SECOND = 20.0, 0.2
_SAME_SECONDS = 60.0
"""The same thing is said of the same object no more often."""

_MOST_WAITING = 100
_MOST_REMEMBERED = 2_000
_LONGEST_NOTE = 1024  # bytes, as the API server has it
_TIMEOUT_SECONDS = 4.0
_MOST_BYTES = 1 << 20
_NODE_ACTIONS = frozenset({QUARANTINE_NODE, RELEASE_NODE, EVICT_PODS})
_CLUSTER_NAMESPACE = "default"  # of events on objects that have none


class _Object(NamedTuple):
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""


class ClusterEvents:
    """Takes decisions that were carried out, and writes Events of most of them.

    `instance` names this daemon among several. `dropped` counts decisions that got no Event.
    """

    def __init__(
        self, send: Send, workloads: tuple[Workload, ...], instance: str, *, now: Callable[[], float]
    ) -> None:
        self._send, self._instance, self._now = send, instance, now
        self._workloads = {one.pool: one for one in workloads}
        self._waiting: deque[dict[str, Any]] = deque()
        self._said: dict[tuple[_Object, str], float] = {}
        self._tokens, self._filled_at = _BURST, -math.inf
        self._number = 0
        self.dropped = 0

    def take(self, decision: Decision, seen: FleetSnapshot) -> None:
        """A decision whose outcome is known."""
        if decision.action == SET_LIMIT or not (decision.outcome == "done" or _failed(decision)):
            return
        regarding = self._regarding(decision, seen)
        if regarding is None:
            return
        if not self._may(regarding, decision):
            self.dropped += 1
            return
        self._waiting.append(self._event(regarding, decision))

    async def write(self) -> None:
        """Write what waits. Raises CallFailedError; what could not be written is not tried again."""
        failure = ""
        while self._waiting:
            event = self._waiting.popleft()
            namespace = quote(event["metadata"]["namespace"], safe="")
            path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events?fieldManager={MANAGER}"
            body = msgspec.json.encode(event)
            headers = {"Content-Type": "application/json"}
            try:
                reply = await self._send(Call("POST", path, _TIMEOUT_SECONDS, _MOST_BYTES, headers, body))
            except CallFailedError:
                self.dropped += 1 + len(self._waiting)
                self._waiting.clear()  # whoever does not answer is not asked a hundred times
                raise
            if not 200 <= reply.status < 300:
                failure = failure or f"the API server answers {reply.status}: {said(reply)}"
        if failure:
            raise CallFailedError(f"an Event was not taken: {failure}")

    def _regarding(self, decision: Decision, seen: FleetSnapshot) -> _Object | None:
        target = decision.target
        if decision.action in _NODE_ACTIONS:
            return _Object("v1", "Node", "", target)
        if target in self._workloads:
            one = self._workloads[target]
            return _Object(one.api_version, one.kind, one.namespace, one.name)
        replica = seen.replicas.get(target)
        key = target if replica is None else replica.pod
        pod = seen.pods.get(key)
        return None if pod is None else _Object("v1", "Pod", pod.namespace, pod.name, pod.uid)

    def _may(self, regarding: _Object, decision: Decision) -> bool:
        now = self._now()
        what = regarding, f"{decision.action} {decision.new} {_failed(decision)}"
        if now - self._said.get(what, -math.inf) < _SAME_SECONDS or len(self._waiting) >= _MOST_WAITING:
            return False
        elapsed = min(max(0.0, now - self._filled_at), _BURST / _PER_SECOND)
        self._tokens, self._filled_at = min(_BURST, self._tokens + elapsed * _PER_SECOND), now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        self._said.pop(what, None)
        self._said[what] = now
        while len(self._said) > _MOST_REMEMBERED:
            del self._said[next(iter(self._said))]
        return True

    def _event(self, regarding: _Object, decision: Decision) -> dict[str, Any]:
        now = self._now()
        self._number += 1
        namespace = regarding.namespace or _CLUSTER_NAMESPACE
        about = {"apiVersion": regarding.api_version, "kind": regarding.kind, "name": regarding.name}
        if regarding.namespace:
            about["namespace"] = regarding.namespace
        if regarding.uid:
            about["uid"] = regarding.uid
        action = "".join(part.capitalize() for part in decision.action.split("-"))
        note = decision.sentence if not _failed(decision) else f"{decision.sentence}; {decision.outcome}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                # As the client libraries name them: the object, then what is different each time.
                "name": f"{regarding.name[:200]}.{int(now * 1e6):x}{self._number:04x}",
                "namespace": namespace,
            },
            "eventTime": _micro_time(now),
            "reportingController": MANAGER,
            "reportingInstance": self._instance[:128],
            "type": "Warning" if _failed(decision) else "Normal",
            "reason": action,
            "action": action,
            "regarding": about,
            "note": note.encode()[: _LONGEST_NOTE - 4].decode(errors="ignore"),
        }


def _failed(decision: Decision) -> bool:
    return decision.outcome.startswith("failed")


def _micro_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
