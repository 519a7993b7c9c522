"""The SLO gradient, rule by rule with the arithmetic written out. Objectives: TTFT 2 s, TPOT 50 ms, so the
targets are 1.5 s and 40 ms."""

from typing import Any, ClassVar

import pytest
from limit_windows import first_tokens, number, states
from msgspec.structs import replace
from pydantic import ValidationError

from controlplane.policy.limits.elasticity import Elasticity
from controlplane.policy.limits.law import LimitReason, Window
from controlplane.policy.limits.pace import Average, Pace
from controlplane.policy.limits.seats import Seats
from controlplane.policy.limits.slo_gradient import SloGradient, SloGradientState
from controlplane.signals.reading import Known, Reason, Unknown

LAW = SloGradient(ttft="2s", tpot="50ms")
BLIND = Unknown(Reason.SCRAPE_FAILED, 0.0)
NOTHING: dict[str, Any] = dict.fromkeys(
    ("step_gap", "first_token", "kv_usage", "waiting", "preemptions"), BLIND
)


def look(end: float = 1.0, **shown: Any) -> Window:
    """One second that ends at `end`: all is well and the limit is in use, but for what `shown` says."""
    well: dict[str, Any] = {
        "max_in_flight": 1000.0,
        "in_flight": 0.0,
        "step_gap": number(0.01, end),
        "first_token": first_tokens(0.1, end),
        "kv_usage": number(0.1, end),
        "waiting": number(0.0, end),
        "preemptions": number(0.0, end),
    }
    return Window(start=end - 1.0, end=end, **(well | shown))


def paced(gap_seconds: float) -> Pace:
    """As after a long time in which tokens came so far apart."""
    return Pace(lately=Average(1 / gap_seconds, 1.0), in_a_life=Average(1 / gap_seconds, 1.0))


def at(limit: float, **more: Any) -> SloGradientState:
    """Out of slow start, at `limit`."""
    return SloGradientState(limit, LimitReason.START, "", **({"starting": False} | more))


