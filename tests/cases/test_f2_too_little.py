"""Case F2: what is too little to learn from moves nothing."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import yaml
from closed_form import Loop, at_times, steadily

CASE = yaml.safe_load((Path(__file__).parent / "data/F2/sim.yaml").read_text())
RUNS = {run["name"]: run for run in CASE["runs"]}
START = CASE["limiter"]["start"]
GAP = 0.02
SIGMA = 0.707  # ln(1.6 / 0.5) / 1.645: of a log-normal whose p95 is 1.6 where its median is 0.5


def loop_with(ttft: Callable[[int, float], float]) -> Loop:
    return Loop(
        {f"{name}_limit": CASE["limiter"][name] for name in ("min", "max", "start")},
        ttft_seconds=CASE["slo"]["ttft_seconds"],
        tpot_seconds=0.1,
        ttft=ttft,
        gap=lambda now: GAP,
    )


@pytest.mark.parametrize("seed", range(2))
def test_F2_sparse_and_noisy_requests_move_nothing(seed: int) -> None:
    assert RUNS["sparse_and_noisy"]["want"].startswith("limit stays within 10% of 48")
    rng = Random(seed)
    loop = loop_with(lambda in_flight, now: rng.lognormvariate(-0.6931, SIGMA))
    at_times(loop, [i * 30.0 + rng.random() for i in range(60)], 100)
    loop.run(1800.0)
    assert len(loop.ttft) == 60
    assert all(abs(limit / START - 1) <= 0.1 for limit in loop.limits)


@pytest.mark.parametrize(("idle", "burst"), [(600.0, 10), (3600.0, 40)])
def test_F2_a_burst_after_an_idle_time_is_let_in(idle: float, burst: int) -> None:
    assert RUNS["idle_then_burst"]["want"].startswith("all 40 admitted")
    loop = loop_with(lambda in_flight, now: 0.5 + 0.02 * in_flight)
    at_times(loop, [idle + 0.5] * burst, 100)
    loop.run(idle + 10.0)
    assert (loop.admitted, loop.refused, loop.queued) == (burst, 0, 0)
    assert len(loop.ttft) == burst


@pytest.mark.parametrize("in_flight", [1, 5, 20])
def test_F2_a_limit_that_does_not_bind_does_not_climb(in_flight: int) -> None:
    assert (
        "at most 2x what was in flight plus headroom, or unchanged"
        in RUNS["not_the_limit_that_binds"]["want"]
    )
    loop = loop_with(lambda in_flight, now: 0.5)
    # Answers of 5 s in all, one ends as the next comes.
    steadily(loop, in_flight / 5.0, 0.0, 900.0, round(4.5 / GAP) + 1)
    loop.run(900.0)
    assert loop.in_flight == in_flight
    assert set(loop.limits) == {START}


def test_F2_quick_answers_beside_real_ones_are_no_baseline() -> None:
    """Probes pass the gateway, but as requests they would be answered in a millisecond. Nothing is measured
    against the quickest: real requests of half a second that come with them later move nothing."""
    assert RUNS["probes_are_not_samples"]["want"] == "baseline is never 1 ms"
    real = 900.0
    loop = loop_with(lambda in_flight, now: 0.001 if now < real and now % 60.0 != 0.0 else 0.5)
    steadily(loop, 1.0, 0.0, real, 1)
    steadily(loop, 5.0, real, real + 300.0, 100)
    loop.run(real + 300.0)
    assert set(loop.limits) == {START}
    assert loop.refused == 0


@pytest.mark.parametrize("rate", [5.0, 10.0])
@pytest.mark.parametrize("slow_seconds", [8.0, 14.0, 30.0])
def test_F2_one_slow_request_moves_nothing(rate: float, slow_seconds: float) -> None:
    assert RUNS["one_slow_request"]["want"] == "limit changes by at most 5%"
    at = 300.0
    loop = loop_with(lambda in_flight, now: slow_seconds if at <= now < at + 0.05 else 0.5)
    steadily(loop, rate, 0.0, at + 60.0, round(4.5 / GAP) + 1)
    loop.run(at + 60.0)
    assert max(seconds for _, seconds in loop.ttft) == pytest.approx(slow_seconds)
    before = loop.limits[int(at) - 10]
    assert all(abs(limit / before - 1) <= 0.05 for limit in loop.limits[int(at) - 10 :])
