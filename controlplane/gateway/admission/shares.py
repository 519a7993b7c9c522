"""Shares of the replicas' budgets for several gateways that cannot ask each other at each request.

The leader grants each gateway a share of every replica for a term; after the term the gateway falls back to
its standing share, a constant of its configuration. One law, at every moment:

    sum over gateways of (granted share while its grant runs, standing share otherwise)  <=  1

How the leader (`Shares`) keeps it, whatever is lost, late or dead:
* A grant is given only for what all others cannot hold at any moment until it ends: of each other gateway
  the larger of its running grants and, where they all end before ours does, its standing share.
* What was granted is held until it expires. It can be renewed and raised before, and lowered only for the time after:
  the gateway may never hear of it. So a share moves to another gateway when the old grant has lapsed.
* A gateway that fell silent keeps its standing share: it may still be there, cut off from us. `leave` ends
  that: it said goodbye, or whoever runs it says that it is gone.
* A new leader does not know what its predecessor granted. It renews what gateways show it, and gives nothing more
  until one whole term has passed and all of those grants have lapsed.
* Clocks differ. The leader counts a grant as held for `clock_tolerance` longer than it says.

And the gateway (`Share`): grants with a lower leader's term, or an older version of the same one, are not
taken. Before the first grant of its life it holds nothing for `patience` seconds: if a leader is there, one
grant arrives by then, and if none is, whatever was granted to others has lapsed. A gateway that is alone has
a standing share of 1 and needs no leader.
"""

from collections.abc import Mapping
from math import inf

import msgspec

_TINY = 1e-9  # sums of shares are compared up to this


class Grant(msgspec.Struct, frozen=True):
    """A gateway's `share` (0..1) of every replica until `expires_at` (Unix seconds).

    `term` counts leaders and `version` the grants of one leader.
    """

    gateway: str
    share: float
    expires_at: float
    term: int
    version: int


class Share:
    """What one gateway holds."""

    def __init__(self, standing: float, *, now: float, patience_seconds: float) -> None:
        if not 0.0 <= standing <= 1.0:
            raise ValueError(f"a standing share lies between 0 and 1 (got {standing})")
        self.standing = standing
        self.grant: Grant | None = None
        # Who has all of it by configuration shares with nobody.
        self._nothing_until = now if standing == 1.0 else now + patience_seconds

    def take(self, grant: Grant) -> bool:
        """A grant has arrived. False if it is older than the one that is known."""
        known = self.grant
        if known is not None and (grant.term, grant.version) <= (known.term, known.version):
            return False
        self.grant = grant
        return True

    def held(self, now: float) -> float:
        """The share at `now`."""
        if self.grant is not None:
            return self.grant.share if now < self.grant.expires_at else self.standing
        return self.standing if now >= self._nothing_until else 0.0

    def changes_at(self, now: float) -> float:
        """When the share next changes by time alone; infinity if it does not."""
        if self.grant is not None:
            return self.grant.expires_at if now < self.grant.expires_at else inf
        return self._nothing_until if now < self._nothing_until else inf


class _Known:
    """What the leader knows of one gateway: its grants that may still be running."""

    __slots__ = ("grants", "standing", "weight")

    def __init__(self, standing: float) -> None:
        self.standing = standing
        self.weight = 1.0
        self.grants: list[Grant] = []

    def most(self, now: float, until: float, tolerance: float) -> float:
        """The most that it can hold at any moment from `now` to `until`."""
        self.grants = [grant for grant in self.grants if grant.expires_at + tolerance > now]
        running = [grant.share for grant in self.grants]
        # Its clock may be ahead of ours, so that its grants lapse before they do for us.
        lapses = not any(grant.expires_at - tolerance > until for grant in self.grants)
        return max([*running, self.standing] if lapses else running)


class Shares:
    """The leader's side. `term` is this leader's; grants last `term_seconds`."""

    def __init__(
        self,
        *,
        term: int,
        now: float,
        term_seconds: float = 10.0,
        clock_tolerance_seconds: float = 1.0,
    ) -> None:
        self._term = term
        self._version = 0
        self._term_seconds = term_seconds
        self._tolerance = clock_tolerance_seconds
        self._blind_until = now + term_seconds + clock_tolerance_seconds if term > 1 else now
        self._gateways: dict[str, _Known] = {}

    def join(self, gateway: str, standing: float) -> None:
        """A gateway is there (again). Raises ValueError where the standing shares add up to more than 1."""
        others = sum(known.standing for name, known in self._gateways.items() if name != gateway)
        if others + standing > 1.0 + _TINY:
            raise ValueError(
                f"gateway {gateway} has a standing share of {standing:g}, "
                f"but those of the others add up to {others:g}"
            )
        known = self._gateways.setdefault(gateway, _Known(standing))
        known.standing = max(known.standing, standing) if known.grants else standing

    def leave(self, gateway: str) -> None:
        """A gateway is gone for certain: it holds nothing any more."""
        self._gateways.pop(gateway, None)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Shares are to be proportional to these, the tokens that each gateway is offered for one."""
        for name, known in self._gateways.items():
            known.weight = max(0.0, weights.get(name, 0.0))

    def renew(self, gateway: str, now: float, shown: Grant | None = None) -> Grant:
        """The next grant for a gateway that has joined; `shown` is the grant that it holds.

        Never less than its standing share as long as others leave that much, which they do by law.
        """
        known = self._gateways[gateway]
        until = now + self._term_seconds
        if now < self._blind_until:
            share = known.standing
            if shown is not None and shown.expires_at > now:
                share = shown.share
                until = min(until, max(shown.expires_at, self._blind_until))
                known.grants.append(shown)
        else:
            others = sum(
                other.most(now, until + self._tolerance, self._tolerance)
                for name, other in self._gateways.items()
                if name != gateway
            )
            share = max(0.0, min(self._wanted(known), 1.0 - others))
        self._version += 1
        grant = Grant(gateway, share, until, self._term, self._version)
        known.most(now, until, self._tolerance)  # forgets what has lapsed
        known.grants.append(grant)
        return grant

    def _wanted(self, known: _Known) -> float:
        """The share that this gateway would have if everything could be moved at once."""
        weights = sum(other.weight for other in self._gateways.values())
        if weights <= 0:
            return 1.0 / len(self._gateways)
        # Half by demand, half evenly: who is idle now must be able to begin.
        return 0.5 * known.weight / weights + 0.5 / len(self._gateways)
