"""Several workers, one gateway: who is asked for metrics, outcomes or orders asks the other workers too.

Each worker listens on a Unix socket in a folder that only their user can open. A question is one msgpack
value with its length before it, and so is the answer. A sibling that does not answer in time is left out.
"""

import asyncio
import contextlib
import logging
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")
_LARGEST_BYTES = 64 << 20
_TIMEOUT_SECONDS = 2.0
_log = logging.getLogger(__name__)

Answerer = Callable[[str, Any], Awaitable[Any]]
"""(question, argument) -> answer"""


class Siblings:
    """Worker `index` of `count`; their sockets are in `folder` (None where there is only one)."""

    def __init__(self, folder: Path | None, index: int, count: int) -> None:
        self._folder = folder
        self._index = index
        self._count = count
        self._server: asyncio.Server | None = None

    async def listen(self, answer: Answerer) -> None:
        """Answer the others from now on."""
        if self._folder is None:
            return

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError, msgspec.DecodeError, ValueError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    question, argument = await _read(reader)
                    _write(writer, await answer(question, argument))
                    await writer.drain()
            writer.close()

        path = self._path(self._index)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(serve, path)

    async def ask(self, question: str, argument: object) -> list[Any]:
        """The answers of all others that answer in time."""
        if self._folder is None:
            return []
        others = [index for index in range(self._count) if index != self._index]
        answers = await asyncio.gather(*(self._ask(index, question, argument) for index in others))
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _ask(self, index: int, question: str, argument: object) -> Any:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path(index))
                _write(writer, (question, argument))
                return await _read(reader)
        except (OSError, EOFError, msgspec.DecodeError, ValueError, TimeoutError):
            _log.warning("a worker did not answer", extra={"fields": {"worker": index, "question": question}})
            return None
        finally:
            if writer is not None:
                writer.close()

    def _path(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder / f"worker-{index}.sock"


def _write(writer: asyncio.StreamWriter, value: object) -> None:
    packed = msgspec.msgpack.encode(value)
    writer.write(_LENGTH.pack(len(packed)) + packed)


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _LARGEST_BYTES:
        raise ValueError(f"{length} bytes are over the limit")
    return msgspec.msgpack.decode(await reader.readexactly(length))
