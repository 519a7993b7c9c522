"""The outer loop: where the margin comes to rest, how fast, and what it does not listen to."""

import math
import random
from statistics import NormalDist, fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limit_windows import first_tokens, number

from controlplane.policy.limits.first_tokens import FirstTokens
from controlplane.policy.limits.law import LimitReason, Window
from controlplane.policy.limits.margin import LEAST, Judged, allowed, trimmed
from controlplane.policy.limits.pace import Average, Pace
from controlplane.policy.limits.slo_gradient import SloGradient, SloGradientState


def after(
    margin: float, elasticity: float | None, requests: float | None, missed: float | None, **more: Any
) -> float:
    """The margin after a window in which 20 were in flight."""
    return trimmed(margin, elasticity, Judged(requests, missed), **{"mean_in_flight": 20.0, **more})


class TestAllowed:
    @pytest.mark.parametrize("fixed", [0.16, 0.3, 0.5, 0.6, 0.73, 0.8])
    @pytest.mark.parametrize("scatter", [0.1, 0.2, 0.4, 0.6])
    def test_rests_where_goodput_peaks(self, fixed: float, scatter: float) -> None:
        """A step takes fixed + slope * L, in parts of the objective; requests are log-normal around it, and
        the wider the less of it is fixed: others' prompts hold them up. Within 3 % of the best."""
        spread = scatter * (1 - fixed)

        def late(margin: float) -> float:
            return 1 - NormalDist().cdf(-math.log(margin) / spread)

        def goodput(margin: float) -> float:
            """L = (margin - fixed) / slope, X = L / margin."""
            return (margin - fixed) / margin * (1 - late(margin))

        least = max(LEAST, fixed + 0.01)
        margin = 0.8
        for _ in range(2000):
            share = allowed(margin, min(1.0, fixed / margin)) - late(margin)
            margin = min(1.0, max(least, margin * math.exp(0.05 * share)))
        best = max(goodput(least + (1 - least) * i / 500) for i in range(501))
        assert goodput(margin) >= 0.97 * best

    def test_more_where_one_more_brings_more(self) -> None:
        shares = [allowed(0.8, elasticity) for elasticity in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.01, 0.3)

    def test_little_is_supposed_where_nothing_is_known(self) -> None:
        assert allowed(0.5, None) == allowed(0.5, 0.2)


@pytest.mark.parametrize(("spread", "least", "most"), [(0.1, 0.75, 0.85), (0.3, 0.5, 0.68), (0.6, 0.3, 0.5)])
def test_rests_the_lower_the_more_requests_scatter(spread: float, least: float, most: float) -> None:
    """Requests are log-normal around a mean that is held at the margin."""
    draw, margin, seen = random.Random(5), 0.8, []
    for _ in range(3000):
        slow = sum(margin * math.exp(draw.gauss(0, spread)) > 1 for _ in range(5))
        margin = after(margin, 0.2, 5.0, float(slow))
        seen.append(margin)
    assert least <= fmean(seen[1000:]) <= most


def test_all_slow_is_a_third_a_cohort_and_never_more_than_a_twentieth_a_window() -> None:
    margin = 0.8
    for _ in range(10):  # ten windows are one cohort
        margin = after(margin, 0.2, 2.0, 2.0)
    assert margin == pytest.approx(0.8 * math.exp(-0.5), rel=0.05)
    assert after(0.8, 0.2, 1000.0, 1000.0) == pytest.approx(0.8 * math.exp(-0.05))


@pytest.mark.parametrize(
    ("requests", "missed", "in_flight"),
    [(None, None, 20.0), (0.0, 0.0, 20.0), (5.0, None, 20.0), (5.0, 5.0, None)],
)
def test_unknown_moves_nothing(requests: float | None, missed: float | None, in_flight: float | None) -> None:
    assert after(0.7, 0.5, requests, missed, mean_in_flight=in_flight) == 0.7


def test_never_over_what_a_person_set() -> None:
    assert after(0.74, 1.0, 1000.0, 0.0, most=0.75) == 0.75
    assert after(0.74, 1.0, 1000.0, 0.0) > 0.75


