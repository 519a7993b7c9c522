"""The time of a run and the time of the day."""

UNIX_START = 1_767_225_600.0
"""The Unix time of the run's second 0: the first of January 2026."""
