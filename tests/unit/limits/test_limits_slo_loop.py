"""The SLO gradient against closed-form engines: does it find the peak, stay there, and come back?

Each engine is one formula; whatever comes over the limit is refused. No queue, no noise but what a test adds.
"""

import heapq
import math
from collections.abc import Callable, Iterator

from controlplane.policy.limits.law import Window
from controlplane.policy.limits.slo_gradient import SloGradient
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import Quantiles

Curve = Callable[[int, float], float]  # of requests in flight and the time


class Plant:
    """Requests that take `ttft` to their first token and then `answer` seconds, with `gap` between tokens."""

    def __init__(self, law: SloGradient, ttft: Curve, answer: Curve, gap: Curve) -> None:
        self.law, self.ttft, self.answer, self.gap = law, ttft, answer, gap
        self.state = law.start()
        self.ends: list[float] = []
        self.firsts: list[tuple[float, float]] = []
        self.admitted = self.refused = 0
        self.seen: list[float] = []  # all times to first token so far

    def run(self, arrivals: Iterator[float], begin: int, seconds: int) -> list[float]:
        """The limit after each second; `arrivals` are times, in order."""
        limits = []
        due = next(arrivals, math.inf)
        for second in range(begin, begin + seconds):
            end, most = second + 1.0, len(self.ends)
            while due < end:
                self._leave(due)
                if len(self.ends) < self.state.slots:
                    self._admit(due)
                    most = max(most, len(self.ends))
                else:
                    self.refused += 1
                due = next(arrivals, math.inf)
            self._leave(end)
            self.state = self.law.observe(self.state, self._window(end, most))
            limits.append(self.state.limit)
        return limits

    def _admit(self, now: float) -> None:
        in_flight = len(self.ends) + 1
        ttft = self.ttft(in_flight, now)
        heapq.heappush(self.firsts, (now + ttft, ttft))
        heapq.heappush(self.ends, now + ttft + self.answer(in_flight, now))
        self.admitted += 1

    def _leave(self, now: float) -> None:
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)

    def _window(self, end: float, most: int) -> Window:
        came = []
        while self.firsts and self.firsts[0][0] <= end:
            came.append(heapq.heappop(self.firsts)[1])
        self.seen += came
        ages = (end - (at - ttft) for at, ttft in self.firsts)
        came += [age for age in ages if age > self.law.ttft]
        decoding = len(self.ends) - len(self.firsts)
        nothing = Unknown(Reason.NO_TRAFFIC, end)
        p90 = sorted(came)[math.ceil(0.9 * len(came)) - 1] if came else None
        return Window(
            start=end - 1.0,
            end=end,
            max_in_flight=float(most),
            in_flight=float(len(self.ends)),
            step_gap=Known(self.gap(len(self.ends), end), end) if decoding > 0 else nothing,
            first_token=Known(Quantiles(len(came), None, None, p90, None, None), end) if came else nothing,
        )


def _every(seconds: float, begin: float = 0.0, end: float = math.inf) -> Iterator[float]:
    count = 0
    while begin + count * seconds < end:
        yield begin + count * seconds
        count += 1


def _always(value: float) -> Curve:
    return lambda in_flight, now: value


def _p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


class TestPeak:
    def test_finds_the_batch_at_which_the_step_gap_meets_its_target(self) -> None:
        """8 ms + 0.2 ms a sequence is 40 ms at 160."""
        law = SloGradient(ttft="1s", tpot="50ms")

        def gap(in_flight: int, now: float) -> float:
            return 0.008 + 0.0002 * in_flight

        for output_tokens in (28, 211, 770):

            def answer(in_flight: int, now: float, tokens: int = output_tokens) -> float:
                return tokens * gap(in_flight, now)

            rate = 200 / (output_tokens * 0.048)  # what would keep 200 busy
            plant = Plant(law, _always(0.1), answer, gap)
            limits = plant.run(_every(1 / rate), 0, 300)
            assert all(155 <= limit <= 163 for limit in limits[240:]), output_tokens

    def test_finds_it_from_far_above(self) -> None:
        law = SloGradient(ttft="1s", tpot="50ms", start_limit=250)

        def gap(in_flight: int, now: float) -> float:
            return 0.008 + 0.0002 * in_flight

        plant = Plant(law, _always(0.1), lambda b, t: 200 * gap(b, t), gap)
        limits = plant.run(_every(1 / 40), 0, 120)
        assert all(145 <= limit <= 166 for limit in limits[40:])

    def test_follows_an_engine_that_gets_slower(self) -> None:
        """At 60 % of its speed the target is met at (40/1.667 - 8)/0.2 = 80; within half a minute."""
        law = SloGradient(ttft="1s", tpot="50ms")

        def gap(in_flight: int, now: float) -> float:
            return (0.008 + 0.0002 * in_flight) * (1 / 0.6 if now >= 120 else 1)

        plant = Plant(law, _always(0.1), lambda b, t: 100 * gap(b, t), gap)
        arrivals = _every(1 / 60)
        plant.run(arrivals, 0, 120)
        limits = plant.run(arrivals, 120, 120)
        assert all(72 <= limit <= 90 for limit in limits[30:])


