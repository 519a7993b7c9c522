"""Schedules small enough to be worked out by hand.

Steps take 1 s each (`SECOND`) or 1 s a token (`TOKEN`). Unless they say otherwise, engines schedule
synchronously.
"""

from math import inf

import msgspec
import pytest

from controlplane.simulator.engine import Engine
from controlplane.simulator.request import Event, Finished, FirstToken, Preempted, Progress, Request, Segment
from controlplane.simulator.settings import EngineSettings, SchedulingPolicy
from controlplane.simulator.step import StepLaw
from tests.simulator.laws import LawfulEngine, run_all

SECOND = StepLaw(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
TOKEN = StepLaw(0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
ROOMY = EngineSettings(
    num_gpu_blocks=1001,
    max_model_len=1000,
    max_num_seqs=8,
    max_num_batched_tokens=100,
    block_size=4,
    enable_prefix_caching=False,
    async_scheduling=False,
)


def options(**changes: object) -> EngineSettings:
    return msgspec.structs.replace(ROOMY, **changes)


def run(law: StepLaw, settings: EngineSettings, *requests: tuple[float, Request]) -> list[Event]:
    return run_all(LawfulEngine(Engine(law, settings, progress=True)), list(requests))


def first_tokens(events: list[Event]) -> dict[str, float]:
    return {event.request_id: event.at for event in events if isinstance(event, FirstToken)}


def ends(events: list[Event]) -> dict[str, float]:
    return {event.request_id: event.at for event in events if isinstance(event, Finished)}


def preemptions(events: list[Event]) -> list[Preempted]:
    return [event for event in events if isinstance(event, Preempted)]


def token_times(events: list[Event], request_id: str) -> list[float]:
    return [e.at for e in events if isinstance(e, FirstToken | Progress) and e.request_id == request_id]


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    events = run(SECOND, options(max_num_batched_tokens=8), (0.0, Request("a", 20, 3)))
    assert token_times(events, "a") == [3.0, 4.0, 5.0]  # 8 + 8 + 4 tokens, then two more
    assert ends(events) == {"a": 5.0}


def test_the_step_costs_what_it_computes() -> None:
    # Steps of 8, 8, 4, 1, 1 tokens.
    events = run(TOKEN, options(max_num_batched_tokens=8), (0.0, Request("a", 20, 3)))
    assert token_times(events, "a") == [20.0, 21.0, 22.0]


def test_running_sequences_come_first_and_the_chunk_takes_what_is_left() -> None:
    # 0-4: a's 4 tokens. 4: b came meanwhile; steps of a's 1 and b's 7, 7 and 6 tokens.
    events = run(
        TOKEN, options(max_num_batched_tokens=8), (0.0, Request("a", 4, 5)), (1.0, Request("b", 20, 2))
    )
    assert token_times(events, "a") == [4.0, 12.0, 20.0, 27.0, 29.0]
    assert token_times(events, "b") == [27.0, 29.0]


def test_several_short_prompts_share_a_step() -> None:
    events = run(TOKEN, options(max_num_batched_tokens=8), *((0.0, Request(name, 3, 1)) for name in "abc"))
    # 3 + 3 + 2 tokens, then the last one of c.
    assert first_tokens(events) == {"a": 8.0, "b": 8.0, "c": 9.0}


def test_not_more_sequences_than_max_num_seqs() -> None:
    events = run(SECOND, options(max_num_seqs=2), *((0.0, Request(name, 4, 3)) for name in "abc"))
    assert ends(events) == {"a": 3.0, "b": 3.0, "c": 6.0}


def test_requests_are_queued_at_the_end_of_the_step_in_which_they_came() -> None:
    events = run(SECOND, options(max_num_seqs=1), (0.0, Request("a", 4, 3)), (0.5, Request("b", 4, 1)))
    b = next(e for e in events if isinstance(e, Finished) and e.request_id == "b")
    assert (b.arrived_at, b.queued_at, b.scheduled_at, b.first_token_at) == (0.5, 1.0, 3.0, 4.0)


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    # 10 blocks of 4. a holds 5 and decodes for 3 steps; b needs 6 for its 24 tokens, 2 for its first chunk.
    few = options(num_gpu_blocks=11, max_model_len=40, max_num_batched_tokens=8)
    load = ((0.0, Request("a", 17, 3)), (0.0, Request("b", 24, 1)))
    reserved = run(SECOND, few, *load)
    assert ends(reserved) == {"a": 5.0, "b": 8.0}
    assert preemptions(reserved) == []
    # Admitted by its first chunk, b has 14 tokens in 4 blocks at t=4, needs 2 more where 1 is left, and
    # starts anew when a has ended: the blocks were taken for nothing.
    greedy = run(SECOND, msgspec.structs.replace(few, scheduler_reserve_full_isl=False), *load)
    assert preemptions(greedy) == [Preempted("b", 4.0)]
    assert ends(greedy) == {"a": 5.0, "b": 8.0}


def test_the_watermark_keeps_blocks_free_while_something_runs() -> None:
    # 20 blocks, of which int(0.2 * 21) = 4 stay free: a and b hold 8 each, b would leave 4, c would not.
    few = options(num_gpu_blocks=21, max_model_len=80, watermark=0.2)
    a, b, c = (
        Request(name, size, 4)
        for name, size in (
            (
                "a",
                32,
            ),
            ("b", 32),
            ("c", 16),
        )
    )
    events = run(SECOND, few, (0.0, a), (0.0, b), (0.0, c))
    assert first_tokens(events) == {"a": 1.0, "b": 1.0, "c": 5.0}
    # Alone, a request may fill everything.
    assert ends(run(SECOND, few, (0.0, Request("d", 76, 4)))) == {"d": 4.0}


def test_the_last_running_sequence_is_preempted_and_computed_anew() -> None:
    # 8 blocks of 4. a and b have 14 tokens (4 blocks each). Their 15th, 16th fit; the 17th needs a block
    # each.
    few = options(num_gpu_blocks=9, max_model_len=32)
    events = run(SECOND, few, (0.0, Request("a", 14, 6)), (0.0, Request("b", 14, 6)))
    # t=3: three tokens each, 16 in the cache. a needs a fifth block: b goes. a ends after 6 tokens at t=6.
    assert preemptions(events) == [Preempted("b", 3.0)]
    assert token_times(events, "a") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    # b needs 5 blocks for its 17 tokens; a has 5 of 8 until t=6. Then one step for all 17, and its 4th token.
    assert token_times(events, "b") == [1.0, 2.0, 3.0, 7.0, 8.0, 9.0]
    b = next(e for e in events if isinstance(e, Finished) and e.request_id == "b")
    assert (b.preemptions, b.scheduled_at) == (1, 0.0)


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    # As above, and c, which would fit into what b gives back, comes at 2.5.
    few = options(num_gpu_blocks=9, max_model_len=32)
    events = run(
        SECOND, few, (0.0, Request("a", 14, 6)), (0.0, Request("b", 14, 6)), (2.5, Request("c", 4, 1))
    )
    # b is at the head, so c waits for it too, although c alone would fit.
    assert first_tokens(events)["c"] == 7.0
    assert token_times(events, "b")[3] == 7.0


def test_a_preempted_prompt_starts_again_at_the_head() -> None:
    # 6 blocks. a has 2 and takes its third in step 2, beside 7 tokens of b (2 blocks). In step 3 b needs 2
    # more where 1 is left, goes, is admitted again in step 4, and so on until a has ended at t=9. Then 8 + 8
    # tokens of b; c, which would have fitted all the time, comes after it.
    few = options(
        num_gpu_blocks=7, max_model_len=24, max_num_batched_tokens=8, scheduler_reserve_full_isl=False
    )
    a, b, c = Request("a", 8, 9), Request("b", 16, 1), Request("c", 4, 1)
    events = run(SECOND, few, (0.0, a), (0.5, b), (0.6, c))
    assert preemptions(events) == [Preempted("b", at) for at in (2.0, 4.0, 6.0, 8.0)]
    assert ends(events) == {"a": 9.0, "b": 11.0, "c": 12.0}


def test_priority_goes_before_arrival() -> None:
    one = options(max_num_seqs=1, scheduling_policy=SchedulingPolicy.PRIORITY)
    events = run(
        SECOND,
        one,
        (0.0, Request("first", 4, 2)),
        (0.1, Request("late", 4, 1, priority=5)),
        (0.2, Request("normal", 4, 1)),
        (0.3, Request("urgent", 4, 1, priority=-1)),
    )
    assert sorted(ends(events), key=ends(events).__getitem__) == ["first", "urgent", "normal", "late"]


def test_priority_preempts_the_least_important_wherever_it_stands() -> None:
    few = options(num_gpu_blocks=9, max_model_len=32, scheduling_policy=SchedulingPolicy.PRIORITY)
    events = run(SECOND, few, (0.0, Request("a", 14, 6, priority=1)), (0.0, Request("b", 14, 6, priority=0)))
    assert preemptions(events) == [Preempted("a", 3.0)]
    assert ends(events)["b"] == 6.0


def test_who_preempts_itself_holds_up_those_behind_for_that_step() -> None:
    # b is admitted before a and needs its block first, but is the least important: it preempts itself, and
    # vLLM ends the step's schedule there, so a sits out the step and both are planned anew.
    few = options(num_gpu_blocks=9, max_model_len=32, scheduling_policy=SchedulingPolicy.PRIORITY)
    events = run(
        SECOND,
        few,
        (0.0, Request("b", 14, 6, priority=1)),
        (0.5, Request("a", 13, 6, priority=0)),
    )
    assert preemptions(events) == [Preempted("b", 3.0)]
    assert token_times(events, "a") == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_an_abort_takes_effect_at_the_end_of_the_step() -> None:
    engine = LawfulEngine(Engine(SECOND, options(max_num_seqs=1)))
    engine.submit(Request("a", 4, 50), 0.0)
    engine.submit(Request("b", 4, 1), 0.0)
    engine.advance(3.5)
    engine.abort("a", 3.5)
    assert engine.engine.kv_usage > 0
    events = engine.advance(10.0)
    assert ends(events) == {"b": 5.0}  # a's blocks and its place are free at 4
    engine.check()


def test_an_abort_while_waiting_leaves_no_trace_but_a_count() -> None:
    engine = LawfulEngine(Engine(SECOND, options(max_num_seqs=1)))
    engine.submit(Request("a", 4, 3), 0.0)
    engine.submit(Request("b", 4, 1), 0.2)
    engine.advance(1.5)
    engine.abort("b", 1.5)
    events = engine.advance(10.0)
    assert ends(events) == {"a": 3.0}
    engine.check()
    assert engine.engine.counters.ttft.histogram().count == 1


def test_unknown_and_ended_requests_can_be_aborted_without_effect() -> None:
    engine = Engine(SECOND, ROOMY)
    engine.submit(Request("a", 4, 1), 0.0)
    engine.advance(5.0)
    engine.abort("a", 5.0)
    engine.abort("never", 5.0)
    assert engine.counters.aborted == 0


def test_a_shared_prefix_is_computed_once() -> None:
    cached = options(enable_prefix_caching=True)
    shared = (Segment("system", 16),)
    engine = LawfulEngine(Engine(TOKEN, cached, progress=True))
    events = run_all(
        engine, [(0.0, Request("a", 20, 1, prefix=shared)), (100.0, Request("b", 30, 1, prefix=shared))]
    )
    assert first_tokens(events) == {"a": 20.0, "b": 114.0}  # b computes 30 - 16 tokens
    assert (engine.engine.counters.prefix_queries, engine.engine.counters.prefix_hits) == (50, 16)
    assert engine.finished[1].cached_tokens == 16


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    cached = options(enable_prefix_caching=True)
    same = (Segment("same", 16),)
    events = run(
        TOKEN, cached, (0.0, Request("a", 16, 1, prefix=same)), (50.0, Request("b", 16, 1, prefix=same))
    )
    assert first_tokens(events) == {"a": 16.0, "b": 54.0}  # three of four blocks found


def test_a_next_turn_finds_the_answer_of_the_last() -> None:
    cached = options(enable_prefix_caching=True)
    events = run(
        TOKEN,
        cached,
        (0.0, Request("turn 1", 10, 7, prefix=(Segment("session", 40),))),
        (50.0, Request("turn 2", 25, 1, prefix=(Segment("session", 40),))),
    )
    # 10 + 6 tokens were computed (the last generated one was not): 4 blocks of 4.
    assert first_tokens(events)["turn 2"] == 50.0 + 25 - 16


def test_found_blocks_count_in_context_and_in_blocks() -> None:
    cached = options(enable_prefix_caching=True)
    context = StepLaw(0.0, 0.0, 0.0, 1.0, 0.0, 0.0)  # 1 s a token of context
    shared = (Segment("system", 16),)
    events = run(
        context, cached, (0.0, Request("a", 16, 1, prefix=shared)), (0.0, Request("b", 20, 3, prefix=shared))
    )
    # Prefills cost nothing here; b's second and third token attend to 21 and 22 tokens, found ones included.
    assert token_times(events, "b") == [0.0, 21.0, 43.0]


def test_room_is_taken_from_what_was_released_longest_ago() -> None:
    # 12 blocks. a and b leave 4 named blocks each; c takes 4 blank ones and 2 of a's, from a's end. Then
    # nothing is blank, so the block that b takes beyond its four found ones is a's too.
    cached = options(num_gpu_blocks=13, max_model_len=48, enable_prefix_caching=True)
    a, b = (Segment("a", 16),), (Segment("b", 16),)
    events = run(
        TOKEN,
        cached,
        (0.0, Request("a", 16, 1, prefix=a)),
        (100.0, Request("b", 16, 1, prefix=b)),
        (200.0, Request("c", 24, 1)),
        (300.0, Request("b again", 17, 1, prefix=b)),
        (400.0, Request("a again", 17, 1, prefix=a)),
    )
    assert first_tokens(events)["b again"] == 301.0  # all four found
    assert first_tokens(events)["a again"] == 400.0 + 17 - 4  # one left


def test_a_preempted_sequence_finds_what_is_left_of_its_own_blocks() -> None:
    few = options(num_gpu_blocks=9, max_model_len=32, enable_prefix_caching=True)
    engine = LawfulEngine(Engine(TOKEN, few, progress=True))
    run_all(engine, [(0.0, Request("a", 14, 6)), (0.0, Request("b", 14, 6))])
    # 28 + 2 + 2 tokens until t=32, then b goes and gives back 4 named blocks; a takes one of them, from b's
    # end, and has its last tokens at 33, 34, 35. b computes 17 - 12 tokens again and then two.
    assert {f.request_id: f.at for f in engine.finished} == {"a": 35.0, "b": 42.0}
    assert engine.engine.counters.prefix_queries == 28  # a repeated prefill is not counted


def test_asynchronous_scheduling_plans_a_step_ahead() -> None:
    ahead = options(async_scheduling=True)
    events = run(SECOND, ahead, (0.0, Request("a", 4, 6)), (1.5, Request("b", 4, 2)))
    # b comes in step 2 (1 to 2). Step 3 was planned at 1, so b is in step 4: first token at 4, not at 3.
    assert token_times(events, "a") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert token_times(events, "b") == [4.0, 5.0]
    # An idle engine has nothing planned: no delay.
    assert first_tokens(run(SECOND, ahead, (7.0, Request("c", 4, 2)))) == {"c": 8.0}


def test_asynchronous_scheduling_frees_a_place_one_step_later() -> None:
    ahead = options(async_scheduling=True, max_num_seqs=1)
    events = run(SECOND, ahead, (0.0, Request("a", 4, 3)), (0.0, Request("b", 4, 1)))
    assert ends(events) == {"a": 3.0, "b": 4.0}


def test_a_wedged_engine_takes_requests_and_answers_none() -> None:
    engine = Engine(SECOND, ROOMY)
    engine.submit(Request("a", 4, 3), 0.0)
    engine.advance(1.25)
    engine.wedge()
    engine.submit(Request("b", 4, 1), 2.0)
    assert engine.advance(100.0) == []
    assert engine.next_event_time() == inf
    assert engine.in_system == 2
    engine.unwedge()
    events = engine.advance(200.0)
    # The step had 0.75 s to go; b came while it lasted.
    assert first_tokens(events) == {"b": 101.75}
    assert ends(events) == {"a": 101.75, "b": 101.75}


def test_an_engine_wedged_while_idle_begins_when_it_is_unwedged() -> None:
    engine = Engine(SECOND, ROOMY)
    engine.advance(1.0)
    engine.wedge()
    engine.submit(Request("a", 4, 1), 2.0)
    engine.advance(9.0)
    engine.unwedge()
    assert first_tokens(engine.advance(20.0)) == {"a": 10.0}


def test_a_slower_law_holds_from_the_next_step() -> None:
    engine = Engine(SECOND, ROOMY, progress=True)
    engine.submit(Request("a", 4, 4), 0.0)
    events = engine.advance(1.5)
    engine.set_law(SECOND.slowed(3.0))
    events += engine.advance(50.0)
    assert token_times(events, "a") == [1.0, 2.0, 5.0, 8.0]


def test_impossible_calls_are_refused_with_the_values() -> None:
    engine = Engine(SECOND, ROOMY)
    engine.submit(Request("a", 4, 3), 1.0)
    engine.advance(2.0)
    with pytest.raises(ValueError, match=r"1\.5 is before 2\.0"):
        engine.submit(Request("b", 4, 3), 1.5)
    with pytest.raises(ValueError, match=r"a is already in the engine"):
        engine.submit(Request("a", 4, 3), 2.0)
    with pytest.raises(ValueError, match=r"b.*1004 tokens.*1000"):
        engine.submit(Request("b", 4, 3, max_tokens=1000), 2.0)
    with pytest.raises(ValueError, match=r"b.*0 and 3"):
        Request("b", 0, 3)
    with pytest.raises(ValueError, match=r"5.*is over max_tokens \(4\)"):
        Request("b", 1, 5, max_tokens=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_batched_tokens": 4}, r"max_num_batched_tokens \(4\) is under max_num_seqs \(8\)"),
        ({"num_gpu_blocks": 200}, "200 blocks of 4 hold 796 tokens, less than max_model_len"),
        ({"watermark": 1.0}, "watermark.*1.0"),
        ({"block_size": 0}, "block_size.*0"),
    ],
)
def test_options_that_vllm_would_refuse_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**change)
