"""AIMD, Vegas, Gradient, Gradient2 and the window around them, step by step with the arithmetic."""

import pytest
from limit_windows import limits, states, told, trip
from pydantic import ValidationError

from controlplane.policy.limits.aimd import Aimd
from controlplane.policy.limits.gradient import Gradient
from controlplane.policy.limits.gradient2 import Gradient2
from controlplane.policy.limits.law import LimitReason, RoundTrip
from controlplane.policy.limits.vegas import Vegas, VegasState
from controlplane.policy.limits.windowed import Windowed


class TestAimd:
    def test_steps(self) -> None:
        windows = [
            told(trip(1.0, in_flight=10)),  # 2 * 10 >= 20: 21
            told(trip(1.0, in_flight=10)),  # 20 < 21: stays
            told(trip(1.0, in_flight=11)),  # 22 >= 21: 22
            *[told(trip(1.0, in_flight=30))] * 8,  # 30
            told(trip(1.0, in_flight=30, dropped=True)),  # floor(0.9 * 30) = 27
            told(trip(5.1, in_flight=30)),  # over the timeout of 5 s: floor(24.3) = 24
            told(trip(5.0, in_flight=30)),  # not over: 25
            told(trip(9.0), trip(9.0)),  # floor(22.5) = 22, floor(19.8) = 19, held up to 20
        ]
        assert list(limits(Aimd(), windows)) == [21, 21, 22, *range(23, 31), 27, 24, 25, 20]

    def test_reasons(self) -> None:
        reasons = [
            state.reason
            for state in states(
                Aimd(),
                [
                    told(trip(1.0)),
                    told(trip(1.0, in_flight=1)),
                    told(trip(1.0, dropped=True)),
                    told(trip(6.0)),
                    told(),
                    # The second moved nothing: the reason is the first one's, which did.
                    told(trip(1.0), trip(1.0, in_flight=1)),
                ],
            )
        ]
        assert reasons == [
            LimitReason.ROOM,
            LimitReason.APP_LIMITED,
            LimitReason.DROP,
            LimitReason.ROUND_TRIP,
            LimitReason.TOO_FEW,
            LimitReason.ROOM,
        ]

    def test_stops_at_the_maximum(self) -> None:
        assert list(limits(Aimd(max_limit=21), [told(trip(1.0), trip(1.0), trip(1.0))])) == [21]

    def test_defaults_are_netflix_s(self) -> None:
        law = Aimd()
        assert (law.initial_limit, law.min_limit, law.max_limit) == (20, 20, 200)
        assert (law.backoff_ratio, law.timeout) == (0.9, 5.0)

    def test_bounds_must_be_ordered(self) -> None:
        with pytest.raises(ValidationError, match=r"initial_limit \(5\) must lie between min_limit \(20\)"):
            Aimd(initial_limit=5)


