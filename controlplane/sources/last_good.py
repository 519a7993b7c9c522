"""The last good answer of a place that is asked for targets, kept while the place fails.

A file that is half written and a name server that is away say nothing about the engines, so their last
good answer stands as long as that lasts. An empty answer where there were targets is more often a fault
than the truth (a mount that went away, a service without endpoints for a moment), so it is believed only
after GRACE_SECONDS. Each change is told once, as an event.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from controlplane.signals.decision import Event, Severity

GRACE_SECONDS = 300.0
"""How long an empty answer must last before it is believed."""


class Found(NamedTuple):
    """One target that a place names; `pool` and `pod` ("namespace/name") are empty where it names none."""

    url: str
    pool: str = ""
    pod: str = ""


class Trouble(msgspec.Struct, frozen=True):
    """No usable answer; `cause` is a sentence part."""

    cause: str


class _State(StrEnum):
    WELL = "well"
    EMPTY = "empty"
    FAILING = "failing"


class LastGood:
    """What one place (a file, a DNS name) last answered. `found` is what counts now."""

    def __init__(self, place: str, found: tuple[Found, ...] = ()) -> None:
        """`found` is known from before and stands until the place has answered."""
        self.place = place
        self.found = found
        self._state = _State.WELL
        self._empty_since: float | None = None

    def take(
        self, answer: tuple[Found, ...] | Trouble, now: float, at: float, *, sure: bool = False
    ) -> tuple[Event, ...]:
        """Take a new answer at monotonic time `now`; the event, at Unix time `at`, if anything changed.

        `sure`: even an empty answer is the truth.
        """
        if isinstance(answer, Trouble):
            self._empty_since = None
            return self._turn(_State.FAILING, at, f"{answer.cause}; {self._kept()}")
        if answer or sure:
            self.found, self._empty_since = answer, None
            return self._turn(_State.WELL, at, f"names {_targets(len(answer))} again")
        if self._empty_since is None:
            self._empty_since = now
        if self.found and now - self._empty_since >= GRACE_SECONDS:
            dropped, self.found = len(self.found), ()
            sentence = f"has named no target for {GRACE_SECONDS:g} s; {_targets(dropped)} dropped"
            return (self._event("targets-gone", Severity.WARNING, at, sentence),)
        return self._turn(_State.EMPTY, at, f"names no target; {self._kept(f' for {GRACE_SECONDS:g} s')}")

    def _turn(self, state: _State, at: float, sentence: str) -> tuple[Event, ...]:
        if state is self._state:
            return ()
        self._state = state
        if state is _State.WELL:
            return (self._event("discovery-recovered", Severity.INFO, at, sentence),)
        return (self._event(f"discovery-{state}", Severity.WARNING, at, sentence),)

    def _kept(self, how_long: str = "") -> str:
        if not self.found:
            return "there is nothing from before to keep"
        return f"the last {_targets(len(self.found))} kept{how_long}"

    def _event(self, kind: str, severity: Severity, at: float, sentence: str) -> Event:
        return Event(at, kind, self.place, severity, f"{self.place} {sentence}")


def _targets(number: int) -> str:
    return "1 target" if number == 1 else f"{number} targets"
