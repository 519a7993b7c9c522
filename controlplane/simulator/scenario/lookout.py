"""What a gateway sees of one replica, as laws of the round trip are told of it: they need single requests.

Production has no such lookout; the laws that it runs are told by `policy.limiting`.
"""

import math
from collections import OrderedDict

from controlplane.policy.limits.kv_ceiling import Lengths, kv_ceiling
from controlplane.policy.limits.law import RoundTrip, Window
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Distribution, Number, Quantiles, ReplicaSnapshot
from controlplane.simulator.counters import EngineCounters
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.live import Live

_LENGTHS_MEMORY_SECONDS = 60.0
_SHORTEST_SECONDS = 1e-9  # a round trip takes some time


class Lookout:
    """Takes in what happens to the requests of one replica; `window` tells of it and begins anew.

    `round_trip` is what counts as one: a request until its "end" or until its "first-token". With `looks` the
    engine's gauges are read at the end of each window, whatever the daemon knows.
    """

    def __init__(self, ttft_seconds: float, max_num_seqs: int, *, round_trip: str, looks: bool) -> None:
        self.in_flight = 0
        self._looks = looks
        self._ttft = ttft_seconds
        self._max_num_seqs = max_num_seqs
        self._to_first_token = round_trip == "first-token"
        self._most_in_flight = 0
        self._round_trips: list[RoundTrip] = []
        self._first_tokens: list[float] = []
        self._awaited: OrderedDict[str, float] = OrderedDict()  # no first token yet: sent to the engine at
        self._lengths = Lengths()
        self._gaps = (0.0, 0)  # sum and number of step gaps seen before the window
        self._restarts = 0
        self._start = UNIX_START

    def sent(self, live: Live) -> None:
        self.in_flight += 1
        live.in_flight = self.in_flight
        self._most_in_flight = max(self._most_in_flight, self.in_flight)
        self._awaited[live.request.id] = live.to_engine_at

    def first_token(self, live: Live, now: float) -> None:
        self._first_tokens.append(now - live.to_engine_at)
        del self._awaited[live.request.id]
        if self._to_first_token:
            self._round_trip(live, now)

    def finished(self, live: Live, now: float) -> None:
        self.in_flight -= 1
        self._lengths = self._lengths.add(live.request.prompt_tokens, live.request.output_tokens)
        if not self._to_first_token:
            self._round_trip(live, now)

    def broken(self, live: Live, now: float) -> None:
        """The request ended without an answer: its engine died, or its client waited in vain."""
        self.in_flight -= 1
        awaited = self._awaited.pop(live.request.id, None) is not None
        if awaited or not self._to_first_token:
            self._round_trip(live, now, dropped=True)

    def _round_trip(self, live: Live, now: float, *, dropped: bool = False) -> None:
        seconds = max(now - live.to_engine_at, _SHORTEST_SECONDS)
        self._round_trips.append(RoundTrip(UNIX_START + live.to_engine_at, seconds, live.in_flight, dropped))

    def window(
        self,
        now: float,
        counters: EngineCounters | None,
        seen: ReplicaSnapshot | None,
        random: float,
    ) -> Window:
        """The window that ends at `now`. `counters` are those of the engine that answers now, `seen` is what
        the daemon knows of the replica."""
        start, end = self._start, UNIX_START + now
        nothing = Unknown(Reason.NOT_SCRAPED, start)
        load = seen.load if seen is not None else None
        kv_usage: Number = load.kv_usage if load else nothing
        waiting: Number = load.waiting if load else nothing
        if self._looks and counters is not None:
            kv_usage, waiting = Known(counters.kv_usage, end), Known(float(counters.waiting), end)
        size = seen.kv_tokens if seen is not None else None
        restarts = seen.restarts if seen is not None else self._restarts
        window = Window(
            start=start,
            end=end,
            round_trips=tuple(self._round_trips),
            random=random,
            max_in_flight=float(self._most_in_flight),
            in_flight=float(self.in_flight),
            first_token=self._first_token(now, end),
            step_gap=self._step_gap(counters, end),
            kv_usage=kv_usage,
            waiting=waiting,
            preemptions=_times(load.preemptions_per_second, end - start) if load else nothing,
            max_num_seqs=self._max_num_seqs,
            kv_ceiling=None if size is None else kv_ceiling(size, self._lengths),
            restarted=restarts > self._restarts,
        )
        self._lengths = self._lengths.decayed(math.exp((start - end) / _LENGTHS_MEMORY_SECONDS))
        self._start, self._restarts = end, restarts
        self._round_trips, self._first_tokens = [], []
        self._most_in_flight = self.in_flight
        return window

    def _first_token(self, now: float, end: float) -> Distribution:
        seconds = self._first_tokens
        for since in self._awaited.values():
            if now - since <= self._ttft:
                break
            seconds.append(now - since)
        if not seconds:
            return Unknown(Reason.NO_TRAFFIC, end)
        seconds.sort()
        mean = sum(seconds) / len(seconds)
        return Known(Quantiles(float(len(seconds)), mean, *(_at(seconds, q) for q in (50, 90, 95, 99))), end)

    def _step_gap(self, counters: EngineCounters | None, end: float) -> Number:
        """The mean gap between two tokens of a stream, as whoever passes on all streams sees it."""
        if counters is None:
            self._gaps = (0.0, 0)
            return Unknown(Reason.NO_TRAFFIC, end)
        total, count = counters.itl.total, sum(counters.itl.counts)
        before = self._gaps if count >= self._gaps[1] else (0.0, 0)  # a new process counts anew
        self._gaps = (total, count)
        if count == before[1]:
            return Unknown(Reason.NO_TRAFFIC, end)
        return Known((total - before[0]) / (count - before[1]), end)


def _at(ordered: list[float], percent: int) -> float:
    """A percentile by nearest rank."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _times(rate: Number, seconds: float) -> Number:
    return Known(rate.value * seconds, rate.at) if isinstance(rate, Known) else rate
