"""A raw HTTP response in a file, as `curl -i` or a capture leaves it."""

import http.client
import io
import socket
from collections.abc import Mapping
from typing import NamedTuple, cast

from controlplane.signals.reading import Reason
from controlplane.sources.answer import Bad


class Response(NamedTuple):
    """Status, headers and the whole body, unchunked but not decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Recording:
    """What `http.client` needs of a socket, over bytes that have arrived already."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def read_http(raw: bytes) -> Response | Bad:
    """The response in `raw`; Bad if it is none, or if its body is shorter than the headers promise."""
    response = http.client.HTTPResponse(cast(socket.socket, _Recording(raw)))
    try:
        response.begin()
        body = response.read()
    except http.client.IncompleteRead as cut:
        promised = f" of {len(cut.partial) + cut.expected}" if cut.expected is not None else ""
        return Bad(Reason.SCRAPE_FAILED, f"the body is cut: {len(cut.partial)}{promised} bytes came")
    except (http.client.HTTPException, ValueError) as error:
        return Bad(Reason.SCRAPE_FAILED, f"not an HTTP response: {type(error).__name__}")
    return Response(response.status, dict(response.getheaders()), body)