class TestGradients:
    @pytest.mark.parametrize(
        ("shown", "limit", "reason"),
        [
            # 0.04/0.05 = 0.8: 100 * (0.7 + 0.3 * 0.8)
            ({"step_gap": number(0.05, 1)}, 94.0, LimitReason.TPOT_OVER),
            # 0.04/0.2 = 0.2, but 0.6 at least: 100 * 0.88
            ({"step_gap": number(0.2, 1)}, 88.0, LimitReason.TPOT_OVER),
            # 1.5/2 = 0.75: 100 * (0.7 + 0.3 * 0.75)
            ({"first_token": first_tokens(2.0, 1)}, 92.5, LimitReason.TTFT_OVER),
            # 0.9/0.96 = 0.9375: 100 * (0.7 + 0.3 * 0.9375)
            ({"kv_usage": number(0.96, 1)}, 98.125, LimitReason.KV_OVER),
            # 1 - 30/100: 100 * (0.7 + 0.3 * 0.7)
            ({"waiting": number(30, 1)}, 91.0, LimitReason.WAITING),
            # As good as 0.85: 100 * (0.7 + 0.3 * 0.85)
            ({"preemptions": number(1, 1)}, 95.5, LimitReason.PREEMPTIONS),
            # The smallest of several: waiting 0.5 is held up to 0.6 like all, KV 0.9
            ({"waiting": number(90, 1), "kv_usage": number(1.0, 1)}, 88.0, LimitReason.WAITING),
            # Near: 0.04/0.038 = 1.0526: 100 * (0.7 + 0.3 * 1.0526)
            ({"step_gap": number(0.038, 1)}, 101.5789, LimitReason.TPOT_NEAR),
            ({"first_token": first_tokens(1.4, 1)}, 102.1429, LimitReason.TTFT_NEAR),
            # 0.9/0.85
            ({"kv_usage": number(0.85, 1)}, 101.7647, LimitReason.KV_NEAR),
            # All well: 100 * (0.7 + 0.3 * 1.5)
            ({}, 115.0, LimitReason.ROOM),
        ],
    )
    def test_smallest_moves_the_limit(self, shown: dict[str, Any], limit: float, reason: LimitReason) -> None:
        state = LAW.observe(at(100.0), look(**shown))
        assert state.limit == pytest.approx(limit, abs=1e-3)
        assert state.reason is reason

    @pytest.mark.parametrize(
        ("in_flight", "limit"),
        [
            # 30 a window that wait 2 s each are 60: of 60 all of them, 100 * (0.7 + 0.3 * 0.75)
            (60.0, 92.5),
            # of 600 a tenth: 100 * (0.7 + 0.3 * (1 - 0.025))
            (600.0, 99.25),
        ],
    )
    def test_late_first_tokens_cut_by_the_part_that_waits_for_one(
        self, in_flight: float, limit: float
    ) -> None:
        """Where answers are long nearly all are past it: a burst of prompts is over before they end."""
        shown = {"first_token": first_tokens(2.0, 1), "mean_in_flight": in_flight, "max_in_flight": 100.0}
        state = LAW.observe(at(100.0), look(**shown))
        assert state.limit == pytest.approx(limit)
        assert state.reason is LimitReason.TTFT_OVER

    def test_growth_is_by_the_part_of_the_window_in_which_the_limit_was_full(self) -> None:
        state = LAW.observe(at(100.0), look(max_in_flight=100.0, mean_in_flight=40.0))
        assert state.limit == pytest.approx(100 * (1 + 0.15 * 0.4 / 0.8))

    def test_details_name_the_values(self) -> None:
        state = LAW.observe(at(100.0), look(step_gap=number(0.05, 1)))
        assert state.detail == "a token takes 50 ms, the target is 40 ms"
        state = LAW.observe(at(100.0), look(kv_usage=number(0.96, 1)))
        assert state.detail == "the KV cache is 96% full, the target is 90%"

    def test_what_counts_is_the_rate_of_a_stream_over_a_life(self) -> None:
        # Over 2 s where nobody knows how long requests live: 1/0.06 + (1 - exp(-1/2)) * (1/0.025 - 1/0.06)
        state = LAW.observe(at(100.0, pace=paced(0.06)), look(step_gap=number(0.025, 1)))
        gap = 1 / (1 / 0.06 + 0.3934693 * (40 - 1 / 0.06))
        assert state.pace.lately.inverse == pytest.approx(gap)
        assert state.limit == pytest.approx(100 * (0.7 + 0.3 * 0.04 / gap))

    def test_one_slow_second_holds_and_does_not_cut(self) -> None:
        slow = number(0.3, 1)
        state = LAW.observe(at(100.0, pace=paced(0.02)), look(step_gap=slow))
        assert (state.limit, state.reason) == (100.0, LimitReason.TPOT_NEAR)
        # Two of them are the truth.
        state = LAW.observe(state, look(2.0, step_gap=number(0.3, 2.0)))
        assert state.reason is LimitReason.TPOT_OVER

    def test_soon_after_a_cut_a_long_life_holds(self) -> None:
        """Requests that live for minutes: of one second after a cut nothing follows, of two it does."""
        lives = {"mean_in_flight": 100.0, "paced": 1.0, "slow": 0.0}
        state = at(100.0, pace=Pace(sequence_seconds=6000.0, ended=60.0))
        state = LAW.observe(state, look(1.0, step_gap=number(0.06, 1), **lives))
        assert (state.limit, state.reason) == (100.0, LimitReason.TPOT_NEAR)
        state = LAW.observe(state, look(2.0, step_gap=number(0.06, 2), **lives))
        assert state.reason is LimitReason.TPOT_OVER

    def test_one_monster_prompt_is_outvoted(self) -> None:
        # Ten first tokens a window: two windows are pooled, and the lower of two counts.
        windows = [
            look(1.0, first_token=first_tokens(0.5, 1, 10)),
            look(2.0, first_token=first_tokens(14.0, 2, 10)),
            look(3.0, first_token=first_tokens(0.5, 3, 10)),
        ]
        assert all(state.reason is LimitReason.SLOW_START for state in states(LAW, windows))
        # Two such windows in a row are the truth.
        windows[2] = look(3.0, first_token=first_tokens(14.0, 3, 10))
        assert list(states(LAW, windows))[-1].reason is LimitReason.TTFT_OVER

    def test_under_five_first_tokens_there_is_no_percentile(self) -> None:
        quiet = Unknown(Reason.NO_TRAFFIC, 1.0)
        few = look(first_token=first_tokens(9.0, 1, 4), step_gap=quiet)
        state = LAW.observe(at(100.0), few)
        assert (state.limit, state.reason) == (100.0, LimitReason.NO_NEWS)
        # Two more in the next window are enough.
        state = LAW.observe(state, look(2.0, first_token=first_tokens(9.0, 2, 2), step_gap=quiet))
        assert state.reason is LimitReason.TTFT_OVER

    def test_first_tokens_are_forgotten_after_ten_seconds(self) -> None:
        state = LAW.observe(at(100.0), look(first_token=first_tokens(1.45, 1, 6)))
        assert len(state.pool) == 1
        nothing = Unknown(Reason.NO_TRAFFIC, 0.0)
        assert len(LAW.observe(state, look(11.0, first_token=nothing)).pool) == 1
        assert LAW.observe(state, look(11.1, first_token=nothing)).pool == ()