class TestStuckAtTheMinimum:
    """A healthy time to first token that is a large part of the objective (0.4 of 0.7 s)."""

    law = SloGradient(min_limit=4, max_limit=256, start_limit=64, ttft="700ms", tpot="100ms")

    @staticmethod
    def ttft(in_flight: int, now: float) -> float:
        return 0.4 if in_flight <= 64 else 0.4 * in_flight / 64

    def test_keeps_the_objective_without_falling_to_the_minimum(self) -> None:
        plant = Plant(self.law, self.ttft, _always(6.0), _always(0.02))
        arrivals = _every(1 / 20)
        limits = plant.run(arrivals, 0, 300)
        assert 40 <= limits[-1] <= 120
        plant.seen.clear()
        limits = plant.run(arrivals, 300, 600)
        assert min(limits) >= 40
        assert _p95(plant.seen) <= 0.7

    def test_tiny_answers_do_not_end_in_refusing_everything(self) -> None:
        plant = Plant(self.law, _always(2.4e-5), _always(1e-6), _always(1e-6))
        limits = plant.run(_every(1 / 10_000), 0, 10)
        assert min(limits) >= 4
        assert plant.refused == 0

    def test_comes_back_after_an_overload(self) -> None:
        def overloaded(in_flight: int, now: float) -> float:
            return 20.0 if now < 600 else self.ttft(in_flight, now)

        plant = Plant(self.law, overloaded, _always(6.0), _always(0.02))
        arrivals = _every(1 / 20)
        assert plant.run(arrivals, 0, 600)[-1] == 4
        assert plant.run(arrivals, 600, 120)[-1] >= 32


class TestTooLittleToLearnFrom:
    law = SloGradient(min_limit=4, max_limit=256, start_limit=48, ttft="2s")

    def test_sparse_and_noisy(self) -> None:
        noise = [0.2, 0.5, 1.9, 0.4, 1.2, 0.6, 0.3]
        plant = Plant(self.law, lambda b, t: noise[int(t) % 7], _always(3.0), _always(0.02))
        limits = plant.run(_every(30.0), 0, 7200)
        assert set(limits) == {48.0}

    def test_a_burst_after_an_idle_hour(self) -> None:
        plant = Plant(self.law, lambda b, t: 0.5 + 0.02 * b, _always(3.0), _always(0.02))
        plant.run(iter([3600.5] * 40), 0, 3700)
        assert (plant.admitted, plant.refused) == (40, 0)

    def test_a_limit_that_does_not_bind_stays(self) -> None:
        plant = Plant(self.law, _always(0.5), _always(4.5), _always(0.02))
        assert set(plant.run(_every(1.0), 0, 3600)) == {48.0}

    def test_one_slow_request(self) -> None:
        slow = Plant(self.law, lambda b, t: 14.0 if 300 <= t < 300.05 else 0.5, _always(4.5), _always(0.02))
        limits = slow.run(_every(0.1), 0, 360)
        assert sum(ttft == 14.0 for ttft in slow.seen) == 1
        assert all(abs(limit / limits[290] - 1) <= 0.05 for limit in limits[290:])

    def test_an_engine_that_gives_no_first_token_is_cut_before_it_gives_one(self) -> None:
        law = SloGradient(ttft="2s", start_limit=48)
        plant = Plant(law, _always(600.0), _always(1.0), _always(0.02))
        limits = plant.run(_every(0.05), 0, 60)
        assert limits[-1] < 40


class TestLongStreams:
    law = SloGradient(min_limit=4, max_limit=256, start_limit=32, ttft="2s", tpot="100ms")

    def test_long_answers_are_not_overload(self) -> None:
        plant = Plant(self.law, _always(0.4), lambda b, t: 1.0 if t < 300 else 80.0, _always(0.02))
        before = plant.run(_every(0.07, end=300), 0, 300)[-1]
        after = plant.run(_every(4.0, begin=300), 300, 600)[-1]
        assert after >= 0.8 * before

    def test_nothing_ends_for_ten_minutes(self) -> None:
        plant = Plant(self.law, _always(0.4), _always(720.0), _always(0.02))
        arrivals = iter([0.1] * 30 + [300.5] * 2)
        limits = plant.run(arrivals, 0, 600)
        assert min(limits) >= 32
        assert plant.refused == 0

    def test_a_slot_is_held_to_the_end(self) -> None:
        law = SloGradient(min_limit=4, max_limit=32, start_limit=32, ttft="2s", tpot="100ms")
        plant = Plant(law, _always(0.4), _always(720.0), _always(0.02))
        plant.run(iter([0.1] * 32 + [60.5]), 0, 100)
        assert (plant.admitted, plant.refused) == (32, 1)

    def test_decode_gets_slow(self) -> None:
        plant = Plant(
            self.law,
            _always(0.4),
            lambda b, t: 4.0 if t < 300 else 40.0,
            lambda b, t: 0.02 if t < 300 else 0.2,
        )
        arrivals = _every(0.02)
        before = plant.run(arrivals, 0, 300)[-1]
        after = plant.run(arrivals, 300, 300)[-1]
        assert after < 0.5 * before
