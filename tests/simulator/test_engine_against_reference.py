"""The fast engine and the plain one agree on everything that either tells, on random workloads."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.simulator.counters import Buckets
from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event, Request, Segment
from controlplane.simulator.settings import EngineSettings, SchedulingPolicy
from controlplane.simulator.step import StepLaw
from tests.simulator.reference_engine import ReferenceEngine

LAW = StepLaw(0.0015, 0.0064, 24e-6, 46e-9, 1.2e-9, 3e-6)


@dataclass
class Call:
    at: float
    request: Request | None  # None: an abort
    abort: str = ""


def random_segments(rng: Random) -> tuple[Segment, ...]:
    """None, a system prompt, a session, or a session after a system prompt."""
    kind = rng.choice(["none", "system", "session", "both"])
    system = rng.choice("ab") if kind in ("system", "both") else ""
    parts = [Segment(system, 40)] if system else []
    if kind in ("session", "both"):
        parts.append(Segment(f"{system}/{rng.choice('xyz')}", 40 + rng.randint(0, 150)))
    return tuple(parts)


def random_calls(rng: Random) -> list[Call]:
    """Arrivals in bursts and singly, some at the very same time; one in six hangs up."""
    calls = []
    at = 0.0
    for number in range(rng.randint(1, 60)):
        at += rng.choice([0.0, 0.003, 0.0101, 0.05, 1.0]) * rng.uniform(0.5, 1.5)
        output = rng.randint(1, 90)
        request = Request(
            id=str(number),
            prompt_tokens=rng.randint(1, 200),
            output_tokens=output,
            max_tokens=output + rng.choice([0, 7]),
            priority=rng.randint(0, 2),
            prefix=random_segments(rng),
        )
        calls.append(Call(at, request))
        if rng.random() < 1 / 6:
            calls.append(Call(at + rng.uniform(0.0, 0.6), None, str(number)))
    return sorted(calls, key=lambda call: call.at)


def random_settings(rng: Random) -> EngineSettings:
    """Small engines: most run short of blocks, sequences or budget."""
    size = rng.choice([4, 16])
    seqs = rng.choice([1, 2, 5, 12, 64])
    return EngineSettings(
        num_gpu_blocks=320 // size + 1 + rng.choice([0, 5, 40, 400]),
        max_model_len=320,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, rng.choice([1, 7, 48, 64, 300])),
        block_size=size,
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        enable_prefix_caching=rng.random() < 0.7,
        async_scheduling=rng.random() < 0.5,
        scheduling_policy=rng.choice(list(SchedulingPolicy)),
    )


def run(engine: Engine | ReferenceEngine, calls: list[Call], stride: float | None = None) -> list[Event]:
    """All events; with `stride` in small steps of advance. Calls of one time come before it is reached."""
    events: list[Event] = []
    now = 0.0
    for call, following in pairwise([*calls, None]):
        assert call is not None
        while stride is not None and now + stride < call.at:
            now += stride
            events += engine.advance(now)
        if call.request is not None:
            engine.submit(call.request, call.at)
        else:
            engine.abort(call.abort, call.at)
        if following is None or following.at > call.at:
            events += engine.advance(call.at)
            now = call.at
    while (at := engine.next_event_time()) < float("inf"):
        events += engine.advance(at)
    return events


def same_events(fast: list[Event], slow: list[Event]) -> None:
    for a, b in zip(fast, slow, strict=True):
        assert type(a) is type(b)
        for name in a.__struct_fields__:
            mine, other = getattr(a, name), getattr(b, name)
            assert mine == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other), (a, b)


def same_observations(buckets: Buckets, values: list[float]) -> None:
    expected = Buckets(buckets.bounds)
    for value in values:
        expected.add(value)
    assert buckets.counts == expected.counts
    assert buckets.total == pytest.approx(expected.total, rel=1e-9)


def same_counters(fast: Engine, slow: ReferenceEngine) -> None:
    counters = fast.counters
    counters.settle()
    assert counters.prompt_tokens == slow.prompt_tokens
    assert counters.cached_tokens == slow.cached_tokens
    assert counters.generation_tokens == slow.generation_tokens
    assert (counters.prefix_queries, counters.prefix_hits) == (slow.queries, slow.hits)
    assert counters.preemptions == slow.preemptions
    assert counters.aborted == slow.aborted
    assert (counters.running, counters.waiting) == slow.gauges[:2]
    assert counters.kv_usage == pytest.approx(slow.gauges[2], abs=1e-12)
    finished = slow.finished
    assert counters.stopped == sum(f.reason == "stop" for f in finished)
    assert counters.length == sum(f.reason == "length" for f in finished)
    same_observations(counters.ttft, slow.ttfts)
    same_observations(counters.itl, slow.itls)
    same_observations(counters.step_tokens, [float(tokens) for tokens in slow.step_tokens])
    same_observations(counters.e2e, [f.at - f.arrived_at for f in finished])
    same_observations(counters.queue_time, [f.scheduled_at - f.queued_at for f in finished])
    same_observations(counters.prefill_time, [f.first_token_at - f.scheduled_at for f in finished])
    same_observations(counters.decode_time, [f.at - f.first_token_at for f in finished])
    same_observations(counters.inference_time, [f.at - f.scheduled_at for f in finished])
    same_observations(counters.tpot, [f.tpot_seconds for f in finished])
    same_observations(counters.prompt_len, [float(f.prompt_tokens) for f in finished])
    same_observations(counters.generation_len, [float(f.output_tokens) for f in finished])
    same_observations(
        counters.prefill_computed_len, [float(f.prompt_tokens - f.cached_tokens) for f in finished]
    )
    same_observations(counters.preemptions_per_request, [float(f.preemptions) for f in finished])


SEEDS = st.integers(0, 2**32 - 1)


def agree(seed: int) -> None:
    rng = Random(seed)
    options, calls = random_settings(rng), random_calls(rng)
    fast = Engine(LAW, options, progress=True)
    slow = ReferenceEngine(LAW, options)
    same_events(run(fast, calls), run(slow, calls))
    same_counters(fast, slow)
    assert fast.in_system == 0
    assert fast.kv_usage == 0.0


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_fast_and_plain_engine_agree(seed: int) -> None:
    agree(seed)


@pytest.mark.campaign
@settings(max_examples=3000, deadline=None)
@given(SEEDS)
def test_fast_and_plain_engine_agree_on_thousands(seed: int) -> None:
    agree(seed)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([0.0007, 0.013, 0.4]))
def test_small_and_large_steps_of_advance_give_the_same(seed: int, stride: float) -> None:
    rng = Random(seed)
    options, calls = random_settings(rng), random_calls(rng)
    assert run(Engine(LAW, options), calls) == run(Engine(LAW, options), calls, stride)


def test_the_random_workloads_reach_the_rare_paths() -> None:
    """What the agreement is worth: preemption, its repetition, cache hits and hang-ups all occur in the
    sample."""
    seen = {"preempted": 0, "twice": 0, "hits": 0, "aborted": 0}
    for seed in range(60):
        rng = Random(seed)
        options, calls = random_settings(rng), random_calls(rng)
        slow = ReferenceEngine(LAW, options)
        run(slow, calls)
        seen["preempted"] += slow.preemptions > 0
        seen["twice"] += any(f.preemptions > 1 for f in slow.finished)
        seen["hits"] += slow.hits > 0
        seen["aborted"] += slow.aborted > 0
    assert min(seen.values()) >= 10, seen