class TestGrowth:
    def test_slow_start_ends_with_the_first_gradient_under_one(self) -> None:
        windows = [
            look(1.0),  # 16 * 1.5 = 24
            look(2.0),  # 36
            look(3.0, kv_usage=number(0.72, 3)),  # 0.9/0.72 = 1.25 < 1.5: 45
            look(4.0, kv_usage=number(1.0, 4)),  # 45 * (0.7 + 0.3 * 0.9) = 43.65
            look(5.0),  # settles
            look(6.0),  # 43.65 * 1.15
        ]
        result = list(states(LAW, windows))
        assert [s.limit for s in result] == pytest.approx([24, 36, 45, 43.65, 43.65, 50.1975])
        assert [s.reason for s in result] == [
            LimitReason.SLOW_START,
            LimitReason.SLOW_START,
            LimitReason.KV_NEAR,
            LimitReason.KV_OVER,
            LimitReason.SETTLING,
            LimitReason.ROOM,
        ]

    def test_only_a_limit_in_use_grows(self) -> None:
        for in_flight, limit in [(79.0, 100.0), (80.0, 115.0), (None, 100.0)]:
            state = LAW.observe(at(100.0), look(max_in_flight=in_flight))
            assert state.limit == pytest.approx(limit)
            assert (state.reason is LimitReason.APP_LIMITED) == (limit == 100.0)

    def test_a_limit_that_is_not_in_use_is_still_cut(self) -> None:
        state = LAW.observe(at(100.0), look(max_in_flight=1.0, step_gap=number(0.05, 1)))
        assert state.limit == 94.0

    def test_small_limits_do_not_get_stuck_between_two_whole_numbers(self) -> None:
        """2 in flight are under 0.8 of a limit of 2.6, but they are all that it lets in."""
        state = at(2.0)
        for second in range(1, 200):
            state = LAW.observe(state, look(float(second), max_in_flight=float(state.slots)))
        assert state.limit > 100

    def test_grows_only_on_latency_that_was_measured_in_the_window(self) -> None:
        quiet = Unknown(Reason.NO_TRAFFIC, 1.0)
        window = look(step_gap=number(0.01, 0.0), first_token=quiet)
        state = LAW.observe(at(100.0, pace=paced(0.01)), window)
        assert (state.limit, state.reason) == (100.0, LimitReason.NO_NEWS)

    def test_an_old_reading_forbids_growth_but_cuts_only_once(self) -> None:
        full = number(1.0, 0.9)
        first = LAW.observe(at(100.0), look(1.0, kv_usage=full))
        assert first.limit == pytest.approx(97.0)
        settled = LAW.observe(first, look(2.0, kv_usage=full))
        held = LAW.observe(settled, look(3.0, kv_usage=full))
        assert (held.limit, held.reason) == (first.limit, LimitReason.KV_OVER)

    def test_an_old_reading_over_its_target_ends_slow_start(self) -> None:
        state = LAW.observe(at(100.0, starting=True), look(1.0, kv_usage=number(1.0, 0.0)))
        assert (state.limit, state.starting) == (100.0, False)


