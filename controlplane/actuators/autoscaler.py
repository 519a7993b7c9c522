"""Replica counts that an autoscaler fetches: KEDA from the API, the HPA as a metric.

Nothing is sent. What a pool should have is told to whoever asks (`api/autoscaling.py`), and this actuator's
mode says whether that is the wish, or the count that is there, which moves nothing.
"""

from collections.abc import Callable

from controlplane.signals.decision import SCALE, Decision
from controlplane.signals.snapshot import FleetSnapshot


class Autoscaler:
    """The actuator. `snapshot` knows which pools are scaled; those in `directly` are by `ScaleActuator`."""

    name = "autoscaler"
    actions = frozenset({SCALE})

    def __init__(
        self, snapshot: Callable[[], FleetSnapshot | None], directly: frozenset[str] = frozenset()
    ) -> None:
        self._snapshot, self._directly = snapshot, directly

    def takes(self, target: str, pool: str | None) -> bool:
        """Pools that are scaled, but not by us."""
        seen = self._snapshot()
        if seen is None or target in self._directly:
            return False
        return target in seen.pools and seen.pools[target].scale is not None

    async def apply(self, decision: Decision) -> None:
        """Nothing: the count is there to be fetched from the tick that decided it on."""
