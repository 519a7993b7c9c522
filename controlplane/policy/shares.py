"""Shares of the replicas' budgets for several gateways that cannot ask each other at each request.

The leader grants each gateway a share of every replica for a term; after it the gateway falls back to its
standing share, a constant of its configuration. One law, at every moment:

    sum over gateways of (the granted share while the grant runs, else the standing share)  <=  1

How the leader (`Shares`) keeps it, whatever is lost, late or dead:
* A grant is given only for what all others cannot hold at any moment until it ends: of each other gateway the
  largest grant that may still be in force, and its standing share too, unless it has shown us a grant that
  runs for longer. So a share moves to another gateway only when the old grant has lapsed or was given up.
* A gateway that is kept under its standing share is kept there for longer than anybody's larger grant runs.
* While not all gateways that there are have joined, nobody gets more than its standing share: of those that
we
  have not met nothing is known but that they have theirs.
* A gateway that fell silent keeps its standing share: it may still be there, cut off from us. `leave` ends
  that: it said goodbye, or whoever runs it says that it is gone.
* A new leader does not know what was granted before it. For one term it gives nothing that a gateway does
  not hold already; by then all gateways have joined and all older grants have lapsed.
* Clocks differ. `clock_tolerance_seconds` bounds the difference of any two.

And the gateway (`Share`): a grant of a lower leader's term, or an older one of the same leader, is not taken.
Before the first grant of its life it holds nothing for `patience_seconds`, two terms or more: if there is a
leader, it is known there within one and a grant arrives; if there is none, all others are back at their
standing shares by then. A gateway that never reaches a leader which others do reach takes its standing share
after that time all the same: it must be safe alone, and nobody can know of it. Who has all of it by
configuration shares with nobody and needs no leader.
"""

from collections.abc import Mapping
from math import inf

from controlplane.signals.control import Grant

_TINY = 1e-9  # sums of shares are compared up to this
_MOMENT_SECONDS = 0.001  # a difference that Unix times in floats can show


class Share:
    """What one gateway holds."""

    def __init__(self, standing: float, *, now: float, patience_seconds: float = 30.0) -> None:
        if not 0.0 <= standing <= 1.0:
            raise ValueError(f"a standing share lies between 0 and 1 (got {standing})")
        self.standing = standing
        self.grant: Grant | None = None
        self._nothing_until = now if standing == 1.0 else now + patience_seconds

    def take(self, grant: Grant) -> bool:
        """A grant has arrived. False if it is not newer than the one that is known."""
        if self.grant is not None and grant.order <= self.grant.order:
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
        at = self._nothing_until if self.grant is None else self.grant.expires_at
        return at if now < at else inf


class _Known:
    """What the leader knows of one gateway: the grants that may be in force, in their order."""

    __slots__ = ("grants", "shown", "standing", "weight")

    def __init__(self, standing: float) -> None:
        self.standing = standing
        self.weight = 1.0
        self.grants: list[Grant] = []
        self.shown: Grant | None = None  # the newest one that it has told us to have

    def show(self, grant: Grant) -> None:
        """It holds this grant, so that older ones will never be in force again."""
        if self.shown is None or grant.order >= self.shown.order:
            self.shown = grant
            self.grants = [grant, *(other for other in self.grants if other.order > grant.order)]

    def forget(self, now: float, tolerance: float) -> None:
        """What has lapsed for certain is forgotten."""
        lapsed = [grant for grant in self.grants if grant.expires_at + tolerance <= now]
        if self.shown is not None and any(grant.order >= self.shown.order for grant in lapsed):
            self.shown = None  # it may have taken that one and be back at its standing share
        self.grants = [grant for grant in self.grants if grant.expires_at + tolerance > now]

    def most(self, until: float, tolerance: float) -> float:
        """The most that it can hold at any moment until then; `forget` was just called."""
        granted = [grant.share for grant in self.grants]
        kept = self.shown is not None and all(grant.expires_at - tolerance > until for grant in self.grants)
        return max(granted) if kept else max([*granted, self.standing])

    def outlasts(self) -> float:
        """The latest end of a grant of more than its standing share; 0 of none."""
        return max((g.expires_at for g in self.grants if g.share > self.standing), default=0.0)


