"""From decisions to actuators: what may be carried out, and carrying it out without holding up the tick.

In this order: a hold forbids everything; an override of the mode on the replica or node wins over one on
its pool; that wins over the mode in the settings; the default is to observe. All of it is asked again just
before an actuator acts, because orders may have changed while the decision waited.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from controlplane.actuators.actuator import Actuator
from controlplane.daemon.settings import DaemonSettings
from controlplane.signals.decision import Decision, Mode, Orders
from controlplane.signals.snapshot import FleetSnapshot

APPLY_SECONDS = 10.0
_MOST_WAITING = 100  # decisions an actuator may be behind


def ruled(
    decision: Decision, actuator: Actuator, snapshot: FleetSnapshot, settings: DaemonSettings
) -> Decision:
    """The decision with its mode, and its outcome so far: "held", "observed" or "pending"."""
    pool = _pool(decision.target, snapshot)
    configured = settings.mode(actuator.name, pool)
    overridden = _overridden_mode(decision.target, pool, snapshot.orders)
    mode = overridden or configured
    if snapshot.orders.hold is not None or (overridden is Mode.OBSERVE and configured is Mode.ENFORCE):
        outcome = "held"
    else:
        outcome = "pending" if mode is Mode.ENFORCE else "observed"
    return msgspec.structs.replace(decision, mode=mode, outcome=outcome)


def _pool(target: str, snapshot: FleetSnapshot) -> str | None:
    if target in snapshot.replicas:
        return snapshot.replicas[target].pool
    return target if target in snapshot.pools else None


def _overridden_mode(target: str, pool: str | None, orders: Orders) -> Mode | None:
    modes = {(o.scope, o.name): Mode(o.value) for o in orders.overrides if o.setting == "mode"}
    places = [("replica", target), ("node", target)]
    if pool is not None:
        places.append(("pool", pool))
    return next((modes[place] for place in places if place in modes), None)


class Dispatch:
    """All actuators, each with a queue of its own, so that a slow one delays nobody else."""

    def __init__(
        self,
        actuators: Iterable[Actuator],
        report: Callable[[Decision], None],
        apply_seconds: float = APPLY_SECONDS,
    ) -> None:
        """`report` is called in the loop with each decision whose outcome became known after its tick."""
        self._report, self._apply_seconds = report, apply_seconds
        self._queues: dict[str, asyncio.Queue[Decision]] = {}
        self._by_action: dict[str, Actuator] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._now: tuple[FleetSnapshot, DaemonSettings] | None = None
        for actuator in actuators:
            self._by_action |= dict.fromkeys(actuator.actions, actuator)
            queue: asyncio.Queue[Decision] = asyncio.Queue(_MOST_WAITING)
            self._queues[actuator.name] = queue
            self._tasks.append(asyncio.create_task(self._work(actuator, queue), name=actuator.name))

    def take(
        self, decisions: tuple[Decision, ...], snapshot: FleetSnapshot, settings: DaemonSettings
    ) -> tuple[Decision, ...]:
        """The decisions of a tick with mode and outcome; those that are "pending" are under way.

        Nothing is carried out before the caller gives way to the loop, so what is written down about them
        before that comes before any report.
        """
        self._now = snapshot, settings
        return tuple(self._take(decision, snapshot, settings) for decision in decisions)

    async def close(self) -> None:
        """Stop acting. What waits or is under way is left; the decisions are taken anew after the start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, decision: Decision, snapshot: FleetSnapshot, settings: DaemonSettings) -> Decision:
        actuator = self._by_action.get(decision.action)
        if actuator is None:
            return decision
        decision = ruled(decision, actuator, snapshot, settings)
        if decision.outcome == "pending":
            try:
                self._queues[actuator.name].put_nowait(decision)
            except asyncio.QueueFull:
                why = f"failed: {_MOST_WAITING} decisions wait for {actuator.name} already"
                return msgspec.structs.replace(decision, outcome=why)
        return decision

    async def _work(self, actuator: Actuator, queue: asyncio.Queue[Decision]) -> None:
        while True:
            decision = await queue.get()
            assert self._now is not None
            decision = ruled(decision, actuator, *self._now)
            if decision.outcome == "pending":
                decision = msgspec.structs.replace(decision, outcome=await self._apply(actuator, decision))
            self._report(decision)

    async def _apply(self, actuator: Actuator, decision: Decision) -> str:
        try:
            async with asyncio.timeout(self._apply_seconds):
                await actuator.apply(decision)
        except TimeoutError:
            return f"failed: no answer within {self._apply_seconds:g} s"
        except Exception as error:
            return f"failed: {' '.join(str(error).split())[:500] or type(error).__name__}"
        return "done"
