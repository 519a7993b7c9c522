"""A map of bounded size: what was not used for longest is forgotten first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Holds at most `most` values; `get` and `make` count as use."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def make(self, key: K, new: Callable[[], V]) -> V:
        """The value of `key`, made by `new` where there is none."""
        value = self.get(key)
        if value is None:
            value = self._values[key] = new()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
