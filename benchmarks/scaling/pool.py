"""A pool behind gateway and limiter as a fluid, second by second: requests in flight, queued, shed.

    stay      = SHORTEST_STAY + STAY_SLOPE * in flight of a replica          seconds, by Little's law
    finished  = in flight / stay                                             a second
    let in    = what fits under LIMIT sequences of each ready replica
    queue     = what does not fit, up to what the pool finishes in QUEUE_SECONDS; the rest is shed

Routing is even, and what is let in is good. The constants are what the engine simulator shows with the
production gateway and limiter: H100 with an 8B model, mix azure-conv, TTFT 1 s, TPOT 50 ms; the benchmark
compares both again. A day of ten replicas takes half a second; the engine simulator would take half an hour.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.scaling.sight import Scaler, Sight, Turns

SHORTEST_STAY, STAY_SLOPE = 1.69, 0.0428
LIMIT = 141.0
QUEUE_SECONDS = 0.28
CAPACITY = LIMIT / (SHORTEST_STAY + STAY_SLOPE * LIMIT)
"""Requests a second of a replica at its limit."""

SHORTEST_STEP, LIMIT_STEP = 0.0085, 0.036  # seconds between two tokens, of one sequence and at the limit
PROMPT_TOKENS, OUTPUT_TOKENS = 1155.0, 211.0

COLD_START_SECONDS, COLD_START_CV = 180.0, 0.3
OBJECTIVE = 0.95


class Outcome(NamedTuple):
    """Minutes in which less than the objective's share of the offered requests was good, hours of all
    replicas from being asked for until they are gone, turns within a cold start, and the share of good
    requests."""

    violation_minutes: float
    replica_hours: float
    turns: float
    changes: float
    good_ratio: float


class Pool:
    """`replicas` are there at first; at most `most` can be asked for."""

    def __init__(self, replicas: int, most: int, seed: int) -> None:
        self.sight = Sight(replicas)
        self.turns = Turns(COLD_START_SECONDS)
        self.replica_seconds = 0.0
        self.violation_minutes = 0
        self._most = most
        self._rng = np.random.default_rng([seed, 3])
        self._ready = replicas
        self._loading: list[tuple[float, float]] = []  # ready at, since
        self._gone_at: list[float] = []  # of those that finish what they have
        self._stay = SHORTEST_STAY
        self._minute = (0.0, 0.0)

    def second(self, now: int, came: int) -> None:
        sight = self.sight
        while self._loading and self._loading[0][0] <= now:
            _, since = self._loading.pop(0)
            sight.start_ups.append(now - since)
            self._ready += 1
        ready, in_flight = self._ready, sight.in_flight
        if ready:
            self._stay = SHORTEST_STAY + STAY_SLOPE * in_flight / ready
        finished = in_flight / self._stay
        waiting = sight.queued + came
        let_in = min(waiting, max(0.0, ready * LIMIT - in_flight + finished))
        queued = waiting - let_in
        shed = max(0.0, queued - QUEUE_SECONDS * CAPACITY * ready)
        sight.in_flight = in_flight = in_flight - finished + let_in
        sight.queued = queued = queued - shed
        sight.arrived += came
        sight.shed += shed
        sight.finished += finished
        sight.occupied += in_flight
        sight.concurrency.append(sight.concurrency[-1] + in_flight + queued)
        if self._gone_at and self._gone_at[0] <= now:
            self._gone_at = [at for at in self._gone_at if at > now]
        self.replica_seconds += ready + len(self._loading) + len(self._gone_at)
        sight.now, sight.ready = now + 1, ready
        if sight.now % 60 == 0:
            arrived, before = self._minute
            self.violation_minutes += sight.shed - before > (1 - OBJECTIVE) * (sight.arrived - arrived)
            self._minute = sight.arrived, sight.shed

    def ask(self, scaler: Scaler) -> None:
        """Ask a law, and do what it says."""
        sight = self.sight
        sight.loading_since = [since for _, since in self._loading]
        wanted = min(self._most, max(0, scaler.look(sight)))
        self.turns.change(sight.asked, wanted, sight.now)
        for _ in range(wanted - sight.asked):
            self._loading.append((sight.now + self._cold_start(), float(sight.now)))
        self._loading.sort()
        for _ in range(sight.asked - wanted):
            if self._loading:
                self._loading.remove(max(self._loading, key=lambda one: one[1]))
            else:
                self._ready -= 1
                self._gone_at.append(sight.now + self._stay)
        sight.asked = wanted

    def _cold_start(self) -> float:
        sigma = np.sqrt(np.log1p(COLD_START_CV**2))
        return float(COLD_START_SECONDS * np.exp(sigma * self._rng.standard_normal() - sigma**2 / 2))


def run(scaler: Scaler, counts: Sequence[int], seed: int, replicas: int, most: int) -> Outcome:
    """All seconds under a law."""
    pool = Pool(replicas, most, seed)
    for now, came in enumerate(counts):
        pool.second(now, came)
        if (now + 1) % scaler.interval == 0:
            pool.ask(scaler)
    sight, turns = pool.sight, pool.turns
    good = 1 - sight.shed / max(1.0, sight.arrived)
    hours = pool.replica_seconds / 3600
    return Outcome(pool.violation_minutes, hours, turns.turns, turns.changes, good)
