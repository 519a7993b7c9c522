"""A model of the HorizontalPodAutoscaler with one external metric, and of what KEDA does beside it.

Sources: the Kubernetes documentation, "Horizontal Pod Autoscaling" (algorithm details, tolerance, scaling
policies, stabilization window, default behavior); for what it leaves open kube-controller-manager, whose
replica calculator counts in thousandths and goes by

    AverageValue    ratio = value / (target x pods); ceil(value / target), within the tolerance the pods
    Value           ratio = value / target; ceil(ratio x ready pods), within the tolerance what was asked for

and KEDA's documentation, "Scaling Deployments": which of the two kinds it makes is the trigger's
`metricType`, AverageValue where nothing is said; from and to zero it goes by whether the trigger is active.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

SYNC_SECONDS = 15


class Policy(NamedTuple):
    """How much may change within a period: percent of the count at its beginning, or pods."""

    kind: Literal["Percent", "Pods"]
    value: int
    seconds: int


class Way(NamedTuple):
    """`behavior.scaleUp` or `behavior.scaleDown`; of its policies the one that allows most counts."""

    window_seconds: int
    policies: tuple[Policy, ...]
    tolerance: float = 0.1


USUAL_UP = Way(0, (Policy("Percent", 100, 15), Policy("Pods", 4, 15)))
USUAL_DOWN = Way(300, (Policy("Percent", 100, 15),))


def way(stated: Mapping[str, Any]) -> Way:
    """One that an object states; all that it may leave out must stand there, but the tolerance."""
    policies = tuple(Policy(one["type"], one["value"], one["periodSeconds"]) for one in stated["policies"])
    return Way(stated["stabilizationWindowSeconds"], policies, float(stated.get("tolerance", 0.1)))


class Hpa:
    """One autoscaler of at least one replica; `sync` is called every SYNC_SECONDS."""

    def __init__(
        self,
        up: Way = USUAL_UP,
        down: Way = USUAL_DOWN,
        kind: Literal["AverageValue", "Value"] = "AverageValue",
        target: int = 1,
    ) -> None:
        self.up, self.down, self.kind, self.target = up, down, kind, target
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def sync(self, now: float, value: float, asked: int, there: int, ready: int) -> int:
        """The count that is asked for from now on. `asked` was until now; `there` pods are there, `ready` of
        them are ready."""
        if asked == 0:
            return 0  # disabled
        wanted = self._stable(now, self.recommendation(value, asked, there, ready), asked)
        count = max(1, self._limited(now, wanted, asked))
        if count != asked:
            self._changes.append((now, count - asked))
        return count

    def recommendation(self, value: float, asked: int, there: int, ready: int) -> int:
        """What the metric alone comes to."""
        ratio = int(value * 1000) / (self.target * 1000)
        if self.kind == "AverageValue":
            return there if self._tolerated(ratio / there if there else math.inf) else math.ceil(ratio)
        return asked if self._tolerated(ratio) else math.ceil(ratio * ready)

    def _tolerated(self, ratio: float) -> bool:
        return 1.0 - self.down.tolerance <= ratio <= 1.0 + self.up.tolerance

    def _stable(self, now: float, wanted: int, asked: int) -> int:
        """Up to the lowest, down to the highest recommendation of the window."""

        def within(seconds: int) -> list[int]:
            return [wanted, *(count for at, count in self._recommended if at > now - seconds)]

        longest = max(self.up.window_seconds, self.down.window_seconds)
        self._recommended = [(at, count) for at, count in self._recommended if at > now - longest]
        lowest, highest = min(within(self.up.window_seconds)), max(within(self.down.window_seconds))
        self._recommended.append((now, wanted))
        return min(max(asked, lowest), highest)

    def _limited(self, now: float, wanted: int, asked: int) -> int:
        """As far in this direction as the policies let it go."""

        def began(seconds: int) -> int:
            return asked - sum(change for at, change in self._changes if at > now - seconds)

        if wanted > asked:
            return min(wanted, max(asked, *(_raised(began(one.seconds), one) for one in self.up.policies)))
        return max(wanted, min(asked, *(_lowered(began(one.seconds), one) for one in self.down.policies)))


def _raised(count: int, policy: Policy) -> int:
    return count + policy.value if policy.kind == "Pods" else math.ceil(count * (1 + policy.value / 100))


def _lowered(count: int, policy: Policy) -> int:
    return count - policy.value if policy.kind == "Pods" else int(count * (1 - policy.value / 100))


class Keda:
    """What KEDA does itself: it wakes a workload of no replicas, and sends it to sleep after `cooldown`."""

    def __init__(self, least: int, cooldown_seconds: float) -> None:
        self._least, self._cooldown_seconds = least, cooldown_seconds
        self._active_at = -math.inf

    def poll(self, now: float, *, active: bool, asked: int) -> int:
        """The count that is asked for from now on."""
        if active:
            self._active_at = now
            return asked or max(1, self._least)
        sleeps = self._least == 0 and now - self._active_at >= self._cooldown_seconds
        return 0 if sleeps else asked


def replicas(current: int, value: float, tolerance: float = 0.1) -> int:
    """Where an HPA with the target AverageValue 1 goes from `current` replicas by itself."""
    up, down = USUAL_UP._replace(tolerance=tolerance), USUAL_DOWN._replace(tolerance=tolerance)
    return Hpa(up=up, down=down).recommendation(value, current, current, current)
