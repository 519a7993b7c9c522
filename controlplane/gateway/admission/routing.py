"""Routing: which replica a request is sent to.

Each model that is asked for has one line (`line.py`), or two where there are two pools:

    longest sequence (prompt and reserved answer)  <=  boundary, and the short pool takes it whole:   short
    else                                                                                              long

The boundary is about likely sizes: a careless `max_tokens` alone makes no request long. But a pool takes it
whole only if all the output that the client allows fits too: an engine answers 400 to a limit over its
context, and cuts an answer that comes to the end of it. Without a limit the likely size decides, so the
context of the short pool should leave some room over the boundary.

In its line's pool a request goes

1. to the replica that its prefix belongs to, if it has room and is not much fuller than the choice of 2. The
   owner is the highest random weight of (prefix, replica): every gateway finds the same one without asking,
   and when a replica comes or goes only its own prefixes move;
2. else to the one with less load of two drawn at random. Of all the least loaded is what every gateway
   would choose at the same moment;
3. else, if neither has room, to the least loaded of all that have;
4. else to the other pool, if spilling is open and it can hold the request.

Spilling opens where the own pool is nearly full and the other one is not, and shuts at lower loads than it
opens at: otherwise both pools would soon hold the mix that they were split for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from controlplane.gateway.admission.line import Line
from controlplane.gateway.admission.outcomes import Parted
from controlplane.gateway.admission.replica import Replica, ReplicaSpec
from controlplane.gateway.admission.settings import AdmissionSettings, RoutingSettings
from controlplane.gateway.admission.ticket import Ticket
from controlplane.policy.limits.law import UNLIMITED

_MASK = (1 << 64) - 1
_LOOK_AGAIN_SECONDS = 0.1
_CREDIT = 1 / 16
"""Of a replica's KV cache, as output: some 35 requests of a chat on an H100, and a thirtieth of the bound."""


class SpillGate:
    """Whether requests of one pool may go to the other."""

    __slots__ = ("_from", "_into", "_look_at", "_settings", "is_open")

    def __init__(
        self, settings: RoutingSettings, own: list[Replica], other: list[Replica], is_open: bool
    ) -> None:
        self._settings = settings
        self._from, self._into = own, other
        self._look_at = 0.0
        self.is_open = is_open

    def look(self, now: float) -> bool:
        if now >= self._look_at:
            self._look_at = now + _LOOK_AGAIN_SECONDS
            own, other, settings = _mean_load(self._from, now), _mean_load(self._into, now), self._settings
            if self.is_open:
                self.is_open = own >= settings.spill_shuts_at and other <= settings.spill_into_until
            else:
                self.is_open = own >= settings.spill_opens_at and other <= settings.spill_into_at_most
        return self.is_open


