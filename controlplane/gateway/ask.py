"""A small question to an engine, answered as a whole: what `/tokenize` is asked with."""

import asyncio

from controlplane.gateway.admission.tokenize_call import TokenizeCall
from controlplane.gateway.inbound import Header
from controlplane.gateway.outbound import Connection, Lost, Origin, Pool, UnreachableError

_LARGEST_ANSWER_BYTES = 4 << 20


class _Whole:
    """A sink that keeps all of a small answer; None where it is an error, broken or too large."""

    def __init__(self, connection: Connection) -> None:
        self.answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._status = 0

    def answer_head(self, status: int, headers: list[Header]) -> None:
        self._status = status

    def answer_data(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > _LARGEST_ANSWER_BYTES:
            self._connection.abort()
            self._say(None)

    def answer_end(self) -> None:
        self._say(b"".join(self._parts) if self._status == 200 else None)

    def answer_lost(self, lost: Lost) -> None:
        self._say(None)

    def _say(self, answer: bytes | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


async def post(
    pool: Pool, origin: Origin, call: TokenizeCall, headers: list[Header], *, timeout_seconds: float
) -> bytes | None:
    """The body of a 200, None for anything else and where nothing came in time."""
    connection: Connection | None = None
    sink: _Whole | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await pool.take(origin)
            sink = _Whole(connection)
            lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (call.path.encode(), origin.authority.encode())]
            lines += [b"%b: %b\r\n" % header for header in headers]
            lines.append(b"content-type: application/json\r\n")
            lines.append(b"content-length: %d\r\n\r\n%b" % (len(call.body), call.body))
            connection.send(b"".join(lines), sink)
            return await sink.answer
    except (TimeoutError, UnreachableError):
        return None
    finally:
        if connection is not None and sink is not None and not sink.answer.done():
            connection.abort()
