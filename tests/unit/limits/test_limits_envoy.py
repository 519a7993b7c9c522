"""Envoy's gradient controller, step by step, and the ways in which it fails before an LLM engine."""

from collections.abc import Iterator

import pytest
from limit_windows import limits, states
from pydantic import ValidationError

from controlplane.policy.limits.envoy_gradient import EnvoyGradient, EnvoyGradientState
from controlplane.policy.limits.law import LimitReason, RoundTrip, Window

_LAW = EnvoyGradient(update_interval="1s")


def _second(end: float, seconds: float, count: int, *, dropped: bool = False) -> Window:
    """One second with `count` requests of `seconds` that all end with it."""
    trips = tuple(RoundTrip(end - seconds, seconds, 1, dropped) for _ in range(count))
    return Window(start=end - 1.0, end=end, round_trips=trips, random=0.5)


def _measured(limit: float, update_at: float = 1.0) -> EnvoyGradientState:
    """Out of a probe that measured 0.1 s; the next update is due at `update_at`, the next probe at 60."""
    return EnvoyGradientState(
        limit, LimitReason.PROBE_OVER, "", min_rtt_seconds=0.1, next_update_at=update_at, next_probe_at=60.0
    )


def test_starts_in_a_probe_of_fifty_requests() -> None:
    result = list(states(_LAW, [_second(1.0, 0.1, 30), _second(2.0, 0.3, 19), _second(3.0, 0.9, 1)]))
    assert [state.limit for state in result] == [3, 3, 3]
    assert [state.reason for state in result] == [
        LimitReason.PROBE,
        LimitReason.PROBE,
        LimitReason.PROBE_OVER,
    ]
    assert "49 of 50" in result[1].detail
    # The median of 30 x 0.1, 19 x 0.3 and 0.9; comes again after 60 s * (1 + 0.15 * 0.5)
    assert result[2].min_rtt_seconds == 0.1
    assert result[2].next_probe_at == pytest.approx(3.0 + 64.5)
    assert result[2].next_update_at == pytest.approx(4.0)


def test_updates() -> None:
    # least 0.1 with 25 % on top is 0.125
    cases = [
        # (limit, sample, new limit)
        (100.0, 0.125, 110),  # g = 1: 100 + sqrt 100
        (100.0, 0.25, 57),  # g = 0.5: floor(50 + 7.07)
        (100.0, 9.0, 57),  # not under 0.5
        (100.0, 0.0625, 214),  # g = 2: floor(200 + 14.14)
        (100.0, 0.01, 214),  # not over 2
        (100.0, 0.15625, 88),  # g = 0.8: floor(80 + 8.94)
        (3.0, 9.0, 3),  # floor(1.5 + 1.22) = 2, held up to 3
        (900.0, 0.1, 1000),  # g = 1.25: floor(1125 + 33.5), held down to 1000
    ]
    for limit, sample, expected in cases:
        state = _LAW.observe(_measured(limit), _second(1.0, sample, 5))
        assert state.limit == expected, (limit, sample)
        assert state.samples == ()
        assert state.next_update_at == 2.0


def test_takes_the_percentile_of_all_samples_since_the_last_update() -> None:
    law = EnvoyGradient(update_interval="2s", percentile=0.9)
    state = law.observe(_measured(100.0, update_at=2.0), _second(1.0, 0.1, 9))
    assert state.limit == 100
    state = law.observe(state, _second(2.0, 0.25, 1))
    # The 90th of 9 x 0.1 and 0.25 is the ninth, 0.1: g = 1.25: floor(125 + 11.18)
    assert state.limit == 136


def test_without_a_sample_there_is_no_update() -> None:
    state = _LAW.observe(_measured(100.0), _second(1.0, 0.1, 0))
    assert (state.limit, state.reason, state.next_update_at) == (100, LimitReason.TOO_FEW, 2.0)
    state = _LAW.observe(_measured(100.0), _second(1.0, 0.1, 5, dropped=True))
    assert (state.limit, state.reason) == (100, LimitReason.TOO_FEW)


def test_probes_again_when_it_is_time_and_ignores_requests_from_before() -> None:
    state = _LAW.observe(_measured(80.0, update_at=60.0), _second(60.0, 0.125, 5))
    # The update comes first: 80 + sqrt 80 = 88.9
    assert (state.limit, state.deferred_limit, state.reason) == (3, 88, LimitReason.PROBE)
    assert state.epoch == 60.0
    # 50 requests that started at 59: none counts
    state = _LAW.observe(state, _second(61.0, 2.0, 50))
    assert (state.limit, state.samples) == (3, ())
    state = _LAW.observe(state, _second(62.0, 2.0, 50))
    assert (state.limit, state.min_rtt_seconds, state.reason) == (88, 2.0, LimitReason.PROBE_OVER)


def test_probes_at_once_after_five_updates_at_the_minimum() -> None:
    bad = [_second(float(end), 9.0, 5) for end in range(1, 8)]
    state = _measured(3.0)
    for window in bad[:4]:
        state = _LAW.observe(state, window)
        assert state.deferred_limit is None
    assert state.at_minimum == 4
    state = _LAW.observe(state, bad[4])
    assert (state.limit, state.deferred_limit, state.reason) == (3, 3, LimitReason.PROBE)
    assert state.at_minimum == 0


def test_the_update_that_reaches_the_minimum_does_not_count() -> None:
    state = _LAW.observe(_measured(4.0), _second(1.0, 9.0, 5))  # floor(2 + 1.41) = 3
    assert (state.limit, state.at_minimum) == (3, 0)


def test_an_idle_service_drifts_to_the_maximum() -> None:
    """No rule says that a limit must be in use: one request a second in flight is enough."""
    windows = [_second(1.0, 0.1, 50), *[_second(float(end), 0.1, 1) for end in range(2, 60)]]
    assert list(limits(_LAW, windows))[-1] == 1000


def test_a_probe_starves_a_server_whose_requests_take_seconds() -> None:
    """Three at a time, six seconds each: a hundred seconds for fifty, whatever the demand is."""

    def served() -> Iterator[Window]:
        for end in range(1, 101):
            yield _second(float(end), 6.0, 3 if end % 6 == 0 else 0)

    assert set(limits(_LAW, served())) == {3}


def test_fixed_point() -> None:
    # g stands at 0.8: L = g L + sqrt(g L) at g/(1 - g)^2 = 20; the limit is a whole number, rounded down
    state = _measured(200.0)
    for end in range(1, 50):
        state = _LAW.observe(state, _second(float(end), 0.15625, 5))
    assert state.limit == pytest.approx(0.8 / 0.2**2, abs=4)


def test_defaults_are_envoy_s() -> None:
    law = EnvoyGradient()
    assert (law.min_limit, law.max_limit, law.request_count) == (3, 1000, 50)
    assert (law.jitter, law.buffer, law.percentile) == (0.15, 0.25, 0.5)


def test_bounds_must_be_ordered() -> None:
    with pytest.raises(ValidationError, match=r"min_limit \(30\) is over max_limit \(20\)"):
        EnvoyGradient(min_limit=30, max_limit=20)
