"""Begins to accept clients, and gives each connection its protocol."""

import asyncio
import ssl
from typing import cast

from controlplane.gateway.http1 import Http1Connection
from controlplane.gateway.http2 import Http2Connection
from controlplane.gateway.inbound import Server

PROTOCOLS = ("h2", "http/1.1")
"""What a TLS context offers (`SSLContext.set_alpn_protocols`), the best first."""

_TLS_HANDSHAKE_SECONDS = 10.0


class _Chooser(asyncio.Protocol):
    """Becomes what was chosen in the TLS handshake."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls = transport.get_extra_info("ssl_object")
        loop = asyncio.get_running_loop()
        protocol: asyncio.Protocol
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            protocol = Http2Connection(self._server, loop)
        else:
            protocol = Http1Connection(self._server, loop)
        cast(asyncio.Transport, transport).set_protocol(protocol)
        protocol.connection_made(transport)


async def listen(
    server: Server, host: str, port: int, *, tls: ssl.SSLContext | None = None, shared: bool = False
) -> asyncio.Server:
    """Begin to accept connections. `shared`: several processes listen on the same port."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(
        (lambda: Http1Connection(server, loop)) if tls is None else (lambda: _Chooser(server)),
        host,
        port,
        ssl=tls,
        backlog=4096,
        reuse_port=shared or None,
        ssl_handshake_timeout=None if tls is None else _TLS_HANDSHAKE_SECONDS,
    )
