"""Quantities as Kubernetes writes them: `9334m`, `9k`, `1.5Gi`, `12e3`."""

import re
from decimal import Decimal

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([eE][+-]?\d{1,3}|[numkMGTPE]|[KMGTPE]i)?")
_FACTORS = {
    **{suffix: Decimal(10) ** power for suffix, power in zip("num", (-9, -6, -3), strict=True)},
    **{suffix: Decimal(10) ** (3 * i) for i, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** i for i, suffix in enumerate("KMGTPE", 1)},
}
_LONGEST = 64


def quantity(text: str) -> float:
    """The number that a quantity stands for. Raises ValueError of anything else."""
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"not a quantity like 9334m, 9k or 1.5Gi (got {text[:_LONGEST]!r})")
    number, suffix = match.groups()
    if suffix is None:
        return float(number)
    factor = _FACTORS.get(suffix)
    return float(Decimal(number) * factor if factor is not None else Decimal(number + suffix))
