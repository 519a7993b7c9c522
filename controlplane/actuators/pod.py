"""Takes pods out of their Service and lets them in again, after the gateways have been told.

    by its label        controlplane.llm/serving: "true" becomes "false", and an annotation says why
    by readiness gate   a pod that names controlplane.llm/admit gets that condition as False, in pods/status

The label stands in the pod's template and the Service selects on it, so without us every pod serves. A gate
that nobody opens keeps a pod out for ever: each new pod is let in at once, whatever else may not be done.

What a person did wins: a pod that somebody took out stays out, and one that somebody let in stays in. What
was written and is there no more without a trace of anybody, as after a server was put back from a backup, is
written again.
"""

import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from controlplane.actuators import objects
from controlplane.actuators.call import CallFailedError, Send
from controlplane.actuators.cluster_object import Edit, Object, change
from controlplane.actuators.gateway import NoGatewayError
from controlplane.actuators.limit import Newest, RefusedError
from controlplane.actuators.pace import Backoff
from controlplane.signals.decision import SET_ROTATION, Decision
from controlplane.signals.pod import PodFacts
from controlplane.signals.serving import ANNOTATION, GATE, LABEL
from controlplane.signals.snapshot import FleetSnapshot

_ADMITTED, _TAKEN_OUT = "Admitted", "TakenOut"
_OURS = frozenset({("True", _ADMITTED), ("False", _TAKEN_OUT)})
"""Status and reason of a condition that we wrote: another one is somebody else's."""

_MOST_AT_ONCE = 20  # new pods that are let in with one look
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0  # between two tries to let one in
_MESSAGE_LENGTH = 1000


class _Meant(NamedTuple):
    """The pod of a replica: "namespace/name", its UID where it is known, and whether it has our gate."""

    key: str
    uid: str
    by_gate: bool


