"""Cumulative counters that survive a restart of what they count.

A counter never goes down. Where it does, or where the process is known to be a new one, it began
again at 0, so the increase since the last sample is the new counter's own value: what the old
process counted between the last scrape and its death is lost, and never guessed. This is the rule
of Prometheus's `increase()`, plus the process's start time, which also tells a restart whose new
counter has already outgrown the old one.
"""


def went_back(previous: float, current: float) -> bool:
    """Whether the counter itself shows that it began again."""
    return current < previous


def increase(previous: float, current: float, *, restarted: bool = False) -> float:
    """Growth between two samples; never negative, never more than the current value after a reset."""
    return current if restarted or went_back(previous, current) else current - previous


def process_restarted(previous_start: float | None, current_start: float | None) -> bool:
    """Whether two `process_start_time_seconds` belong to different processes.

    Start times are computed from the boot time and wander by some hundredths of a second between
    reads on some kernels, hence the tolerance of one second. An absent time tells nothing.
    """
    if previous_start is None or current_start is None:
        return False
    return abs(current_start - previous_start) > 1.0
