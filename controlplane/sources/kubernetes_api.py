"""The connection to a Kubernetes API server: the `kubernetes` client for credentials and transport.

Objects go through as JSON, not as the client's models: those refuse what a newer or an older server says,
and cost ten times as much to read. Everything is bounded in time and size, and whatever goes wrong is one
`UnreachableError` with one sentence. Any HTTP status is an answer; what it means is the caller's business.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from controlplane import __version__
from controlplane.signals import marks
from controlplane.sources.kubernetes_settings import KubernetesSettings

if TYPE_CHECKING:  # it is large, and only those who run on Kubernetes pay for it
    from kubernetes.aio.client import ApiClient

MANAGER = marks.MANAGER
JSON = "application/json"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOAD_SECONDS = 15.0  # credentials may come from a program that kubeconfig names
_CONNECT_SECONDS = 5.0
_RELOAD_AFTER_SECONDS = 10.0
_UNAUTHORIZED = 401


class UnreachableError(Exception):
    """No answer; the text is a sentence that names the server and the cause and holds no secret."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `path` begins with /api or /apis; `body` is what JSON is made of."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = JSON
    timeout_seconds: float = 10.0
    most_bytes: int = 8 << 20


class Answered(msgspec.Struct, frozen=True):
    """A whole answer, whatever its status. The names of `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class KubernetesApi:
    """One API server. Credentials are read at the first request, and again where the server refuses them."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._client: ApiClient | None = None
        self._namespace = ""
        self._loading = asyncio.Lock()
        self._loaded_at = float("-inf")

    async def namespace(self) -> str:
        """The namespace of our own objects. Raises UnreachableError where the credentials cannot be read."""
        await self._ready()
        return self._settings.namespace or self._namespace

    async def send(self, ask: Ask) -> Answered:
        """The whole answer. Raises UnreachableError."""
        answered = await self._send(ask)
        if answered.status == _UNAUTHORIZED and await self._load_anew():
            answered = await self._send(ask)
        return answered

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is read piece by piece; `timeout_seconds` is for its beginning only.

        Raises UnreachableError, also out of the block where the connection breaks.
        """
        client = await self._ready()
        try:
            async with asyncio.timeout(ask.timeout_seconds):
                response = await _request(client, ask)
                if response.status == _UNAUTHORIZED and await self._load_anew():
                    response.close()
                    client = await self._ready()
                    response = await _request(client, ask)
        except UnreachableError:
            raise
        except Exception as error:
            raise self._unreachable(client, ask, error) from None
        try:
            yield response
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(client, ask, error) from None
        finally:
            response.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()  # type: ignore[no-untyped-call]

    async def _send(self, ask: Ask) -> Answered:
        client = await self._ready()
        try:
            async with asyncio.timeout(ask.timeout_seconds):
                response = await _request(client, ask)
                try:
                    body = await _whole(response, ask.most_bytes)
                finally:
                    response.release()
        except Exception as error:  # the client has many of its own, and some of its sessions' ends
            raise self._unreachable(client, ask, error) from None
        return Answered(response.status, response.headers, body)

    def _unreachable(self, client: "ApiClient", ask: Ask, error: Exception) -> UnreachableError:
        where = f"{client.configuration.host}{ask.path}"
        if isinstance(error, TimeoutError):
            return UnreachableError(f"{where}: no answer within {ask.timeout_seconds:g} s")
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return UnreachableError(f"{where}: {why}")

    async def _ready(self) -> "ApiClient":
        if self._client is None:
            async with self._loading:
                if self._client is None:
                    await self._load()
        assert self._client is not None
        return self._client

    async def _load_anew(self) -> bool:
        """Read the credentials again, which may have been renewed; False where that was just done."""
        async with self._loading:
            if time.monotonic() - self._loaded_at < _RELOAD_AFTER_SECONDS:
                return False
            old = self._client
            await self._load()
        if old is not None:
            await old.close()  # type: ignore[no-untyped-call]
        return True

    async def _load(self) -> None:
        from kubernetes.aio import client, config  # noqa: PLC0415 (see above)

        configuration = client.Configuration()
        settings = self._settings
        self._loaded_at = time.monotonic()
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                if settings.kubeconfig is None:
                    config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
                    self._namespace = (_ACCOUNT / "namespace").read_text().strip()
                else:
                    loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
                        str(settings.kubeconfig),
                        context=settings.context,
                        client_configuration=configuration,
                        persist_config=False,
                    )
                    self._namespace = loader.current_context["context"].get("namespace", "default")
        except TimeoutError:
            raise UnreachableError(f"{self._whence()} took over {_LOAD_SECONDS:g} s to be read") from None
        except Exception as error:  # whatever a file that is no kubeconfig makes of its reader
            why = " ".join(str(error).split())[:300]
            raise UnreachableError(f"{self._whence()} cannot be used: {why}") from None
        made = client.ApiClient(configuration)
        made.user_agent = f"{MANAGER}/{__version__}"
        self._client = made

    def _whence(self) -> str:
        path = self._settings.kubeconfig
        return f"the pod's service account ({_ACCOUNT})" if path is None else f"kubeconfig {path}"


async def _request(client: "ApiClient", ask: Ask) -> aiohttp.ClientResponse:
    method, url, headers, body, _ = await client.param_serialize(
        ask.method,
        ask.path,
        query_params=list(ask.query),
        header_params={"Accept": JSON, "Content-Type": ask.content_type},
        body=ask.body,
        auth_settings=["BearerToken"],
    )
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)  # the caller bounds the whole
    made = await client.call_api(method, url, headers, body, _request_timeout=timeout)
    response: aiohttp.ClientResponse = made.response
    return response


async def _whole(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_chunked(1 << 18):
        body += piece
        if len(body) > most_bytes:
            response.close()
            raise ValueError(f"an answer of over {most_bytes} bytes")
    return bytes(body)
