"""The simulator is fast enough to try whole days; `benchmarks/bench_simulator.py` has the figures."""

from benchmarks.bench_simulator import overload, simulate


def test_a_full_batch_runs_at_200_times_real_time_on_one_core() -> None:
    """Every event told, scraped every 5 s; CPU time, so that a busy machine does not matter much."""
    cost = simulate(overload("azure-conv", 2), engines=1, seconds=120.0)
    assert cost.mean_running > 200
    assert cost.speed > 200, f"{cost.speed:.0f} x"