class TestCohort:
    def test_one_cut_until_no_more_than_the_limit_are_in_flight(self) -> None:
        state = LAW.observe(at(100.0), look(1.0, step_gap=number(0.05, 1), in_flight=100.0))
        assert (state.limit, state.settling_since) == (94.0, 1.0)
        for end in (2.0, 3.0):
            state = LAW.observe(state, look(end, in_flight=95.0, step_gap=number(0.05, end)))
            assert (state.limit, state.reason) == (94.0, LimitReason.SETTLING)
        # 94 in flight: the cut has taken effect, what was measured up to here is forgotten
        state = LAW.observe(state, look(4.0, in_flight=94.0, step_gap=number(0.05, 4)))
        assert (state.limit, state.settling_since, state.pace.lately, state.pool) == (
            94.0,
            None,
            Average(),
            (),
        )
        # Still slow: that is now the doing of 94
        state = LAW.observe(state, look(5.0, in_flight=94.0, step_gap=number(0.05, 5)))
        assert state.limit == pytest.approx(94 * 0.94)

    def test_cuts_what_is_in_flight_where_the_limit_is_in_use(self) -> None:
        """85 of 100 made the gap too long: a limit of 94 would change nothing."""
        state = LAW.observe(at(100.0), look(step_gap=number(0.05, 1), max_in_flight=85.0))
        assert state.limit == pytest.approx(85 * 0.94)
        state = LAW.observe(at(100.0), look(step_gap=number(0.05, 1), max_in_flight=79.0))
        assert state.limit == pytest.approx(94.0)

    def test_grows_again_only_when_the_latency_that_cut_it_was_measured_anew(self) -> None:
        quiet = Unknown(Reason.NO_TRAFFIC, 1.0)
        state = LAW.observe(at(100.0), look(1.0, first_token=first_tokens(2.0, 1)))
        assert (state.limit, state.unproven) == (92.5, LimitReason.TTFT_OVER)
        state = LAW.observe(state, look(2.0))  # settles
        for end in (3.0, 4.0):
            state = LAW.observe(state, look(end, first_token=quiet))
            assert (state.limit, state.reason) == (92.5, LimitReason.NO_NEWS)
        assert LAW.observe(state, look(5.0)).limit == pytest.approx(92.5 * 1.15)
        # Where none comes for ten seconds, none is due.
        assert LAW.observe(state, look(12.0, first_token=quiet)).limit == pytest.approx(92.5 * 1.15)

    @pytest.mark.parametrize(("name", "bad"), [("waiting", 30.0), ("kv_usage", 0.96), ("preemptions", 3.0)])
    def test_grows_again_only_when_a_newer_page_shows_that_what_cut_it_is_over(
        self, name: str, bad: float
    ) -> None:
        """Pages come each five seconds; in the others latency alone is measured anew."""
        well = {"waiting": 0.0, "kv_usage": 0.1, "preemptions": 0.0}

        def second(end: float, page_at: float, **more: float) -> Window:
            page = {key: number(value, page_at) for key, value in (well | more).items()}
            return look(end, **page)

        state = LAW.observe(at(100.0), second(1.0, 1.0, **{name: bad}))
        cut = state.limit
        assert cut < 100.0
        for end in (2.0, 3.0, 4.0, 5.0):
            state = LAW.observe(state, second(end, 1.0))
            assert state.limit == cut
        assert LAW.observe(state, second(6.0, 6.0)).limit == pytest.approx(cut * 1.15)

    @pytest.mark.parametrize("in_flight", [500.0, None])
    def test_requests_of_others_cannot_forbid_cuts_for_ever(self, in_flight: float | None) -> None:
        state = at(100.0)
        cuts = []
        for second in range(1, 31):
            before = state.limit
            gap = number(0.05, float(second))
            state = LAW.observe(state, look(float(second), in_flight=in_flight, step_gap=gap))
            if state.limit < before:
                cuts.append(second)
        assert cuts == [1, 12, 23]  # cut, ten seconds to settle, then a window that counts


