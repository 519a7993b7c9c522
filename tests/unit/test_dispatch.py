"""What may be carried out, and that nobody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from daemon_fakes import NOON, Recorder, settings
from fleet_fakes import fleet, replica
from virtual_time import VirtualLoop, run_virtually

from controlplane.daemon.dispatch import Dispatch, ruled
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Override
from controlplane.signals.snapshot import FleetSnapshot

ENFORCE = {"gateway": {"*": Mode.ENFORCE, "batch": Mode.OBSERVE}}
NO_ORDERS = Orders()
HELD = Hold(NOON, "ann", "racks")


def decision(target: str = "a:1", action: str = "limit", id_: str = "1-1") -> Decision:
    return Decision(id_, NOON, action, target, "8", "9", "gradient", "more")


def snapshot(orders: Orders = NO_ORDERS) -> FleetSnapshot:
    return fleet(replica("a:1", "chat"), replica("b:1", "batch"), orders=orders)


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
        many = dispatch.take(tuple(decision(id_=str(i)) for i in range(150)), snapshot(), given)
        assert [one.outcome for one in many].count("failed: 100 decisions wait for gateway already") == 50
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
