"""What was in flight at a moment of the last half minute.

A scrape shows an engine as it was some seconds ago. What of it was ours is what we had in flight then, not
what we have in flight now.
"""

from collections import deque

_STEP_SECONDS = 0.05
_STEPS = 600


class Trail:
    """Requests (and tokens) in flight over the last 30 s at least, in steps of 50 ms."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int, int]] = deque(maxlen=_STEPS)

    def note(self, now: float, sequences: int, tokens: int) -> None:
        """From `now` on there are so many."""
        step = int(now / _STEP_SECONDS)
        marks = self._marks
        if marks and marks[-1][0] == step:
            marks[-1] = (step, sequences, tokens)
        else:
            marks.append((step, sequences, tokens))

    def at(self, when: float) -> tuple[int, int]:
        """(sequences, tokens) in flight at `when`; the oldest that is known where that is too long ago."""
        step = int(when / _STEP_SECONDS)
        for mark in reversed(self._marks):
            if mark[0] <= step:
                return mark[1], mark[2]
        if len(self._marks) == _STEPS:
            return self._marks[0][1], self._marks[0][2]
        return 0, 0