class TestUnseen:
    def test_partly_blind_does_not_grow_but_cuts(self) -> None:
        state = LAW.observe(at(100.0), look(kv_usage=BLIND))
        assert (state.limit, state.reason, state.detail) == (100.0, LimitReason.STALE, "not seen: KV usage")
        state = LAW.observe(at(100.0), look(kv_usage=BLIND, step_gap=number(0.05, 1)))
        assert (state.limit, state.reason) == (94.0, LimitReason.TPOT_OVER)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_broken_number_is_not_seen(self, value: float) -> None:
        for name in ("step_gap", "kv_usage", "waiting", "preemptions"):
            shown: dict[str, Any] = {name: number(value, 1)}
            state = LAW.observe(at(100.0), look(**shown))
            assert (state.limit, state.reason) == (100.0, LimitReason.STALE), name

    @pytest.mark.parametrize("reason", [Reason.ABSENT, Reason.UNSUPPORTED, Reason.NO_TRAFFIC])
    def test_what_a_source_does_not_have_is_left_out(self, reason: Reason) -> None:
        state = LAW.observe(at(100.0), look(kv_usage=Unknown(reason, 1.0)))
        assert state.limit == pytest.approx(115.0)

    def test_stale_after_three_scrapes(self) -> None:
        assert LAW.observe(at(100.0), look(20.0, kv_usage=number(0.1, 5.0))).limit == pytest.approx(115.0)
        assert LAW.observe(at(100.0), look(20.0, kv_usage=number(0.1, 4.9))).reason is LimitReason.STALE

    def test_blind_decays_to_what_was_good_and_after_a_minute_to_half_of_it(self) -> None:
        state = at(100.0, good_limit=80.0)
        seen = {}
        for second in range(1, 181):
            state = LAW.observe(state, look(float(second), **NOTHING))
            seen[second] = state.limit
            assert state.reason is LimitReason.STALE
        assert seen[1] == pytest.approx(98.0)
        assert seen[11] == pytest.approx(100 * 0.98**11)
        assert seen[12] == seen[60] == 80.0  # 100 * 0.98**12 = 78.5 is under what was good
        assert seen[61] == pytest.approx(80 * 0.98)
        assert seen[180] == 40.0  # and no further

    def test_blind_with_nothing_good_known_decays_to_the_start(self) -> None:
        state = at(17.0)
        for second in range(1, 10):
            state = LAW.observe(state, look(float(second), **NOTHING))
        assert state.limit == 16.0
        # And a limit under it stays where it is: blindness never raises.
        assert LAW.observe(at(10.0), look(1.0, **NOTHING)).limit == 10.0

    def test_sight_comes_back(self) -> None:
        state = LAW.observe(at(100.0), look(1.0, **NOTHING))
        assert state.blind_since == 0.0
        state = LAW.observe(state, look(2.0))
        assert (state.blind_since, state.reason) == (None, LimitReason.ROOM)

    def test_what_is_good_is_an_average_of_a_minute(self) -> None:
        state = LAW.observe(at(100.0), look(1.0, max_in_flight=0.0))
        assert state.good_limit == 100.0
        state = replace(state, limit=50.0)
        for second in range(2, 62):
            state = LAW.observe(state, look(float(second), max_in_flight=0.0))
        assert state.good_limit == pytest.approx(50 + 50 / 2.71828, abs=0.1)


