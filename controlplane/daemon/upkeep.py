"""What the leader does in a cluster besides carrying out decisions: it lets new pods in and writes Events.

Neither waits for a mode or a hold. A gate that nobody opens keeps a pod out for ever, so that a rolling
update would stand still because of us.
"""

from typing import NamedTuple

from controlplane.actuators.cluster_events import ClusterEvents
from controlplane.actuators.pod import PodActuator
from controlplane.signals.decision import Decision
from controlplane.signals.snapshot import FleetSnapshot


class Upkeep(NamedTuple):
    """Done once a second by who leads."""

    pods: PodActuator
    events: ClusterEvents

    def done(self, decision: Decision, seen: FleetSnapshot) -> None:
        """A decision whose outcome is known."""
        self.events.take(decision, seen)

    async def keep(self, seen: FleetSnapshot) -> None:
        """Raises CallFailedError, once all has been tried."""
        try:
            await self.pods.admit_new(seen)
        finally:
            await self.events.write()