class Shares:
    """The leader's side. `term` is this leader's own, grants run for about `term_seconds`."""

    def __init__(
        self, *, term: int, now: float, term_seconds: float = 10.0, clock_tolerance_seconds: float = 1.0
    ) -> None:
        self._term = term
        self._version = 0
        self._term_seconds = term_seconds
        self._tolerance = clock_tolerance_seconds
        self._blind_until = now + term_seconds + 3 * clock_tolerance_seconds
        self._gateways: dict[str, _Known] = {}

    def join(self, gateway: str, standing: float) -> None:
        """A gateway is there (again). Raises ValueError where the standing shares add up to more than 1."""
        others = sum(known.standing for name, known in self._gateways.items() if name != gateway)
        if others + standing > 1.0 + _TINY:
            raise ValueError(
                f"gateway {gateway} has a standing share of {standing:g}, "
                f"but those of the others add up to {others:g}"
            )
        known = self._gateways.get(gateway)
        if known is None:
            self._gateways[gateway] = _Known(standing)
        else:
            known.standing = standing

    def leave(self, gateway: str) -> None:
        """A gateway is gone for certain: it holds nothing any more."""
        self._gateways.pop(gateway, None)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Shares are to follow these: the tokens a second that each gateway is offered, say."""
        for name, known in self._gateways.items():
            known.weight = max(0.0, weights.get(name, 0.0))

    def number(self) -> int:
        """The number of a message that grants nothing: messages and grants are counted together."""
        self._version += 1
        return self._version

    def renew(
        self, gateway: str, now: float, shown: Grant | None = None, *, all_joined: bool = True
    ) -> Grant:
        """The next grant for a gateway that has joined; `shown` is the newest that it has, lapsed or not.

        `all_joined` says whether every gateway that there is has.
        To be asked for about ten times a term: what a gateway shows is how we know that it was lowered.
        """
        for known in self._gateways.values():
            known.forget(now, self._tolerance)
        known = self._gateways[gateway]
        if shown is not None and shown.expires_at + self._tolerance > now:
            known.show(shown)
        if now < self._blind_until:
            share, until = self._blindly(known, now, shown)
        else:
            share, until = self._next(known, now, self._wanted(known) if all_joined else known.standing)
        grant = Grant(gateway, share, until, self._term, self.number())
        known.grants.append(grant)
        return grant

    def _blindly(self, known: _Known, now: float, shown: Grant | None) -> tuple[float, float]:
        """What the gateway holds anyhow."""
        if shown is None:
            return 0.0, self._blind_until
        if now < shown.expires_at - self._tolerance:
            return shown.share, shown.expires_at
        return known.standing, now + self._term_seconds

    def _next(self, known: _Known, now: float, wanted: float) -> tuple[float, float]:
        others = [other for other in self._gateways.values() if other is not known]
        until = now + self._term_seconds
        share = min(wanted, self._left(others, until))
        if share < wanted:
            # Others that are held under their standing shares leave more, but not for a whole term.
            sooner = min((g.expires_at for other in others for g in other.grants), default=until)
            sooner -= 2 * self._tolerance + _MOMENT_SECONDS
            if now + self._term_seconds / 4 < sooner < until and self._left(others, sooner) > share:
                until, share = sooner, min(wanted, self._left(others, sooner))
        if share < known.standing:
            latest = max((other.outlasts() for other in others), default=0.0)
            until = max(until, latest + 2 * self._tolerance)
        return max(0.0, share), until

    def _left(self, others: list[_Known], until: float) -> float:
        """What no other gateway can hold at any moment until then."""
        return 1.0 - sum(other.most(until + self._tolerance, self._tolerance) for other in others)

    def _wanted(self, known: _Known) -> float:
        """The share that this gateway would have if everything could be moved at once.

        Half by weight, half evenly: who is idle now must be able to begin.
        """
        even = 1.0 / len(self._gateways)
        weights = sum(other.weight for other in self._gateways.values())
        return 0.5 * known.weight / weights + 0.5 * even if weights > 0 else even