class TestVegas:
    def test_steps(self) -> None:
        # L = 20: lg = 1. r0 = 0.1 after the first sample.
        windows = [
            told(trip(0.1)),  # sets r0, moves nothing: 20
            told(trip(0.1)),  # queue ceil(20 * 0) = 0 <= 1: 20 + 6 = 26
            told(trip(0.10399)),  # ceil(26 * (1 - 0.1/0.10399)) = ceil(0.998) = 1 <= 1: 32
            told(trip(0.1066)),  # ceil(32 * 0.0619) = ceil(1.98) = 2 < 3: 32 + 1 = 33
            told(trip(0.115)),  # ceil(33 * 0.1304) = ceil(4.3) = 5, from 3 to 6: 33
            told(trip(0.13)),  # ceil(33 * 0.2308) = ceil(7.6) = 8 > 6: 32
            told(trip(0.13, in_flight=15)),  # 30 < 32: not in use, 32
            told(trip(0.1, in_flight=15, dropped=True)),  # a drop counts even then: 31
        ]
        assert list(limits(Vegas(), windows)) == [20, 26, 32, 33, 33, 32, 32, 31]

    def test_steps_grow_with_the_logarithm(self) -> None:
        law = Vegas()
        # L = 100: lg = 2
        state = VegasState(100.0, LimitReason.START, "", no_load_seconds=0.1, jitter=0.75)
        cases = {
            0.1: 112,  # queue 0 <= 2: 100 + 6 * 2
            0.102: 112,  # ceil(100 * 0.0196) = 2 <= 2
            0.1045: 102,  # ceil(100 * 0.0431) = 5 < 6: + 2
            0.11: 100,  # ceil(100 * 0.0909) = 10, from 6 to 12
            0.12: 98,  # ceil(100 * 0.1667) = 17 > 12: - 2
        }
        for seconds, limit in cases.items():
            assert law.observe(state, told(trip(seconds))).limit == limit, seconds

    def test_a_smaller_round_trip_is_the_new_reference(self) -> None:
        first, second = states(Vegas(), [told(trip(0.2)), told(trip(0.1))])
        assert (first.no_load_seconds, second.no_load_seconds) == (0.2, 0.1)
        assert second.limit == 20
        assert second.reason is LimitReason.BASELINE

    def test_probes_after_jitter_times_thirty_times_the_limit(self) -> None:
        # jitter = 0.5 + 0.5/2 = 0.75; L = 20 held by a limit that is not in use: 0.75 * 30 * 20 = 450 samples
        idle = told(trip(0.1), *[trip(0.5, in_flight=1)] * 448)
        before = list(states(Vegas(), [idle]))[-1]
        assert (before.since_probe, before.no_load_seconds) == (449, 0.1)
        after = Vegas().observe(before, told(trip(0.5, in_flight=1), random=0.0))
        assert (after.since_probe, after.no_load_seconds, after.jitter) == (0, 0.5, 0.5)
        assert after.reason is LimitReason.BASELINE

    def test_a_probe_under_load_ratchets_the_limit_up(self) -> None:
        """Issue 165: what was overload before the probe is "no queue" after it."""
        law = Vegas()
        loaded = VegasState(50.0, LimitReason.START, "", no_load_seconds=0.1, jitter=0.5)
        assert law.observe(loaded, told(trip(1.0))).limit == 49
        probed = law.observe(loaded, told(*[trip(1.0, in_flight=1)] * 750))
        assert probed.no_load_seconds == 1.0
        assert law.observe(probed, told(trip(1.0))).limit == 56

    def test_smoothing(self) -> None:
        # 0.5 * 20 + 0.5 * 26
        assert list(limits(Vegas(smoothing=0.5), [told(trip(0.1)), told(trip(0.1))])) == [20, 23]

    def test_never_under_one_nor_over_the_maximum(self) -> None:
        low = Vegas(initial_limit=1)
        assert list(limits(low, [told(trip(1.0), trip(1.0, dropped=True))])) == [1]
        high = Vegas(max_limit=22)
        assert list(limits(high, [told(trip(1.0), trip(1.0))])) == [22]


