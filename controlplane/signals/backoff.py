"""How long to leave something alone that fails: once, for everybody who tries again."""

_MOST_DOUBLINGS = 32  # far beyond any limit, and far from where a float overflows


def backoff_seconds(failures: int, luck: float, *, first_seconds: float, limit_seconds: float) -> float:
    """The wait after `failures` in a row, at least one; it doubles from `first_seconds` to `limit_seconds`.

    `luck` (0..1) takes up to half of it away, so that those who wait for the same thing do not come back
    together.
    """
    longest = min(limit_seconds, first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return longest * (1.0 - luck / 2.0)
