"""Makes pages: takes what the daemon knows at one moment and has it put into words and markup.

What one reader is shown of a tick is shown to the next as it is (unless somebody has ordered something), and
the journal is asked once a second, however many look.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from htpy import Renderable

from controlplane.api.alerts import Board
from controlplane.api.page import document, fleet, rows
from controlplane.api.page.headline import headline, stance
from controlplane.api.page.history import History, Point, point
from controlplane.api.page.records import entries
from controlplane.api.page.rows import Row, Wanted
from controlplane.api.shapes import Alert
from controlplane.api.state import State
from controlplane.signals.decision import Decision, Event, Orders
from controlplane.signals.snapshot import FleetSnapshot, PoolSnapshot
from controlplane.signals.status import Status

MOST_DECISIONS, MOST_ENTRIES, MOST_EVENTS, MOST_ALERTS, MOST_CHARTS = 500, 25, 15, 50, 12
HOUR_SECONDS = 3600.0
KEEP_SECONDS = 1.0
_MOST_KEPT = 100
_NO_FLEET = FleetSnapshot(0.0, 0, {}, {}, Orders(), ())


class Records(NamedTuple):
    """What the journal has of the last hour, newest first. `is_all`: these are all decisions; `trouble` says
    why there are none."""

    decisions: Sequence[Decision] = ()
    events: Sequence[Event] = ()
    is_all: bool = True
    trouble: str = ""


class Moment(NamedTuple):
    """All that a page is made of, at Unix time `now`. Nothing in it changes any more."""

    now: float
    snapshot: FleetSnapshot | None
    status: Status
    orders: Orders
    alerts: tuple[Alert, ...]
    records: Records
    points: dict[str, tuple[Point, ...]]


class Desk:
    """The pages of one daemon."""

    def __init__(self, state: State, board: Board, history: History) -> None:
        self._state, self._board, self._history = state, board, history
        self._reading = asyncio.Lock()
        self._records: tuple[float, Records] | None = None
        self._made: dict[tuple[Wanted, bool, int, Orders], tuple[float, bytes]] = {}

    async def page(self, wanted: Wanted, *, is_part: bool) -> bytes:
        """The whole page, or only the part that is asked for anew."""
        now, snapshot = self._state.now(), self._state.snapshot()
        key = wanted, is_part, 0 if snapshot is None else snapshot.tick, self._state.orders()
        self._made = {k: kept for k, kept in self._made.items() if 0 <= now - kept[0] < KEEP_SECONDS}
        if key in self._made:
            return self._made[key][1]
        moment = self._moment(await self._read())
        make: Callable[[document.Sight], Renderable] = document.live if is_part else document.whole
        # A large page takes a while to make; the loop ticks meanwhile.
        made = await asyncio.to_thread(lambda: str(make(sight(moment, wanted))).encode())
        if len(self._made) < _MOST_KEPT:
            self._made[key] = now, made
        return made

    def _moment(self, records: Records) -> Moment:
        state, now = self._state, self._state.now()
        snapshot = state.snapshot()
        pools = _NO_FLEET.pools if snapshot is None else snapshot.pools
        points = {name: self._history.of(name) for name in pools}
        alerts = tuple(self._board.firing(now))
        return Moment(now, snapshot, state.status(), state.orders(), alerts, records, points)

    async def _read(self) -> Records:
        async with self._reading:
            now = self._state.now()
            if self._records is None or not 0 <= now - self._records[0] < KEEP_SECONDS:
                self._records = now, await self._read_anew(now - HOUR_SECONDS)
            return self._records[1]

    async def _read_anew(self, since: float) -> Records:
        # Asked by action, because one that is frequent would leave no room for one that is rare.
        known = sorted({action for action, _ in self._state.status().decisions})
        actions: Sequence[str | None] = known or (None,)
        found: list[Decision] = []
        is_all = True
        try:
            for action in actions:
                some = await self._state.decisions(
                    since=since, target=None, action=action, limit=MOST_DECISIONS
                )
                found += some
                is_all = is_all and len(some) < MOST_DECISIONS
            events = await self._state.events(since=since, target=None, kind=None, limit=MOST_EVENTS)
        except OSError as error:
            return Records(trouble=f"The journal cannot be read: {error}")
        return Records(sorted(found, key=lambda one: -one.at), events, is_all)


def sight(moment: Moment, wanted: Wanted) -> document.Sight:
    """What the page shows of a moment."""
    now, status, records = moment.now, moment.status, moment.records
    seen = moment.snapshot or _NO_FLEET
    pools = rows.pool_rows(seen, status, now)
    return document.Sight(
        now=now,
        tick=seen.tick,
        tick_age=max(0.0, now - (status.started_at if moment.snapshot is None else seen.at)),
        stance=stance(moment.orders, status, now),
        headline=headline(
            moment.snapshot, status, moment.alerts, records.decisions, now, is_all=records.is_all
        ),
        orders=moment.orders,
        pools=pools,
        boundary=rows.boundary(seen, status, now),
        charts=[_chart(row, seen.pools[row.name], moment) for row in pools[:MOST_CHARTS]],
        entries=entries(records.decisions, MOST_ENTRIES),
        events=records.events,
        records_trouble=records.trouble,
        alerts=moment.alerts[:MOST_ALERTS],
        replicas=rows.replica_rows(seen, status, wanted, now),
        pool_names=sorted(seen.pools),
        nodes=rows.node_rows(seen, wanted, now) if seen.nodes else None,
        gpus=rows.gpus_in_words(seen),
        wanted=wanted,
    )


def _chart(row: Row, pool: PoolSnapshot, moment: Moment) -> fleet.Chart:
    objective, now = moment.status.objectives.get(row.name), point(pool, moment.now)
    return fleet.Chart(row.name, row.cells[0], now, moment.points[row.name], objective)
