"""Server-sent events along a passing byte stream: where each one ends, and its data.

Lines end with LF, CR or CRLF; a byte-order mark may stand first; comments and fields other than `data` say
nothing here. An event is complete with the blank line after it, an incomplete one at the end is none: so says
the standard (WHATWG HTML, "9.2.6 Interpreting an event stream"). Bytes are never decoded.
"""

import re

LARGEST_EVENT_BYTES = 1 << 20
"""What a longer event holds is not kept; its data is told as empty."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_MARK = b"\xef\xbb\xbf"


class Events:
    """Splits a stream into events, whatever the pieces in which it comes."""

    __slots__ = ("_after_cr", "_data", "_line", "_mark", "_overlong", "_size")

    def __init__(self) -> None:
        self._line = bytearray()  # the line that has not ended yet
        self._data: list[bytes] = []  # of the event that has not ended yet
        self._size = 0
        self._overlong = False
        self._after_cr = False  # a LF that comes next belongs to the line before
        self._mark: bytes | None = b""  # what has come of a byte-order mark; None: looked for no more

    def feed(self, piece: bytes) -> list[tuple[bytes | None, int]]:
        """The events that end in `piece`: data (None of one without any), and where in the piece it ends.

        Where a piece ends between the CR and the LF of a blank line, the LF counts to the event before it
        (see `starts_with_rest`).
        """
        if self._is_at_start and piece.endswith(b"\n\n") and b"\r" not in piece:
            events = _whole_events(piece)
            if events is not None:
                return events
        return self._walk(piece)

    def only(self, piece: bytes) -> bytes | None:
        """The data of a piece that is one whole event of one line, as engines send them; None of any other,
        which is to be fed."""
        if (
            piece.startswith(b"data: ")
            and piece.find(b"\n") == len(piece) - 2
            and piece.endswith(b"\n")
            and self._is_at_start
            and b"\r" not in piece
        ):
            return piece[6:-2]
        return None

    @property
    def _is_at_start(self) -> bool:
        """Whether nothing of what has come so far matters for what comes."""
        return not (self._line or self._data or self._after_cr or self._overlong) and self._mark is None

    def starts_with_rest(self, piece: bytes) -> bool:
        """Whether the next piece begins with the LF of a line end whose CR came with the piece before."""
        return self._after_cr and piece.startswith(b"\n")

    @property
    def is_between(self) -> bool:
        """Whether what has come so far ends with the end of an event, so that one may be put in here."""
        return not (self._line or self._data or self._overlong)

    def _walk(self, piece: bytes) -> list[tuple[bytes | None, int]]:
        events: list[tuple[bytes | None, int]] = []
        start = 0
        if self._mark is not None:
            start = self._skip_mark(piece)
        if self._after_cr and start < len(piece):
            self._after_cr = False
            start += piece[start] == 0x0A
        for end in _LINE_END.finditer(piece, start):
            line = piece[start : end.start()]
            start = end.end()
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            if line:
                self._take(line)
            else:
                events.append((self._event(), start))
        if start < len(piece):
            self._keep(piece[start:])
        elif piece.endswith(b"\r"):
            self._after_cr = True
        return events

    def _skip_mark(self, piece: bytes) -> int:
        """Where the text begins: after a byte-order mark, which may come in pieces."""
        assert self._mark is not None
        had = len(self._mark)
        seen = (self._mark + piece[: 3 - had])[:3]
        if seen == _MARK:
            self._mark = None
            return 3 - had
        if _MARK.startswith(seen):
            self._mark = seen
            return len(piece)
        self._line += self._mark  # it was none: what was held back is text
        self._mark = None
        return 0

    def _keep(self, part: bytes) -> None:
        if self._size + len(self._line) + len(part) > LARGEST_EVENT_BYTES:
            self._overlong = True
            # One byte stays, so that the line is not taken for a blank one.
            self._line[:] = b":"
        else:
            self._line += part

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            self._size += len(line)
            if self._size > LARGEST_EVENT_BYTES:
                self._overlong = True
                self._data = [b""]
                self._size = 0
        elif line == b"data":
            self._data.append(b"")

    def _event(self) -> bytes | None:
        """The data of the event that has ended."""
        data = None
        if self._overlong:
            data = b""
        elif self._data:
            data = b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        self._overlong = False
        return data


def _whole_events(piece: bytes) -> list[tuple[bytes | None, int]] | None:
    """The usual case: a piece of whole events, each one line of data with LF; None where it is not that."""
    events: list[tuple[bytes | None, int]] = []
    end = 0
    for text in piece[:-2].split(b"\n\n"):
        if not text.startswith(b"data: ") or b"\n" in text:
            return None
        end += len(text) + 2
        events.append((text[6:], end))
    return events
