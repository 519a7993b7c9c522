"""Broken GPUs leave the fleet, and only broken ones do. Pure.

    observe(memory, observation, settings, now) -> (memory', outcome)          # observe.py

The way of one fault, each step a file:

1. `sight`    which sources see which node; "cannot see" is a state of its own and never a verdict.
2. `xid_news` which XIDs are new: the gauge keeps its last value for weeks.
3. `checks`   what speaks against a GPU now, and which checks are blind for want of which signal.
4. `blame`    an application's XIDs: is it the program or the GPU?
5. `faults`   findings become faults with a time of their own: hold-down before, hysteresis after.
6. `storm`    the same cause on many nodes is one event and no action.
7. `budget`   what may be taken, counted on the result; the breaker stops additions only.
8. `release`  proof that a fault is gone; a person's word.
9. `eviction` engines that stay on a node that was taken are asked to leave it, where that is wanted.

The driver's own recovery action comes first, the table of XIDs second, then whatever agrees.
"""
