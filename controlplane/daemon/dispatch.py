"""From decisions to actuators: what may be carried out, and carrying it out without holding up the tick.

In this order: a hold forbids everything; an override of the mode on the replica or node wins over one on
its pool; that wins over the mode in the settings; the default is to observe. What concerns two pools is done
where it may be done to both. All of it is asked again just before an actuator acts, because orders may have
changed while the decision waited.

A lasting decision (on a limit, on a boundary) says what holds from now on, not only what is to be done now.
So one that failed, or that is carried out only in part, is given to its actuator again with each tick, until
it has arrived or a newer one of its kind on the same target has come. One that was only observed, or held, is
kept as well: it is carried out once it may be. And one whose value others write too (`Repeating`) is given
again every so often after it has arrived, unless it is seen to stand; only another outcome than before is
told. Who asks to be left alone is.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from controlplane.actuators.actuator import Actuator, Repeating
from controlplane.actuators.call import CallFailedError
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.readying import ENDING
from controlplane.signals.decision import (
    LASTING,
    SET_BOUNDARY,
    SET_LIMIT,
    SET_ROTATION,
    Decision,
    Mode,
    Orders,
    Standing,
)
from controlplane.signals.snapshot import FleetSnapshot

APPLY_SECONDS = 10.0
POD = "pod"
"""The actuator whose mode counts for a replica on which none acts: somebody else asks for its readiness."""

_LONGEST_ASKED_SECONDS = 300.0  # who asks to be left alone for longer is tried all the same
_MOST_WAITING = 10_000  # decisions an actuator may be behind: one on each replica of a large fleet


def ruled(
    decision: Decision, actuator: Actuator, snapshot: FleetSnapshot, settings: DaemonSettings
) -> Decision:
    """The decision with its mode, and its outcome so far: "held", "observed" or "pending"."""
    mode, stands = standing(decision.target, actuator.name, snapshot, settings)
    return msgspec.structs.replace(decision, mode=mode, outcome=_OUTCOMES[stands])


def standing(
    target: str, actuator: str, snapshot: FleetSnapshot, settings: DaemonSettings
) -> tuple[Mode, Standing]:
    """The mode of an actuator on a target, and what that comes to with what people have ordered."""
    pools = _pools(target, snapshot) or (None,)
    each = [_standing(target, pool, actuator, snapshot, settings) for pool in pools]
    return min(each, key=lambda found: _LEAST_FIRST.index(found[1]))


def stays_out(replica: str, actuator: str, snapshot: FleetSnapshot, settings: DaemonSettings) -> bool:
    """Whether a replica that should get nothing new is kept from it: what was done stays done in a hold."""
    seen = snapshot.replicas[replica]
    if seen.out is None:
        return False
    mode, stands = standing(replica, actuator, snapshot, settings)
    enforces = Mode.ENFORCE in (mode, settings.mode(actuator, seen.pool))
    return stands is Standing.ENFORCE or (stands is Standing.HELD and enforces)


def _standing(
    target: str, pool: str | None, actuator: str, snapshot: FleetSnapshot, settings: DaemonSettings
) -> tuple[Mode, Standing]:
    configured = settings.mode(actuator, pool)
    overridden = _overridden_mode(target, pool, snapshot.orders)
    mode = overridden or configured
    if snapshot.orders.hold is not None or (overridden is Mode.OBSERVE and configured is Mode.ENFORCE):
        return mode, Standing.HELD
    return mode, Standing(mode)


_LEAST_FIRST = (Standing.OBSERVE, Standing.HELD, Standing.ENFORCE)
_OUTCOMES = {Standing.HELD: "held", Standing.ENFORCE: "pending", Standing.OBSERVE: "observed"}


def _pools(target: str, snapshot: FleetSnapshot) -> tuple[str, ...]:
    """The pools that a decision on the target concerns; none where there is no such target."""
    if target in snapshot.replicas:
        return (snapshot.replicas[target].pool,)
    boundary = snapshot.boundary
    if boundary is not None and target == boundary.name:
        return boundary.short, boundary.long
    return (target,) if target in snapshot.pools else ()


def _is_wanted(decision: Decision, snapshot: FleetSnapshot) -> bool:
    """Whether a lasting decision still says how things should be: its target may have gone, and another pod
    may have come to the address of a replica that was out."""
    if decision.action == SET_ROTATION and decision.target in snapshot.replicas:
        return (snapshot.replicas[decision.target].out is not None) == (decision.new == "out")
    return _pools(decision.target, snapshot) != ()


def _overridden_mode(target: str, pool: str | None, orders: Orders) -> Mode | None:
    of_pool = () if pool is None else (("pool", pool),)
    found = orders.override("mode", ("replica", target), ("node", target), *of_pool)
    return None if found is None else Mode(found.value)


class Dispatch:
    """All actuators, each with a queue of its own, so that a slow one delays nobody else."""

    def __init__(
        self,
        actuators: Iterable[Actuator],
        report: Callable[[Decision], None],
        apply_seconds: float = APPLY_SECONDS,
        *,
        leads: Callable[[], bool] = lambda: True,
        first: Callable[[Decision], Awaitable[None]] | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` is called in the loop with each decision whose outcome became known after its tick.

        `leads` tells whether anything may be carried out now: who follows another daemon only observes.
        `first` is waited for before anything is carried out, and prevents it where it raises.
        """
        self._first = first
        self._report, self._apply_seconds, self._leads, self._steady = report, apply_seconds, leads, steady
        self._queues: dict[str, asyncio.Queue[Decision]] = {}
        self._actuators = tuple(actuators)
        self._repeating = {one.name: one for one in self._actuators if isinstance(one, Repeating)}
        self._again: dict[tuple[str, str, str], Decision] = {}  # by actuator, action and target
        self._due: dict[tuple[str, str, str], float] = {}  # of those that are not given with each tick
        self._tasks: list[asyncio.Task[None]] = []
        self._now: tuple[FleetSnapshot, DaemonSettings] | None = None
        for actuator in self._actuators:
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
        superseded = {
            (decision.action, decision.target) for decision in decisions if decision.action in LASTING
        }
        self._give_again(superseded, snapshot, settings)
        return tuple(self._take(decision, snapshot) for decision in decisions)

    def resume(self, decisions: Iterable[Decision], snapshot: FleetSnapshot) -> None:
        """Take up what holds since before we began to act: it is given out with the next ticks, as soon as it
        may be carried out."""
        for decision in decisions:
            pool = next(iter(_pools(decision.target, snapshot)), None)
            actuator = self._actuator(decision.action, decision.target, pool)
            if actuator is not None:
                place = actuator.name, decision.action, decision.target
                self._again.setdefault(place, decision)

    async def close(self) -> None:
        """Stop acting. What waits or is under way is left; the decisions are taken anew after the start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def limit_standings(self, snapshot: FleetSnapshot, settings: DaemonSettings) -> dict[str, Standing]:
        """What may be done to the limit of each replica that has one; nothing of those on which nobody
        acts."""
        found = {}
        for name, replica in snapshot.replicas.items():
            actuator = self._actuator(SET_LIMIT, name, replica.pool) if replica.limit is not None else None
            if actuator is not None:
                found[name] = self._standing(name, actuator.name, snapshot, settings)
        return found

    def boundary_standing(self, snapshot: FleetSnapshot, settings: DaemonSettings) -> Standing | None:
        """What may be done to the boundary; None where there is none, or nobody acts on it."""
        boundary = snapshot.boundary
        if boundary is None:
            return None
        actuator = self._actuator(SET_BOUNDARY, boundary.name, boundary.short)
        return None if actuator is None else self._standing(boundary.name, actuator.name, snapshot, settings)

    def out(self, snapshot: FleetSnapshot, settings: DaemonSettings) -> frozenset[str]:
        """The replicas that get nothing new. A follower says the same as its leader."""
        found = set()
        for name, replica in snapshot.replicas.items():
            if replica.out is None:
                continue
            actuator = self._actuator(SET_ROTATION, name, replica.pool)
            if replica.out.reason == ENDING or stays_out(
                name, POD if actuator is None else actuator.name, snapshot, settings
            ):
                found.add(name)
        return frozenset(found)

    def pool_standings(
        self, snapshot: FleetSnapshot, settings: DaemonSettings
    ) -> dict[str, dict[str, Standing]]:
        """What each actuator may do in each pool, by pool and actuator; none where it has no business."""
        return {
            pool: {
                one.name: self._standing(pool, one.name, snapshot, settings)
                for one in self._actuators
                if one.takes(pool, pool)
            }
            for pool in snapshot.pools
        }

    def _actuator(self, action: str, target: str, pool: str | None) -> Actuator | None:
        fit = (one for one in self._actuators if action in one.actions)
        return next((one for one in fit if one.takes(target, pool)), None)

    def _standing(
        self, target: str, actuator: str, snapshot: FleetSnapshot, settings: DaemonSettings
    ) -> Standing:
        return standing(target, actuator, snapshot, settings)[1] if self._leads() else Standing.OBSERVE

    def _ruled(self, decision: Decision, actuator: Actuator) -> Decision:
        assert self._now is not None
        found = ruled(decision, actuator, *self._now)
        if self._leads():
            return found
        return msgspec.structs.replace(found, mode=Mode.OBSERVE, outcome=_OUTCOMES[Standing.OBSERVE])

    def _take(self, decision: Decision, snapshot: FleetSnapshot) -> Decision:
        pool = next(iter(_pools(decision.target, snapshot)), None)
        actuator = self._actuator(decision.action, decision.target, pool)
        if actuator is None:
            return decision
        decision = self._ruled(decision, actuator)
        if decision.outcome != "pending":
            self._keep(actuator, decision)
        else:
            try:
                self._queues[actuator.name].put_nowait(decision)
            except asyncio.QueueFull:
                why = f"failed: {_MOST_WAITING} decisions wait for {actuator.name} already"
                return msgspec.structs.replace(decision, outcome=why)
        return decision

    def _keep(self, actuator: Actuator, decision: Decision, seconds: float = 0.0) -> None:
        """A lasting decision, to be given out again in so many seconds."""
        if decision.action in LASTING:
            place = actuator.name, decision.action, decision.target
            self._again[place], self._due[place] = decision, self._steady() + seconds

    def _give_again(
        self, superseded: set[tuple[str, str]], snapshot: FleetSnapshot, settings: DaemonSettings
    ) -> None:
        """What has not arrived and may be carried out, but for what newer decisions take the place of."""
        again, self._again, now = self._again, {}, self._steady()
        due, self._due = self._due, {}
        for (name, action, target), decision in again.items():
            place = name, action, target
            if (action, target) in superseded or not _is_wanted(decision, snapshot):
                if decision.outcome == "pending":
                    self._report(msgspec.structs.replace(decision, outcome="superseded"))
            elif due.get(place, now) > now:
                self._again[place], self._due[place] = decision, due[place]
            elif decision.outcome == "done" and not self._repeating[name].is_undone(decision):
                self._again[place] = decision
            elif self._standing(target, name, snapshot, settings) is Standing.ENFORCE:
                with contextlib.suppress(asyncio.QueueFull):
                    self._queues[name].put_nowait(decision)
            else:
                self._again[place] = decision

    async def _work(self, actuator: Actuator, queue: asyncio.Queue[Decision]) -> None:
        while True:
            given = await queue.get()
            decision = self._ruled(given, actuator)
            if decision.outcome == "pending":
                outcome, seconds = await self._apply(actuator, decision)
                decision = msgspec.structs.replace(decision, outcome=outcome)
                repeating = self._repeating.get(actuator.name)
                if repeating is not None and (seconds is not None or outcome == "done"):
                    self._keep(actuator, decision, max(seconds or 0.0, repeating.repeat_seconds))
                    fails_on = outcome != "done" and given.outcome.startswith("failed")
                    # What comes with each tick fails with another countdown each time.
                    if given.outcome == outcome or (fails_on and not repeating.repeat_seconds):
                        continue  # told already
                elif seconds is not None and decision.action in LASTING:
                    self._keep(actuator, decision, seconds)
                    if outcome == "pending" or given.outcome.startswith("failed"):
                        continue  # told already
            else:
                self._keep(actuator, decision)
            self._report(decision)

    async def _apply(self, actuator: Actuator, decision: Decision) -> tuple[str, float | None]:
        """The outcome, and how long to wait before another try; None where there is nothing more to try."""
        try:
            async with asyncio.timeout(self._apply_seconds):
                if self._first is not None:
                    await self._first(decision)
                await actuator.apply(decision)
        except TimeoutError:
            return f"failed: no answer within {self._apply_seconds:g} s", 0.0
        except UnfinishedError:
            return "pending", 0.0
        except Exception as error:
            outcome = f"failed: {' '.join(str(error).split())[:500] or type(error).__name__}"
            if isinstance(error, RefusedError):
                return outcome, None
            asked = error.asked_seconds if isinstance(error, CallFailedError) else 0.0
            return outcome, min(asked, _LONGEST_ASKED_SECONDS)
        return "done", None
