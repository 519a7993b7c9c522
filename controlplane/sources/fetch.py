"""One HTTP client for everything that is polled: engines' pages, engines' APIs, gateways.

What comes from outside is bounded in time and size, and whatever goes wrong is a `Failed` with one
sentence, never an exception. Credentials go to the origin (scheme, host, port) that the configuration
names and nowhere else: redirects are followed by hand, and after the first step to another origin
neither the Authorization header nor our client certificate is shown again, not even on the way back.
"""

import asyncio
import base64
import errno
import os
import ssl
import traceback
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeAlias

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from controlplane import __version__
from controlplane.sources.secrets import Credentials, SecretError
from controlplane.sources.settings import TlsSettings
from controlplane.sources.tls import TlsContexts, TlsError
from controlplane.sources.urls import shown

MAX_REDIRECTS = 3
_REDIRECTS = {301, 302, 303, 307, 308}
_USER_AGENT = f"controlplane/{__version__}"
_KEEPALIVE_SECONDS = 90.0  # longer than any sensible polling interval, so that connections are used again
_DNS_CACHE_SECONDS = 30


class FailureKind(StrEnum):
    """What went wrong, as a closed set for counting."""

    TIMEOUT = "timeout"
    NAME = "name"  # the host name has no address
    CONNECTION = "connection"
    TLS = "tls"
    CREDENTIALS = "credentials"  # ours cannot be read
    STATUS = "status"  # an answer, but not 200
    REDIRECT = "redirect"
    PROTOCOL = "protocol"  # not HTTP as it should be
    CUT = "cut"  # the answer ended too early
    TOO_LARGE = "too-large"
    CONTENT = "content"  # a whole answer that is not what was asked for
    OWN_FAULT = "own-fault"  # ours, not the target's


class Answer(msgspec.Struct, frozen=True):
    """A whole answer with status 200. The body is as it was sent: maybe packed with gzip."""

    headers: Mapping[str, str]
    body: bytes
    status: int = 200


class Failed(msgspec.Struct, frozen=True):
    """No answer; `detail` is a sentence that names the URL and the cause and holds no secret."""

    kind: FailureKind
    detail: str


class Errand(msgspec.Struct, frozen=True):
    """How to ask: what for, as whom, how long, how much.

    `encoding` is what the answer may be packed with; who asks for gzip unpacks it.
    """

    accept: str
    timeout_seconds: float
    max_body_bytes: int
    encoding: str = "identity"
    auth: Credentials | None = None
    tls: TlsSettings = TlsSettings()


Fetch: TypeAlias = Callable[[str, Errand], Awaitable[Answer | Failed]]


class Client:
    """The one client. An asynchronous context manager; `get` is a `Fetch`."""

    def __init__(self) -> None:
        self._tls = TlsContexts()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # who asks bounds how much is asked at once
                keepalive_timeout=_KEEPALIVE_SECONDS,
                ttl_dns_cache=_DNS_CACHE_SECONDS,
            ),
            headers={"User-Agent": _USER_AGENT},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `get` has one for the whole
            auto_decompress=False,  # unpacking is bounded where the body is judged
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: str, errand: Errand) -> Answer | Failed:
        """GET `url`, following at most MAX_REDIRECTS redirects, all in `errand.timeout_seconds`."""
        try:
            async with asyncio.timeout(errand.timeout_seconds):
                return await self._follow(URL(url), errand)
        except TimeoutError:
            kind, cause = FailureKind.TIMEOUT, f"no whole answer within {errand.timeout_seconds:g} s"
        except Exception as error:
            kind, cause = _explain(error)
        return Failed(kind, f"{shown(url)}: {cause}")

    async def _follow(self, url: URL, errand: Errand) -> Answer | Failed:
        assert self._session is not None, "enter the client before use"
        authorization = errand.auth.authorization() if errand.auth is not None else _authorization(url)
        url = start = url.with_user(None)
        trusted, hops = True, 0
        while True:
            headers = CIMultiDict({"Accept": errand.accept, "Accept-Encoding": errand.encoding})
            if trusted and authorization is not None:
                headers["Authorization"] = authorization
            context: ssl.SSLContext | bool = True
            if url.scheme == "https":
                context = self._tls.get(errand.tls, with_identity=trusted)
            async with self._session.get(
                url,
                headers=headers,
                ssl=context,
                server_hostname=errand.tls.server_name if trusted else None,
                allow_redirects=False,
            ) as response:
                if response.status not in _REDIRECTS:
                    return await _answer(response, start, errand.max_body_bytes)
                location = response.headers.get("Location", "")
            hops += 1
            onward = _onward(url, location)
            if onward is None or hops > MAX_REDIRECTS:
                cause = f"more than {MAX_REDIRECTS} redirects"
                if onward is None:
                    cause = f"a redirect to something that is no address ({shown(location)!r})"
                return Failed(FailureKind.REDIRECT, f"{shown(str(start))}: {cause}")
            trusted = trusted and onward.origin() == url.origin()
            url = onward