class Routes:
    """All replicas, and the lines that lead to them."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._boundary = settings.pools.boundary if settings.pools else 0
        self._lines: dict[tuple[str, str], Line] = {}  # by model and pool ("" where all are one)
        self.replicas: dict[str, Replica] = {}
        self._gone: dict[str, Replica] = {}  # not told of any more, with requests that have not ended
        self.models: frozenset[str] = frozenset()  # all that some replica says it serves, in rotation or not
        self._takes_any = False  # some replica does not say what it serves
        self._short_takes: dict[str, float] = {}  # by model: the longest sequence that its short pool takes
        self._longest: dict[str, float] = {}  # by model: the same of any pool
        self._empty: dict[str, tuple[frozenset[str], Line]] = {}  # pools without replicas: what they served

    def set_boundary(self, tokens: int) -> None:
        self._boundary = tokens

    @property
    def parted(self) -> Parted | None:
        """How the two pools are parted; None where there are no two."""
        pair = self._settings.pools
        if pair is None:
            return None
        longest = max(self._short_takes.values(), default=0.0)
        return Parted(pair.short, self._boundary, int(longest) if 0 < longest < inf else None)

    def set_replicas(self, specs: Iterable[ReplicaSpec], share: float) -> None:
        """The replicas that there are. What runs on others goes on there."""
        known = {**self._gone, **self.replicas}
        self.replicas = {}
        for spec in sorted(specs, key=lambda spec: spec.name):
            replica = known.pop(spec.name, None)
            if replica is None:
                replica = Replica(spec, self._settings)
            replica.describe(spec, share)
            self.replicas[spec.name] = replica
        for replica in known.values():
            replica.in_rotation = False
        self._gone = {name: replica for name, replica in known.items() if replica.is_busy}
        oldest: dict[str, float] = {}
        for replica in self.replicas.values():
            if replica.in_rotation:
                since = replica.spec.ready_since
                pool = replica.spec.pool
                oldest[pool] = min(oldest.get(pool, inf), -inf if since is None else since)
        for replica in self.replicas.values():
            replica.age_against(oldest.get(replica.spec.pool, -inf))
        self._lead()

    def set_empty_pools(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Pools without replicas, and what they are known to serve (nothing: not known)."""
        empty = {}
        for pool, models in pools.items():
            known = self._empty.get(pool)
            line = Line(self._settings) if known is None else known[1]
            line.belong(pool)
            empty[pool] = (models, line)
        self._empty = empty

    def line(self, model: str, sequence_tokens: int, full_tokens: int) -> Line | None:
        """The line of a request whose longest sequence is likely to have `sequence_tokens` in the end, and
        may have `full_tokens`; None where nobody serves the model."""
        if model not in self.models:
            empty = self._empty_line(model)
            if empty is not None or not self._takes_any:
                return empty
            model = ""
        pool = self._pool(model, sequence_tokens, full_tokens)
        line = self._lines.get((model, pool))
        if line is None:
            line = self._lines[model, pool] = Line(self._settings)
            self._fill(line, model, pool)
        return line

    def choose(self, ticket: Ticket, now: float, ceiling: float) -> Replica | None:
        """The replica that the request is to be sent to; None where none has room for it now."""
        line = ticket.line
        chosen = best(line.home, ticket, now, ceiling)
        if chosen is None:
            return best(line.spill, ticket, now, ceiling) if self.can_spill(line, now) else None
        prefix = ticket.request.prefix
        if prefix is not None and len(line.home) > 1:
            owner = _owner(prefix, line.home)
            if (
                owner is not chosen
                and owner.takes(ticket, now, ceiling)
                and self._is_close(owner, chosen, now)
            ):
                return owner
        return chosen

    def choose_of(
        self, freed: Iterable[Replica], ticket: Ticket, now: float, ceiling: float
    ) -> Replica | None:
        """The same among a few replicas that have just got room: no other has."""
        line = ticket.line
        reach = line.reach
        chosen = best([r for r in freed if r in reach and r not in line.spill], ticket, now, ceiling)
        if chosen is None and self.can_spill(line, now):
            chosen = best([r for r in freed if r in line.spill], ticket, now, ceiling)
        return chosen

    def claimable(self, ticket: Ticket, now: float) -> Replica | None:
        """The replica to keep for a request that fits nowhere: where it will fit first, most likely.

        A claim of a lower rank gives way to it.
        """
        line = ticket.line
        replicas = line.home
        if line.spill and not any(replica.in_rotation for replica in replicas) and self.can_spill(line, now):
            replicas = line.spill
        return least_loaded([r for r in replicas if _can_be_kept(r, ticket, now)], ticket, now)

    def any_of(self, ticket: Ticket, now: float) -> Replica | None:
        """Where a request goes that is sent whatever its size and the load (observe mode)."""
        line = ticket.line
        inside = [r for r in (*line.home, *line.spill) if r.in_rotation and r not in ticket.excluded]
        fitting = [r for r in inside if r.suits(ticket)]
        healthy = [r for r in fitting if now >= r.paused_until and r.breaker.allows(now)]
        at_home = [r for r in healthy if r not in line.spill]
        of = at_home or healthy or fitting or inside
        return min(of, key=lambda replica: replica.open_load(now), default=None)

    def can_spill(self, line: Line, now: float) -> bool:
        return line.gate is not None and line.gate.look(now)

    def _is_close(self, owner: Replica, chosen: Replica, now: float) -> bool:
        settings = self._settings.routing
        margin = settings.affinity_load_margin
        # Where neither budget nor limit is known loads are all alike, and sequences are all that there is.
        limit = owner.ledger.limit if owner.ledger.limit < UNLIMITED else 0.0
        if owner.ledger.sequences - chosen.ledger.sequences > max(
            settings.affinity_sequences_margin, margin * limit
        ):
            return False
        return owner.load(0, 0, now) <= chosen.load(0, 0, now) + margin

    def _empty_line(self, model: str) -> Line | None:
        """That of the pool that would serve the model, had it replicas."""
        for models, line in self._empty.values():
            if model in models:
                return line
        if self._takes_any:
            return None
        return next((line for models, line in self._empty.values() if not models), None)

    def _pool(self, model: str, sequence_tokens: int, full_tokens: int) -> str:
        pair = self._settings.pools
        if pair is None:
            return ""
        takes = self._short_takes.get(model, 0.0)
        whole = min(full_tokens, self._longest.get(model, inf))  # more than that nobody takes
        return pair.short if sequence_tokens <= min(self._boundary, takes) and whole <= takes else pair.long

    def _serving(self, model: str) -> list[Replica]:
        return [
            replica
            for replica in self.replicas.values()
            if not replica.spec.models or model in replica.spec.models
        ]

    def _takes_at_most(self, model: str, pool: str | None) -> float:
        """The longest sequence that some replica of the pool (None: of any) takes."""
        return max(
            (
                min(replica.longest_tokens, replica.holds_tokens)
                for replica in self._serving(model)
                if pool in (None, replica.spec.pool)
            ),
            default=0.0,
        )

    def _lead(self) -> None:
        """Lead all lines to the replicas that there are now."""
        self.models = frozenset(model for replica in self.replicas.values() for model in replica.spec.models)
        self._takes_any = any(not replica.spec.models for replica in self.replicas.values())
        pair = self._settings.pools
        if pair is not None:
            models = ("", *self.models)
            self._short_takes = {model: self._takes_at_most(model, pair.short) for model in models}
            self._longest = {model: self._takes_at_most(model, None) for model in models}
        for (model, pool), line in list(self._lines.items()):
            if model and model not in self.models and not any(line.queued):
                del self._lines[model, pool]
            else:
                self._fill(line, model, pool)

    def _fill(self, line: Line, model: str, pool: str) -> None:
        serving = self._serving(model)
        line.home = [replica for replica in serving if pool in ("", replica.spec.pool)]
        line.spill = [replica for replica in serving if pool not in ("", replica.spec.pool)]
        line.reach = frozenset(serving)
        was_open = line.gate is not None and line.gate.is_open
        line.gate = SpillGate(self._settings.routing, line.home, line.spill, was_open) if line.spill else None
        line.belong(pool or (serving[0].spec.pool if serving else line.pool))
        line.longest_tokens = max((replica.spec.max_model_len or inf for replica in serving), default=inf)
        line.most_tokens = max((replica.holds_tokens for replica in serving), default=inf)
        line.is_served = any(replica.in_rotation for replica in serving)
        budgets = [replica.spec.kv_tokens or inf for replica in serving]
        line.slack = self._settings.output_weight * max(budgets, default=inf)
        line.credit = _CREDIT * line.slack if line.slack < inf else 0.0


