"""The engine's own `max_num_seqs`, learned where nobody has told it: no page says it.

Where pages show again and again that requests wait while the same number runs and the cache has room, that
number is how many the engine runs at once. Requests also wait for a step or two because its token budget is
used up, for an adapter, for their turn: then what runs varies from page to page. So it takes three pages in a
row that agree, within 3 % (some sequences of a full batch have just ended).

A number that was learned is forgotten where more run, or where others wait although fewer do. And none binds
for ever: after three minutes of pages on which the limit was in use and nobody waited it grows, by 2 % a
page, and is forgotten in the end. One that is right is found again by the next page that shows a queue.
"""

import msgspec
from msgspec.structs import replace

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.sight import news

_PAGES = 3
_ALIKE = 0.03
_WAITING_SHARE = 0.02  # of those that run; fewer have just come
_JUST_COME = 1.0  # the same where many run; of few, one that waits is a queue
_MANY = 5.0
_FULL = 0.9  # a cache that is fuller than that is reason enough to wait
_HELD_PAGES, _GROWING_PAGES, _GROWTH = 36, 120, 1.02


class Seats(msgspec.Struct, frozen=True):
    """`running` requests ran on the last `pages` pages on which others waited; since then there were `calm`
    ones on which the limit was in use and nobody waited."""

    running: float = 0.0
    pages: int = 0
    calm: int = 0

    @property
    def number(self) -> int | None:
        """`max_num_seqs`; None while not known."""
        if self.pages < _PAGES:
            return None
        return int(self.running * _GROWTH ** max(0, self.calm - _HELD_PAGES))

    def after(self, window: Window, *, in_use: bool) -> "Seats":
        """After one more window; `in_use` says that the limit was."""
        running, waiting, usage = (
            news(reading, window) for reading in (window.running, window.waiting, window.kv_usage)
        )
        if running is None or running <= 0 or waiting is None or usage is None or usage > _FULL:
            return self
        if waiting > max(_WAITING_SHARE * running, _JUST_COME * min(1.0, running / _MANY)):
            is_alike = abs(running - self.running) <= _ALIKE * self.running
            return Seats(running, min(self.pages + 1, _PAGES) if is_alike else 1)
        if running > (1 + _ALIKE) * self.running or self.calm >= _HELD_PAGES + _GROWING_PAGES:
            return Seats()
        return replace(self, calm=self.calm + 1) if in_use else self
