"""The default law of scaling: what it learns of replicas, what it foresees, and what it says is needed."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.scaling import forecast, staffing, supply
from controlplane.policy.scaling.forecast import LOOK_SECONDS, Forecast
from controlplane.policy.scaling.seen import PoolSeen, ReplicaSeen, work_of
from controlplane.policy.scaling.staffing import Dispersion
from controlplane.policy.scaling.supply import Supply
from controlplane.policy.scaling.work import Work, WorkState, looks_of

COLD_START = 180.0
LONGEST_STEP = 0.04
BASE_STEP, STEP_SLOPE, PACE = 0.0085, 0.0002, 10.0  # of a replica; pace in tokens of work a sequence and step
LIMIT = 140.0


def capacity(in_flight: float) -> float:
    """Tokens of work a second of a replica with so many in flight."""
    return PACE * in_flight / (BASE_STEP + STEP_SLOPE * in_flight)


MOST = capacity((LONGEST_STEP - BASE_STEP) / STEP_SLOPE)


def replica(name: str, in_flight: float, limit: float | None = LIMIT) -> ReplicaSeen:
    step = BASE_STEP + STEP_SLOPE * in_flight
    work = capacity(in_flight) * LOOK_SECONDS
    return ReplicaSeen(name=name, work=work, in_flight=in_flight, limit=limit, step_seconds=step)


def pool(at: float, rate: float | None, flights: list[float], *, shed: bool = False) -> PoolSeen:
    """A look that ends at `at`: work came at `rate`, and the replicas had so many in flight."""
    return PoolSeen(
        start=at - LOOK_SECONDS,
        end=at,
        arrived=None if rate is None else rate * LOOK_SECONDS,
        shed=shed,
        replicas=tuple(replica(f"r{i}", flight) for i, flight in enumerate(flights)),
    )


def learned(law: Work, rate: float, looks: int = 60) -> tuple[WorkState, float]:
    """The state after a quarter of an hour at `rate`, on two replicas with unequal load, and the time."""
    state, at = WorkState(), 0.0
    for i in range(looks):
        at = (i + 1) * LOOK_SECONDS
        state = law.observe(state, pool(at, rate, [20.0 + i % 7, 40.0 + i % 5]), COLD_START, LONGEST_STEP)
    return state, at


# --- supply ---------------------------------------------------------------------------------------------


def test_what_a_replica_can_do_follows_from_how_steps_grow_with_load() -> None:
    known = Supply()
    for i in range(30):
        known = supply.observe(known, pool(15.0 * i, 0.0, [15.0 + i, 30.0 + i]), LONGEST_STEP)
    found = known.capacity(LONGEST_STEP)
    assert found == pytest.approx(0.95 * MOST, rel=0.02)


def test_nothing_is_known_where_all_looks_are_at_the_same_load() -> None:
    known = Supply()
    for i in range(100):
        known = supply.observe(known, pool(15.0 * i, 0.0, [40.0, 40.0]), LONGEST_STEP)
    assert known.capacity(LONGEST_STEP) is None


def test_where_limits_bind_and_work_is_refused_what_is_done_is_what_can_be_done() -> None:
    known = supply.observe(Supply(), pool(15.0, 1e6, [LIMIT, LIMIT], shed=True), LONGEST_STEP)
    assert known.capacity(LONGEST_STEP) == pytest.approx(capacity(LIMIT))


def test_a_cache_that_is_full_before_steps_are_long_is_learned_of() -> None:
    known = Supply()
    for i in range(150):
        flight = 20.0 + 20.0 * (i % 3)
        full = flight == 60.0
        one = replica("r", flight, limit=60.0)
        seen = PoolSeen(start=0.0, end=LOOK_SECONDS, arrived=1.0, shed=full, replicas=(one,))
        known = supply.observe(known, seen, LONGEST_STEP)
    assert known.capacity(LONGEST_STEP) == pytest.approx(capacity(60.0), rel=0.1)


def test_a_limit_that_binds_while_nothing_is_refused_says_nothing() -> None:
    # A new engine's limit starts low: it binds for seconds, long before the engine is full.
    known = supply.observe(Supply(), pool(15.0, 1.0, [16.0]), LONGEST_STEP)
    assert known.capacity(LONGEST_STEP) is None


# --- forecast and staffing ------------------------------------------------------------------------------


def test_a_steady_ramp_is_foreseen() -> None:
    looks, seen = looks_of(COLD_START), None
    for i in range(2000):
        seen = forecast.observe(seen, 1000.0 + 0.5 * i, looks)
    assert seen is not None
    assert seen.ahead(looks) == pytest.approx(1000.0 + 0.5 * (1999 + looks), rel=0.01)


def test_swings_that_are_over_within_a_cold_start_do_not_stay() -> None:
    looks, seen = 13, None
    for i in range(2000):
        seen = forecast.observe(seen, 1000.0 + (300.0 if i // 13 % 2 else -300.0), looks)
    assert seen is not None
    assert seen.stays < 0.2
    assert 0.2 < seen.spread < 0.4


@given(st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=80))
def test_forecasts_are_never_negative_nor_broken(rates: list[float]) -> None:
    seen: Forecast | None = None
    for rate in rates:
        seen = forecast.observe(seen, rate, 13)
        assert 0.0 <= seen.ahead(13) < math.inf
        assert 0.0 <= seen.spread <= 0.5 + 1e-9
        assert len(seen.awaited) <= 13


def test_more_is_needed_for_uneven_load_and_a_smaller_share_of_a_larger_pool() -> None:
    even = staffing.staffed(1000.0, 0.0, 15.0, 2.5)
    small, large = (staffing.staffed(rate, 1000.0, 15.0, 2.5) / rate for rate in (1000.0, 100_000.0))
    assert even == 1000.0
    assert 1.0 < large < small


def test_dispersion_is_that_of_counts_times_sizes() -> None:
    seen: Dispersion | None = None
    for i in range(400):
        seen = staffing.observe(seen, 1000.0 + (100.0 if i % 2 else -100.0), 15.0)
    assert seen is not None
    assert seen.value == pytest.approx(2 * 100.0**2 * 15.0 / 1000.0, rel=0.01)


# --- the law --------------------------------------------------------------------------------------------


def test_demand_counts_what_is_shed() -> None:
    law = Work()
    state, at = learned(law, 2000.0)
    for i in range(4):
        seen = pool(at + 15.0 * (i + 1), 6 * MOST, [LIMIT, LIMIT], shed=True)
        state = law.observe(state, seen, COLD_START, LONGEST_STEP)
    need = law.need(state, seen, COLD_START)
    assert need.replicas is not None
    assert need.replicas > 5.5  # what two replicas let in is a third of what comes


def test_panic_needs_no_forecast() -> None:
    law = Work()
    state, at = learned(law, 2000.0)
    seen = pool(at + 15.0, 5 * MOST, [LIMIT, LIMIT], shed=True)
    need = law.need(law.observe(state, seen, COLD_START, LONGEST_STEP), seen, COLD_START)
    assert need.replicas is not None
    assert need.replicas >= 4.5
    assert "more than 2 replicas can do" in need.why


def test_in_panic_a_rise_is_expected_to_go_on_and_a_fall_is_not() -> None:
    law = Work()
    state, at = learned(law, 2000.0)
    for i, factor in enumerate((3.0, 4.0, 5.0, 6.0)):
        seen = pool(at + 15.0 * (i + 1), factor * MOST, [LIMIT, LIMIT], shed=True)
        state = law.observe(state, seen, COLD_START, LONGEST_STEP)
    rising = law.need(state, seen, COLD_START)
    falling = law.need(msgspec.structs.replace(state, recent=state.recent[::-1]), seen, COLD_START)
    assert rising.replicas is not None
    assert falling.replicas is not None
    assert rising.replicas > 0.9 * (6.0 + 3.0)
    assert falling.replicas < 0.9 * (6.0 + 3.0)
    assert "as many again are expected" in rising.why
    assert "again" not in falling.why


def test_while_work_is_shed_and_while_slots_would_be_full_none_is_taken_away() -> None:
    law = Work()
    state, at = learned(law, 2000.0)
    shedding = pool(at, 2000.0, [10.0, 10.0, 10.0], shed=True)
    assert law.need(state, shedding, COLD_START).keep >= 3
    full = pool(at, 2000.0, [120.0, 120.0, 120.0])
    assert law.need(state, full, COLD_START).keep > 2


def test_the_need_is_unknown_until_something_is_known() -> None:
    law = Work()
    seen = pool(15.0, 100.0, [40.0, 40.0])
    state = law.observe(WorkState(), seen, COLD_START, LONGEST_STEP)
    assert law.need(state, seen, COLD_START).replicas is None
    blind = pool(30.0, None, [40.0, 40.0])
    found = law.need(law.observe(state, blind, COLD_START, LONGEST_STEP), blind, COLD_START)
    assert found.replicas is None
    assert found.keep == 2


def test_from_zero_and_to_zero() -> None:
    law, state = Work(idle_after="2m"), WorkState()
    seen = pool(15.0, 10.0, [])
    state = law.observe(state, seen, COLD_START, LONGEST_STEP)
    assert law.need(state, seen, COLD_START).replicas == 1.0
    for i in range(9):
        seen = pool(30.0 + 15.0 * i, 0.0, [0.0])
        state = law.observe(state, seen, COLD_START, LONGEST_STEP)
    assert law.need(state, seen, COLD_START).replicas == 0.0
    assert law.need(state, seen, COLD_START).keep == 0.0
    streaming = pool(seen.end, 0.0, [1.0])
    assert law.need(state, streaming, COLD_START).keep > 0.0, "a long answer is still under way"


def test_the_longer_the_backlog_the_more_is_needed() -> None:
    law = Work()
    state, at = learned(law, 2000.0)
    seen = pool(at, 2000.0, [40.0, 40.0])
    deep = msgspec.structs.replace(seen, backlog=MOST * COLD_START)
    without, with_it = (law.need(state, one, COLD_START).replicas for one in (seen, deep))
    assert without is not None
    assert with_it is not None
    assert with_it > without + 0.9


def test_the_state_goes_through_json() -> None:
    state, _ = learned(Work(), 2000.0)
    assert msgspec.json.decode(msgspec.json.encode(state), type=WorkState) == state


def test_an_output_token_is_worth_more_than_a_prompt_token() -> None:
    assert work_of(1000, 100) == 1500
