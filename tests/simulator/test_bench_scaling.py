"""`make bench-scaling`: the figures that must hold, on two days, and that rivals are what they say."""

import numpy as np
import pytest

from benchmarks.bench_scaling import FIRST_SEED
from benchmarks.scaling.bound import AllButBursts
from benchmarks.scaling.curves import OURS, RIVALS, Law, Point, advantages, curve
from benchmarks.scaling.load import SUDDEN, SWINGING, Day, arrivals, parts, rates
from benchmarks.scaling.pool import CAPACITY, LIMIT, Outcome, Pool, run
from benchmarks.scaling.rivals import AibrixKpa, HpaOnWaiting, KedaOnWaiting, Kpa, Wva
from benchmarks.scaling.sight import Sight, Turns
from benchmarks.scaling.verdict import verdicts


def test_the_default_holds_what_must_hold_on_two_days_it_was_not_tuned_on() -> None:
    counts = {seed: arrivals(rates(SWINGING, seed), seed).tolist() for seed in (FIRST_SEED, FIRST_SEED + 1)}
    assert OURS.usual is not None
    strongest = {"WVA": (0.4, 0.5, 0.6, 0.7), "KPA (Knative)": (38, 46, 52, 60)}
    rivals = [curve(law, counts, strongest[law.name]) for law in RIVALS if law.name in strongest]
    (ours,) = curve(OURS, counts, (OURS.usual,))
    (found,) = advantages([ours], rivals)
    assert found.minutes_ratio is not None
    assert found.minutes_ratio <= 0.5
    assert found.hours_saved is not None
    assert found.hours_saved >= 0.15
    assert ours.outcome.turns == 0


def test_a_day_is_the_same_by_seed_and_swings_as_it_says() -> None:
    assert np.array_equal(rates(SWINGING, 3), rates(SWINGING, 3))
    quiet = SWINGING._replace(bursts=0.0, low=100.0, high=100.0)
    seen = np.concatenate([rates(quiet, seed) for seed in range(4)])
    assert seen.mean() == pytest.approx(100.0, rel=0.05)
    assert seen.std() / seen.mean() == pytest.approx(0.29, rel=0.1)
    assert rates(SUDDEN, 1).max() > 1.5 * SUDDEN.high


def test_a_day_is_its_quiet_part_times_the_highest_burst_at_a_time() -> None:
    quiet, bursts = parts(SUDDEN, 4)
    assert [start for start, _ in bursts] == sorted(start for start, _ in bursts)
    for second in (0, 30_000, 60_000):
        factor = max([1.0, *(float(burst[second]) for _, burst in bursts)])
        assert rates(SUDDEN, 4)[second] == pytest.approx(quiet[second] * factor)


def test_who_is_told_of_a_burst_when_it_begins_is_late_for_it_and_in_time_for_all_else() -> None:
    quiet = SWINGING._replace(bursts=0.0)
    assert run_told(quiet) == 0
    assert run_told(SUDDEN) > 10


def run_told(day: Day) -> float:
    told = AllButBursts(day, 2, 1.3)
    return run(told, arrivals(rates(day, 2), 2).tolist(), 2, 4, 32).violation_minutes


def test_a_fluid_pool_loses_nothing_and_does_what_it_can() -> None:
    pool = Pool(2, 2, 1)
    for now in range(600):
        pool.second(now, 60)
    sight = pool.sight
    assert sight.arrived == pytest.approx(sight.finished + sight.shed + sight.in_flight + sight.queued)
    assert sight.in_flight == pytest.approx(2 * LIMIT, rel=0.01)
    assert sight.finished / 600 == pytest.approx(2 * CAPACITY, rel=0.05)
    assert pool.violation_minutes == 10
    assert pool.replica_seconds == 1200


def test_replicas_are_paid_from_being_asked_for_and_serve_after_a_cold_start() -> None:
    class Four:
        interval = 15

        def look(self, sight: Sight) -> int:
            return 4

    outcome = run(Four(), [40] * 600, 1, 2, 8)
    assert outcome.replica_hours == pytest.approx((4 * 600 - 2 * 15) / 3600)
    assert 0 < outcome.violation_minutes < 6
    assert outcome.turns == 0


