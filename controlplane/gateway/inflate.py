"""Unpacks a gzip answer piece by piece, for reading along or for a client that did not ask for gzip."""

import zlib

_STEP_BYTES = 1 << 18
_GZIP = 31  # zlib's window bits for gzip


class BrokenGzipError(ValueError):
    """What came is not gzip."""


class Inflate:
    """One answer. Several gzip members after each other are one text, as the format says."""

    __slots__ = ("_stream",)

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

    def feed(self, piece: bytes) -> bytes:
        """The text of `piece`. Raises BrokenGzipError."""
        out: list[bytes] = []
        try:
            more = bool(piece)
            while more:
                if self._stream.eof:
                    self._stream = zlib.decompressobj(_GZIP)
                text = self._stream.decompress(piece, _STEP_BYTES)
                out.append(text)
                piece = self._stream.unconsumed_tail or self._stream.unused_data
                more = bool(piece) or len(text) == _STEP_BYTES
        except zlib.error:
            raise BrokenGzipError("the answer is not the gzip that its header says") from None
        return b"".join(out)
