"""How long a replica of a pool takes to start, from being created until it serves: learned of those that did.

    cold start = the `_SHARE` quantile of the latest start-ups; not less than is configured until there are
                 `_MOST` of them, then not less than `_LEAST` of it
    stuck      = longer than `_STUCK` cold starts, and than `startup_timeout` in any case

The configured values hold until a start-up was seen. One that took longer than `startup_timeout` tells what
is wrong with it, not how long the next one takes; one that was over within a look was hardly seen at all, as
where discovery names replicas only once they serve. Slower is believed at once and quicker late: of those
that are asked for together the quick ones are there first, and the rest is sometimes taken away.
"""

import math
from collections.abc import Iterable, Sequence

from controlplane.policy.scaling.forecast import LOOK_SECONDS
from controlplane.policy.scaling.settings import ScaleSettings

_MOST = 32  # start-ups that are remembered: weeks of a pool that rests, hours of one that swings
_SHARE = 0.9
_LEAST = 0.5  # what seems too short costs more than what is too long: nothing would be there in time
_STUCK = 3.0  # log-normal with a coefficient of variation of 0.3, one in half a million takes so long


def observe(before: Sequence[float], took: Iterable[float], settings: ScaleSettings) -> tuple[float, ...]:
    """The start-ups remembered (seconds, the newest last), with those that are over now."""
    believed = (seconds for seconds in took if LOOK_SECONDS < seconds <= settings.startup_timeout)
    return (*before, *believed)[-_MOST:]


def learned(start_ups: Sequence[float], settings: ScaleSettings) -> ScaleSettings:
    """The settings with `cold_start` and `startup_timeout` as the pool has shown them to be."""
    if not start_ups:
        return settings
    least = settings.cold_start * (_LEAST if len(start_ups) >= _MOST else 1.0)
    cold_start = max(least, _quantile(start_ups, _SHARE))
    timeout = min(settings.startup_timeout, _STUCK * cold_start)
    return settings.model_copy(update={"cold_start": cold_start, "startup_timeout": timeout})


def _quantile(values: Iterable[float], share: float) -> float:
    """Straight between the two values that are nearest."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
