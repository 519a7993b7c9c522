"""Case F3: long answers are no overload, hold their slots to the end, and show a slow decode while they
run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from closed_form import Loop, at_times, steadily

CASE = yaml.safe_load((Path(__file__).parent / "data/F3/sim.yaml").read_text())
RUNS = {run["name"]: run for run in CASE["runs"]}
TTFT, GAP = 0.4, 0.02


def loop_with(gap: Callable[[float], float] = lambda now: GAP, **limits: int) -> Loop:
    return Loop(
        {**{f"{name}_limit": CASE["limiter"][name] for name in ("min", "max", "start")}, **limits},
        ttft_seconds=CASE["slo"]["ttft_seconds"],
        tpot_seconds=CASE["slo"]["tpot_seconds"],
        ttft=lambda in_flight, now: TTFT,
        gap=gap,
    )


def lasts(tokens: int) -> float:
    return TTFT + (tokens - 1) * GAP


@pytest.mark.parametrize(("in_flight", "long_tokens"), [(10, 1000), (20, 4000)])
def test_F3_long_answers_are_no_overload(in_flight: int, long_tokens: int) -> None:
    """Answers get twenty or eighty times as long, while as many are in flight."""
    one, two = (RUNS["long_answers_are_not_overload"][f"phase_{n}"] for n in (1, 2))
    assert (one["output_tokens"], two["output_tokens"]) == (50, 4000)
    loop = loop_with()
    turn, end = float(one["seconds"]), float(one["seconds"] + two["seconds"])
    steadily(loop, in_flight / lasts(50), 0.0, turn, 50)
    steadily(loop, in_flight / lasts(long_tokens), turn, end, long_tokens)
    loop.run(turn)
    before = loop.limit
    loop.run(end)
    assert loop.limit >= 0.8 * before
    assert abs(loop.in_flight - in_flight) <= 1
    assert loop.refused == 0


@pytest.mark.parametrize("streams", [8, 30])
def test_F3_where_nothing_ends_for_ten_minutes_it_goes_on_seeing(streams: int) -> None:
    """A limit that is nearly used, and nothing that speaks against it: it stays or grows, and lets in."""
    loop = loop_with()
    at_times(loop, [0.1] * streams, round(720 / GAP))
    loop.run(300.0)
    assert min(loop.limits) >= CASE["limiter"]["start"]
    free = loop.limit - streams
    at_times(loop, [300.5] * free, 100)
    loop.run(301.0)
    assert (loop.in_flight, loop.refused, loop.queued) == (streams + free, 0, 0)
    loop.run(600.0)
    assert min(loop.limits) >= CASE["limiter"]["start"]
    assert len(loop.ttft) == streams + free, "first tokens and gaps are all that was seen"


def test_F3_where_nothing_ends_a_slow_decode_is_seen_all_the_same() -> None:
    loop = loop_with(gap=lambda now: 0.2)
    at_times(loop, [0.1] * CASE["limiter"]["start"], 6000)
    loop.run(300.0)
    assert loop.in_flight == CASE["limiter"]["start"]
    assert loop.limit < CASE["limiter"]["start"]


@pytest.mark.parametrize("limit", [1, 8, 32])
def test_F3_a_slot_is_held_to_the_end(limit: int) -> None:
    loop = loop_with(max_limit=limit, start_limit=limit, min_limit=1)
    tokens = round(100 / GAP)
    at_times(loop, [0.1] * limit, tokens)
    loop.run(60.0)
    assert (loop.in_flight, len(loop.ttft)) == (limit, limit), "all have their first token"
    loop.ask(60.5, 10)
    loop.run(61.0)
    assert (loop.admitted, loop.queued) == (limit, 1)
    loop.run(63.0)
    assert (loop.admitted, loop.queued, loop.refused) == (limit, 0, 1), "its time was up"
    loop.ask(0.1 + lasts(tokens) - 0.5, 10)
    loop.run(102.0)
    assert loop.admitted == limit + 1, "it waits for the first that ends, and has its place"


@pytest.mark.parametrize("slow", [0.15, 0.4])
def test_F3_a_slow_decode_lowers_the_limit(slow: float) -> None:
    """Whatever the limit, a token takes `slow`, more than the 100 ms of the objective."""
    run = RUNS["decode_gets_slow"]
    turn, end = 300.0, 600.0
    assert run["phase_1"]["seconds"] == turn
    loop = loop_with(gap=lambda now: GAP if now < turn else slow)
    steadily(loop, 30.0, 0.0, end, 200)
    loop.run(turn)
    before = loop.limit
    assert before >= 100, "the limit is in use, and nothing is slow"
    loop.run(turn + 60.0)
    assert loop.limit < before
    loop.run(end)
    assert loop.limit < 0.5 * before
    assert {one.reason for one in loop.decisions[-20:]} >= {"tpot-over"}
