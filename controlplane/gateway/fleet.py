"""The engines as this gateway knows them: where they are, what they serve, whether they get anything new.

Two tell it. While control messages come, the daemon says which replicas there are and which are in rotation.
Alone, it goes by its own discovery and its own looks:

    starting     has not answered `/v1/models` yet (a port that is open is no model that is there)
    in           has answered once; a look that fails later changes nothing by itself: breakers see failures
    unready      has answered nothing for `GONE_SECONDS`, no look and no request, while others do: if none
                 does, the fault is ours

Sans-I/O: looks are told to it, times are arguments (seconds of one clock that never goes back).
"""

from collections.abc import Iterable, Mapping

import msgspec

from controlplane.gateway.admission.replica import ReplicaReading, ReplicaSpec, Rotation
from controlplane.gateway.model_list import ModelCard, Served, max_model_len, merged
from controlplane.gateway.outbound import Origin, UnreachableError, origin_of
from controlplane.gateway.piece_size import PieceSize
from controlplane.signals.control import ReplicaOrder
from controlplane.signals.kv_size import engine_kv_tokens
from controlplane.signals.samples import Scrape, Signals, Target

GONE_SECONDS = 90.0
_AT_START_SECONDS = 30.0
"""Replicas that answer within this time after our own start have been ready for we do not know how long."""


class _Known:
    """One replica."""

    __slots__ = (
        "answered_at",
        "cards",
        "draining_since",
        "engine",
        "kv_tokens",
        "name",
        "order",
        "origin",
        "piece_size",
        "pool",
        "ready_since",
        "seen_since",
        "url",
    )

    def __init__(self, name: str, pool: str, url: str, now: float) -> None:
        self.name = name
        self.pool = pool
        self.url = url
        self.origin = origin_of(url)
        self.piece_size = PieceSize()
        self.seen_since = now
        self.answered_at: float | None = None
        self.ready_since: float | None = None
        self.cards: tuple[ModelCard, ...] = ()
        self.kv_tokens: int | None = None
        self.engine = "auto"
        self.order: ReplicaOrder | None = None
        self.draining_since: float | None = None


class Where(msgspec.Struct, frozen=True):
    """A replica to look at."""

    name: str
    url: str


