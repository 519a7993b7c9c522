"""What stands before every route: the token of the writing half, limits on bodies, security headers.

Whatever is neither GET nor HEAD nor OPTIONS writes, so a route that is added later is guarded without
being told to; so is what autoscalers read. A request that may not write is refused before its body is read.
"""

import asyncio
import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.api.errors import error_response
from controlplane.api.settings import ApiSettings, TokenError
from controlplane.same_secret import same_secret

STREAM_PATH = "/api/v1/stream"
AUTOSCALING_PATH = "/api/v1/autoscaling/"
"""What is read there moves replicas elsewhere, so it is told to those with a token only: of their own, or
that of the writing half."""

LARGEST_BODY_BYTES = 64 * 1024
LONGEST_BODY_SECONDS = 10.0

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

_log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings
        self._token_trouble = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        head = scope["method"] == "HEAD" and scope["path"] != STREAM_PATH

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            elif head:
                message = {**message, "body": b""}
            await send(message)

        if head:
            # Every route answers it like GET, without the body; the stream alone would never end.
            scope = {**scope, "method": "GET"}
        reads = scope["method"] in _READING
        if reads and not scope["path"].startswith(AUTOSCALING_PATH):
            await self._app(scope, receive, send_with_headers)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers, to_read=reads) or _too_large(headers)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        body = await _body(receive)
        if isinstance(body, Response):
            await body(scope, receive, send_with_headers)
            return
        await self._app(_as_json(scope), _Replayed(body, receive), send_with_headers)

    def _refusal(self, headers: Headers, *, to_read: bool) -> Response | None:
        """Why this request is not served; None where it shows a token that opens it."""
        try:
            found = self._settings.token(), self._settings.autoscaling_token() if to_read else None
        except TokenError as error:
            if str(error) != self._token_trouble:
                self._token_trouble = str(error)
                _log.warning("the API cannot be written: %s", error)
            return error_response(503, "token_unavailable", "the token cannot be read; the log says why")
        self._token_trouble = ""
        tokens = [token for token in found if token is not None]
        if not tokens:
            return error_response(
                403,
                "read_only",
                "only the open half of this API is served: no token is configured "
                "(api.token_file or api.token_env)",
            )
        shown = headers.getlist("authorization")
        if not shown:
            return _unauthorized("token_missing", "this needs the header `Authorization: Bearer TOKEN`")
        scheme, _, value = shown[0].partition(" ")
        right = any(same_secret(value.strip().encode("latin-1"), token) for token in tokens)
        if len(shown) != 1 or scheme.lower() != "bearer" or not right:
            return _unauthorized("token_wrong", "the Authorization header holds another token")
        return None


class _Replayed:
    """`receive` for an application whose body has been read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _as_json(scope: Scope) -> Scope:
    """The request with a body that is called JSON, as all bodies here are: `curl -d` calls it a form."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers["content-type"] = "application/json"
    return {**scope, "headers": headers.raw}


def _unauthorized(code: str, message: str) -> Response:
    return error_response(401, code, message, {"www-authenticate": "Bearer"})


def _too_large(headers: Headers) -> Response | None:
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) <= LARGEST_BODY_BYTES:
        return None  # a length that is no number is the server's to refuse; the body is counted anyway
    return error_response(
        413, "too_large", f"a body of {length} bytes is over the limit of {LARGEST_BODY_BYTES}"
    )


async def _body(receive: Receive) -> bytes | Response:
    """The whole body, or the answer that says why it is not taken."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(LONGEST_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return error_response(400, "gone", "the client went away before its body was complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > LARGEST_BODY_BYTES:
                    return error_response(
                        413, "too_large", f"the body is over the limit of {LARGEST_BODY_BYTES} bytes"
                    )
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        return error_response(
            408, "too_slow", f"the body was not complete after {LONGEST_BODY_SECONDS:.0f} s"
        )