def best(replicas: Sequence[Replica], ticket: Ticket, now: float, ceiling: float) -> Replica | None:
    """The less loaded of two drawn, of those that take the request; where neither does, the best of all."""
    count = len(replicas)
    if count > 1:
        tokens, sequences = ticket.tokens, ticket.request.sequences
        place = ticket.draw * count
        i = int(place)
        j = (i + 1 + int((place - i) * (count - 1))) % count
        first, second = replicas[i], replicas[j]
        if first.takes(ticket, now, ceiling):
            if not second.takes(ticket, now, ceiling):
                return first
            less = second.load(tokens, sequences, now) < first.load(tokens, sequences, now)
            return second if less else first
        if second.takes(ticket, now, ceiling):
            return second
        if count == 2:
            return None
    return least_loaded([r for r in replicas if r.takes(ticket, now, ceiling)], ticket, now)


def _can_be_kept(replica: Replica, ticket: Ticket, now: float) -> bool:
    claimant = replica.claimant
    return (
        replica.in_rotation
        and (claimant is None or claimant.rank > ticket.rank)
        and replica.suits(ticket)
        and now >= replica.paused_until
        and replica.breaker.allows(now)
    )


def least_loaded(replicas: Sequence[Replica], ticket: Ticket, now: float) -> Replica | None:
    """The one with the least load; None of none."""
    if len(replicas) < 2:
        return replicas[0] if replicas else None
    tokens, sequences = ticket.tokens, ticket.request.sequences
    return min(replicas, key=lambda replica: replica.load(tokens, sequences, now))


def _mean_load(replicas: list[Replica], now: float) -> float:
    """Of those in rotation; a pool without any is full."""
    loads = [replica.load(0, 0, now) for replica in replicas if replica.in_rotation]
    return sum(loads) / len(loads) if loads else inf


def _owner(prefix: int, replicas: list[Replica]) -> Replica:
    """The replica with the highest random weight for this prefix."""
    highest, owner = -1, replicas[0]
    for replica in replicas:
        mixed = ((prefix ^ replica.seed) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed ^= mixed >> 32
        if mixed > highest:
            highest, owner = mixed, replica
    return owner