class TestGradient:
    def test_steps(self) -> None:
        windows = [
            told(trip(0.1)),  # L = 50: q = 7, g = min(1, 2 * 0.1/0.1) = 1: 57
            told(trip(0.2)),  # g = 2 * 0.1/0.2 = 1: q = floor(sqrt 57) = 7: 64
            # g = 2 * 0.1/0.25 = 0.8: L' = 0.8 * 64 + 8 = 59.2 < 64: 0.8 * 64 + 0.2 * 59.2 = 63.04
            told(trip(0.25)),
            # g = 0.5 at least, q = floor(sqrt 63) = 7: L' = 38.52: 0.8 * 63.04 + 0.2 * 38.52 = 58.136
            told(trip(9.0)),
            told(trip(0.1, in_flight=29)),  # 29 < 29.068: not in use
            # drop: L' = 0.9 * 58.136 = 52.3224: 0.8 * 58.136 + 0.2 * 52.3224 = 56.97328, in use or not
            told(trip(0.1, in_flight=1, dropped=True)),
        ]
        expected = [57, 64, 63.04, 58.136, 58.136, 56.97328]
        assert list(limits(Gradient(), windows)) == pytest.approx(expected)

    def test_settles_where_the_queue_makes_up_for_the_slope(self) -> None:
        # g = 2 * 0.1/0.4 = 0.5: the fixed point q/(1 - g) = 2 q, with q = max(4, sqrt L): 8
        windows = [told(trip(0.1)), *[told(trip(0.4))] * 300]
        assert list(limits(Gradient(), windows))[-1] == pytest.approx(8.0, abs=0.01)

    def test_probes_after_one_to_two_intervals(self) -> None:
        law = Gradient(probe_interval=10)
        # random 0.3: 10 + floor(3) = 13 samples, then the probe
        probed = list(states(law, [told(trip(1.0), random=0.3)] * 14))
        assert [state.reason for state in probed][-2:] == [LimitReason.ROOM, LimitReason.PROBE]
        # + floor(sqrt L) each: 50 57 64 72 80 88 97 106 116 126 137 148 160 172; floor(sqrt 172) = 13
        assert [state.limit for state in probed][-2:] == [172, 13]
        assert probed[-1].no_load_seconds is None
        assert probed[-1].until_probe == 13

    def test_the_floor_of_a_cut_is_the_minimum(self) -> None:
        law = Gradient(min_limit=40, initial_limit=40)
        assert list(limits(law, [told(trip(0.1), trip(9.0), trip(9.0), trip(9.0), trip(9.0))]))[-1] == 40

    def test_defaults_are_netflix_s(self) -> None:
        law = Gradient()
        assert (law.initial_limit, law.min_limit, law.max_limit) == (50, 1, 1000)
        assert (law.smoothing, law.tolerance, law.backoff_ratio) == (0.2, 2.0, 0.9)
        assert law.probe_interval == 1000


class TestGradient2:
    def test_steps(self) -> None:
        windows = [
            told(trip(1.0)),  # long 1: g = 1: 0.8 * 20 + 0.2 * (20 + 4) = 20.8
            told(trip(2.0)),  # long (1 + 2)/2 = 1.5: g = min(1, 1.5 * 1.5/2) = 1: 21.6
            # long (1 + 2 + 6)/3 = 3: g = 1.5 * 3/6 = 0.75: 0.8 * 21.6 + 0.2 * (16.2 + 4) = 21.32
            told(trip(6.0)),
            told(trip(1.0, in_flight=10)),  # long 10/4 = 2.5; 10 < 10.66: not in use
            # long 19/5 = 3.8: g = 1.5 * 3.8/9 = 0.63333, the drop is not looked at:
            # 0.8 * 21.32 = 17.056 and 0.2 * (13.502667 + 4) = 3.500533 make 20.556533
            told(trip(9.0, dropped=True)),
        ]
        result = list(states(Gradient2(), windows))
        assert [state.limit for state in result] == pytest.approx([20.8, 21.6, 21.32, 21.32, 20.556533])
        # 2.5 is more than twice the sample of 1: remembered as 0.95 of itself, but the mean of the warm-up is
        # taken anew from the sum, so the next one does not know of it.
        assert result[3].long_seconds == pytest.approx(2.375)
        assert result[4].long_seconds == pytest.approx(3.8)

    def test_after_ten_samples_the_average_is_exponential(self) -> None:
        warm = told(*[trip(1.0)] * 10)
        state = list(states(Gradient2(), [warm, told(trip(4.0))]))[-1]
        assert state.long_seconds == pytest.approx(1 + 3 * 2 / 601)

    def test_comes_back_from_a_long_overload_by_a_twentieth_a_sample(self) -> None:
        warm = told(*[trip(10.0)] * 10)
        state = list(states(Gradient2(), [warm, told(trip(1.0))]))[-1]
        assert state.long_seconds == pytest.approx((10 - 9 * 2 / 601) * 0.95)

    @pytest.mark.parametrize("seconds", [0.01, 1.0, 600.0])
    def test_any_steady_round_trip_ends_at_the_maximum(self, seconds: float) -> None:
        """Issue 137: the reference follows the overload."""
        steady = [told(trip(seconds))] * 300
        assert list(limits(Gradient2(), steady))[-1] == 200

    def test_fixed_point_while_the_reference_stands(self) -> None:
        # g = 1.5 * long/r = 0.75 with a reference that hardly moves: q/(1 - g) = 16, under a minimum of 1
        law = Gradient2(min_limit=1, long_window=10**9)
        windows = [told(*[trip(1.0)] * 10), *[told(trip(2.0))] * 200]
        assert list(limits(law, windows))[-1] == pytest.approx(16.0, abs=0.01)

    def test_never_under_its_default_minimum(self) -> None:
        law = Gradient2()
        windows = [told(*[trip(1.0)] * 10), *[told(trip(1.0 * 1.02**i)) for i in range(300)]]
        assert min(limits(law, windows)) == 20

    def test_defaults_are_netflix_s(self) -> None:
        law = Gradient2()
        assert (law.initial_limit, law.min_limit, law.max_limit) == (20, 20, 200)
        assert (law.smoothing, law.tolerance, law.queue_size, law.long_window) == (0.2, 1.5, 4, 600)


