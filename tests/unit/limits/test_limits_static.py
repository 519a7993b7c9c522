"""Laws that learn nothing: fixed, none, static thresholds."""

import pytest
from limit_windows import told, trip
from pydantic import ValidationError

from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.limits.law import UNLIMITED, LimitReason, Window
from controlplane.policy.limits.none import NoLimit
from controlplane.policy.limits.thresholds import Thresholds
from controlplane.signals.reading import Known, Reason, Unknown


def _look(waiting: float, kv_usage: float, age_seconds: float = 0.0) -> Window:
    at = 10.0 - age_seconds
    return Window(start=9.0, end=10.0, waiting=Known(waiting, at), kv_usage=Known(kv_usage, at))


def test_fixed_never_moves() -> None:
    law = Fixed(limit=60)
    state = law.observe(law.start(), told(trip(900.0, dropped=True)))
    assert (state.limit, state.slots, state.reason) == (60, 60, LimitReason.FIXED)


def test_a_fixed_limit_is_at_least_one() -> None:
    with pytest.raises(ValidationError, match="limit"):
        Fixed(limit=0)


def test_none_never_binds() -> None:
    law = NoLimit()
    state = law.observe(law.start(), told(trip(900.0, dropped=True)))
    assert state.slots == 1_000_000


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "saturation", "shut"),
    [
        (0, 0.0, 0.0, False),
        (4, 0.4, 0.8, False),  # 4/5 against 0.4/0.8
        (1, 0.79, 0.9875, False),  # 1/5 against 0.79/0.8
        (5, 0.0, 1.0, True),
        (0, 0.8, 1.0, True),
        (12, 0.9, 2.4, True),
    ],
)
def test_thresholds(waiting: float, kv_usage: float, saturation: float, shut: bool) -> None:
    law = Thresholds()
    state = law.observe(law.start(), _look(waiting, kv_usage))
    assert state.saturation == pytest.approx(saturation)
    assert state.limit == (1 if shut else UNLIMITED)
    assert state.reason is (LimitReason.SATURATED if shut else LimitReason.NOT_SATURATED)


def test_what_cannot_be_seen_counts_as_saturated() -> None:
    law = Thresholds()
    assert law.start().slots == 1
    old = law.observe(law.start(), _look(0, 0.0, age_seconds=0.3))
    gone = law.observe(
        law.start(),
        Window(start=9.0, end=10.0, waiting=Known(0.0, 10.0), kv_usage=Unknown(Reason.NOT_A_NUMBER, 10.0)),
    )
    assert [(s.limit, s.reason) for s in (old, gone)] == [(1, LimitReason.STALE)] * 2
    young = law.observe(law.start(), _look(0, 0.0, age_seconds=0.1))
    assert young.limit == UNLIMITED