@given(
    st.floats(LEAST, 1),
    st.none() | st.floats(0, 1),
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.none() | st.floats(0, 1e6),
)
def test_stays_in_its_bounds(
    margin: float, elasticity: float | None, paced: float, share: float, in_flight: float | None
) -> None:
    assert LEAST <= after(margin, elasticity, paced, share * paced, mean_in_flight=in_flight) <= 1


class TestInTheLaw:
    law = SloGradient(ttft="2s", tpot="50ms")

    def after(self, lived_under: float, max_in_flight: float, slow: float = 10.0) -> SloGradientState:
        rate = Average(1 / lived_under, 1.0)
        pace = Pace(lately=rate, in_a_life=rate)
        state = SloGradientState(100.0, LimitReason.START, "", starting=False, pace=pace)
        gap = number(lived_under, 1.0)
        window = Window(
            start=0.0,
            end=1.0,
            paced=20.0,
            slow=slow,
            mean_in_flight=100.0,
            max_in_flight=max_in_flight,
            step_gap=gap,
        )
        return self.law.observe(state, window)

    def test_half_of_them_slow_under_a_mean_within_the_objective_lowers_it(self) -> None:
        assert (self.after(0.038, 100.0).margin or 0.8) < 0.79

    def test_slow_because_all_was_too_slow_is_the_inner_loops_business(self) -> None:
        assert self.after(0.06, 100.0).margin == 0.8

    def test_what_a_limit_did_not_bring_about_does_not_count(self) -> None:
        assert self.after(0.038, 50.0).margin is None

    def test_none_slow_raises_it_above_where_it_began(self) -> None:
        assert (self.after(0.039, 100.0, slow=0.0).margin or 0.0) > 0.8

    def test_none_slow_far_from_the_target_does_not_say_that_more_may_be(self) -> None:
        """Something else binds, the cache or the engine's queue: no wind-up meanwhile."""
        assert self.after(0.035, 100.0, slow=0.0).margin == 0.8


class TestTheShareForFirstTokens:
    """Answers of one token: the round trip is the first token."""

    law = SloGradient(ttft="1s")
    pool = (FirstTokens(-1.0, 30.0, 0.7),)

    def after(
        self, late: float | None, max_in_flight: float = 10.0, share: float | None = None
    ) -> SloGradientState:
        state = SloGradientState(
            10.0, LimitReason.START, "", starting=False, ttft_share=share, pool=self.pool
        )
        return self.law.observe(state, self.window(late, max_in_flight))

    def window(self, late: float | None, max_in_flight: float = 10.0) -> Window:
        return Window(
            start=0.0,
            end=1.0,
            late=late,
            paced=0.0,
            slow=0.0,
            mean_in_flight=10.0,
            max_in_flight=max_in_flight,
            first_token=first_tokens(0.7, 1.0),
        )

    def test_many_that_come_late_all_the_same_lower_it(self) -> None:
        state = self.after(late=20.0)
        assert (state.ttft_share or 1.0) < 0.74
        assert self.law.observe(state, self.window_over(0.73)).reason is LimitReason.TTFT_OVER

    def window_over(self, p90: float) -> Window:
        return Window(
            start=1.0,
            end=2.0,
            late=0.0,
            mean_in_flight=10.0,
            max_in_flight=10.0,
            first_token=first_tokens(p90, 2.0),
        )

    def test_late_because_all_was_far_too_late_is_the_inner_loops_business(self) -> None:
        """Else nothing would be left of it after an outage, and the engine look overloaded for minutes."""
        state = SloGradientState(
            10.0, LimitReason.START, "", starting=False, pool=(FirstTokens(-1.0, 30.0, 20.0),)
        )
        assert self.law.observe(state, self.window(late=30.0)).ttft_share == 0.75

    def test_what_a_limit_did_not_bring_about_or_nobody_knows_does_not_count(self) -> None:
        assert self.after(late=20.0, max_in_flight=5.0).ttft_share is None
        assert self.after(late=None).ttft_share == 0.75

    def test_none_late_brings_it_back_to_what_a_person_set_and_no_further(self) -> None:
        assert 0.5 < (self.after(late=0.0, share=0.5).ttft_share or 0.0) <= 0.53
        assert self.after(late=0.0).ttft_share == 0.75
