"""One HTTP client for everything outside: engines' pages and APIs, gateways that are read or told things.

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
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from types import TracebackType
from typing import Self, TypeAlias

import aiohttp
import msgspec
from yarl import URL

from controlplane import __version__
from controlplane.sources.answer import not_ok
from controlplane.sources.secrets import Credentials, SecretError
from controlplane.sources.settings import TlsSettings
from controlplane.sources.tls import TlsContexts, TlsError
from controlplane.sources.urls import shown

METRICS = "text/plain;version=0.0.4"
"""What to accept where a page of metrics is asked for."""

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
    """A whole answer, of `get` always with status 200. The body is as it was sent: maybe packed with gzip."""

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
Send: TypeAlias = Callable[[str, str, Errand, Mapping[str, str], bytes], Awaitable[Answer | Failed]]


class Client:
    """The one client. An asynchronous context manager; `get` is a `Fetch`, `send` a `Send`."""

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
        return await self._bounded(url, errand, lambda trail: self._follow(trail, errand))

    async def send(
        self, method: str, url: str, errand: Errand, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer | Failed:
        """One request with these headers, and its answer whatever the status: redirects are not followed."""

        async def ask(trail: _Trail) -> Answer | Failed:
            authorization = _authorization(trail, errand)
            shown_as = {} if authorization is None else {"Authorization": authorization}
            told = {**_accepting(errand), **shown_as, **headers}
            async with self._request(method, trail, errand, told, body) as response:
                return await _whole(response, trail, errand)

        return await self._bounded(url, errand, ask)

    async def _bounded(
        self, url: str, errand: Errand, ask: "Callable[[_Trail], Awaitable[Answer | Failed]]"
    ) -> Answer | Failed:
        try:
            trail = _Trail(URL(url))
        except ValueError:
            return Failed(FailureKind.OWN_FAULT, f"{shown(url)}: not a URL")
        try:
            async with asyncio.timeout(errand.timeout_seconds):
                return await ask(trail)
        except TimeoutError:
            kind, cause = FailureKind.TIMEOUT, f"no whole answer within {errand.timeout_seconds:g} s"
        except Exception as error:
            kind, cause = _explain(error)
        return trail.failed(kind, cause)

    async def _follow(self, trail: "_Trail", errand: Errand) -> Answer | Failed:
        authorization = _authorization(trail, errand)
        while True:
            headers = _accepting(errand)
            if trail.trusted and authorization is not None:
                headers["Authorization"] = authorization
            async with self._request("GET", trail, errand, headers) as response:
                if response.status not in _REDIRECTS:
                    return await _answer(response, trail, errand)
                location = response.headers.get("Location", "")
            refusal = trail.follow(location)
            if refusal:
                return trail.failed(FailureKind.REDIRECT, refusal)

    def _request(
        self, method: str, trail: "_Trail", errand: Errand, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        assert self._session is not None, "enter the client before use"
        context: ssl.SSLContext | bool = True
        if trail.here.scheme == "https":
            context = self._tls.get(errand.tls, with_identity=trail.trusted)
        return self._session.request(
            method,
            trail.here,
            headers=headers,
            data=body or None,
            ssl=context,
            server_hostname=errand.tls.server_name if trail.trusted else None,
            allow_redirects=False,
        )


def _accepting(errand: Errand) -> dict[str, str]:
    return {"Accept": errand.accept, "Accept-Encoding": errand.encoding}


def _authorization(trail: "_Trail", errand: Errand) -> str | None:
    """What to show the origin. SecretError where it cannot be read."""
    return trail.authorization if errand.auth is None else errand.auth.authorization()


class _Trail:
    """The way of one GET through its redirects: where it is, and whether credentials may be shown there.

    `authorization` is that of a URL which a person gave with `user:password@` in it.
    """

    def __init__(self, url: URL) -> None:
        self.authorization: str | None = None
        if url.user is not None:
            pair = f"{url.user}:{url.password or ''}"
            self.authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self.here = self._start = url.with_user(None) if url.user is not None else url
        self.trusted = True
        self._hops = 0

    def follow(self, location: str) -> str:
        """Go where a redirect leads; why not, where it leads nowhere. Credentials in it are dropped."""
        try:
            onward = self.here.join(URL(location)).with_user(None)
        except ValueError:
            onward = None
        if not location or onward is None or not onward.host or onward.scheme not in ("http", "https"):
            return f"a redirect to something that is no address ({shown(location)!r})"
        if self._hops == MAX_REDIRECTS:
            return f"more than {MAX_REDIRECTS} redirects"
        self._hops += 1
        self.trusted = self.trusted and onward.origin() == self._start.origin()
        self.here = onward
        return ""

    def failed(self, kind: FailureKind, cause: str) -> Failed:
        where = shown(str(self._start))
        if self.here.host != self._start.host or self.here.port != self._start.port:
            where = f"{where} (redirected to {shown(str(self.here))})"
        return Failed(kind, f"{where}: {cause}")


async def _answer(response: aiohttp.ClientResponse, trail: _Trail, errand: Errand) -> Answer | Failed:
    """The answer where its status is 200, or why there is none."""
    if response.status != 200:
        told = not_ok(response.status) if errand.accept == METRICS else f"HTTP status {response.status}"
        return trail.failed(FailureKind.STATUS, told)
    return await _whole(response, trail, errand)


async def _whole(response: aiohttp.ClientResponse, trail: _Trail, errand: Errand) -> Answer | Failed:
    """The answer with its whole body. A body cut short raises aiohttp.ClientPayloadError."""
    too_large = FailureKind.TOO_LARGE, f"the body is over {errand.max_body_bytes} bytes"
    if (response.content_length or 0) > errand.max_body_bytes:
        return trail.failed(*too_large)
    chunks, size = [], 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > errand.max_body_bytes:
            return trail.failed(*too_large)
        chunks.append(chunk)
    return Answer(response.headers, b"".join(chunks), response.status)


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
