"""When the boundary between two pools moves, where to, and what holds it."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pair_windows import LAW, ONE_A_SECOND, SECONDS, pool, run, sizes, window

from controlplane.policy.boundary.law import MOVES, Boundary, BoundaryReason, BoundaryState
from controlplane.policy.boundary.seen import PairWindow, PoolSeen
from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.size_class import EDGES, SizeClass

FEW_SLOTS = {"slots": 10.0, "replicas": 30}
"""A long pool whose replicas hold few sequences, so that requests are better off in the short one."""


def moves(states: list[BoundaryState], start: int) -> list[int]:
    found = [start]
    for state in states:
        if state.tokens != found[-1]:
            found.append(state.tokens)
    return found[1:]


# Where to


def test_it_goes_to_where_the_fewest_replicas_are_needed_octave_by_octave() -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 200, long=FEW_SLOTS, short={"longest_tokens": 8192})
    assert moves(states, 512) == [1024, 2048, 4096]
    last = states[-1]
    assert last.reason is BoundaryReason.SETTLED
    assert last.here is not None
    # 40 + 15 sequences over 100 slots, 10 over 10; at a load of 0.85.
    assert last.here.short_replicas == pytest.approx(0.55 / 0.85, rel=1e-3)
    assert last.here.long_replicas == pytest.approx(1.0 / 0.85, rel=1e-3)


def test_it_goes_down_where_the_long_pool_is_the_better_one() -> None:
    states = run(LAW.start(8192), ONE_A_SECOND, 300, short={"slots": 10.0, "replicas": 30})
    assert moves(states, 8192)[-1] < 1024
    assert all(
        after < before
        for before, after in zip([8192, *moves(states, 8192)], moves(states, 8192), strict=False)
    )


def test_never_beyond_what_the_short_pool_takes() -> None:
    """The longest requests would be better off there too."""
    states = run(LAW.start(1024), ONE_A_SECOND, 300, long=FEW_SLOTS, short={"longest_tokens": 10_000})
    assert max(state.tokens for state in states) <= 8192
    free = run(LAW.start(1024), ONE_A_SECOND, 400, long=FEW_SLOTS)
    assert free[-1].tokens == 32_768


def test_a_move_that_saves_too_little_is_none() -> None:
    even = run(LAW.start(2048), ONE_A_SECOND, 120, long={"slots": 97.0})
    assert {state.tokens for state in even} == {2048}
    assert even[-1].reason is BoundaryReason.SETTLED
    assert "no boundary is better by 5%" in even[-1].detail


def test_classes_without_requests_do_not_draw_it() -> None:
    alike = {1024: (8.0, 5.0)}
    states = run(LAW.start(1024), alike, 120, long=FEW_SLOTS)
    assert {state.tokens for state in states} == {1024}


def test_a_boundary_that_is_no_edge_holds_until_there_is_a_better_one() -> None:
    states = run(LAW.start(5000), ONE_A_SECOND, 120, long=FEW_SLOTS, short={"longest_tokens": 8192})
    assert {state.tokens for state in states} == {5000}


def test_what_is_shed_is_demand_too() -> None:
    """Half of the long ones are shed: the long pool needs twice as much as it serves."""
    shed = sizes(ONE_A_SECOND)
    half = shed[32_768]
    shed[32_768] = SizeClass(half.offered, half.served / 2, half.sequence_seconds / 2, half.token_seconds / 2)
    plain = LAW.observe(LAW.start(4096), window(0, 4096, ONE_A_SECOND))
    told = PairWindow(
        0.0,
        SECONDS,
        pool({edge: part for edge, part in ONE_A_SECOND.items() if edge <= 4096}, SECONDS),
        pool({32_768: ONE_A_SECOND[32_768]}, SECONDS, sizes={32_768: shed[32_768]}),
    )
    law = Boundary(enough_requests=1)
    state = law.observe(law.start(4096), told)
    assert plain.here is not None
    assert state.here is not None
    assert state.here.long_replicas == pytest.approx(plain.here.long_replicas, rel=1e-6)


# How fast


def test_a_better_boundary_must_stay_better_and_a_move_must_be_seen_before_the_next() -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 60, long=FEW_SLOTS)
    first = next(i for i, state in enumerate(states) if state.tokens != 512)
    assert first + 1 == LAW.confirm / SECONDS
    assert {state.reason for state in states[:first]} == {BoundaryReason.CONFIRMING}
    assert states[first].reason in MOVES
    assert "From 512 to 1,024 tokens" in states[first].detail
    second = next(i for i, state in enumerate(states) if state.tokens == 2048)
    assert second - first == LAW.rest / SECONDS
    assert states[second - 1].reason is BoundaryReason.RESTING


def test_a_wish_that_is_interrupted_begins_anew() -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 4, long=FEW_SLOTS)
    silent = PairWindow(240.0, 300.0, pool({}, 300.0, heard=False), pool({}, 300.0, heard=False))
    state = LAW.observe(states[-1], silent)
    assert state.reason is BoundaryReason.NO_NEWS
    again = run(state, ONE_A_SECOND, 5, since=5, long=FEW_SLOTS)
    assert [state.tokens for state in again] == [512, 512, 512, 512, 1024]


def test_a_mix_that_changes_is_followed() -> None:
    """Long ones become many: the long pool, with more slots now, is the better place for the middle."""
    settled = run(LAW.start(4096), ONE_A_SECOND, 60, long=FEW_SLOTS, short={"longest_tokens": 8192})
    assert settled[-1].tokens == 4096
    turned = run(settled[-1], ONE_A_SECOND, 400, since=60, short={"slots": 10.0}, long={"slots": 200.0})
    assert turned[-1].tokens < 1024


# What holds it


@pytest.mark.parametrize(
    "full",
    [
        {"queued": 3.0},
        {"waiting": Known(50.0, 1e9)},
        {"kv_usage": Known(0.97, 1e9)},
        {"preemptions_per_second": Known(0.1, 1e9)},
        {"in_flight": 399.0},
    ],
    ids=["gateway queue", "engine queue", "kv", "preemptions", "slots"],
)
def test_never_towards_a_pool_that_is_full(full: dict[str, Any]) -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 100, long=FEW_SLOTS, short=full)
    assert {state.tokens for state in states} == {512}
    held = [state for state in states if state.reason is BoundaryReason.RECEIVER_STRAINED]
    assert held
    assert "the short pool, which would get more, is full" in held[-1].detail


def test_where_both_are_full_the_least_missing_wins() -> None:
    full = {"queued": 3.0}
    short = {**full, "replicas": 1}
    states = run(LAW.start(512), ONE_A_SECOND, 60, long={**FEW_SLOTS, **full, "replicas": 1}, short=short)
    assert moves(states, 512)[:1] == [1024]
    assert states[4].reason is BoundaryReason.RELIEF


def test_a_pool_that_is_full_against_all_arithmetic_gets_less() -> None:
    """Both pools are alike, and two replicas should be plenty; the short one queues all the time."""
    start = LAW.start(4096)
    quiet = run(start, ONE_A_SECOND, 100)
    assert quiet[-1].reason is BoundaryReason.SETTLED
    full = run(start, ONE_A_SECOND, 12, short={"queued": 5.0, "replicas": 2})
    moved = [state for state in full if state.tokens != 4096]
    assert moved[0].tokens < 4096
    assert moved[0].reason is BoundaryReason.RELIEF
    assert moved[0].short.correction > 1.5
    after = run(full[-1], ONE_A_SECOND, 180, since=12, short={"replicas": 2})
    assert all(state.tokens <= moved[0].tokens for state in after[:60]), "it does not come back for an hour"


@pytest.mark.parametrize("reason", [Reason.STALE, Reason.SCRAPE_FAILED, Reason.NOT_A_NUMBER])
@pytest.mark.parametrize("signal", ["waiting", "kv_usage", "preemptions_per_second"])
def test_never_blindly(reason: Reason, signal: str) -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 60, long=FEW_SLOTS, short={signal: Unknown(reason, 0.0)})
    assert {state.tokens for state in states} == {512}
    assert states[-1].reason is BoundaryReason.BLIND


def test_old_readings_are_blindness_and_missing_signals_are_not() -> None:
    old = run(LAW.start(512), ONE_A_SECOND, 60, long=FEW_SLOTS, short={"kv_usage": Known(0.1, 0.0)})
    assert old[-1].reason is BoundaryReason.BLIND
    none = Unknown(Reason.UNSUPPORTED, 0.0)
    silent = {"waiting": none, "kv_usage": none, "preemptions_per_second": none}
    assert run(LAW.start(512), ONE_A_SECOND, 10, long=FEW_SLOTS, short=silent)[-1].tokens == 1024


@pytest.mark.parametrize(
    ("short", "reason"),
    [
        ({"replicas": 0}, BoundaryReason.NO_REPLICA),
        ({"slots": None, "kv_tokens": None}, BoundaryReason.ROOM_UNKNOWN),
    ],
)
def test_what_cannot_be_judged_holds(short: dict[str, Any], reason: BoundaryReason) -> None:
    states = run(LAW.start(512), ONE_A_SECOND, 60, long=FEW_SLOTS, short=short)
    assert {(state.tokens, state.reason) for state in states} == {(512, reason)}
    assert states[-1].here is None


def test_few_requests_say_nothing() -> None:
    few = {edge: (rate / 1000, stays) for edge, (rate, stays) in ONE_A_SECOND.items()}
    states = run(LAW.start(512), few, 60, long=FEW_SLOTS)
    assert {(state.tokens, state.reason) for state in states} == {(512, BoundaryReason.TOO_FEW)}
    assert states[-1].detail.endswith("500 are needed.")


def test_a_window_must_last() -> None:
    with pytest.raises(ValueError, match="ends after it starts"):
        PairWindow(5.0, 5.0, pool({}, 5.0), pool({}, 5.0))


# Whatever comes

QUIET = Known(0.0, 1e9)
READINGS = st.one_of(
    st.just(QUIET),
    st.just(QUIET),
    st.builds(Known, st.floats(0.0, 2.0) | st.sampled_from([math.nan, math.inf]), st.floats(0.0, 1e5)),
    st.builds(Unknown, st.sampled_from(Reason), st.just(0.0)),
)
MOSTLY_QUIET = st.just((QUIET, QUIET, QUIET, 0.0)) | st.tuples(
    READINGS, READINGS, READINGS, st.floats(0.0, 5.0)
)
CLASSES = st.builds(
    lambda served, shed, stays, tokens: SizeClass(
        served + shed, served, served * stays, served * stays * tokens
    ),
    st.integers(100, 2000),
    st.integers(0, 500),
    st.floats(0.0, 300.0),
    st.integers(1, 200_000),
)
ROOMS = st.tuples(st.integers(1, 200), st.floats(1.0, 500.0), st.none() | st.floats(1e4, 2e6))
ANY_ROOMS = ROOMS | st.tuples(st.integers(0, 1), st.none(), st.none())


@st.composite
def tracks(draw: st.DrawFn) -> list[tuple[float, PoolSeen, PoolSeen]]:
    """Two pools whose room and mix stay, most of the time, while queues, readings and steps come and go."""
    rooms = [draw(ROOMS), draw(ROOMS)]
    longest = draw(st.none() | st.integers(300, 1 << 21))
    mix = draw(st.dictionaries(st.sampled_from(EDGES), CLASSES, min_size=1, max_size=8))
    track = []
    for _ in range(draw(st.integers(1, 14))):
        if draw(st.integers(0, 9)) == 9:
            rooms[draw(st.integers(0, 1))] = draw(ANY_ROOMS)
        heard = draw(st.integers(0, 9)) < 9
        pools = []
        for replicas, slots, kv_tokens in rooms:
            waiting, usage, preempted, queued = draw(MOSTLY_QUIET)
            pools.append(
                PoolSeen(
                    replicas=replicas,
                    slots=slots,
                    kv_tokens=kv_tokens,
                    longest_tokens=longest,
                    heard=heard,
                    in_flight=draw(st.floats(0.0, 1.0)) * replicas * (slots or 0.0) * 0.9,
                    queued=queued,
                    gaps=draw(st.integers(0, 10**6)),
                    gap_seconds=draw(st.floats(0.0, 1e5)),
                    sizes=mix,
                    waiting=waiting,
                    kv_usage=usage,
                    preemptions_per_second=preempted,
                )
            )
        track.append((draw(st.floats(20.0, 600.0)), pools[0], pools[1]))
    return track


@settings(max_examples=120, deadline=None)
@given(track=tracks(), start=st.integers(100, 1 << 21))
def test_laws_of_every_run(track: list[tuple[float, PoolSeen, PoolSeen]], start: int) -> None:
    law = Boundary(confirm="60s", rest="300s", enough_requests=50)
    state = law.start(start)
    now, moved_at = 0.0, -math.inf
    for seconds, short, long in track:
        seen = PairWindow(now, now + seconds, short, long)
        now += seconds
        before, state = state, law.observe(state, seen)
        assert law.observe(before, seen) == state, "it is pure"
        assert msgspec.json.decode(msgspec.json.encode(state), type=BoundaryState) == state
        assert state.detail.endswith(".")
        event(state.reason)
        assert (state.tokens != before.tokens) == (state.reason in MOVES)
        if state.tokens == before.tokens:
            continue
        assert state.tokens in EDGES
        assert now - moved_at >= law.rest
        moved_at = now
        here = min(before.tokens, short.longest_tokens or before.tokens)
        assert 0.5 <= state.tokens / here <= 2.0
        assert short.longest_tokens is None or state.tokens <= short.longest_tokens
        assert short.replicas
        assert long.replicas
        gets, gives = (state.short, state.long) if state.tokens > here else (state.long, state.short)
        assert gets.strain < 0.5 or gives.strain >= 0.5


@settings(max_examples=40, deadline=None)
@given(
    mix=st.dictionaries(
        st.sampled_from(EDGES), st.tuples(st.floats(0.5, 20.0), st.floats(0.5, 60.0)), min_size=2, max_size=6
    ),
    slots=st.tuples(st.floats(5.0, 200.0), st.floats(5.0, 200.0)),
    start=st.sampled_from(EDGES),
)
def test_under_steady_load_it_comes_to_rest_and_never_turns(
    mix: dict[int, tuple[float, float]], slots: tuple[float, float], start: int
) -> None:
    law = Boundary(confirm="60s", rest="60s", enough_requests=10)
    room = [{"slots": each, "replicas": 1000} for each in slots]
    states = run(law.start(start), mix, 60, law=law, short=room[0], long=room[1])
    went = [start, *moves(states, start)]
    assert went in (sorted(set(went)), sorted(set(went), reverse=True)), went
    assert len({state.tokens for state in states[-25:]}) == 1
    costs = [state.here.cost for state in states if state.here is not None]
    assert costs[-1] <= costs[0] * (1 + 1e-6)
