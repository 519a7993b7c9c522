"""The table of DCGM's fields (`dcgm.toml`): which printed name carries which signal, and in which unit."""

from functools import cache
from importlib.resources import files
from math import isnan

import msgspec

from controlplane.signals.reading import Reason

_BLANK_INT64 = 9.2e18  # 0x7ffffffffffffff0 and up, however it was rounded when it was printed
_BLANK_FP64 = 2.0**47
_BLANK_INT32 = 0x7FFFFFF0
_BLANKS_OF_A_KIND = 16  # blank, not found, not supported, not permitted, ...


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field; the words are those of `dcgm.toml`."""

    names: tuple[str, ...]
    signal: str
    id: int
    most: float
    least: float = 0.0
    scale: float = 1.0
    disabled: float | None = None

    def value(self, printed: float) -> float | Reason:
        """The signal's value, or why what is printed is none."""
        if isnan(printed):
            return Reason.NOT_A_NUMBER
        if printed == self.disabled:
            return Reason.UNAVAILABLE
        if self.least <= printed <= self.most:
            return printed * self.scale
        return Reason.UNAVAILABLE if _is_blank(printed) else Reason.IMPOSSIBLE


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    field: tuple[Field, ...]


@cache
def fields() -> tuple[Field, ...]:
    """All fields, in the order of the table."""
    text = files(__package__).joinpath("dcgm.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table).field


@cache
def by_name() -> dict[str, tuple[Field, int]]:
    """The field behind a printed name, and how new that name is: 0 is the newest."""
    return {name: (field, age) for field in fields() for age, name in enumerate(field.names)}


def _is_blank(printed: float) -> bool:
    return (
        printed >= _BLANK_INT64
        or 0 <= printed - _BLANK_FP64 < _BLANKS_OF_A_KIND
        or 0 <= printed - _BLANK_INT32 < _BLANKS_OF_A_KIND
    )
