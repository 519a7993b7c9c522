"""The law of a gateway that nobody tells its limits: `policy.tick`, the same as the daemon's, on its own
pages and windows.

It begins with the limits in force, those that the daemon told last. What the configuration says of a pool's
law (its `max_limit`, say) holds here as it does there. The boundary between two pools stays where it was told
last: it moves within hours, and gateways that each see a part would part ways. Which part of a replica is
ours, and what the law makes of the rest, is in `admission/whole_view.py`. Nothing is kept while the daemon
steers: what is in force then is better than what was once found here.

Sans-I/O: Unix times are arguments.
"""

import msgspec

from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.steer import limit_of, overcommit_of
from controlplane.policy.tick import tick
from controlplane.signals.samples import OutcomeWindow, Samples, Scrape, ScrapeFailure, Target


class Found(msgspec.Struct, frozen=True):
    """What the law came to: limits and over-commit of whole replicas, by name."""

    limits: dict[str, float]
    overcommit: dict[str, float]


class OwnLaw:
    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings.model_copy(update={"pair": None})
        self._memory = Memory()
        self._targets: tuple[Target, ...] = ()

    def look(
        self,
        targets: tuple[Target, ...],
        pages: tuple[Scrape | ScrapeFailure, ...],
        windows: tuple[OutcomeWindow, ...],
        unix: float,
    ) -> Found:
        """Move the limits once, on what has come since the last call."""
        samples = Samples(
            targets=None if targets == self._targets else targets, scrapes=pages, outcomes=windows
        )
        self._targets = targets
        snapshot, _, self._memory = tick(samples, self._memory, self._settings, unix)
        replicas = snapshot.replicas.items()
        return Found(
            limits={name: limit_of(replica) for name, replica in replicas},
            overcommit={name: overcommit_of(replica, self._settings) for name, replica in replicas},
        )

    def forget(self) -> None:
        """The daemon steers."""
        self._memory, self._targets = Memory(), ()
