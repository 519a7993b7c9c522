"""How long a request would run on a replica that is never overrun: what observing has to guess.

An engine with more in it than its limit serves each request more slowly. Had we enforced, the request would
have waited here, then run at the pace of a full engine, and its place would have been free again sooner. So
a replica's pace (seconds for each token of output) is learned from requests that ran while it was about full.
Of one that runs while it is overrun

* what it needs is foretold as tokens * pace, with the tokens of one that has ended lately: its own are known
  only in the end, when its place in the books has to be free already;
* what it needed is tokens * pace with its own, at least seconds / crowd, since no engine serves more when it
  is overrun than when it is full, and at most the seconds that it really took.

`crowd` is what the replica held, as a share of what it may hold: the mean of that at the beginning and at the
end. Before a replica has once been about full there is no pace, and all is as it really was, too long.
"""

from collections import deque

_ABOUT_FULL = 0.1  # from there on both sides
_MEMORY = 0.95
_KEPT = 200


class Pace:
    __slots__ = ("_lately", "_seconds_per_token")

    def __init__(self) -> None:
        self._seconds_per_token: float | None = None
        self._lately: deque[int] = deque(maxlen=_KEPT)  # tokens of those that ended last

    def foretold(self, draw: float) -> float | None:
        """Seconds that a request will need; None where nobody knows. `draw` is uniform in [0, 1)."""
        pace, lately = self._seconds_per_token, self._lately
        return None if pace is None or not lately else lately[int(draw * len(lately))] * pace

    def needed(self, seconds: float, tokens: int, crowd: float) -> float:
        """Seconds that a request would have needed that wrote so many tokens in so many seconds."""
        tokens += 1  # the prompt takes its time too
        self._lately.append(tokens)
        pace = self._seconds_per_token
        if abs(crowd - 1.0) <= _ABOUT_FULL:
            new = seconds / tokens
            self._seconds_per_token = new if pace is None else _MEMORY * pace + (1 - _MEMORY) * new
        if pace is None or crowd <= 1.0:
            return seconds
        return min(seconds, max(seconds / crowd, tokens * pace))
