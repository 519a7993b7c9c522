"""Whether the daemon's loop runs, in a sentence."""

from controlplane.signals.status import Status

SHORTEST_PATIENCE_SECONDS = 10.0


def stuck(status: Status, now: float) -> str:
    """Why the loop counts as stuck at Unix time `now`, or "" while it runs.

    It is stuck when three ticks in a row are missing, but never before some seconds have passed: a
    machine under load may be late.
    """
    patience = max(3 * status.tick_interval_seconds, SHORTEST_PATIENCE_SECONDS)
    last = status.started_at if status.last_tick_at is None else status.last_tick_at
    if now - last <= patience:
        return ""
    return (
        f"the loop has not ticked for {now - last:.0f} s; it should every {status.tick_interval_seconds:g} s"
    )


def not_ready(status: Status, now: float) -> str:
    """Why what the API tells is not to be relied on yet (or any more), or "" when it is."""
    if status.last_tick_at is None:
        return stuck(status, now) or "the first tick has not run yet"
    return stuck(status, now)