class TestWindowed:
    def test_tells_the_mean_the_most_in_flight_and_the_drop(self) -> None:
        law = Windowed(inner=Aimd(timeout="2s"))
        # Twelve that end at 2.1, 2.2, ... 3.2: the first closes the window that began with nothing (1 of 10
        # needed). Then `next` is 2.1 + 1 = 3.1: the one that ends at 3.2 closes the next, of eleven.
        samples = [RoundTrip(1.0 + 0.1 * i, 1.1, 10 + i) for i in range(12)]
        result = list(states(law, [told(sample) for sample in samples]))
        assert [state.limit for state in result[:11]] == [20] * 11
        assert result[0].reason is LimitReason.TOO_FEW
        assert (result[10].samples, result[10].max_in_flight) == (10, 20)
        # mean 1.1 < 2 s, most in flight 21: 2 * 21 >= 20
        assert (result[11].limit, result[11].reason) == (21, LimitReason.ROOM)
        assert result[11].samples == 0
        assert result[11].next_at == pytest.approx(3.2 + 1.0)

    def test_one_drop_taints_the_window(self) -> None:
        law = Windowed(inner=Aimd(initial_limit=50))
        samples = [RoundTrip(1.0 + 0.1 * i, 1.1, 40, i == 5) for i in range(12)]
        assert list(limits(law, [told(*samples)])) == [45]

    def test_the_window_lasts_twice_the_smallest_round_trip_within_its_bounds(self) -> None:
        for seconds, lasts in [(0.1, 0.5), (0.4, 0.8), (30.0, 2.0)]:
            law = Windowed(inner=Vegas(), min_window="500ms", max_window="2s")
            (state,) = states(law, [told(RoundTrip(10.0, seconds, 1))])
            assert state.next_at == pytest.approx(10.0 + seconds + lasts)

    def test_too_short_round_trips_are_no_samples(self) -> None:
        (state,) = states(Windowed(inner=Vegas(), threshold="10ms"), [told(trip(0.009), trip(0.0001))])
        assert (state.samples, state.reason) == (0, LimitReason.START)

    def test_gradient2_never_moves_where_few_requests_end(self) -> None:
        """20 slots and answers of 6 s: 3.3 a second, never the ten that a window needs."""
        law = Windowed(inner=Gradient2())
        ends = [i * 0.3 for i in range(1, 2000)]
        windows = [told(RoundTrip(end - 6.0, 6.0, 20)) for end in ends]
        assert set(limits(law, windows)) == {20}

    def test_gradient2_moves_once_enough_end(self) -> None:
        law = Windowed(inner=Gradient2())
        windows = [told(RoundTrip(i * 0.05, 1.0, 20)) for i in range(2000)]
        assert list(limits(law, windows))[-1] > 30

    def test_fewer_than_ten_samples_cannot_be_asked_for(self) -> None:
        with pytest.raises(ValidationError, match="window_size"):
            Windowed(inner=Vegas(), window_size=9)