def _authorization(url: URL) -> str | None:
    """The Authorization header of a URL that a person gave with `user:password@` in it."""
    if url.user is None:
        return None
    pair = f"{url.user}:{url.password or ''}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _onward(url: URL, location: str) -> URL | None:
    """Where a redirect leads, without any credentials that it may hold; None if that is no HTTP address."""
    try:
        onward = url.join(URL(location)).with_user(None)
        return onward if location and onward.host and onward.scheme in ("http", "https") else None
    except ValueError:
        return None


async def _answer(response: aiohttp.ClientResponse, start: URL, max_body_bytes: int) -> Answer | Failed:
    """The whole body, or why there is none. A body cut short raises aiohttp.ClientPayloadError."""
    where = shown(str(start))
    if response.url.origin() != start.origin():
        where = f"{where}: redirected to {shown(str(response.url))}"
    if response.status != 200:
        return Failed(FailureKind.STATUS, f"{where}: HTTP status {response.status}")
    too_large = Failed(FailureKind.TOO_LARGE, f"{where}: the body is over {max_body_bytes} bytes")
    if (response.content_length or 0) > max_body_bytes:
        return too_large
    chunks, size = [], 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > max_body_bytes:
            return too_large
        chunks.append(chunk)
    return Answer(response.headers, b"".join(chunks))


def _explain(error: Exception) -> tuple[FailureKind, str]:  # noqa: PLR0911 (a table of causes)
    """Kind and cause of what aiohttp and the files of credentials raise.

    Never the text of a ClientResponseError beyond its first line: the rest quotes what was received.
    """
    match error:
        case SecretError() | TlsError():
            return FailureKind.CREDENTIALS, str(error)
        case aiohttp.ClientConnectorDNSError():
            return FailureKind.NAME, f"{error.host} has no address ({_os_cause(error.os_error)})"
        case aiohttp.ClientConnectorCertificateError():
            return FailureKind.TLS, f"its certificate is not accepted: {_certificate_cause(error)}"
        case aiohttp.ClientConnectorSSLError() | aiohttp.ClientSSLError():
            return FailureKind.TLS, f"no TLS: {_os_cause(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return _connection(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return FailureKind.CONNECTION, "it closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            return FailureKind.CUT, "the answer was cut short"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return FailureKind.OWN_FAULT, "not an http:// or https:// address"
        case aiohttp.ClientResponseError():
            first = error.message.partition("\n")[0].rstrip(":")
            return FailureKind.PROTOCOL, f"not a proper HTTP answer ({first[:100]})"
        case OSError():
            return _connection(error)
        case _:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return FailureKind.OWN_FAULT, f"{type(error).__name__} at {place}"


def _connection(error: OSError) -> tuple[FailureKind, str]:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return FailureKind.OWN_FAULT, "this process has too many open files to connect"
    return FailureKind.CONNECTION, _os_cause(error)


def _os_cause(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).replace("_", " ").lower()
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (error.strerror or type(error).__name__).lower()


def _certificate_cause(error: aiohttp.ClientConnectorCertificateError) -> str:
    certificate = error.certificate_error
    if isinstance(certificate, ssl.SSLCertVerificationError):
        return certificate.verify_message.lower()
    return type(certificate).__name__
