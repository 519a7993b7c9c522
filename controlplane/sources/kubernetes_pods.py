"""From pods as the API server has them to what we know of them. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from controlplane.signals.pod import DELETION_COST, OURS, PodFacts

_TEMPLATE_HASH = "pod-template-hash"
_CONDITIONS = ("Ready", "ContainersReady", "PodScheduled", "DisruptionTarget")
_FALLBACK_PORT = 8000  # vLLM's
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Names the pod's own container; meshes that put theirs before it write it."""


class Owner(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    name: str
    controller: bool = False


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The part of any object's metadata that we read."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[Owner, ...] | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    last_transition_time: datetime | None = None


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    image: str = ""
    ports: tuple[_Port, ...] | None = None
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None


class _Gate(msgspec.Struct, frozen=True, rename="camel"):
    condition_type: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Container, ...] = ()
    node_name: str = ""
    readiness_gates: tuple[_Gate, ...] | None = None


class _RunningState(msgspec.Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class _State(msgspec.Struct, frozen=True, rename="camel"):
    running: _RunningState | None = None


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    state: _State = _State()


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = "Pending"
    conditions: tuple[Condition, ...] | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: tuple[_ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a pod that we read."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Place(msgspec.Struct, frozen=True):
    """How the pods of a pool are asked. `port` is a number, a container port's name, or None to find it."""

    pool: str
    scheme: str
    port: int | str | None = None


def facts(pod: Pod, place: Place) -> PodFacts:
    """What the cluster says of a pod of that pool."""
    metadata, status = pod.metadata, pod.status
    labels = metadata.labels or {}
    conditions = {condition.type: condition for condition in status.conditions or ()}
    first = (metadata.annotations or {}).get(_DEFAULT_CONTAINER, "")
    containers = sorted(pod.spec.containers, key=lambda container: container.name != first)
    engine, port = _engine(containers, place.port)
    running = _container(status, engine)
    started_at = seconds(running.state.running.started_at) if running and running.state.running else None
    deleted, grace = seconds(metadata.deletion_timestamp), metadata.deletion_grace_period_seconds or 0
    serves = bool(status.pod_ip) and status.phase == "Running" and port is not None
    return PodFacts(
        namespace=metadata.namespace,
        name=metadata.name,
        pool=place.pool,
        uid=metadata.uid,
        url=f"{place.scheme}://{_bracketed(status.pod_ip)}:{port}" if serves else "",
        node=pod.spec.node_name,
        phase=status.phase,
        ready=_holds(conditions, "Ready"),
        containers_ready=_holds(conditions, "ContainersReady"),
        loading=_is_loading(status.phase, conditions.get("ContainersReady"), running, started_at),
        created_at=seconds(metadata.creation_timestamp),
        started_at=started_at,
        terminating_since=None if deleted is None else deleted - grace,
        gone_by=deleted,
        labels=labels,
        annotations=_ours(metadata.annotations or {}),
        conditions={
            name: condition.status
            for name, condition in conditions.items()
            if name in _CONDITIONS or name.startswith(OURS)
        },
        gates=tuple(gate.condition_type for gate in pod.spec.readiness_gates or ()),
        owner=_owner(metadata, labels),
        image=engine.image if engine else "",
        model=_model(engine) if engine else "",
        restarts=sum(container.restart_count for container in status.container_statuses or ()),
    )


def seconds(time: datetime | None) -> float | None:
    """Unix seconds."""
    if time is None:
        return None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _engine(
    containers: Sequence[_Container], wanted: int | str | None
) -> tuple[_Container | None, int | None]:
    """The container that serves and its port; sidecars have others."""
    declared = [(container, port) for container in containers for port in container.ports or ()]
    if isinstance(wanted, int):
        first = containers[0] if containers else None
        return next((one for one, port in declared if port.container_port == wanted), first), wanted
    named = [(one, port) for one, port in declared if port.name == (wanted or "http")]
    if wanted is not None:  # a pod without that port is not served: no other may be taken for it
        return (
            (named[0][0], named[0][1].container_port)
            if named
            else (containers[0] if containers else None, None)
        )
    for container, port in (*named, *declared):
        return container, port.container_port
    return (containers[0] if containers else None), _FALLBACK_PORT


def _container(status: _Status, engine: _Container | None) -> _ContainerStatus | None:
    found = (one for one in status.container_statuses or () if engine is not None and one.name == engine.name)
    return next(found, None)


def _is_loading(
    phase: str, ready: Condition | None, running: _ContainerStatus | None, started_at: float | None
) -> bool:
    """Not ready, and not ready at any time since its container was started.

    A container that has been ready and is so no longer turned the condition after its start; one that
    crashed turned it before it was started again.
    """
    if phase == "Pending":
        return True
    if phase != "Running" or ready is None or ready.status == "True":
        return False
    if running is None or running.started is False or started_at is None:
        return True
    turned_at = seconds(ready.last_transition_time)
    return turned_at is None or turned_at <= started_at


def _holds(conditions: dict[str, Condition], name: str) -> bool:
    return name in conditions and conditions[name].status == "True"


def _ours(annotations: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if key.startswith(OURS) or key == DELETION_COST}


def _owner(metadata: Metadata, labels: dict[str, str]) -> str:
    owner = next((one for one in metadata.owner_references or () if one.controller), None)
    if owner is None:
        return ""
    suffix = f"-{labels.get(_TEMPLATE_HASH, '')}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return f"Deployment/{owner.name.removesuffix(suffix)}"
    return f"{owner.kind}/{owner.name}"


def _model(engine: _Container) -> str:
    """The model that its command line names, as requests name it; empty where it names none."""
    words = [*(engine.command or ()), *(engine.args or ())]
    for option in ("--served-model-name", "--model", "--model-path"):
        for i, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name == option:
                return value if equals else next(iter(words[i + 1 : i + 2]), "")
    if "serve" in words[:-1]:  # vllm serve MODEL
        model = words[words.index("serve") + 1]
        return "" if model.startswith("-") else model
    return ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