class TestBoundsOfTheLimit:
    def test_a_first_page_makes_nothing_jump(self) -> None:
        """A cache may hold a hundred times as many as the objective allows."""
        state = LAW.observe(LAW.start(), look(1.0, max_in_flight=0.0, kv_ceiling=2000.0))
        assert state.limit == 16.0

    def test_starts_under_the_lowest_ceiling(self) -> None:
        shown = {"kv_ceiling": 600.0, "max_num_seqs": 10, "max_in_flight": 0.0}
        assert LAW.observe(LAW.start(), look(**shown)).limit == 10.0

    @pytest.mark.parametrize(
        ("law", "shown", "limit", "reason"),
        [
            (LAW, {"kv_ceiling": 99.0}, 99.0, LimitReason.KV_CEILING),
            (LAW, {"max_num_seqs": 100}, 94.0, LimitReason.MAX_NUM_SEQS),
            (SloGradient(max_limit=101), {}, 101.0, LimitReason.MAX_LIMIT),
            (SloGradient(max_limit=101), {"kv_ceiling": 50.5}, 50.5, LimitReason.KV_CEILING),
        ],
    )
    def test_ceilings(
        self, law: SloGradient, shown: dict[str, Any], limit: float, reason: LimitReason
    ) -> None:
        state = law.observe(at(100.0), look(**shown))
        assert (state.limit, state.reason) == (limit, reason)

    @pytest.mark.parametrize(
        ("sequences", "limit"), [(1, 1), (2, 2), (3, 3), (16, 16), (17, 16), (100, 94), (256, 241)]
    )
    def test_slack_under_the_engines_own_number_is_of_a_large_one_only(
        self, sequences: int, limit: int
    ) -> None:
        state = LAW.observe(at(300.0), look(max_num_seqs=sequences))
        assert (state.limit, state.slots) == (limit, limit)

    def test_one_sequence_is_less_than_the_floor(self) -> None:
        state = LAW.observe(at(2.0), look(max_num_seqs=1, step_gap=number(9.0, 1)))
        assert (state.slots, state.reason) == (1, LimitReason.MAX_NUM_SEQS)
        assert LAW.observe(LAW.start(), look(max_num_seqs=1, restarted=True)).slots == 1

    def test_never_under_the_floor(self) -> None:
        state = LAW.observe(at(2.1), look(kv_ceiling=180.0, step_gap=number(9.0, 1)))
        assert (state.limit, state.slots, state.reason) == (2.0, 2, LimitReason.FLOOR)

    def test_the_floor_is_honoured_where_the_cache_holds_less(self) -> None:
        assert LAW.observe(at(100.0), look(kv_ceiling=0.3)).limit == 2.0

    @pytest.mark.parametrize("ceiling", [None, 64.0, 400.0])
    def test_always_comes_back_from_the_floor(self, ceiling: float | None) -> None:
        """Five minutes of the worst, then two minutes in which all is well: back, and beyond the start."""
        state = LAW.start()
        for second in range(1, 301):
            worst = {
                "step_gap": number(2.0, float(second)),
                "first_token": first_tokens(60.0, float(second)),
                "kv_usage": number(1.0, float(second)),
                "waiting": number(50, float(second)),
                "preemptions": number(9, float(second)),
            }
            state = LAW.observe(state, look(float(second), kv_ceiling=ceiling, **worst))
        assert state.limit == 2.0
        for second in range(301, 421):
            busy = float(state.slots)
            window = look(float(second), kv_ceiling=ceiling, max_in_flight=busy, in_flight=busy)
            state = LAW.observe(state, window)
        assert state.limit >= min(64.0, ceiling or 64.0)


