"""Which versions of an engine print the names that a page has.

A name that is there says: not before its `since`, not after its `until`. A name that every version prints
(`always`) and that is not there says: before its `since`, or after its `until`. The second holds only for a
whole page, so it is used only where nothing else is missing: a page that someone filtered has holes.
"""

import re
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from controlplane.sources.dialects import Dialect, Row


class Bound(NamedTuple):
    """An end of a range, as the tables write versions (numbers with dots, or year-month)."""

    version: str
    inclusive: bool


class VersionRange(NamedTuple):
    """The versions from `low` to `high`; None where the names on the page set no end."""

    low: Bound | None = None
    high: Bound | None = None

    @property
    def possible(self) -> bool:
        """False if no single version can have printed such a page."""
        return self.low is None or self.high is None or _in_order(self.low, self.high)

    def may_have(self, row: Row) -> bool:
        """Whether some version in this range prints `row`'s name."""
        begins = self.high is None or not row.since or _in_order(Bound(row.since, True), self.high)
        lasts = self.low is None or not row.until or _in_order(self.low, Bound(row.until, True))
        return begins and lasts

    def __str__(self) -> str:
        """Like ">=0.12 <0.16"; "any" where the names tell nothing, "none" where they contradict."""
        if not self.possible:
            return "none"
        low = [f"{'>=' if self.low.inclusive else '>'}{_short(self.low.version)}"] if self.low else []
        high = [f"{'<=' if self.high.inclusive else '<'}{_short(self.high.version)}"] if self.high else []
        return " ".join(low + high) or "any"


def version_range(dialect: Dialect, present: AbstractSet[str], *, whole: bool) -> VersionRange:
    """The versions that the row names in `present` allow; `whole` if absence may be believed at all."""
    there = [row for row in dialect.metrics if row.name in present]
    lows = [Bound(row.since, True) for row in there if row.since]
    highs = [Bound(row.until, True) for row in there if row.until]
    oldest = _key(max(lows, key=_low_key).version) if lows else ()
    always = [row for row in dialect.metrics if row.always]
    expected = {row.name for row in always if not row.until and _key(row.since) <= oldest}
    if whole and expected and expected <= present:
        missing = [row for row in always if row.name not in present]
        lows += [Bound(row.until, False) for row in missing if row.until and _key(row.since) <= oldest]
        highs += [Bound(row.since, False) for row in missing if _key(row.since) > oldest]
    return VersionRange(max(lows, key=_low_key, default=None), min(highs, key=_high_key, default=None))


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _low_key(bound: Bound) -> tuple[tuple[int, ...], bool]:
    return _key(bound.version), not bound.inclusive


def _high_key(bound: Bound) -> tuple[tuple[int, ...], bool]:
    return _key(bound.version), bound.inclusive


def _in_order(low: Bound, high: Bound) -> bool:
    if _key(low.version) == _key(high.version):
        return low.inclusive and high.inclusive
    return _key(low.version) < _key(high.version)


def _short(version: str) -> str:
    return version.removesuffix(".0") if version.count(".") == 2 else version
