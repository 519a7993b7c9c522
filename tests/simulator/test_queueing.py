"""The engine as a plain queue: what queueing theory says about it, within the confidence interval."""

from math import factorial, sqrt
from random import Random

import numpy as np
import pytest

from controlplane.simulator.constants import engine_model
from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Finished, Request
from controlplane.simulator.settings import EngineSettings
from controlplane.simulator.step import StepLaw
from tests.simulator.laws import LawfulEngine, run_all

STEP_SECONDS = 0.01
T_95 = 2.201  # of Student, 11 degrees of freedom, two-sided 95 %


def servers(count: int) -> Engine:
    """Nothing but `count` servers; a request holds one of them for as many steps as it has tokens."""
    settings = EngineSettings(
        num_gpu_blocks=100_001,
        max_model_len=100_000,
        max_num_seqs=count,
        max_num_batched_tokens=10_000,
        async_scheduling=False,
    )
    return Engine(StepLaw(STEP_SECONDS, 0.0, 0.0, 0.0, 0.0, 0.0), settings)


def poisson_stream(rng: Random, rate: float, mean_steps: float, count: int) -> list[tuple[float, Request]]:
    """Poisson arrivals of requests with geometric service times: M/M/c but for the length of a step."""
    at = 0.0
    requests = []
    for number in range(count):
        at += rng.expovariate(rate)
        # A geometric number of steps, mean `mean_steps`.
        steps = 1 + int(np.log(1 - rng.random()) / np.log(1 - 1 / mean_steps))
        requests.append((at, Request(str(number), 1, steps)))
    return requests


def erlang_c(servers: int, load: float) -> float:
    """Probability to wait in M/M/c with `load` Erlang."""
    last = load**servers / factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize(("count", "load"), [(3, 2.2), (8, 6.0)])
def test_waiting_probability_and_time_match_erlang_c(count: int, load: float) -> None:
    mean_steps = 150
    rate = load / (mean_steps * STEP_SECONDS)
    waited, waits = [], []
    for seed in range(12):
        engine = LawfulEngine(servers(count))
        run_all(engine, poisson_stream(Random(seed), rate, mean_steps, int(400 * load)))
        settled = sorted(engine.finished, key=lambda f: f.arrived_at)[200:]
        delays = [f.scheduled_at - f.queued_at for f in settled]
        waited.append(sum(delay > STEP_SECONDS / 2 for delay in delays) / len(delays))
        waits.append(sum(delays) / len(delays))
    expected = erlang_c(count, load)
    half = T_95 * float(np.std(waited, ddof=1)) / sqrt(len(waited))
    # A step is 1/150 of a service, and every arrival waits for one to end: that much systematic difference.
    slack = 0.01
    assert abs(float(np.mean(waited)) - expected) <= half + slack, (np.mean(waited), expected, half)
    assert half < 0.06
    wait = expected / (count - load) * mean_steps * STEP_SECONDS
    half_wait = T_95 * float(np.std(waits, ddof=1)) / sqrt(len(waits))
    assert abs(float(np.mean(waits)) - wait) <= half_wait + 0.02 * wait, (np.mean(waits), wait, half_wait)


@pytest.mark.parametrize("factor", [1.25, 2.0, 5.0])
def test_overload_grows_the_queue_by_what_comes_too_much(factor: float) -> None:
    """`count` servers of constant service time: the queue grows by arrivals less capacity."""
    count, steps = 8, 50
    capacity = count / (steps * STEP_SECONDS)
    engine = LawfulEngine(servers(count))
    rng = Random(3)
    at, number, sampled = 0.0, 0, []
    while at < 200:
        at += rng.expovariate(capacity * factor)
        number += 1
        engine.advance(at)
        engine.submit(Request(str(number), 1, steps), at)
        sampled.append((at, engine.engine.in_system))
    engine.check()
    times, inside = zip(*sampled, strict=True)
    slope = float(np.polyfit(times, inside, 1)[0])
    # Three standard deviations of the number of Poisson arrivals in 200 s.
    noise = 3 * sqrt(capacity * factor * 200) / 200
    assert slope == pytest.approx(capacity * (factor - 1), abs=noise + 0.02 * capacity)
    done = sum(f.at > 20 for f in engine.finished)
    assert done / 180 == pytest.approx(capacity, rel=0.02)


def test_a_model_of_an_h100_cannot_do_more_than_its_law_allows() -> None:
    """100 times the capacity is not served: throughput stays at the law's, the rest waits."""
    model = engine_model("h100-8b")
    engine = LawfulEngine(Engine(model.law, model.settings))
    rng = Random(5)
    requests = [(i / 2000, Request(str(i), 1000, 1 + int(rng.expovariate(1 / 250)))) for i in range(20_000)]
    run_all(engine, requests, until=60.0)
    counters = engine.engine.counters
    # Computing alone, without attention, context and host: b seconds for each prompt and output token.
    tokens = counters.prompt_tokens + counters.generation_tokens
    assert tokens * model.law.token < counters.busy_seconds <= 60.0
    assert counters.waiting > 15_000
    assert 5 < len(engine.finished) / 60 < 40


def test_light_load_sees_no_queue() -> None:
    model = engine_model("h100-8b")
    engine = LawfulEngine(Engine(model.law, model.settings))
    rng = Random(1)
    at, requests = 0.0, []
    for number in range(200):
        at += rng.expovariate(0.5)
        requests.append((at, Request(str(number), 800, 100)))
    events = run_all(engine, requests)
    for event in events:
        if isinstance(event, Finished):
            assert event.queued_at == event.scheduled_at
            assert event.ttft_seconds < 0.1
            assert event.tpot_seconds == pytest.approx(0.008, abs=0.002)
