"""Retry budget: how many requests may be sent a second time, so that retries never become the load.

    retries within `window`  <=  `ratio` * successes within `window` + `least`

A retry is worth something when one replica of many fails; when all of them do, the budget is gone at once
and the failure is told to the client. `least` lets a quiet fleet retry at all.
"""

from controlplane.gateway.admission.rolling import RollingSum
from controlplane.gateway.admission.settings import RetrySettings


class RetryBudget:
    __slots__ = ("_retries", "_settings", "_successes")

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self._successes = RollingSum(settings.window)
        self._retries = RollingSum(settings.window)

    def succeeded(self, now: float) -> None:
        self._successes.add(now)

    def take(self, now: float) -> bool:
        """Whether one more retry is within the budget; if so it is spent."""
        allowed = self._settings.ratio * self._successes.total(now) + self._settings.least
        if self._retries.total(now) + 1 > allowed:
            return False
        self._retries.add(now)
        return True
