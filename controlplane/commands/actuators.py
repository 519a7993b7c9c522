"""Puts the configured actuators together: their settings, their secrets, and how they reach what they set."""

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from controlplane.actuators.actuator import Actuator
from controlplane.actuators.autoscaler import Autoscaler
from controlplane.actuators.call import Call, CallFailedError, Reply, Send
from controlplane.actuators.cluster_events import ClusterEvents
from controlplane.actuators.envoy_runtime import EnvoyRuntime
from controlplane.actuators.eviction import EvictionActuator
from controlplane.actuators.gateway import GatewayActuator, Link
from controlplane.actuators.leading import only_while_leading
from controlplane.actuators.node import NodeActuator
from controlplane.actuators.object_patch import ObjectPatch
from controlplane.actuators.pod import PodActuator
from controlplane.actuators.scale import ScaleActuator
from controlplane.actuators.webhook import Webhook
from controlplane.config import Config
from controlplane.daemon.handover import Handover
from controlplane.daemon.leader import Leader
from controlplane.daemon.upkeep import Upkeep
from controlplane.signals.snapshot import FleetSnapshot
from controlplane.sources.fetch import Client, Errand, Failed
from controlplane.sources.kubernetes_api import JSON, Ask, KubernetesApi, UnreachableError
from controlplane.sources.secrets import Secret
from controlplane.sources.settings import GatewaySettings, TlsSettings


def actuators(
    config: Config,
    client: Client,
    snapshot: Callable[[], FleetSnapshot | None],
    seconds_left: Callable[[], float],
) -> tuple[Actuator, ...]:
    """The actuators that `config` names. `client` must be open as long as they act.

    `seconds_left` tells how long we surely lead: nothing is written by whom the lead was taken from.
    """
    found: list[Actuator] = []
    if config.envoy is not None:
        found.append(EnvoyRuntime(config.envoy, only_while_leading(sender(client), seconds_left), snapshot))
    if config.webhook is not None:
        send = only_while_leading(sender(client, config.webhook.tls), seconds_left)
        found.append(Webhook(config.webhook, send, config.webhook.secret.read, snapshot))
    directly = () if config.scale is None else config.scale.workloads
    found.append(Autoscaler(snapshot, frozenset(one.pool for one in directly)))
    return tuple(found)


class InCluster(NamedTuple):
    """What acts on the objects of a cluster, and what goes on beside."""

    actuators: tuple[Actuator, ...]
    upkeep: Upkeep


def in_cluster(
    config: Config,
    cluster: KubernetesApi,
    snapshot: Callable[[], FleetSnapshot | None],
    leader: Leader,
    gateways: GatewayActuator,
    *,
    handover: Handover,
    now: Callable[[], float],
) -> InCluster:
    """`cluster` must be open as long as they act. Replicas are taken out at the `gateways` first."""
    send = only_while_leading(cluster_sender(cluster), leader.seconds_left)
    pods = PodActuator(send, snapshot, gateways.apply)
    found: list[Actuator] = [pods, NodeActuator(send, snapshot), EvictionActuator(send, snapshot)]
    if config.scale is not None:
        found.append(
            ScaleActuator(
                config.scale,
                send,
                snapshot,
                steady=now,  # the same to the next leader
                contentions=handover.contentions,
                stand=handover.stand,
            )
        )
    if config.objects is not None:
        found.append(ObjectPatch(config.objects, send, snapshot))
    workloads = () if config.scale is None else config.scale.workloads
    events = ClusterEvents(send, workloads, socket.gethostname(), now=now)
    return InCluster(tuple(found), Upkeep(pods, events))


def gateway_links(
    gateways: Iterable[GatewaySettings], client: Client, seconds_left: Callable[[], float]
) -> tuple[Link, ...]:
    """How our gateways are told what to do. `client` must be open as long as they are."""
    return tuple(
        Link(one.url, only_while_leading(sender(client, one.tls), seconds_left), _opened_by(one.token))
        for one in gateways
    )


def _opened_by(token: Secret) -> Callable[[], Mapping[str, str]]:
    return lambda: {"Authorization": f"Bearer {token.read()}"}


def sender(client: Client, tls: TlsSettings | None = None) -> Send:
    """The client as actuators use it."""

    async def send(call: Call) -> Reply:
        errand = Errand(
            "application/json", call.timeout_seconds, call.max_body_bytes, tls=tls or TlsSettings()
        )
        answer = await client.send(call.method, call.url, errand, call.headers, call.body)
        if isinstance(answer, Failed):
            raise CallFailedError(answer.detail)
        return Reply(answer.status, answer.headers, answer.body)

    return send


def cluster_sender(cluster: KubernetesApi) -> Send:
    """The API server as actuators use it: the URL of a call is a path, with its query.

    A call says by its Content-Type which kind of patch its body is.
    """

    async def send(call: Call) -> Reply:
        parts = urlsplit(call.url)
        ask = Ask(
            method=call.method,
            path=parts.path,
            query=tuple(parse_qsl(parts.query)),
            body=msgspec.json.decode(call.body) if call.body else None,
            content_type=call.headers.get("Content-Type", JSON),
            timeout_seconds=call.timeout_seconds,
            most_bytes=call.max_body_bytes,
        )
        try:
            answered = await cluster.send(ask)
        except UnreachableError as error:
            raise CallFailedError(str(error)) from None
        return Reply(answered.status, answered.headers, answered.body)

    return send