class PodActuator:
    """The actuator. `send` takes the path of the API server for an URL; `snapshot` knows the replicas' pods.

    `gateways_first` returns once the gateways know of a decision. Raises NoGatewayError.
    """

    name = "pod"
    actions = frozenset({SET_ROTATION})
    repeat_seconds = 5.0

    def __init__(
        self,
        send: Send,
        snapshot: Callable[[], FleetSnapshot | None],
        gateways_first: Callable[[Decision], Awaitable[None]] | None = None,
        *,
        steady: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self._send, self._snapshot, self._gateways_first = send, snapshot, gateways_first
        self._steady, self._luck = steady, luck
        self._backoffs: dict[str, Backoff] = {}  # of new pods that could not be let in
        self._newest = Newest()

    def takes(self, target: str, pool: str | None) -> bool:
        """Replicas that have a pod, and their pools."""
        seen = self._snapshot()
        if seen is None:
            return False
        if target in seen.replicas:
            return seen.replicas[target].pod != ""
        return any(pod.pool == target for pod in seen.pods.values())

    async def apply(self, decision: Decision) -> None:
        """Raises RefusedError and CallFailedError."""
        if decision.new not in ("in", "out"):
            raise RefusedError(f"{decision.target} goes in or out (got {decision.new[:50]!r})")
        self._newest.take(decision)
        pod = self._pod(decision.target)
        if self._gateways_first is not None:
            with contextlib.suppress(NoGatewayError):  # where no gateway answers, the pod is what is left
                await self._gateways_first(decision)
        edit = _gated if pod.by_gate else _taken_out if decision.new == "out" else _let_in
        await self._change(pod, lambda there: edit(there, decision))

    def is_undone(self, decision: Decision) -> bool:
        """Whether its pod, as the cluster tells of it, does not stand as the decision has it."""
        seen = self._snapshot()
        replica = seen.replicas.get(decision.target) if seen is not None else None
        pod = seen.pods.get(replica.pod) if seen is not None and replica is not None else None
        if pod is None:
            return False
        if GATE in pod.gates:
            return pod.conditions.get(GATE) != _status(decision)
        return pod.labels.get(LABEL) != "false" if decision.new == "out" else ANNOTATION in pod.annotations

    async def admit_new(self, seen: FleetSnapshot) -> None:
        """Open the gate of every pod whose gate nobody has decided on.

        Raises CallFailedError while one of them cannot be let in, once all have been tried that are due.
        """
        waiting = {f"{pod.key} {pod.uid}": pod for pod in seen.pods.values() if _waits(pod)}
        self._backoffs = {name: self._backoffs[name] for name in self._backoffs.keys() & waiting.keys()}
        now = self._steady()
        due = [name for name in waiting if name not in self._backoffs or now >= self._backoffs[name].until]
        for name in due[:_MOST_AT_ONCE]:
            pod = waiting[name]
            try:
                await self._change(_Meant(pod.key, pod.uid, True), _opened)
            except RefusedError:
                pass  # gone, or somebody else's by now
            except CallFailedError as error:
                self._backoffs[name] = self._backoffs.get(name, Backoff()).failed(
                    str(error),
                    self._steady(),
                    self._luck(),
                    first_seconds=_FIRST_WAIT_SECONDS,
                    limit_seconds=_LONGEST_WAIT_SECONDS,
                    asked_seconds=error.asked_seconds,
                )
                continue
            self._backoffs.pop(name, None)
        if self._backoffs:
            raise CallFailedError(next(iter(self._backoffs.values())).why)

    async def _change(self, pod: _Meant, edit: Edit) -> None:
        path, subresource = objects.pod(pod.key), "/status" if pod.by_gate else ""
        await change(self._send, path, edit, subresource, uid=pod.uid, strategic=pod.by_gate)

    def _pod(self, target: str) -> _Meant:
        seen = self._snapshot()
        replica = seen.replicas.get(target) if seen is not None else None
        if seen is None or replica is None or not replica.pod:
            raise RefusedError(f"{target}: its pod is not known")
        pod = seen.pods.get(replica.pod)
        if pod is None:
            return _Meant(replica.pod, "", False)
        return _Meant(pod.key, pod.uid, GATE in pod.gates)


def _waits(pod: PodFacts) -> bool:
    return GATE in pod.gates and GATE not in pod.conditions and not pod.is_over


def _status(decision: Decision) -> str:
    return "True" if decision.new == "in" else "False"


def _taken_out(pod: Object, decision: Decision) -> Object | None:
    label, ours = _labels(pod).get(LABEL), _annotations(pod).get(ANNOTATION)
    if label == "false":
        return None  # done already, or a person was faster: then it is not ours to undo
    if label is None:
        raise RefusedError(f'{_name(pod)}: its template sets no label {LABEL}: "true"')
    if ours is not None:
        raise RefusedError(f"{_name(pod)}: somebody has let it in again")
    since = datetime.fromtimestamp(decision.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _marked("false", f"{decision.reason} {since}")


def _let_in(pod: Object, decision: Decision) -> Object | None:
    label, ours = _labels(pod).get(LABEL), _annotations(pod).get(ANNOTATION)
    if ours is None:
        return None  # done already, or somebody else took it out
    return _marked("true" if label == "false" else label, None)


def _marked(label: str | None, annotation: str | None) -> Object:
    return {"metadata": {"labels": {LABEL: label}, "annotations": {ANNOTATION: annotation}}}


def _gated(pod: Object, decision: Decision) -> Object | None:
    there = _condition(pod)
    if there is not None and (there.get("status"), there.get("reason")) not in _OURS:
        raise RefusedError(f"{_name(pod)}: its condition {GATE} is somebody else's ({there.get('reason')})")
    wanted = _status(decision)
    if there is not None and there.get("status") == wanted:
        return None
    if wanted == "True":
        return _set("True", _ADMITTED, "it gets requests again", decision.at)
    return _set("False", _TAKEN_OUT, f"{decision.reason}: {decision.sentence}", decision.at)


def _opened(pod: Object) -> Object | None:
    if _condition(pod) is not None:
        return None
    return _set("True", _ADMITTED, "nothing is held against it", None)


def _set(status: str, reason: str, message: str, at: float | None) -> Object:
    condition = {"type": GATE, "status": status, "reason": reason, "message": message[:_MESSAGE_LENGTH]}
    if at is not None:
        condition["lastTransitionTime"] = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"status": {"conditions": [condition]}}


def _condition(pod: Object) -> Mapping[str, Any] | None:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == GATE), None)


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _annotations(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _name(pod: Object) -> str:
    return f"pod {pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
