"""What an autoscaler is told: the count that moves it, and the count that moves nothing."""

import contextlib
from fractions import Fraction

import fleet_fakes as fakes
import hpa
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.api import metrics
from controlplane.api.autoscaling import CannotSayError, advice, moving_value, tolerance_of
from controlplane.signals.decision import Orders, Standing
from controlplane.signals.pod import PodFacts
from controlplane.signals.reading import Reason, Unknown
from controlplane.signals.snapshot import Scale

TENTH, NONE = Fraction(1, 10), Fraction(0)
COUNTS = st.integers(0, 2000)


def scaled(desired: int, current: int, *, standing: Standing | None = Standing.ENFORCE, **changes: object):
    """A daemon whose pool chat has `current` pods and should have `desired`."""
    need = fakes.known(float(desired))
    scale = Scale("work", desired, current, 0, need, "demand", "so much work", fakes.AT)
    scale = msgspec.structs.replace(scale, **changes)
    seen = fakes.fleet()
    pool = msgspec.structs.replace(seen.pools["chat"], scale=scale, replicas_up=0)
    pods = {f"s/{i}": PodFacts(namespace="s", name=str(i), pool="chat") for i in range(current)}
    standings = {} if standing is None else {"chat": {"autoscaler": standing}}
    return fakes.FakeDaemon(
        seen=msgspec.structs.replace(seen, pools={"chat": pool}, pods=pods),
        how=fakes.status(pool_standings=standings),
    )


@given(COUNTS, COUNTS)
def test_without_tolerance_the_count_is_reached_at_once(desired: int, current: int) -> None:
    assert hpa.replicas(current, moving_value(desired, current, NONE), NONE) == desired


@given(COUNTS, COUNTS)
def test_with_the_usual_tolerance_it_is_never_too_few_and_too_many_by_a_tenth_at_most(
    desired: int, current: int
) -> None:
    after = hpa.replicas(current, moving_value(desired, current, TENTH))
    if desired > current:
        assert desired <= after <= max(desired, current * 11 // 10 + 1)
    else:
        assert desired <= after <= current
    surplus = after - desired
    assert surplus == 0 or 10 * surplus < desired or 9 * after < 10 * desired, (
        "a ninth, of a hundred and more"
    )


@given(st.integers(1, 2000), COUNTS)
def test_nothing_moves_twice(desired: int, current: int) -> None:
    """Having moved, an HPA that asks again stays: what a step up has created is not removed."""
    once = hpa.replicas(current, moving_value(desired, current, TENTH))
    assert hpa.replicas(once, moving_value(desired, once, TENTH)) == once


def test_one_replica_does_not_drown_in_the_tolerance() -> None:
    assert hpa.replicas(10, 11.0) == 10, "the plain count is just within 10 %"
    assert hpa.replicas(10, moving_value(11, 10, TENTH)) == 12
    assert hpa.replicas(10, 9.0) == 10
    assert hpa.replicas(10, moving_value(9, 10, TENTH)) == 9
    assert hpa.replicas(11, moving_value(10, 11, TENTH)) == 10
    assert hpa.replicas(12, moving_value(11, 12, TENTH)) == 12, "here it does: a step up may have led to it"
    assert hpa.replicas(12, moving_value(10, 12, TENTH)) == 10
    assert hpa.replicas(20, moving_value(18, 20, TENTH)) == 18


@pytest.mark.parametrize("standing", [None, Standing.OBSERVE, Standing.HELD])
def test_whoever_only_observes_moves_nothing(standing: Standing | None) -> None:
    told = advice(scaled(9, 4, standing=standing), "chat")
    assert (told.active, told.value, told.desired, told.current) == (True, 4.0, 4, 4)


def test_unknown_data_move_nothing() -> None:
    assert advice(scaled(9, 4, need=Unknown(Reason.NO_DATA, fakes.AT)), "chat").value == 4.0
    late = scaled(9, 4)
    late.clock += 60
    assert advice(late, "chat").value == 4.0


def test_the_wish_counts_where_it_may_be_enforced() -> None:
    told = advice(scaled(9, 4), "chat")
    assert (told.active, told.value, told.desired, told.current) == (True, 9.0, 9, 4)
    assert told.why == "so much work"


def test_zero_is_told_only_where_it_was_decided() -> None:
    assert not advice(scaled(0, 2), "chat").active
    assert advice(scaled(1, 0), "chat").active
    with pytest.raises(CannotSayError, match="no replica is seen"):
        advice(scaled(0, 0, standing=Standing.OBSERVE), "chat")


def test_pods_that_go_are_no_replicas_and_those_that_load_are() -> None:
    daemon = scaled(9, 3, standing=Standing.OBSERVE)
    going = PodFacts(namespace="s", name="going", pool="chat", terminating_since=1.0)
    over = PodFacts(namespace="s", name="over", pool="chat", phase="Failed")
    other = PodFacts(namespace="s", name="other", pool="code")
    daemon.seen.pods.update({pod.key: pod for pod in (going, over, other)})
    assert advice(daemon, "chat").current == 3


def test_who_cannot_say_says_so() -> None:
    with pytest.raises(CannotSayError, match="follows cp-1: ask the leader"):
        advice(fakes.FakeDaemon(how=fakes.status(leads=False, follows="cp-1")), "chat")
    with pytest.raises(CannotSayError, match="no pool 'nope'") as told:
        advice(fakes.FakeDaemon(), "nope")
    assert told.value.unknown_pool
    with pytest.raises(CannotSayError, match="first tick"):
        advice(fakes.FakeDaemon(seen=None), "chat")


@given(st.text(max_size=12))
def test_a_tolerance_is_a_share_or_a_sentence(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 <= tolerance_of(text) < 1


@pytest.mark.parametrize("text", ["", "nan", "inf", "-0.1", "1", "1e99999999", "0x1", "9" * 50])
def test_what_is_no_tolerance(text: str) -> None:
    with pytest.raises(ValueError, match="tolerance is a share"):
        tolerance_of(text)


def test_an_hpa_reads_the_same_number_as_a_metric() -> None:
    def told(daemon: fakes.FakeDaemon) -> list[str]:
        page = metrics.page(daemon.seen, daemon.how, Orders(), daemon.clock).text(openmetrics=False)
        return [
            line for line in page.splitlines() if line.startswith("controlplane_pool_autoscaler_replicas{")
        ]

    assert told(scaled(11, 10)) == ['controlplane_pool_autoscaler_replicas{pool="chat"} 12.0']
    observed = scaled(11, 10, standing=Standing.OBSERVE)
    assert told(observed) == ['controlplane_pool_autoscaler_replicas{pool="chat"} 10.0']
    assert told(scaled(0, 0, standing=Standing.OBSERVE)) == []
    assert told(fakes.FakeDaemon()) == [], "a pool that is not scaled"
