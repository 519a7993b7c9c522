"""What may be carried out, and that nobody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from daemon_fakes import NOON, Recorder, settings
from fleet_fakes import fleet, replica
from virtual_time import VirtualLoop, run_virtually

from controlplane.actuators.call import CallFailedError
from controlplane.actuators.limit import RefusedError, UnfinishedError
from controlplane.daemon.dispatch import Dispatch, ruled
from controlplane.signals.decision import (
    SCALE,
    SET_LIMIT,
    SET_ROTATION,
    Decision,
    Hold,
    Mode,
    Orders,
    Override,
    Standing,
)
from controlplane.signals.snapshot import FleetSnapshot, Out, PoolBoundary

ENFORCE = {"gateway": {"*": Mode.ENFORCE, "batch": Mode.OBSERVE}}
NO_ORDERS = Orders()
HELD = Hold(NOON, "ann", "racks")


def decision(target: str = "a:1", action: str = "limit", id_: str = "1-1") -> Decision:
    return Decision(id_, NOON, action, target, "8", "9", "gradient", "more")


def snapshot(orders: Orders = NO_ORDERS) -> FleetSnapshot:
    boundary = PoolBoundary("chat", "batch", 8192, "settled", "no better one", NOON)
    return fleet(replica("a:1", "chat"), replica("b:1", "batch"), orders=orders, boundary=boundary)


def override(scope: str, name: str, mode: Mode) -> Override:
    return Override(scope, name, "mode", mode, "ann", "test", NOON)


OBSERVED, DONE, HELD_BACK = (Mode.OBSERVE, "observed"), (Mode.ENFORCE, "pending"), (Mode.OBSERVE, "held")


@pytest.mark.parametrize(
    ("target", "modes", "orders", "expected"),
    [
        ("a:1", {}, Orders(), OBSERVED),
        ("a:1", {"other": {"*": Mode.ENFORCE}}, Orders(), OBSERVED),
        ("a:1", ENFORCE, Orders(), DONE),
        ("chat", ENFORCE, Orders(), DONE),
        ("b:1", ENFORCE, Orders(), OBSERVED),
        ("batch", ENFORCE, Orders(), OBSERVED),
        ("node-7", ENFORCE, Orders(), DONE),
        ("node-7", {"gateway": {"chat": Mode.ENFORCE}}, Orders(), OBSERVED),
        ("a:1", ENFORCE, Orders(HELD), (Mode.ENFORCE, "held")),
        ("a:1", {}, Orders(HELD), HELD_BACK),
        ("a:1", ENFORCE, Orders(None, (override("pool", "chat", Mode.OBSERVE),)), HELD_BACK),
        ("a:1", {}, Orders(None, (override("pool", "chat", Mode.ENFORCE),)), DONE),
        ("b:1", {}, Orders(None, (override("pool", "chat", Mode.ENFORCE),)), OBSERVED),
        ("a:1", {}, Orders(None, (override("pool", "chat", Mode.ENFORCE),
                                  override("replica", "a:1", Mode.OBSERVE))), OBSERVED),
        ("a:1", ENFORCE, Orders(None, (override("pool", "chat", Mode.OBSERVE),
                                       override("replica", "a:1", Mode.ENFORCE))), DONE),
        ("node-7", ENFORCE, Orders(None, (override("node", "node-7", Mode.OBSERVE),)), HELD_BACK),
        ("a:1", {}, Orders(HELD, (override("replica", "a:1", Mode.ENFORCE),)), (Mode.ENFORCE, "held")),
        ("chat/batch", ENFORCE, Orders(), OBSERVED),
        ("chat/batch", {"gateway": {"*": Mode.ENFORCE}}, Orders(), DONE),
        ("chat/batch", {"gateway": {"*": Mode.ENFORCE}}, Orders(HELD), (Mode.ENFORCE, "held")),
        ("chat/batch", {"gateway": {"*": Mode.ENFORCE}},
         Orders(None, (override("pool", "batch", Mode.OBSERVE),)), HELD_BACK),
        ("chat/batch", ENFORCE, Orders(None, (override("pool", "batch", Mode.ENFORCE),)), DONE),
        ("chat/batch", ENFORCE, Orders(None, (override("pool", "chat", Mode.OBSERVE),)), OBSERVED),
    ],
)  # fmt: skip
def test_hold_then_override_then_settings(
    tmp_path, target: str, modes: dict[str, dict[str, Mode]], orders: Orders, expected: tuple[Mode, str]
) -> None:
    result = ruled(decision(target), Recorder(), snapshot(orders), settings(tmp_path / "j", modes=modes))
    assert (result.mode, result.outcome) == expected
    assert msgspec.structs.replace(result, mode=Mode.OBSERVE, outcome="recorded") == decision(target)


class Bench:
    """A dispatch in virtual time; `reported` are the outcomes that came later."""

    def __init__(self, *actuators: Recorder) -> None:
        self.loop = VirtualLoop(NOON)
        self.actuators = actuators
        self.reported: list[Decision] = []

    def run(self, test: Callable[[Dispatch], Awaitable[None]]) -> list[str]:
        async def whole() -> None:
            dispatch = Dispatch(self.actuators, self.reported.append)
            await test(dispatch)
            await dispatch.close()

        run_virtually(self.loop, whole())
        return [decision.outcome for decision in self.reported]


def test_a_decision_that_may_is_carried_out_and_reported(tmp_path) -> None:
    recorder = Recorder()
    given = settings(tmp_path / "j", modes=ENFORCE)

    async def test(dispatch: Dispatch) -> None:
        taken = dispatch.take((decision(), decision("b:1"), decision(action="assess")), snapshot(), given)
        assert [one.outcome for one in taken] == ["pending", "observed", "recorded"]
        assert recorder.done == []  # not before the journal has it
        await asyncio.sleep(1)

    assert Bench(recorder).run(test) == ["done"]
    assert [done.target for done in recorder.done] == ["a:1"]


def test_failures_and_silence_are_outcomes(tmp_path) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)

    async def act(decision: Decision) -> None:
        match decision.id:
            case "bad":
                raise OSError("gateway gw-1:\n 503")
            case "mute":
                raise ValueError
            case "slow":
                await asyncio.sleep(3600)

    async def test(dispatch: Dispatch) -> None:
        dispatch.take(
            tuple(decision(id_=name) for name in ("bad", "mute", "slow", "good")), snapshot(), given
        )
        await asyncio.sleep(60)

    assert Bench(Recorder(act)).run(test) == [
        "failed: gateway gw-1: 503", "failed: ValueError", "failed: no answer within 10 s", "done",
    ]  # fmt: skip


def test_a_slow_actuator_delays_nobody_else_and_its_queue_has_an_end(tmp_path) -> None:
    async def never(_: Decision) -> None:
        await asyncio.sleep(1e9)

    slow, quick = Recorder(never), Recorder()
    quick.name, quick.actions = "webhook", frozenset({"tell"})
    given = settings(tmp_path / "j", modes={**ENFORCE, "webhook": {"*": Mode.ENFORCE}})

    async def test(dispatch: Dispatch) -> None:
        await asyncio.sleep(0)
        many = dispatch.take(tuple(decision(id_=str(i)) for i in range(10_050)), snapshot(), given)
        assert [one.outcome for one in many].count("failed: 10000 decisions wait for gateway already") == 50
        (told,) = dispatch.take((decision(action="tell"),), snapshot(), given)
        assert told.outcome == "pending"
        await asyncio.sleep(1)
        assert len(quick.done) == 1

    Bench(slow, quick).run(test)


def test_a_hold_stops_what_waits_already(tmp_path) -> None:
    """The first decision is under way when the hold comes; the others wait and are not carried out."""
    given = settings(tmp_path / "j", modes=ENFORCE)

    async def act(_: Decision) -> None:
        await asyncio.sleep(5)

    recorder = Recorder(act)

    async def test(dispatch: Dispatch) -> None:
        dispatch.take(tuple(decision(id_=str(i)) for i in range(3)), snapshot(), given)
        await asyncio.sleep(1)
        dispatch.take((), snapshot(Orders(HELD)), given)
        await asyncio.sleep(60)

    assert Bench(recorder).run(test) == ["done", "held", "held"]
    assert [done.id for done in recorder.done] == ["0"]


def limit(new: int, id_: str, target: str = "a:1") -> Decision:
    return Decision(id_, NOON, "set-limit", target, "8", str(new), "tpot-over", "less")


class Limiter(Recorder):
    """An actuator of limits for `pools`."""

    actions = frozenset({"set-limit"})

    def __init__(self, name: str, pools: set[str], do: Callable[[Decision], Awaitable[None]] | None) -> None:
        super().__init__(do)
        self.name, self._pools = name, pools

    def takes(self, target: str, pool: str | None) -> bool:
        return pool in self._pools


def test_a_limit_that_has_not_arrived_is_given_again_until_it_has(tmp_path) -> None:
    """Half of the way, then an actuator that fails twice, then done; each outcome is told once."""
    tries: list[str] = []

    async def act(decision: Decision) -> None:
        tries.append(decision.new)
        if len(tries) == 1:
            raise UnfinishedError("at 12 on its way")
        if len(tries) <= 3:
            raise OSError("gateway gw-1: 503")

    async def test(dispatch: Dispatch) -> None:
        dispatch.take((limit(16, "1-1"),), snapshot(), given)
        for _ in range(6):
            await asyncio.sleep(1)
            dispatch.take((), snapshot(), given)

    given = settings(tmp_path / "j", modes=ENFORCE)
    assert Bench(Limiter("gateway", {"chat"}, act)).run(test) == ["failed: gateway gw-1: 503", "done"]
    assert tries == ["16"] * 4


def test_a_newer_limit_supersedes_one_that_is_on_its_way(tmp_path) -> None:
    async def act(decision: Decision) -> None:
        if decision.new == "16":
            raise UnfinishedError("at 12 on its way")
        if decision.new == "0":
            raise RefusedError("a limit is at least 1")

    async def test(dispatch: Dispatch) -> None:
        for new in (16, 17, 0):
            dispatch.take((limit(new, f"{new}-1"),), snapshot(), given)
            await asyncio.sleep(1)
        for _ in range(3):
            dispatch.take((), snapshot(), given)
            await asyncio.sleep(1)

    given = settings(tmp_path / "j", modes=ENFORCE)
    outcomes = Bench(Limiter("gateway", {"chat"}, act)).run(test)
    assert outcomes == ["superseded", "done", "failed: a limit is at least 1"]


@pytest.mark.parametrize("why", ["observe", "hold"])
def test_a_limit_that_might_not_be_set_is_set_once_it_may(tmp_path, why: str) -> None:
    """The newest one; nothing has to change again for it."""
    enforce, observe = settings(tmp_path / "j", modes=ENFORCE), settings(tmp_path / "j", modes={})
    limiter = Limiter("gateway", {"chat"}, None)

    async def test(dispatch: Dispatch) -> None:
        before = (snapshot(Orders(HELD)), enforce) if why == "hold" else (snapshot(), observe)
        for new in (16, 12):
            dispatch.take((limit(new, f"{new}-1"),), *before)
            await asyncio.sleep(1)
        assert limiter.done == []
        for _ in range(3):
            dispatch.take((), snapshot(), enforce)
            await asyncio.sleep(1)

    assert Bench(limiter).run(test) == ["done"]
    assert [done.new for done in limiter.done] == ["12"]


def test_each_actuator_acts_on_the_limits_of_its_own_pools(tmp_path) -> None:
    ours, theirs = Limiter("gateway", {"chat"}, None), Limiter("webhook", {"batch"}, None)
    modes = {"gateway": {"*": Mode.ENFORCE}, "webhook": {"*": Mode.ENFORCE}}
    given = settings(tmp_path / "j", modes=modes)

    async def test(dispatch: Dispatch) -> None:
        taken = dispatch.take(
            (limit(9, "1-1"), limit(7, "1-2", "b:1"), limit(5, "1-3", "gone:1")), snapshot(), given
        )
        assert [one.outcome for one in taken] == ["pending", "pending", "recorded"]
        await asyncio.sleep(1)

    assert Bench(ours, theirs).run(test) == ["done", "done"]
    assert ([one.target for one in ours.done], [one.target for one in theirs.done]) == (["a:1"], ["b:1"])


@pytest.mark.parametrize("order", [None, override("pool", "chat", Mode.OBSERVE)])
def test_what_each_actuator_may_do_is_said_of_each_pool(tmp_path, order: Override | None) -> None:
    seen = snapshot(Orders(None, () if order is None else (order,)))
    given = settings(tmp_path / "j", modes=ENFORCE)

    async def test(dispatch: Dispatch) -> None:
        found = dispatch.pool_standings(seen, given)
        assert found == {
            "chat": {"gateway": Standing.ENFORCE if order is None else Standing.HELD},
            "batch": {"gateway": Standing.OBSERVE},
        }

    Bench(Recorder()).run(test)


class Scaler(Recorder):
    """An actuator whose values others write too; `stands` while it sees that they did not."""

    actions = frozenset({SCALE})
    repeat_seconds = 15.0
    stands = False

    def is_undone(self, decision: Decision) -> bool:
        return not self.stands


def test_a_value_that_others_write_too_is_looked_at_again_and_only_news_are_told(tmp_path) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)
    trouble: list[str] = []

    async def act(_: Decision) -> None:
        if trouble:
            raise OSError(trouble[0])

    bench = Bench(recorder := Scaler(act))

    async def test() -> None:
        dispatch = Dispatch(bench.actuators, bench.reported.append, steady=bench.loop.time)
        dispatch.take((decision("chat", SCALE),), snapshot(), given)
        for second in range(65):
            await asyncio.sleep(1)
            trouble[:] = ["argocd"] if 20 < second < 50 else []
            dispatch.take((), snapshot(), given)
        assert len(recorder.done) == 3  # at 0, 15 and 60 s
        dispatch.take((), snapshot(Orders(HELD)), given)
        for _ in range(30):
            await asyncio.sleep(1)
            dispatch.take((), snapshot(Orders(HELD)), given)
        assert len(recorder.done) == 3  # a hold holds that back, too
        await dispatch.close()

    run_virtually(bench.loop, test())
    assert [one.outcome for one in bench.reported] == ["done", "failed: argocd", "done"]


def test_what_is_seen_to_stand_is_left_alone_until_it_is_undone(tmp_path) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)
    bench = Bench(recorder := Scaler())

    async def test() -> None:
        dispatch = Dispatch(bench.actuators, bench.reported.append, steady=bench.loop.time)
        dispatch.take((decision("chat", SCALE),), snapshot(), given)
        for second in range(65):
            await asyncio.sleep(1)
            recorder.stands = second != 40
            dispatch.take((), snapshot(), given)
        await asyncio.sleep(0)
        assert len(recorder.done) == 2
        await dispatch.close()

    run_virtually(bench.loop, test())
    assert [one.outcome for one in bench.reported] == ["done"]


class Keeper(Limiter):
    """An actuator of a limit that may get lost; it looks after 10 s."""

    repeat_seconds = 0.0

    def __init__(self, do: Callable[[Decision], Awaitable[None]], now: Callable[[], float]) -> None:
        super().__init__("gateway", {"chat"}, do)
        self.now, self.looked_at = now, 0.0

    def is_undone(self, decision: Decision) -> bool:
        return self.now() - self.looked_at >= 10.0


def test_a_limit_that_is_found_lost_goes_on_with_each_tick_and_its_trouble_is_told_once(tmp_path) -> None:
    """Lost after 25 s: two steps back; out of reach after 45 s, for ten."""
    given, way = settings(tmp_path / "j", modes=ENFORCE), ["at 12", "at 14"]
    tries: list[float] = []

    async def act(_: Decision) -> None:
        now = bench.loop.time()
        tries.append(now)
        if 45.0 <= now < 55.0:
            raise OSError(f"not tried: the next try is in {55.0 - now:.1f} s")
        if now > 25.0 and way:
            raise UnfinishedError(way.pop(0))
        keeper.looked_at = now

    bench = Bench()
    keeper = Keeper(act, bench.loop.time)

    async def test() -> None:
        dispatch = Dispatch((keeper,), bench.reported.append, steady=bench.loop.time)
        dispatch.take((limit(16, "1-1"),), snapshot(), given)
        for _ in range(70):
            await asyncio.sleep(1)
            dispatch.take((), snapshot(), given)
        await dispatch.close()

    run_virtually(bench.loop, test())
    assert [round(at) for at in tries] == [0, 10, 20, 30, 31, 32, 42, *range(52, 56), 65]
    assert [one.outcome for one in bench.reported] == [
        "done", "pending", "done", "failed: not tried: the next try is in 3.0 s", "done",
    ]  # fmt: skip


@pytest.mark.parametrize(("asked", "tries"), [(0.0, 60), (20.0, 3), (1e9, 1)])
def test_who_asks_to_be_left_alone_is_but_not_for_ever(tmp_path, asked: float, tries: int) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)
    seen: list[float] = []

    async def act(_: Decision) -> None:
        seen.append(bench.loop.time())
        raise CallFailedError("the API server answers 429", asked)

    limiter = Limiter("gateway", {"chat"}, act)
    bench = Bench(limiter)

    async def test() -> None:
        dispatch = Dispatch(bench.actuators, bench.reported.append, steady=bench.loop.time)
        dispatch.take((limit(16, "1-1"),), snapshot(), given)
        for _ in range(301):
            await asyncio.sleep(1)
            dispatch.take((), snapshot(), given)
        assert sum(at < 60.0 for at in seen) == tries
        dispatch.take((limit(12, "2-1"),), snapshot(), given)  # which nobody has asked about
        await asyncio.sleep(0)
        assert sum(at >= 300.0 for at in seen) >= 2
        await dispatch.close()

    run_virtually(bench.loop, test())
    assert [one.outcome for one in bench.reported] == ["failed: the API server answers 429"] * 2


def test_another_pod_at_the_address_of_a_replica_that_was_out_is_not_taken_out_for_it(tmp_path) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)
    recorder = Scaler()
    recorder.actions = frozenset({SET_ROTATION})
    bench = Bench(recorder)
    out = fleet(replica("a:1", "chat", out=Out(NOON, "wedged", "it has work and makes no token")))

    async def test() -> None:
        dispatch = Dispatch(bench.actuators, bench.reported.append, steady=bench.loop.time)
        taken = msgspec.structs.replace(decision("a:1", SET_ROTATION), new="out")
        dispatch.take((taken,), out, given)
        for _ in range(20):
            await asyncio.sleep(1)
            dispatch.take((), out, given)
        await asyncio.sleep(0)
        assert len(recorder.done) == 2
        for _ in range(60):
            await asyncio.sleep(1)
            dispatch.take((), snapshot(), given)  # in which nothing is held against it
        assert len(recorder.done) == 2
        await dispatch.close()

    run_virtually(bench.loop, test())


def test_decisions_of_two_kinds_on_one_target_do_not_take_each_others_place(tmp_path) -> None:
    given = settings(tmp_path / "j", modes=ENFORCE)
    trouble = ["no answer"]

    async def act(_: Decision) -> None:
        if trouble:
            raise OSError(trouble[0])

    recorder = Recorder(act)
    recorder.actions = frozenset({SET_LIMIT, SET_ROTATION})

    async def test(dispatch: Dispatch) -> None:
        dispatch.take((decision("a:1", SET_ROTATION),), snapshot(), given)
        await asyncio.sleep(1)
        trouble.clear()
        dispatch.take((decision("a:1", SET_LIMIT, "2-1"),), snapshot(), given)
        await asyncio.sleep(1)
        assert {one.action for one in recorder.done} == {SET_LIMIT, SET_ROTATION}

    Bench(recorder).run(test)
