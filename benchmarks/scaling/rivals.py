"""Laws of scaling that are in use, each with its makers' constants, and one main setting that can be swept.

All see what is queued at the gateway as if it waited in the engines: behind a limiter nothing else would.
"""

import math
from collections import deque

from benchmarks.scaling.pool import OUTPUT_TOKENS, PROMPT_TOKENS
from benchmarks.scaling.sight import Sight

KV_TOKENS = 440_000.0
_HELD_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS / 2  # by a sequence in flight, on average
_LEAST = 1


class Hpa:
    """The Kubernetes HPA (v2) around a recommendation: up by at most 100 % or 4 replicas in 15 s, down to
    the highest recommendation of the last 300 s."""

    interval = 15
    tolerance = 0.1

    def __init__(self) -> None:
        self._recommended: deque[tuple[int, int]] = deque()

    def recommend(self, sight: Sight) -> int:
        raise NotImplementedError

    def look(self, sight: Sight) -> int:
        wanted = max(_LEAST, self.recommend(sight))
        self._recommended.append((sight.now, wanted))
        while self._recommended[0][0] <= sight.now - 300:
            self._recommended.popleft()
        if wanted < sight.asked:
            wanted = min(sight.asked, max(one for _, one in self._recommended))
        return min(wanted, max(2 * sight.asked, sight.asked + 4))


class HpaOnWaiting(Hpa):
    """Waiting requests of a pod on average against `target`; a pod that is not ready counts as if none
    waited in it where that makes the answer smaller, and not at all where the count goes down."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target

    def recommend(self, sight: Sight) -> int:
        if not sight.ready:
            return sight.asked
        ratio = sight.queued / sight.ready / self._target
        if abs(ratio - 1) <= self.tolerance:
            return sight.asked
        if ratio < 1:
            return math.ceil(ratio * sight.ready)
        ratio = sight.queued / sight.asked / self._target
        return sight.asked if ratio <= 1 + self.tolerance else math.ceil(ratio * sight.asked)


class KedaOnWaiting(Hpa):
    """KEDA's Prometheus trigger: the sum of all waiting requests, `threshold` for each replica (an external
    metric of the kind AverageValue)."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self._threshold = threshold

    def recommend(self, sight: Sight) -> int:
        needed = sight.queued / self._threshold
        if abs(needed / max(1, sight.asked) - 1) <= self.tolerance:
            return sight.asked
        return math.ceil(needed)


class Kpa:
    """Knative's: concurrency over 60 s against `target` for each replica; over 6 s in panic, which begins
    where that asks for twice the ready ones, ends 60 s after, and takes none away. Not under half of the
    ready ones."""

    interval = 2
    stable_seconds, panic_seconds = 60, 6

    def __init__(self, target: float) -> None:
        self._target = target
        self._panic_since: int | None = None
        self._most = 0

    def look(self, sight: Sight) -> int:
        ready = sight.ready
        if not ready:
            return max(_LEAST, sight.asked)
        stable, panic = (self._wanted(sight, s) for s in (self.stable_seconds, self.panic_seconds))
        if sight.mean_concurrency(self.panic_seconds) / self._target >= 2 * ready:
            self._most = 0 if self._panic_since is None else self._most
            self._panic_since = sight.now
        elif self._panic_since is not None and sight.now - self._panic_since > self.stable_seconds:
            self._panic_since = None
        if self._panic_since is None:
            return max(_LEAST, stable)
        self._most = max(self._most, panic, stable, sight.asked)
        return self._most

    def _wanted(self, sight: Sight, seconds: int) -> int:
        needed = math.ceil(sight.mean_concurrency(seconds) / self._target)
        return min(max(needed, sight.ready // 2), 1000 * sight.ready)


class AibrixKpa(Kpa):
    """AIBrix's: 180 and 60 s, a tolerance of 10 %, at most twice and at least half of the ready ones, down
    only 300 s after any change."""

    interval = 10
    stable_seconds, panic_seconds = 180, 60

    def __init__(self, target: float) -> None:
        super().__init__(target)
        self._changed_at = -(10**9)

    def look(self, sight: Sight) -> int:
        wanted = super().look(sight)
        if wanted < sight.asked and sight.now - self._changed_at < 300:
            return sight.asked
        if wanted != sight.asked:
            self._changed_at = sight.now
        return wanted

    def _wanted(self, sight: Sight, seconds: int) -> int:
        needed = sight.mean_concurrency(seconds) / self._target
        if abs(needed / max(1, sight.asked) - 1) <= 0.1:
            return sight.asked
        return min(max(math.ceil(needed), sight.ready // 2), 2 * sight.ready)


class Wva(Hpa):
    """llm-d's variant autoscaler (token capacity): tokens resident and queued over `up` of the supply with
    what is pending ask for more, under `up * 0.70 / 0.85` of it for less. A replica's supply is the least
    of 0.8 of its KV cache and what was in use when five or more waited for it. An HPA carries it out."""

    def __init__(self, up: float) -> None:
        super().__init__()
        self._up, self._down = up, up * 0.70 / 0.85
        self._saturated: deque[float] = deque(maxlen=10)

    def recommend(self, sight: Sight) -> int:
        if not sight.ready:
            return sight.asked
        resident = sight.in_flight * _HELD_TOKENS
        if sight.queued / sight.ready >= 5:
            self._saturated.append(resident / sight.ready)
        supply = 0.8 * KV_TOKENS
        if self._saturated:
            supply = min(supply, sum(self._saturated) / len(self._saturated))
        demand = resident + sight.queued * (PROMPT_TOKENS + OUTPUT_TOKENS)
        required = demand / self._up - sight.asked * supply
        if required > 0:
            return sight.asked + math.ceil(required / supply)
        spare = sight.ready * supply - demand / self._down
        return sight.asked - math.floor(max(0.0, spare) / supply)
