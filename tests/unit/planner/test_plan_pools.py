"""Two pools against one, on paper."""

import math

import numpy as np
import pytest

from controlplane.planner.pools import (
    EDGES,
    Filling,
    Site,
    TrafficError,
    best_plan,
    boundaries,
    context_of,
    plan_at,
    traffic,
)
from controlplane.planner.pools_verdict import verdict
from controlplane.simulator.constants import engine_model
from controlplane.simulator.trace import TraceRow

H100 = engine_model("h100-8b")


def rows(short: int = 1900, long: int = 100, seconds: float = 100.0) -> list[TraceRow]:
    """Mostly short ones, and some of 30,000 tokens, evenly mixed."""
    count = short + long
    every = count // long
    return [
        TraceRow(i * seconds / count, 30_000, 300)
        if i % every == 0
        else TraceRow(i * seconds / count, 500, 200)
        for i in range(count)
    ]


def site(context: int = 32_768, ttft: float = 2.5) -> Site:
    return Site(H100, ttft, 0.05, context)


def test_slots_by_context_make_two_pools_pay_and_reserving_by_size_does_not() -> None:
    """As many slots as 32K contexts fit are 13; the short requests would need 700 tokens each."""
    load = traffic(rows(), None)
    by_context = best_plan(site(), load, Filling.BY_CONTEXT)
    by_size = best_plan(site(), load, Filling.BY_SIZE)
    assert by_context is not None
    assert by_size is not None
    assert by_context.one.slots == 439_984 // 32_768
    assert by_context.short.slots == 256
    assert by_context.saved_ratio > 0.3
    assert by_size.saved_ratio_of_many < 0.05
    assert by_size.one.engines < by_context.engines
    said = verdict(site(), load, by_context, by_size)
    assert "reserve by size, and keep one" in said
    assert f"instead of {by_context.one.engines}" in said


def test_the_best_boundary_is_the_best_of_all() -> None:
    load = traffic(rows(), None)
    for filling in Filling:
        best = best_plan(site(), load, filling)
        assert best is not None
        others = [plan_at(site(), load, filling, edge) for edge in boundaries(load, 32_768)]
        assert best.engines == min(plan.engines for plan in others if plan.cut_ratio <= 0.01)


def test_requests_are_parted_by_prompt_and_likely_output() -> None:
    load = traffic(rows(), None)
    assert set(load.mix.reserved) == {700.0, 30_200.0}, "nine of ten answers have 200 tokens or fewer"
    plan = plan_at(site(), load, Filling.BY_SIZE, 1024)
    assert plan.short_ratio == pytest.approx(0.95)
    assert plan.short.requests_per_second + plan.long.requests_per_second == pytest.approx(load.rate)


def test_what_is_cut_is_told() -> None:
    """One answer in 20 is far longer than the likely one."""
    mixed = [TraceRow(float(i), 500, 2000 if i % 20 == 0 else 100) for i in range(400)]
    mixed += [TraceRow(float(i), 20_000, 100) for i in range(400)]
    load = traffic(sorted(mixed), 10.0)
    assert plan_at(site(), load, Filling.BY_SIZE, 768).cut_ratio == pytest.approx(0.05)
    best = best_plan(site(), load, Filling.BY_SIZE)
    assert best is not None
    assert best.boundary_tokens > 2500, "a boundary that cuts so many is none"


def test_a_busy_spell_counts_and_a_rate_is_a_rate() -> None:
    even = traffic(rows(), None)
    burst = [row._replace(at=row.at / 2 if row.at < 50 else 25 + (row.at - 50) * 1.5) for row in rows()]
    uneven = traffic(burst, None)
    assert uneven.rate == pytest.approx(even.rate, rel=0.01)
    plans = [plan_at(site(), load, Filling.BY_SIZE, 1024) for load in (even, uneven)]
    assert plans[1].one.exact_engines == pytest.approx(2 * plans[0].one.exact_engines, rel=0.1)
    fast = plan_at(site(), traffic(rows(seconds=10_000.0), 2000 / 100), Filling.BY_SIZE, 1024)
    assert fast.one.exact_engines == pytest.approx(plans[0].one.exact_engines, rel=0.05)


def test_engines_are_whole_and_at_least_one() -> None:
    plan = plan_at(site(), traffic(rows(), 0.5), Filling.BY_SIZE, 1024)
    assert (plan.one.engines, plan.short.engines, plan.long.engines) == (1, 1, 1)
    assert plan.saved_ratio == -1.0
    large = plan_at(site(), traffic(rows(), 500.0), Filling.BY_SIZE, 1024)
    for pool in (large.one, large.short, large.long):
        assert pool.engines == math.ceil(pool.exact_engines)


@pytest.mark.parametrize(("longest", "context"), [(1, 256), (256, 256), (257, 512), (14_089, 16_384)])
def test_the_context_is_the_next_power_of_two(longest: int, context: int) -> None:
    assert context_of(longest) == context


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "0 requests are too few"),
        ([TraceRow(0.0, 1, 1)], "1 requests are too few"),
        ([TraceRow(3.0, 1, 1), TraceRow(3.0, 2, 2)], "all requests come at the same second"),
    ],
)
def test_what_cannot_be_planned_from_is_named(given: list[TraceRow], words: str) -> None:
    with pytest.raises(TrafficError, match=words):
        traffic(given, None)


def test_a_boundary_with_nothing_on_one_side_is_refused() -> None:
    load = traffic(rows(), None)
    with pytest.raises(TrafficError, match="no request is over the boundary of 40,000"):
        plan_at(site(), load, Filling.BY_SIZE, 40_000)
    with pytest.raises(TrafficError, match="no request is up to the boundary of 10"):
        plan_at(site(), load, Filling.BY_SIZE, 10)


def test_requests_that_are_alike_have_no_boundary() -> None:
    load = traffic([TraceRow(float(i), 500, 100) for i in range(100)], None)
    assert boundaries(load, 32_768) == []
    assert best_plan(site(), load, Filling.BY_SIZE) is None
    assert "too much alike" in verdict(site(), load, None, None)


def test_prompts_that_no_number_of_engines_serves_in_time_are_named() -> None:
    load = traffic(rows(), 50.0)
    plans = [best_plan(site(ttft=0.5), load, filling) for filling in Filling]
    said = verdict(site(ttft=0.5), load, plans[0], plans[1])
    assert "over the objective of 0.5 s however many engines there are" in said
    assert "A short pool keeps 95% of the requests out of their way" in said
    assert "however many" not in verdict(site(ttft=60.0), load, *plans)


def test_edges_are_those_of_the_gateways_histogram() -> None:
    assert set(boundaries(traffic(rows(), None), 1 << 20)) <= set(EDGES)
    assert np.all(np.diff(EDGES) > 0)
