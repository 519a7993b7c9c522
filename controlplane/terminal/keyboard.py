"""Single keys from the terminal that a command runs in, while its event loop does other things."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def keyboard(pressed: Callable[[str], None]) -> Iterator[bool]:
    """Call `pressed` with each key, in the loop; whether there is a keyboard at all.

    There is none where input comes from elsewhere, and for a command in the background. A key is one
    character, or what the terminal sends for it. Ctrl-C stays what it is.
    """
    try:
        descriptor = sys.stdin.fileno()
        is_ours = os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no input at all, or a terminal that is not ours
        is_ours = False
    if not is_ours:
        yield False
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        text = os.read(descriptor, 100).decode(errors="ignore")
        if not text:  # the terminal is gone
            loop.remove_reader(descriptor)
        for key in [text] if text.startswith("\x1b") else text:
            pressed(key)

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # each key at once and unseen
    loop.add_reader(descriptor, read)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
