"""How many files a process may have open."""

import contextlib
import resource


def raise_file_limit() -> None:
    """As many as the system allows: thousands of connections are as many files, and the usual limit is there
    for old programs' sake."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