class Fleet:
    """See above."""

    def __init__(self, now: float, pools: Iterable[str] = ()) -> None:
        self._began = now
        self._pools = frozenset(pools)  # that are configured
        self._known: dict[str, _Known] = {}
        self._had: dict[str, tuple[ModelCard, ...]] = {}  # by pool, what its replicas serve or served
        self._origins: dict[str, Origin] = {}
        self._unix_offset = 0.0

    # What it is told

    def set_targets(self, targets: Iterable[Target], now: float) -> None:
        """Alone: our own discovery has found these."""
        found = {target.name: target for target in targets}
        self._keep({name: (target.pool, target.url) for name, target in found.items()}, now)
        for name, known in self._known.items():
            known.order = None
            known.engine = found[name].engine

    def obey(self, orders: Iterable[ReplicaOrder], now: float) -> None:
        """Steered: these there are. Times in them must be of our clock already."""
        orders = tuple(orders)
        self._keep({order.name: (order.pool, order.url) for order in orders}, now)
        for order in orders:
            known = self._known[order.name]
            known.order = order
            known.kv_tokens = order.kv_tokens or known.kv_tokens  # holds when nobody steers any more
            if order.rotation != Rotation.DRAINING:
                known.draining_since = None
            elif known.draining_since is None:
                known.draining_since = now

    def took_models(self, name: str, cards: tuple[ModelCard, ...], now: float) -> None:
        """A replica has answered `/v1/models`."""
        known = self._known.get(name)
        if known is None or not cards:
            return
        if known.answered_at is None and now - self._began > _AT_START_SECONDS:
            known.ready_since = now
        known.answered_at = now
        known.cards = cards
        self._had[known.pool] = self._of_pool(known.pool)

    def answered(self, name: str, now: float) -> None:
        """A replica has answered a request. Under load an engine does that when it has no time for looks."""
        known = self._known.get(name)
        if known is not None and known.answered_at is not None:
            known.answered_at = now

    def took_scrape(self, scrape: Scrape, at: float) -> ReplicaReading | None:
        """A page of a replica was read at `at`; what admission is to know of it."""
        known = self._known.get(scrape.target)
        if known is None:
            return None
        engines = scrape.engines.values()
        budgets = [tokens for engine in engines if (tokens := engine_kv_tokens(engine)) is not None]
        if budgets and len(budgets) == len(scrape.engines):
            known.kv_tokens = int(sum(budgets))
        return ReplicaReading(
            name=scrape.target,
            at=at,
            running=_total(engines, "running"),
            waiting=_total(engines, "waiting"),
            kv_usage=max((u for e in engines if (u := e.numbers.get("kv_usage")) is not None), default=None),
        )

    # What it knows

    def specs(self, now: float) -> list[ReplicaSpec]:
        """All replicas as admission is told of them."""
        rotations = {name: self._rotation(known, now) for name, known in self._known.items()}
        if not any(rotation is Rotation.IN for rotation in rotations.values()):
            for name, known in self._known.items():  # who can reach nothing blames itself
                if known.order is None and rotations[name] is Rotation.UNREADY:
                    rotations[name] = Rotation.IN
        return [self._spec(known, rotations[name]) for name, known in self._known.items()]

    def empty_pools(self) -> dict[str, frozenset[str]]:
        """Pools without any replica (scaled to zero), with what they served; nothing: not known."""
        there = {known.pool for known in self._known.values()}
        return {
            pool: frozenset(str(card["id"]) for card in self._had.get(pool, ()))
            for pool in sorted(self._pools | self._had.keys())
            if pool not in there
        }

    def origin(self, name: str) -> Origin:
        """Where to send. Raises UnreachableError for a replica that is not there any more."""
        origin = self._origins.get(name)
        if origin is None:
            raise UnreachableError("it is not there any more")
        return origin

    def piece_size(self, name: str) -> PieceSize:
        """How many tokens its pieces hold; nothing is known of a replica that is not there any more."""
        known = self._known.get(name)
        return PieceSize() if known is None else known.piece_size

    def replicas_of(self, model: str) -> list[str]:
        """Those that serve a model, in rotation or not."""
        return [
            known.name for known in self._known.values() if any(card["id"] == model for card in known.cards)
        ]

    def max_model_len(self, model: str) -> int | None:
        """The longest context that any replica of a model takes; None where not known."""
        lengths = [
            length
            for known in self._known.values()
            for card in known.cards
            if card["id"] == model and (length := max_model_len((card,))) is not None
        ]
        return max(lengths, default=None)

    def model_list(self, allowed: Iterable[str] | None, now: float) -> list[ModelCard] | None:
        """What `/v1/models` shows; None where nothing is known."""
        served = [
            Served(known.pool, known.cards, self._is_listed(known, now)) for known in self._known.values()
        ]
        pools = {known.pool for known in self._known.values()}
        empty = {pool: cards for pool, cards in self._had.items() if pool not in pools}
        return merged(served, empty, allowed)

    def targets(self) -> tuple[Target, ...]:
        """Where all of them are, by orders or by our own discovery."""
        return tuple(
            Target(known.name, known.pool, known.url, known.engine) for known in self._known.values()
        )

    def to_look_at(self) -> list[Where]:
        return [Where(known.name, known.url) for known in self._known.values()]

    def has_answered(self, name: str) -> bool:
        known = self._known.get(name)
        return known is not None and known.answered_at is not None

    def draining_since(self, name: str) -> float | None:
        known = self._known.get(name)
        return None if known is None else known.draining_since

    @property
    def is_empty(self) -> bool:
        return not self._known

    # Inside

    def _keep(self, wanted: Mapping[str, tuple[str, str]], now: float) -> None:
        kept: dict[str, _Known] = {}
        for name, (pool, url) in wanted.items():
            known = self._known.get(name)
            if known is None or known.url != url:
                known = _Known(name, pool, url, now)
            known.pool = pool
            kept[name] = known
        self._known = kept
        self._origins = {name: known.origin for name, known in kept.items()}

    def _rotation(self, known: _Known, now: float) -> Rotation:
        if known.order is not None:
            return Rotation(known.order.rotation)
        if known.answered_at is None:
            return Rotation.STARTING
        return Rotation.UNREADY if now - known.answered_at > GONE_SECONDS else Rotation.IN

    def _is_listed(self, known: _Known, now: float) -> bool:
        if known.answered_at is None or now - known.answered_at > GONE_SECONDS:
            return False
        return self._rotation(known, now) in (Rotation.IN, Rotation.DRAINING)

    def _spec(self, known: _Known, rotation: Rotation) -> ReplicaSpec:
        order = known.order
        # One that has not said yet what it serves will serve what its pool does.
        cards = known.cards or self._had.get(known.pool, ())
        spec = ReplicaSpec(
            name=known.name,
            pool=known.pool,
            models=tuple(str(card["id"]) for card in cards),
            rotation=rotation,
            kv_tokens=known.kv_tokens,
            max_model_len=max_model_len(known.cards),
            ready_since=known.ready_since,
        )
        if order is None:
            return spec
        return msgspec.structs.replace(
            spec,
            kv_tokens=order.kv_tokens or spec.kv_tokens,
            max_model_len=order.max_model_len or spec.max_model_len,
            ready_since=order.ready_since,
            ready_expected_at=order.ready_expected_at,
        )

    def _of_pool(self, pool: str) -> tuple[ModelCard, ...]:
        cards = {
            str(card["id"]): card
            for known in self._known.values()
            if known.pool == pool
            for card in known.cards
        }
        return tuple(cards.values())


def _total(engines: Iterable[Signals], signal: str) -> float | None:
    values = [value for engine in engines if (value := engine.numbers.get(signal)) is not None]
    return sum(values) if values else None
