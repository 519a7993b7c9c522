"""How many tokens a piece of a stream holds, of one engine.

One, as a rule. More where the engine guesses ahead (speculative decoding), sends only each so many tokens
(`--stream-interval`), or joins what has piled up under load. A gateway that took each piece for a token would
find such engines slow by that factor, and their answers short.

Learned from answers that have ended, whose usage tells how many tokens they were. The first piece of a
sequence is one token: engines hold nothing back then.
"""

_KEPT = 0.98  # of what was learned, at each answer: the last fifty count
_SUPPOSED = 20.0  # pieces of one token, to begin with
_MOST = 1000  # tokens a piece; whoever tells more, tells nonsense


class PieceSize:
    __slots__ = ("_pieces", "_tokens")

    def __init__(self) -> None:
        self._pieces = self._tokens = _SUPPOSED

    @property
    def tokens(self) -> float:
        """The mean, 1 or more."""
        return self._tokens / self._pieces

    def learn(self, pieces: int, tokens: int, sequences: int) -> None:
        """An answer of so many sequences has ended."""
        later = pieces - sequences
        if later <= 0:
            return
        held = min(max(tokens - sequences, later), _MOST * later)
        self._pieces = _KEPT * self._pieces + later
        self._tokens = _KEPT * self._tokens + held


class PieceCount:
    """The tokens of one answer, as its pieces come."""

    __slots__ = ("_firsts", "_part", "_size")

    def __init__(self, size: PieceSize, sequences: int) -> None:
        self._size = size
        self._firsts = sequences
        self._part = 0.0  # of a token, not told yet

    def tokens(self, pieces: int) -> int:
        """How many tokens so many more pieces are likely to hold; at least as many."""
        firsts = min(pieces, self._firsts)
        self._firsts -= firsts
        exact = firsts + (pieces - firsts) * self._size.tokens + self._part
        whole = int(exact)
        self._part = exact - whole
        return whole