class TestTokens:
    """The limit in tokens, of requests that need 2000 each: 0.9 * L * 3000."""

    SIZES: ClassVar[dict[str, Any]] = {
        "request_tokens": 2000.0,
        "max_reserved_tokens": 0.0,
        "reserved_tokens": 0.0,
    }

    def test_follows_the_limit_and_what_requests_need(self) -> None:
        assert LAW.observe(at(100.0), look(max_in_flight=0.0)).budget_tokens is None
        state = LAW.observe(at(100.0), look(max_in_flight=0.0, **self.SIZES))
        assert state.budget_tokens == 270_000.0
        # Where nobody tells how large requests are, what was known stands.
        assert LAW.observe(state, look(2.0, max_in_flight=0.0)).budget_tokens == 270_000.0

    def test_there_are_none_where_the_engines_own_number_holds_the_limit_down(self) -> None:
        shown = self.SIZES | {"max_in_flight": 0.0, "max_num_seqs": 106}
        assert LAW.observe(at(100.0), look(**shown)).budget_tokens is None
        assert LAW.observe(at(99.0), look(**shown)).budget_tokens == 267_300.0

    def test_a_limit_whose_tokens_are_used_up_is_in_use(self) -> None:
        few = at(100.0, budget_tokens=270_000.0)
        for tokens, limit in [(215_000.0, 100.0), (216_000.0, 115.0)]:
            shown = self.SIZES | {"max_in_flight": 30.0, "max_reserved_tokens": tokens}
            assert LAW.observe(few, look(**shown)).limit == pytest.approx(limit)

    def test_a_cut_is_of_the_tokens_in_use_and_settles_when_they_are_given_back(self) -> None:
        full = at(100.0, budget_tokens=270_000.0)
        shown = self.SIZES | {"max_in_flight": 30.0, "max_reserved_tokens": 243_000.0}
        state = LAW.observe(full, look(step_gap=number(0.05, 1), **shown))
        assert state.limit == pytest.approx(90 * 0.94)
        assert state.budget_tokens == pytest.approx(90 * 0.94 * 2700)
        state = LAW.observe(state, look(2.0, **(shown | {"reserved_tokens": 229_000.0, "in_flight": 30.0})))
        assert state.settling_since == 1.0
        state = LAW.observe(state, look(3.0, **(shown | {"reserved_tokens": 228_000.0, "in_flight": 30.0})))
        assert state.settling_since is None


class TestRestart:
    def test_forgets_everything_and_starts_anew(self) -> None:
        learned = {"elasticity": Elasticity(1.0, 100.0, 2000.0, 0.01, 5.0), "seats": Seats(128.0, 3)}
        known = at(200.0, pace=paced(0.06), margin=0.5, good_limit=180.0, blind_since=0.0, **learned)
        state = LAW.observe(known, look(kv_ceiling=180.0, restarted=True, step_gap=number(9.0, 1)))
        assert (state.limit, state.reason, state.starting) == (16.0, LimitReason.RESTARTED, True)
        assert (state.pace, state.margin, state.pool) == (Pace(), None, ())
        assert (state.elasticity, state.seats) == (Elasticity(), Seats())
        assert (state.good_limit, state.settling_since) == (None, None)
        assert LAW.observe(known, look(restarted=True)).limit == 16.0


def test_idle_holds() -> None:
    quiet = Unknown(Reason.NO_TRAFFIC, 1.0)
    state = at(100.0)
    for second in range(1, 100):
        state = LAW.observe(state, look(float(second), step_gap=quiet, first_token=quiet, max_in_flight=0.0))
        assert (state.limit, state.reason) == (100.0, LimitReason.APP_LIMITED)


def test_nothing_shown_at_all_holds() -> None:
    law = SloGradient()
    state = law.observe(law.start(), Window(start=0.0, end=1.0))
    assert (state.limit, state.reason) == (16.0, LimitReason.APP_LIMITED)
    state = law.observe(law.start(), Window(start=0.0, end=1.0, max_in_flight=16.0))
    assert (state.limit, state.reason) == (16.0, LimitReason.NO_NEWS)


def test_a_distribution_without_a_p90_is_no_first_token() -> None:
    without = Known(replace(first_tokens(1.0, 1.0).value, p90=None), 1.0)
    assert LAW.observe(at(100.0), look(first_token=without)).pool == ()


def test_maximum_under_minimum_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"max_limit \(3\) is under min_limit \(4\)"):
        SloGradient(min_limit=4, max_limit=3)
