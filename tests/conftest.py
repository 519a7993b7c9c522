"""What all tests go by."""

import signal

from hypothesis import settings

# No deadline: a machine that is busy with something else is no failure of ours.
# The same examples in every run, so that a change fails for what it changed;
# `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("controlplane", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("controlplane")

# A shell that starts us in the background has us ignore Ctrl-C, and so would each process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
