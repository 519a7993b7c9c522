"""The time of the ticks: with the system clock, back only where that was wrong for long."""

from daemon_fakes import NOON, Time
from hypothesis import given
from hypothesis import strategies as st

from controlplane.daemon.clock import LONGEST_AHEAD_SECONDS, Clock


def clock(time: Time, after: float = 0.0) -> Clock:
    return Clock(after, time.wall, time.steady)


def kinds(clock: Clock) -> list[str]:
    return [event.kind for event in clock.take_events()]


def test_it_follows_the_system_clock_and_its_small_steps() -> None:
    time = Time()
    ours = clock(time)
    for step in (0.0, 0.4, -0.3, 0.9, -0.9):
        time.pass_(5.0)
        time.wall_now += step
        assert ours.now() == time.wall_now
    assert kinds(ours) == []


def test_two_calls_at_one_moment_are_two_times() -> None:
    time = Time()
    ours = clock(time)
    assert ours.now() < ours.now() < ours.now()
    time.wall_now -= 0.5
    assert ours.now() > NOON


def test_a_step_back_of_minutes_is_told_once_and_time_goes_on_at_its_pace() -> None:
    time = Time()
    ours = clock(time)
    ours.now()
    time.wall_now -= 240.0
    before = ours.now()
    for _ in range(240):
        time.pass_(1.0)
        now = ours.now()
        assert abs(now - before - 1.0) < 1e-5
        before = now
    (event,) = ours.take_events()
    assert event.kind == "clock-back"
    assert event.sentence == (
        "the system clock is 4m behind the last tick: time goes on at its own pace until the clock has "
        "caught up"
    )
    time.wall_now += 240.5
    assert ours.now() == time.wall_now
    assert kinds(ours) == ["clock-in-step"]


def test_a_year_ahead_and_back_is_followed_both_ways() -> None:
    time = Time()
    ours = clock(time)
    time.wall_now += 365 * 86400.0
    assert ours.now() == time.wall_now
    assert kinds(ours) == ["clock-leap"]
    time.wall_now -= 365 * 86400.0
    for _ in range(3):
        time.pass_(1.0)
        assert ours.now() == time.wall_now
    (event,) = ours.take_events()
    assert (event.at, event.kind) == (NOON + 1, "clock-set-back")
    assert event.sentence == "the system clock went back by 365d: time goes on from there, rates begin anew"


def test_a_start_far_from_the_last_tick_of_the_journal_goes_by_the_system_clock() -> None:
    for after, kind in ((NOON + 365 * 86400.0, "clock-set-back"), (NOON - 365 * 86400.0, "clock-leap")):
        time = Time()
        ours = clock(time, after=after)
        assert kinds(ours) == [kind]
        time.pass_(1.0)
        assert ours.now() == time.wall_now
        assert kinds(ours) == []
    assert kinds(clock(Time(), after=NOON - 86400.0)) == []


def test_a_jump_forward_is_told_and_followed() -> None:
    time = Time()
    ours = clock(time)
    ours.now()
    time.pass_(10.0)
    time.wall_now += 86400.0
    assert ours.now() == time.wall_now
    time.pass_(10.0)
    assert ours.now() == time.wall_now
    (event,) = ours.take_events()
    assert (event.kind, event.sentence) == ("clock-jump", "the system clock jumped forward by 1d")


def test_a_start_before_the_last_tick_of_the_journal_goes_on_after_it() -> None:
    time = Time()
    ours = clock(time, after=NOON + 60.0)
    time.pass_(1.0)
    assert abs(ours.now() - (NOON + 61.0)) < 1e-3
    assert kinds(ours) == ["clock-back"]
    time.pass_(100.0)
    time.wall_now += 60.0
    assert ours.now() == time.wall_now
    assert kinds(ours) == ["clock-in-step"]


def test_a_long_sleep_of_the_process_is_no_jump() -> None:
    time = Time()
    ours = clock(time)
    time.pass_(600.0)
    assert ours.now() == time.wall_now
    assert kinds(ours) == []


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=30))
def test_it_goes_back_only_where_it_says_so(steps: list[tuple[float, float]]) -> None:
    time = Time()
    ours = clock(time)
    before = ours.now()
    for seconds, jump in steps:
        time.pass_(seconds)
        time.wall_now += jump
        now = ours.now()
        assert now > before or "clock-set-back" in kinds(ours)
        assert -1e-3 <= now - time.wall_now <= LONGEST_AHEAD_SECONDS + 1e-3
        before = now
