"""What Envoy's admin interface tells of a circuit breaker: by what it goes, and who says so.

GET /clusters?format=json&filter=^NAME$     the value in force, runtime and threshold put together
GET /runtime                                the runtime layers, in the order in which later ones win
"""

import re
from typing import TypeVar
from urllib.parse import quote

import msgspec

from controlplane.actuators.call import Call, CallFailedError, Send
from controlplane.actuators.runtime_file import max_requests_key

_MOST_BYTES = 4 << 20  # a cluster of a thousand hosts is 2 MB in this form

T = TypeVar("T")


class _Threshold(msgspec.Struct, frozen=True):
    max_requests: int = 0
    priority: str = "DEFAULT"


class _Breakers(msgspec.Struct, frozen=True):
    thresholds: tuple[_Threshold, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    name: str
    circuit_breakers: _Breakers = _Breakers()


class _Clusters(msgspec.Struct, frozen=True):
    cluster_statuses: tuple[_Status, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    layer_values: tuple[str, ...] = ()


class _Runtime(msgspec.Struct, frozen=True):
    layers: tuple[str, ...] = ()
    entries: dict[str, _Entry] = msgspec.field(default_factory=dict)


class EnvoyAdmin:
    """One Envoy, by the URL of its admin interface. Everything here raises CallFailedError."""

    def __init__(self, url: str, send: Send, timeout_seconds: float) -> None:
        self.url = url
        self._send, self._timeout = send, timeout_seconds

    async def max_requests(self, cluster: str) -> int | None:
        """The most open requests that `cluster` is held to now; None where there is no such cluster."""
        name = quote(f"^{re.escape(cluster)}$", safe="")
        answer = await self._get(f"/clusters?format=json&filter={name}", _Clusters)
        thresholds = [
            threshold.max_requests
            for status in answer.cluster_statuses
            for threshold in status.circuit_breakers.thresholds
            if status.name == cluster and threshold.priority == "DEFAULT"
        ]
        return thresholds[0] if thresholds else None

    async def winning_layer(self, cluster: str) -> tuple[str, str]:
        """Name and value of the runtime layer that decides; both empty where none does."""
        answer = await self._get("/runtime", _Runtime)
        values = answer.entries.get(max_requests_key(cluster), _Entry()).layer_values
        said = [(name, value) for name, value in zip(answer.layers, values, strict=False) if value]
        return said[-1] if said else ("", "")

    async def _get(self, path: str, kind: type[T]) -> T:
        reply = await self._send(Call("GET", self.url + path, self._timeout, _MOST_BYTES))
        if reply.status != 200:
            raise CallFailedError(f"{self.url}: HTTP status {reply.status}: is this Envoy's admin interface?")
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise CallFailedError(f"{self.url}: this is not how Envoy's admin interface answers") from None
