"""What a decision on a limit says, and which of two decisions is the newer one."""

import re

from controlplane.signals.decision import Decision

MOST = 1_000_000
"""As much as no limit at all; a higher one is a mistake."""

_NUMBER = re.compile(r"\d{1,7}", re.ASCII)


class RefusedError(ValueError):
    """A decision that cannot be carried out as it stands; the text says why."""


class UnfinishedError(Exception):
    """Our part is done and more is to come; the text says how far it is. The decision may be given again."""


def limit_of(decision: Decision) -> int:
    """The limit that a decision asks for. Raises RefusedError."""
    limit = int(decision.new) if _NUMBER.fullmatch(decision.new) else 0
    if not 1 <= limit <= MOST:
        what = f"the limit of {decision.target} is a whole number from 1 to {MOST}"
        raise RefusedError(f"{what} (got {decision.new[:50]!r})")
    return limit


class Newest:
    """The number of the newest decision on each target, as its id tells: "TICK-NUMBER".

    Ids and not times, because a clock may be set back. Bounded: targets come and go.
    """

    _MOST_TARGETS = 10_000

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, ...]] = {}

    def take(self, decision: Decision) -> None:
        """Note a decision, or the same one again. Raises RefusedError where a newer one has come."""
        number = _number(decision.id)
        newest = self._newest.pop(decision.target, ())
        self._newest[decision.target] = max(number, newest)
        if number < newest:
            after = "-".join(map(str, newest))
            raise RefusedError(f"superseded by decision {after} on {decision.target}")
        if len(self._newest) > self._MOST_TARGETS:
            del self._newest[next(iter(self._newest))]


def _number(id_: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", id_, re.ASCII))
