"""A closed interval of real numbers: what is proven where a single number would be a guess."""

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """All values from `low` to `high`, both included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval from {self.low} to {self.high} is empty")

    @property
    def width(self) -> float:
        return self.high - self.low

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def clip(self, value: float) -> float:
        """The point of the interval nearest to `value`."""
        return min(max(value, self.low), self.high)


def exactly(value: float) -> Interval:
    return Interval(value, value)
