"""The default law and its prudence, as a law among the others: told what the tick would tell it."""

from benchmarks.scaling.pool import (
    LIMIT,
    LIMIT_STEP,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SHORTEST_STEP,
)
from benchmarks.scaling.sight import Sight
from controlplane.policy.scaling import startup
from controlplane.policy.scaling.prudence import Look, Wish, look
from controlplane.policy.scaling.seen import PoolSeen, ReplicaSeen, work_of
from controlplane.policy.scaling.settings import ScaleSettings
from controlplane.policy.scaling.work import Work, WorkState
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Number

_EACH = work_of(PROMPT_TOKENS, OUTPUT_TOKENS)
_LONGEST_STEP = 0.04  # of the objective of 50 ms, by the limiter's margin


class Ours:
    """`assurance` is the law's main setting."""

    interval = 15

    def __init__(self, assurance: float, most: int) -> None:
        self._settings = ScaleSettings(min=1, max=most, law=Work(assurance=assurance))
        self._law = Work(assurance=assurance)
        self._state = WorkState()
        self._wish: Wish | None = None
        self._start_ups: tuple[float, ...] = ()
        self._told = 0
        self._before = Sight(0)

    def look(self, sight: Sight) -> int:
        self._start_ups = startup.observe(self._start_ups, sight.start_ups[self._told :], self._settings)
        self._told = len(sight.start_ups)
        settings = startup.learned(self._start_ups, self._settings)
        seen, cold_start = self._seen(sight), settings.cold_start
        self._state = self._law.observe(self._state, seen, cold_start, _LONGEST_STEP)
        found = self._law.need(self._state, seen, cold_start)
        need: Number = Unknown(Reason.NO_DATA, seen.end, found.why)
        if found.replicas is not None:
            need = Known(found.replicas, seen.end)
        loading = tuple(sight.loading_since)
        one = Look(at=seen.end, ready=sight.ready, loading_since=loading, need=need, keep=found.keep)
        self._wish = look(self._wish, one, settings)
        return self._wish.replicas

    def _seen(self, sight: Sight) -> PoolSeen:
        before, after = self._before, Sight(0)
        for name in ("now", "arrived", "shed", "finished", "occupied"):
            setattr(after, name, getattr(sight, name))
        self._before = after
        seconds, replicas = sight.now - before.now, ()
        if sight.ready:
            flight = (sight.occupied - before.occupied) / seconds / sight.ready
            one = ReplicaSeen(
                name="each",
                work=(sight.finished - before.finished) * _EACH / sight.ready,
                in_flight=flight,
                limit=LIMIT,
                step_seconds=SHORTEST_STEP + (LIMIT_STEP - SHORTEST_STEP) * flight / LIMIT,
            )
            replicas = (one,) * sight.ready
        return PoolSeen(
            start=float(before.now),
            end=float(sight.now),
            arrived=(sight.arrived - before.arrived) * _EACH,
            shed=sight.shed > before.shed,
            backlog=sight.queued * _EACH,
            replicas=replicas,
        )
