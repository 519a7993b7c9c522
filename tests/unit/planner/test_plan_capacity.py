"""What an engine finishes of a mix, on paper: against arithmetic, and against the simulator."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench_simulator import overload, simulate
from controlplane.planner.capacity import Bound, Capacity, Mix, capacity, engine_seconds
from controlplane.simulator.constants import engine_model
from controlplane.simulator.mixes import mix
from controlplane.simulator.workload import sizes

H100 = engine_model("h100-8b")


def alike(prompt: float, output: float, count: int = 100) -> Mix:
    return Mix(np.full(count, prompt), np.full(count, output), np.full(count, prompt + output))


def full(requests: Mix, slots: float = 256.0, kv_tokens: float = 439_984.0, tpot: float = 1.0) -> Capacity:
    return capacity(H100.law, H100.settings, requests, slots=slots, kv_tokens=kv_tokens, tpot_seconds=tpot)


def drawn(name: str) -> Mix:
    """Requests of a ready mix."""
    pairs = []
    for source in mix(name).build_steady(1.0):
        share = next(part.share for part in mix(name).sources if part.name == source.name)
        pairs += islice(sizes(source, np.random.default_rng(3)), round(20_000 * share))
    prompt, output = np.array(pairs, dtype=np.float64).T
    return Mix(prompt, output, prompt + output)


def test_a_batch_that_only_decodes_is_the_step_law() -> None:
    """One token of prompt, 1,001 of output: a thousand steps of 100 sequences."""
    found = full(alike(1, 1001), slots=100.0)
    step = H100.law.seconds(100, round(100 * 501.5), 0.0, 100)
    assert found.bound is Bound.SLOTS
    assert found.step_seconds == pytest.approx(step, rel=0.01)
    assert found.requests_per_second == pytest.approx(100 / (1001 * step), rel=0.01)


def test_each_bound_binds() -> None:
    requests = alike(1000, 200)
    assert full(requests, slots=10.0).bound is Bound.SLOTS
    assert full(requests, kv_tokens=12_000.0).bound is Bound.KV
    assert full(requests, kv_tokens=12_000.0).sequences == pytest.approx(10.0)
    tight = full(requests, tpot=0.03)
    assert tight.bound is Bound.TPOT
    assert tight.step_seconds == pytest.approx(0.9 * 0.03)
    assert full(alike(8000, 2), tpot=10.0).bound is Bound.BUDGET


def test_even_one_sequence_too_slow_is_one_sequence() -> None:
    slow = full(alike(1000, 200), tpot=0.001)
    assert slow.sequences == pytest.approx(1.0)
    assert slow.bound is Bound.TPOT


@pytest.mark.parametrize("name", ["azure-conv", "r1-reasoning"])
def test_the_simulated_engine_finishes_as_much(name: str) -> None:
    """Overloaded with a ready mix and no gateway before it: `max_num_seqs` alone holds it back."""
    requests = drawn(name)
    on_paper = full(requests, slots=256.0, kv_tokens=1e9)
    cost = simulate(overload(name, 1.5), engines=1, seconds=240.0)
    filled = cost.mean_running / 256
    assert filled > 0.5
    at_that_fill = full(requests, slots=cost.mean_running, kv_tokens=1e9)
    tokens = at_that_fill.requests_per_second * float(requests.output.mean())
    assert cost.tokens / cost.simulated_seconds == pytest.approx(tokens, rel=0.15)
    assert on_paper.requests_per_second >= at_that_fill.requests_per_second


MIXES = st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 4000)), min_size=1, max_size=30).map(
    lambda pairs: np.array(pairs, dtype=np.float64)
)


@given(pairs=MIXES, slots=st.integers(1, 256), tpot=st.floats(0.01, 1.0))
def test_the_work_of_all_requests_is_what_the_engine_can_do(
    pairs: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", slots: int, tpot: float
) -> None:
    prompt, output = pairs.T
    requests = Mix(prompt, output, prompt + output)
    found = full(requests, slots=float(slots), tpot=tpot)
    assert 1.0 <= found.sequences <= max(1, slots)
    work = engine_seconds(H100.law, H100.settings, requests, found)
    assert (work >= 0).all()
    assert work.mean() * found.requests_per_second >= 1 - 1e-9
    more = full(requests, slots=float(slots) + 1, tpot=tpot)
    assert more.requests_per_second >= found.requests_per_second * (1 - 1e-9), "more slots never do less"
