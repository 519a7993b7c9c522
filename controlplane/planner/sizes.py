"""Sizes in bytes as people write them: 80GB, 79.6GiB, 81559MiB."""

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b)?", re.IGNORECASE)
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_bytes(text: str) -> int:
    """Bytes of a size. GB is 10^9 bytes, GiB is 2^30. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size like 80GB, 79.6GiB or 81559MiB (got {text!r})")
    unit = (match[2] or "b").upper()
    scale = 1 if unit == "B" else (_BINARY if "I" in unit else _DECIMAL)[unit[0]]
    return round(float(match[1]) * scale)


def size_text(size: float) -> str:
    """Bytes in the decimal unit that fits, with four figures."""
    for unit, scale in reversed(_DECIMAL.items()):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit.replace('K', 'k')}B"
    return f"{size:.4g} B"
