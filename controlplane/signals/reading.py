"""A reading: a value that is known, or unknown with the reason why; either way it has a time.

Zero traffic, a NaN, an absent series, a failed scrape, a stale value and a restart are six different
things. None of them is 0 and none of them is an exception: a consumer must look at the reason and
state what it does about it.
"""

from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Reason(StrEnum):
    """Why a reading is unknown."""

    ABSENT = "absent"  # the page was read, this series is not on it
    UNSUPPORTED = "unsupported"  # this engine has no such metric in any version
    NOT_A_NUMBER = "not-a-number"
    NOT_FINITE = "not-finite"
    IMPOSSIBLE = "impossible"  # a number that cannot be: a count below 0, a ratio over 1, buckets that fall
    NO_TRAFFIC = "no-traffic"  # a ratio or a quantile of nothing
    TOO_FEW = "too-few"  # some, but too few to say
    FIRST_SAMPLE = "first-sample"  # a rate needs two
    RESTARTED = "restarted"
    STALE = "stale"  # known once, too old now
    FROZEN = "frozen"  # the gauge stands still while nothing backs it
    NOT_SCRAPED = "not-scraped"  # never tried yet
    SCRAPE_FAILED = "scrape-failed"
    NOT_AN_ENGINE = "not-an-engine"  # a good page of something else
    NO_DATA = "no-data"  # a query answered with an empty vector
    AMBIGUOUS = "ambiguous"  # several series where one is needed
    WRONG_RESULT_TYPE = "wrong-result-type"
    CONFIGURATION_ERROR = "configuration-error"
    QUERY_FAILED = "query-failed"
    UNAVAILABLE = "unavailable"


class Quality(StrEnum):
    """How far a known value may be trusted."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    LOWER_BOUND = "lower-bound"  # a partial answer: it may raise something, never lower it


class Known(msgspec.Struct, Generic[T], frozen=True, tag_field="is", tag="known"):
    """A value measured at Unix time `at` (seconds)."""

    value: T
    at: float
    quality: Quality = Quality.EXACT


class Unknown(msgspec.Struct, frozen=True, tag_field="is", tag="unknown"):
    """No value; `at` (Unix seconds) is the time at which we learnt that there is none."""

    reason: Reason
    at: float
    detail: str = ""


Reading: TypeAlias = Known[T] | Unknown


def known(reading: Known[T] | Unknown) -> T | None:
    """The value of a known reading, None of an unknown one."""
    return reading.value if isinstance(reading, Known) else None


def aged(reading: Known[T] | Unknown, now: float, limit_seconds: float) -> Known[T] | Unknown:
    """The same reading, or an unknown (stale) one where it is older than `limit_seconds`."""
    if isinstance(reading, Known) and now - reading.at > limit_seconds:
        return Unknown(Reason.STALE, reading.at, f"last value is {now - reading.at:.0f} s old")
    return reading