def test_turns_are_changes_back_within_a_cold_start() -> None:
    turns = Turns(180.0)
    for at, (before, after) in ((0, (2, 4)), (100, (4, 3)), (400, (3, 5)), (700, (5, 4)), (710, (4, 5))):
        turns.change(before, after, at)
    assert (turns.turns, turns.changes) == (2, 5)


def sight(*, asked: int, ready: int, queued: float = 0.0, in_flight: float = 0.0, now: int = 3600) -> Sight:
    seen = Sight(asked)
    seen.now, seen.ready, seen.queued, seen.in_flight = now, ready, queued, in_flight
    seen.concurrency = [(in_flight + queued) * i for i in range(now + 1)]
    return seen


def test_rivals_do_what_their_makers_say() -> None:
    assert HpaOnWaiting(2.0).look(sight(asked=4, ready=4, queued=16.0)) == 8
    assert HpaOnWaiting(2.0).look(sight(asked=4, ready=4, queued=8.5)) == 4, "within the tolerance"
    assert HpaOnWaiting(2.0).look(sight(asked=8, ready=4, queued=16.0)) == 8, "those that load have none"
    assert HpaOnWaiting(2.0).look(sight(asked=4, ready=4, queued=80.0)) == 8, (
        "at most twice as many, or four more"
    )
    assert KedaOnWaiting(5.0).look(sight(asked=4, ready=4, queued=28.0)) == 6
    assert Kpa(70.0).look(sight(asked=4, ready=4, in_flight=350.0)) == 5
    assert Kpa(70.0).look(sight(asked=8, ready=8, in_flight=70.0)) == 4, "not under half of the ready ones"
    assert AibrixKpa(70.0).look(sight(asked=4, ready=4, in_flight=290.0)) == 4, "within the tolerance"
    assert Wva(0.85).look(sight(asked=2, ready=2, in_flight=500.0)) == 3
    assert Wva(0.85).look(sight(asked=3, ready=2, in_flight=500.0)) == 3, "what is pending counts"


def test_an_advantage_is_read_off_the_rivals_curve_between_its_points() -> None:
    def point(minutes: float, hours: float) -> Point:
        return Point(0.0, (Outcome(minutes, hours, 0, 0, 1.0),))

    rivals = [[point(100.0, 200.0), point(10.0, 300.0)]]
    (found,) = advantages([point(10.0, 250.0)], rivals)
    assert found.hours_saved == pytest.approx(1 - 250 / 300)
    assert found.minutes_ratio == pytest.approx(10 / (np.sqrt(100.5 * 10.5) - 0.5))
    (outside,) = advantages([point(5.0, 350.0)], rivals)
    assert (outside.minutes_ratio, outside.hours_saved) == (None, None)


def days(*each: tuple[float, float], turns: float = 0.0) -> Point:
    """Violation minutes and hours of each day."""
    return Point(0.9, tuple(Outcome(minutes, hours, turns, 0, 1.0) for minutes, hours in each))


def test_a_verdict_is_sure_only_where_all_days_agree() -> None:
    rival = [days((100.0, 200.0), (100.0, 200.0)), days((10.0, 300.0), (10.0, 300.0))]
    minutes, hours, turns = verdicts(days((10.0, 220.0), (12.0, 222.0)), [rival])
    assert (minutes.holds, hours.holds, turns.holds) == ("yes", "yes", "yes")
    assert minutes.figure is not None
    assert minutes.low is not None
    assert minutes.high is not None
    assert minutes.low < minutes.figure < minutes.high < 0.5
    minutes, hours, turns = verdicts(days((20.0, 220.0), (60.0, 222.0), turns=1.0), [rival])
    assert (minutes.holds, turns.holds) == ("no, on average", "no")
    minutes, _, _ = verdicts(days((90.0, 220.0), (95.0, 222.0)), [rival])
    assert minutes.holds == "no"
    minutes, _, _ = verdicts(days((1.0, 400.0), (1.0, 400.0)), [rival])
    assert (minutes.figure, minutes.holds) == (None, "no rival goes so far")


def test_every_law_is_swept_around_its_makers_value() -> None:
    def inside(law: Law) -> bool:
        return law.usual is None or min(law.values) <= law.usual <= max(law.values)

    assert all(inside(law) for law in (OURS, *RIVALS))
