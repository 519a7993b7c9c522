"""Probes inside the tick: what a health page and one token change about a replica, and what they never do."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation_loop import POLICY, RULES, Loop

from controlplane.policy import steer
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.proving import NEW, OUT, SUSPECTED, doubted
from controlplane.policy.settings import PoolPolicy
from controlplane.signals.decision import Hold, Orders, Standing
from controlplane.signals.probe import ProbeKind, ProbeResult
from controlplane.signals.samples import ReplicaWindow

OK, TIMEOUT, REFUSED, ERROR, NO_VERDICT = ProbeResult
HALF_A_STALL = 15


def rotation(loop: Loop, name: str) -> str:
    """What gateways are told of it."""
    assert loop.snapshot is not None
    orders = steer.orders(
        loop.snapshot, loop.settings, dict.fromkeys(loop.replicas, Standing.ENFORCE), {}, loop.out
    )
    return next(one.rotation for one in orders if one.name == name)


def try_(loop: Loop, name: str, result: ProbeResult, seconds: float = 0.1) -> None:
    loop.probe(name, result, ProbeKind.TRIAL, seconds)


def restarted(loop: Loop, name: str = "r1") -> None:
    """A new process of it that nobody has asked anything."""
    loop.replicas[name].restart(loop.now)
    loop.idle.add(name)
    loop()


def wedged(loop: Loop, name: str = "r1", waiting: float = 3.0) -> None:
    """From now on nothing moves, and the page shows work."""
    loop.idle.add(name)
    loop.replicas[name].engine.gauges["waiting"] = waiting


# --- the health page


def test_three_bad_health_pages_take_a_replica_out_though_its_metrics_are_read() -> None:
    loop = Loop(pods=False)
    loop(5)
    loop.idle.add("r1")
    loop(15)
    for _ in range(3):
        assert loop.out == {}
        loop.probe("r1", ERROR)
        loop(5)
    assert loop.out == {"r1": "unreachable"}
    loop(20)
    assert loop.out == {"r1": "unreachable"}, "metrics that are read are no health page"
    loop.probe("r1", OK)
    loop(20)
    assert loop.changes() == [("r1", "out", "unreachable"), ("r1", "in", "well")]
    names = {one.name: one for one in loop.decisions[0].evidence}
    assert (names["health_probe_seconds"].value, names["failed_health_probes"].value) == (None, 3)


def test_where_there_is_no_health_page_the_metrics_page_stands_in_for_it() -> None:
    loop = Loop(pods=False)
    for _ in range(10):
        loop.probe("r1", NO_VERDICT)
        loop(5)
    assert (loop.out, loop.decisions) == ({}, [])
    assert loop.memory.replicas["r1"].rotation.standing.good > 40


def test_health_pages_that_come_no_more_leave_the_metrics_page_in_their_place() -> None:
    loop = Loop(pods=False)
    loop(3)
    loop.idle.add("r1")
    loop(15)
    for _ in range(3):
        loop.probe("r1", TIMEOUT)
        loop()
    assert loop.out == {"r1": "unreachable"}
    loop(70)
    assert loop.out == {}


def test_a_metrics_page_with_tokens_outvotes_a_slow_health_page_until_the_next_one_is_due() -> None:
    loop = Loop(pods=False)
    loop(10)
    for second in range(30):
        loop.probe("r1", TIMEOUT)
        loop.late = set() if second % 5 == 0 else set(loop.replicas)
        loop()
        assert loop.out == {}


# --- one that came or was restarted


def test_what_was_there_before_us_is_in_service_with_its_first_page() -> None:
    loop = Loop(pods=False, trials=True)
    loop.idle = set(loop.replicas)
    loop()
    assert {rotation(loop, name) for name in loop.replicas} == {"in"}
    assert doubted(loop.snapshot) == {}


def test_one_that_is_restarted_gets_requests_once_it_has_made_a_token() -> None:
    loop = Loop(pods=False, trials=True)
    loop(10)
    restarted(loop)
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("starting", NEW)
    assert doubted(loop.snapshot) == {"r1": "acme/chat-8b"}
    try_(loop, "r1", TIMEOUT, 20.0)
    loop.probe("r1", OK)
    loop(30)
    assert rotation(loop, "r1") == "starting", "its port and its health page say nothing of its model"
    try_(loop, "r1", OK)
    loop()
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("in", "")
    assert loop.snapshot.replicas["r1"].ready_since == loop.now - 1
    assert loop.decisions == [], "that it loads is a fact, and no decision"


def test_a_hold_keeps_no_loading_replica_from_its_first_request() -> None:
    loop = Loop(pods=False, trials=True)
    loop(10)
    restarted(loop)
    loop.orders = Orders(Hold(loop.now, "ann", "deploy"))
    loop(5)
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("starting", NEW)
    try_(loop, "r1", OK)
    loop()
    assert rotation(loop, "r1") == "in"
    loop.orders = Orders()
    loop(3)
    assert (rotation(loop, "r1"), loop.decisions) == ("in", [])


@pytest.mark.parametrize("token", ["gateway", "page"])
def test_any_token_is_as_good_as_that_of_a_trial(token: str) -> None:
    loop = Loop(pods=False, trials=True)
    loop(10)
    restarted(loop)
    if token == "gateway":
        loop.seen = {"r1": ReplicaWindow(gaps=5, in_flight=1)}
    else:
        loop.replicas["r1"].engine.serve(1)
    loop()
    assert rotation(loop, "r1") == "in"


def test_what_cannot_be_asked_is_not_doubted() -> None:
    """No such API, or we may not: an engine that answers so is not kept from its users."""
    loop = Loop(pods=False, trials=True)
    loop(10)
    restarted(loop)
    try_(loop, "r1", NO_VERDICT)
    loop()
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("in", "")


def test_a_pod_that_loads_is_not_asked_for_a_token() -> None:
    loop = Loop(trials=True)
    loop.set_pod("r1", loading=True, containers_ready=False, ready=False)
    loop.silent = {"r1"}
    loop(10)
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("starting", "")
    loop.silent.clear()
    loop.idle.add("r1")
    loop.replicas["r1"].restart(loop.now)
    loop(2)
    assert loop.doubt("r1") == ""
    loop.set_pod("r1", loading=False, containers_ready=True, ready=True)
    loop()
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("starting", NEW)


def test_a_closed_port_may_be_followed_by_another_process_so_its_health_page_is_not_enough() -> None:
    loop = Loop(pods=False, trials=True)
    loop(10)
    loop.silent = loop.idle = {"r1"}
    for _ in range(4):
        loop.probe("r1", REFUSED)
        loop(5)
    assert loop.out == {"r1": "unreachable"}
    loop.probe("r1", OK)  # before its page tells of a new process
    loop()
    assert (loop.out, loop.doubt("r1")) == ({"r1": "unreachable"}, NEW)
    try_(loop, "r1", OK)
    loop()
    assert loop.out == {}


def test_without_trials_a_page_is_enough() -> None:
    loop = Loop(pods=False)
    loop(10)
    restarted(loop)
    assert (rotation(loop, "r1"), loop.doubt("r1")) == ("in", "")


def test_a_pod_that_loads_anew_is_not_ended_within_its_time_to_start() -> None:
    loop = Loop(trials=True)
    rules = RULES.model_copy(update={"end_after": 40.0, "startup_grace": 300.0})
    loop.settings = POLICY.model_copy(update={"pools": {"chat": PoolPolicy(readiness=rules)}})
    loop(10)
    loop.silent = loop.idle = {"r1"}
    loop.set_pod("r1", containers_ready=False, ready=False)
    loop(5)
    assert loop.out == {"r1": "unreachable"}
    since = loop.now
    loop.set_pod("r1", loading=True)  # its container was started anew
    loop(100)
    loop.silent = set()
    loop.replicas["r1"].restart(loop.now)
    loop.set_pod("r1", loading=False, containers_ready=True, ready=True)
    loop(100)
    assert (loop.out, loop.doubt("r1"), loop.ended) == ({"r1": "unreachable"}, NEW, [])
    loop(120)
    assert [(name, round(at - since, -1)) for name, at in loop.ended] == [("r1", 300.0)]


# --- one that seems to be wedged


def test_work_without_progress_and_without_the_token_of_a_trial_is_a_wedge() -> None:
    loop = Loop(pods=False, trials=True)
    loop(30)
    wedged(loop)
    loop(HALF_A_STALL - 1)
    assert loop.doubt("r1") == ""
    loop()
    assert loop.doubt("r1") == SUSPECTED
    try_(loop, "r1", TIMEOUT, seconds=30.0)  # begun before it stood still
    loop()
    assert loop.out == {}
    loop(4)
    try_(loop, "r1", TIMEOUT, seconds=5.0)
    loop(2)
    assert (loop.out, loop.doubt("r1")) == ({"r1": "wedged"}, OUT)
    loop.replicas["r1"].engine.gauges["waiting"] = 0.0  # its clients hung up: no word of that it works
    loop(60)
    assert loop.out == {"r1": "wedged"}
    try_(loop, "r1", OK)
    loop(12)
    assert loop.changes() == [("r1", "out", "wedged"), ("r1", "in", "well")]


def test_gauges_that_are_frozen_are_told_from_a_wedge_by_a_token() -> None:
    loop = Loop(pods=False, trials=True)
    loop(30)
    wedged(loop)
    loop.seen = {"r1": ReplicaWindow(in_flight=1)}  # a client that waits for its first token, and no more
    for _ in range(10):
        loop(10)
        try_(loop, "r1", OK)
    assert loop.out == {}


def test_an_engine_that_the_first_request_wedges_shows_no_work_but_gateways_wait_for_it() -> None:
    loop = Loop(pods=False, trials=True)
    loop(30)
    loop.idle.add("r1")
    loop(20)
    loop.seen = {"r1": ReplicaWindow(in_flight=2)}
    loop(HALF_A_STALL)
    assert loop.doubt("r1") == SUSPECTED
    try_(loop, "r1", TIMEOUT, seconds=10.0)
    loop()
    assert loop.out == {"r1": "wedged"}


def test_an_engine_that_works_is_never_asked_for_a_token() -> None:
    loop = Loop(pods=False, trials=True)
    loop.seen = {name: ReplicaWindow(gaps=9, in_flight=3) for name in loop.replicas}
    for _ in range(60):
        loop()
        assert doubted(loop.snapshot) == {}


def test_who_was_out_for_errors_comes_back_with_a_token() -> None:
    loop = Loop(pods=False, trials=True)
    loop.seen = {name: ReplicaWindow(finished=3, gaps=9) for name in loop.replicas}
    loop(5)
    loop.seen["r1"] = ReplicaWindow(finished=1, failed=4)
    loop(10)
    loop.seen["r1"] = ReplicaWindow()
    loop(300)
    assert loop.out == {"r1": "errors"}
    try_(loop, "r1", OK)
    loop(12)
    assert loop.out == {}


# --- what never happens


VERDICTS = st.sampled_from([*ProbeResult, None])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(VERDICTS, VERDICTS, st.booleans()), min_size=1, max_size=30))
def test_tokens_that_flow_through_a_gateway_outvote_all_probes(
    steps: list[tuple[ProbeResult | None, ProbeResult | None, bool]],
) -> None:
    loop = Loop(pods=False, trials=True)
    loop.seen = {name: ReplicaWindow(gaps=3, in_flight=1) for name in loop.replicas}
    loop()
    for health, trial, is_read in steps:
        if health is not None:
            loop.probe("r1", health)
        if trial is not None:
            try_(loop, "r1", trial)
        loop.silent = set() if is_read else {"r1"}
        loop()
        assert (loop.out, rotation(loop, "r1")) == ({}, "in")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["r0", "r1", "r2", "r3"]), VERDICTS), max_size=30))
def test_whatever_probes_say_most_of_the_pool_stays_and_the_memory_can_be_kept(
    steps: list[dict[str, ProbeResult | None]],
) -> None:
    loop = Loop(pods=False, trials=True)
    loop.idle = set(loop.replicas)
    loop(20)
    for verdicts in steps:
        for name, result in verdicts.items():
            if result is not None:
                loop.probe(name, result)
        loop()
        assert len(loop.out) <= 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(loop.memory), type=Memory) == loop.memory


def test_a_clock_that_was_set_back_makes_nobody_new() -> None:
    loop = Loop(pods=False, trials=True)
    loop(10)
    restarted(loop)
    try_(loop, "r1", OK)
    loop(2)
    loop.memory, loop.now = rewind(loop.memory, loop.now - 100), loop.now - 100
    loop(2)
    assert {rotation(loop, name) for name in loop.replicas} == {"in"}
