"""`make bench-pools` in its quick mode, and the figures that must hold."""

import json
from typing import Any

import numpy as np
import pytest

from benchmarks import bench_pools
from benchmarks.pools import first_order, paper
from benchmarks.pools.calibration import TRUE_RATIOS, calibrated
from benchmarks.pools.loads import TRACES, own, renewed, traces
from benchmarks.pools.replay import Group, Replay
from controlplane.simulator.trace import TraceRow

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no ../shared/reference/traces")


@pytest.fixture(scope="module")
def quick() -> Any:
    return json.loads(json.dumps(bench_pools.report(quick=True)))


# arXiv 2604.08075


def test_counts_follow_from_the_papers_constants_at_the_alpha_that_they_imply() -> None:
    assert paper.instances_of_one() == 358
    assert paper.implied_alpha(0.419) == pytest.approx(0.5587, abs=1e-4)
    assert paper.instances_of_two(paper.implied_alpha(0.419)) == (50, 158)
    assert paper.implied_alpha(0.313) == pytest.approx(0.4173, abs=1e-4)
    assert paper.instances_of_two(paper.implied_alpha(0.313)) == (38, 209), "one more than the printed 246"
    assert paper.saved(0.8) == pytest.approx(0.6), "the text's alpha would save far more than its tables"
    assert paper.implied_rho(0.419, 0.8) == pytest.approx(2.1, abs=0.01)


def test_what_does_not_follow_is_said_with_the_arithmetic() -> None:
    differing = [claim for claim in paper.claims() if not claim.agrees]
    assert {claim.what.partition(":")[0] for claim in differing} >= {"Azure", "LMSYS", "one pool"}
    assert all(any(char.isdigit() for char in claim.arithmetic) for claim in paper.claims())


def test_erlang_c_is_that_of_the_tables() -> None:
    assert paper.erlang_c(1, 0.7) == pytest.approx(0.7)
    assert paper.erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert paper.p99_wait_seconds(1, 1.0, 0.5) == pytest.approx(np.log(0.5 / 0.01) / 0.5)


# arXiv 2604.09613


def test_the_first_order_results() -> None:
    assert first_order.rho() == pytest.approx(1.614, abs=1e-3)
    azure = first_order.saving(first_order.azure_like(100_000, 1), 8192)
    lmsys = first_order.saving(first_order.lmsys_like(100_000, 1), 8192)
    assert 0.15 <= azure.saved_ratio <= 0.18
    assert 0.32 <= lmsys.saved_ratio <= 0.39
    assert azure.long.p99_prefill_seconds > azure.one.p99_prefill_seconds, "the long pool's P99 is worse"


# Calibration


@pytest.mark.parametrize("category", TRUE_RATIOS)
def test_after_50_requests_less_than_one_in_100_goes_the_wrong_way(category: Any) -> None:
    total = first_order.azure_like(20_000, 3)
    found = calibrated(category, np.rint(0.8 * total), np.rint(0.2 * total), 8192, runs=40)
    assert found.p95_error < 0.04
    assert found.misrouted < 0.01
    assert found.misrouted_to_short < 0.001, "it errs towards the long pool, which takes both"


@needs_traces
@pytest.mark.parametrize("category", TRUE_RATIOS)
def test_the_same_with_the_sizes_of_the_azure_traces(category: Any) -> None:
    prompt, output = traces()[0].sizes()
    found = calibrated(category, prompt, output, 8192, runs=20)
    assert found.p95_error < 0.04
    assert found.misrouted < 0.01


# The full simulator


def test_the_quick_mode_has_every_section(quick: Any) -> None:
    assert set(quick) == {
        "paper",
        "first_order",
        "plans",
        "replays",
        "preemptions",
        "sensitivity",
        "calibration",
        "law",
    }
    for runs in quick["replays"].values():
        for what, outcome in runs.items():
            pools = {"one"} if what.startswith("one") else {"short", "long"}
            assert set(outcome["pools"]) == pools, "P99 TTFT is told of each pool apart"
            assert all(pool["ttft_p99_seconds"] > 0 for pool in outcome["pools"].values())


def test_plans_of_a_pool_hold_what_they_promise(quick: Any) -> None:
    """The fleets that were planned on paper serve the requests that they were planned for."""
    for runs in quick["replays"].values():
        for what, outcome in runs.items():
            assert outcome["good_ratio"] > 0.95, what


def test_preemptions_come_from_over_committed_slots_alone(quick: Any) -> None:
    found = {what: outcome["preempted_per_1000"] for what, outcome in quick["preemptions"].items()}
    assert found["one, over-committed slots"] > 3 * max(1.0, found["two, over-committed slots"])
    for what in ("exact", "learned"):
        assert found[f"one, {what} reservation"] == found[f"two, {what} reservation"] == 0


@needs_traces
def test_the_same_with_the_reasoning_trace() -> None:
    reasoning = next(load for load in traces() if load.name == "reasoning")
    runs = bench_pools.preemption_section(
        reasoning, bench_pools.QUICK._replace(full_seconds=120.0, full_rate=40.0)
    )
    found = {what: outcome["preempted_per_1000"] for what, outcome in runs.items()}
    assert found["one, over-committed slots"] > 3 * found["two, over-committed slots"]
    assert found["one, exact reservation"] == found["two, exact reservation"] == 0


def test_the_law_comes_from_a_wrong_start_to_where_more_is_good(quick: Any) -> None:
    fixed, law = quick["law"]["fixed from 512"], quick["law"]["law from 512"]
    tokens = [at_tokens[1] for at_tokens in law["boundaries"]]
    assert tokens == sorted(tokens)
    assert tokens[-1] >= 4096
    assert law["good_ratio"] > fixed["good_ratio"]
    assert law["spilled"] < fixed["spilled"] / 2


def test_stated_budgets_fill_the_long_pool_and_learned_sizes_do_not(quick: Any) -> None:
    by = quick["sensitivity"]["by_stated_output"]
    assert by["learned"]["short_ratio"] == pytest.approx(by["known"]["short_ratio"], abs=0.05)
    assert (
        by["max_tokens 16x"]["short_ratio"] < by["max_tokens 4x"]["short_ratio"] < by["known"]["short_ratio"]
    )
    assert by["max_tokens 4,096"]["short_ratio"] < 0.1


# The tools


def test_a_replay_is_the_same_again() -> None:
    rows = own(600.0)[1].at(6.0, 80.0)
    groups = [Group("short", 1, 8192), Group("long", 1, 65_536)]
    first, second = (
        Replay(rows, bench_pools.ENGINE, groups, part_tokens=4096, boundary=4096).go() for _ in range(2)
    )
    assert first == second
    assert first.finished > 50


def test_answers_that_reach_the_context_are_cut_and_counted() -> None:
    rows = [TraceRow(60.0 + i, 1000, 5000) for i in range(3)] + [TraceRow(200.0, 10, 10)]
    outcome = Replay(rows, bench_pools.ENGINE, [Group("one", 1, 4096)], part_tokens=4096).go()
    assert (outcome.cut, outcome.finished) == (3, 3)


@pytest.mark.parametrize("cv", [0.0, 1.0, 4.0])
def test_renewed_gaps_have_their_variation(cv: float) -> None:
    rows = own(3600.0)[0].rows
    again = renewed(rows, cv, 1)
    gaps = np.diff([row.at for row in again])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.1 + 0.05 * cv)
    assert again[-1].at == pytest.approx(rows[-1].at)
    assert [row[1:] for row in again] == [row[1:] for row in rows]
