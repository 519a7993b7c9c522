"""A sum over about the last so many seconds, in a few numbers."""


class RollingSum:
    """What was added within the last `window_seconds`, to the grain of a tenth of it.

    Times are seconds of any clock; one that is earlier than the last one told counts as the last one.
    """

    __slots__ = ("_slot", "_slot_seconds", "_sums")

    _SLOTS = 10

    def __init__(self, window_seconds: float) -> None:
        self._slot_seconds = window_seconds / self._SLOTS
        self._sums = [0.0] * self._SLOTS
        self._slot = 0

    def add(self, now: float, amount: float = 1.0) -> None:
        slot = int(now / self._slot_seconds)
        if slot > self._slot:
            self._move_to(slot)
        self._sums[self._slot % self._SLOTS] += amount

    def total(self, now: float) -> float:
        slot = int(now / self._slot_seconds)
        if slot > self._slot:
            self._move_to(slot)
        return sum(self._sums)

    def _move_to(self, slot: int) -> None:
        """Forget what is too old by then."""
        if slot - self._slot >= self._SLOTS:
            self._sums = [0.0] * self._SLOTS
        else:
            for old in range(self._slot + 1, slot + 1):
                self._sums[old % self._SLOTS] = 0.0
        self._slot = slot
