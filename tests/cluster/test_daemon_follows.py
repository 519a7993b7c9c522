"""A daemon that follows another: it ticks and stays warm, and nothing of it reaches the world."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from daemon_fakes import NOON, POLICY, FakeInputs, Recorder, page, settings, small_tick
from fleet_fakes import AT, fleet, replica, status
from gateway_fakes import FakeGateway
from virtual_time import VirtualLoop, run_virtually, use_wall_of

from controlplane.actuators.gateway import GatewayActuator, Level
from controlplane.api.metrics import page as metrics_page
from controlplane.daemon.clock import Clock
from controlplane.daemon.daemon import Daemon, Running
from controlplane.daemon.handover import Left
from controlplane.daemon.journal import Journal
from controlplane.daemon.orders import OrderBook
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.shares import Shares
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Override
from controlplane.signals.samples import Samples
from controlplane.signals.snapshot import FleetSnapshot, Probed


class Lead:
    """A lead that the test gives and takes; the lease may be over before a tick looks at it."""

    def __init__(self) -> None:
        self.term: int | None = None
        self.trouble = self.follows = self.kept = ""
        self.closed = False

    def outrank(self, term: int) -> None:
        self.term = term + 1

    def keep(self, text: str) -> None:
        self.kept = text

    async def stands(self) -> None:
        pass

    def seconds_left(self) -> float:
        return 0.0 if self.term is None else 5.0

    async def close(self) -> None:
        self.closed = True


def left(orders: Orders) -> str:
    return msgspec.json.encode(Left(1, orders)).decode()


def daemon_under(
    loop: VirtualLoop,
    given: DaemonSettings,
    inputs: FakeInputs,
    lead: Lead,
    *,
    journal: Journal | None = None,
    book: OrderBook | None = None,
    **more: Any,
) -> Daemon:
    """A daemon on the loop's clocks that acts while `lead` says so."""
    return Daemon(
        Running(POLICY, given, inputs),
        journal or Journal(given, small_tick),
        book or OrderBook(given.hold_path, given.overrides_path),
        clock=Clock(0.0, loop.wall, loop.time),
        leader=lead,
        **{"tick": small_tick, **more},
    )


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> VirtualLoop:
    loop = VirtualLoop(NOON)
    use_wall_of(loop, monkeypatch)
    return loop


def test_only_the_leader_tries_engines(tmp_path: Path, loop: VirtualLoop) -> None:
    lead, inputs = Lead(), FakeInputs()
    on_trial = msgspec.structs.replace(replica("a"), models=("m",), probed=Probed(doubt="new"))

    def doubting_tick(*given: Any) -> Any:
        snapshot, decisions, memory = small_tick(*given)
        snapshot = msgspec.structs.replace(snapshot, replicas={"a": on_trial, "b": replica("b")})
        return snapshot, decisions, memory

    async def test() -> None:
        given = settings(tmp_path / "journal.db")
        daemon = daemon_under(loop, given, inputs, lead, tick=doubting_tick)
        lead.follows, found = "other/1", []
        for term in (None, 7, None):
            lead.term = term
            await daemon.tick()
            found.append(inputs.doubted)
            await asyncio.sleep(1.0)
        assert found == [{}, {"a": "m"}, {}]
        await daemon.stop()

    run_virtually(loop, test())


def test_only_the_leader_acts(tmp_path: Path, loop: VirtualLoop) -> None:
    lead, recorder, inputs = Lead(), Recorder(), FakeInputs()
    recorder.name = "webhook"
    told: list[tuple[FleetSnapshot, tuple[Decision, ...]]] = []

    async def test() -> None:
        given = settings(tmp_path / "journal.db", modes={"webhook": {"*": Mode.ENFORCE}})
        gateway = FakeGateway("gw", loop.wall)
        gateways = GatewayActuator([gateway.link], now=loop.wall, steady=loop.time)
        journal = Journal(given, small_tick)
        daemon = daemon_under(
            loop, given, inputs, lead, journal=journal, actuators=[recorder], gateways=gateways
        )
        daemon.subscribe(lambda snapshot, decisions: told.append((snapshot, decisions)))

        async def tick(finished: float) -> None:
            inputs.next = Samples(scrapes=(page(finished),))
            await daemon.tick()
            await asyncio.sleep(1.0)

        lead.follows = "other/1"
        await tick(1.0)
        with pytest.raises(OSError, match="this daemon follows other/1, which must be told"):
            await daemon.hold(Hold(NOON, "ann", "deploy"))
        assert not (tmp_path / "hold").exists()
        lead.follows = ""
        assert (recorder.done, gateway.calls, daemon.status().leads) == ([], [], False)
        lead.term = 7
        await tick(2.0)
        await tick(3.0)
        assert [decision.new for decision in recorder.done] == ["3.0", "6.0"]
        assert {message.term for message in gateway.taken} == {7}
        assert daemon.status().leads
        taken = len(gateway.taken)
        lead.term = None
        await tick(4.0)
        assert (len(recorder.done), len(gateway.taken)) == (2, taken)
        lead.term = 9
        await tick(5.0)
        await tick(6.0)
        assert gateway.taken[-1].term == 9
        await daemon.stop()

    run_virtually(loop, test())
    assert lead.closed
    outcomes = [decision.outcome for _, decisions in told for decision in decisions]
    assert outcomes == ["observed", "pending", "pending", "observed", "pending", "pending"]
    kinds = [event.kind for snapshot, _ in told for event in snapshot.events]
    assert [kind for kind in kinds if "lead" in kind] == [
        "took-lead",
        "leading",
        "lost-lead",
        "took-lead",
        "leading",
    ]


def test_a_leader_whose_term_a_gateway_refuses_goes_on_with_a_higher_one(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    lead, inputs = Lead(), FakeInputs()
    gateway = FakeGateway("gw", loop.wall)

    def steers(term: int) -> GatewayActuator:
        shares = Shares(term=term, now=loop.wall())
        return GatewayActuator([gateway.link], shares, term, now=loop.wall, steady=loop.time)

    async def test() -> None:
        before = steers(9)
        for _ in range(3):  # whoever led before the lease was deleted
            before.set_level(Level())
            await asyncio.sleep(1.0)
        await before.close()
        lead.term = 7
        given = settings(tmp_path / "journal.db")
        daemon = daemon_under(loop, given, inputs, lead, gateways=steers(7))
        for second in range(6):
            inputs.next = Samples(scrapes=(page(float(second)),))
            await daemon.tick()
            await asyncio.sleep(1.0)
        await daemon.stop()

    run_virtually(loop, test())
    assert lead.term == 10
    terms = [message.term for message in gateway.taken]
    assert terms == sorted(terms)
    assert (terms[0], terms[-1]) == (9, 10)


def test_what_waits_when_the_lead_is_lost_is_not_done(tmp_path: Path, loop: VirtualLoop) -> None:
    lead, inputs = Lead(), FakeInputs()
    lead.term = 1
    recorder = Recorder()

    async def test() -> None:
        given = settings(tmp_path / "journal.db", modes={"gateway": {"*": Mode.ENFORCE}})
        journal = Journal(given, small_tick)
        daemon = daemon_under(loop, given, inputs, lead, journal=journal, actuators=[recorder])
        inputs.next = Samples(scrapes=(page(1.0),))
        await daemon.tick()
        lead.term = None  # paused right after the tick
        await asyncio.sleep(1.0)
        assert recorder.done == []
        await daemon.stop()

    run_virtually(loop, test())


def test_a_follower_exports_nothing_of_the_fleet() -> None:
    def text(leads: bool) -> str:
        follows = "" if leads else "other/1"
        how = msgspec.structs.replace(status(), leads=leads, follows=follows)
        return metrics_page(fleet(), how, Orders(), AT + 1).text(openmetrics=False)

    assert "controlplane_leading 1" in text(True)
    assert "controlplane_pool_replicas{" in text(True)
    assert "controlplane_leading 0" in text(False)
    assert "controlplane_ticks_total 7" in text(False)
    for series in ("controlplane_pool_replicas{", "controlplane_replica_info{", "controlplane_node_gpus{"):
        assert series not in text(False)


def test_while_nobody_can_lead_the_last_leader_exports() -> None:
    how = msgspec.structs.replace(status(), leads=False, follows="")
    text = metrics_page(fleet(), how, Orders(), AT + 1).text(openmetrics=False)
    assert "controlplane_pool_replicas{" in text


def test_orders_outlive_the_leader(tmp_path: Path, loop: VirtualLoop) -> None:
    lead, inputs = Lead(), FakeInputs()
    theirs = Orders(
        Hold(NOON, "ann", "deploy"), (Override("pool", "chat", "mode", "observe", "x", "ann", NOON),)
    )

    async def test() -> None:
        given = settings(tmp_path / "journal.db")
        book = OrderBook(given.hold_path, given.overrides_path)
        daemon = daemon_under(loop, given, inputs, lead, book=book)

        async def tick() -> Orders:
            await daemon.tick()
            await asyncio.sleep(1.0)
            return book.read(loop.wall())

        def of(orders: Orders) -> tuple[object, ...]:
            return orders.hold and (orders.hold.by, orders.hold.reason), orders.overrides

        lead.follows, lead.kept = "other/1", left(theirs)
        assert of(await tick()) == of(theirs)
        lead.kept = left(Orders())
        assert of(await tick()) == (None, ())
        book.hold("bob", "mine")  # by hand, on this machine
        lead.kept = left(Orders(None, theirs.overrides))
        assert of(await tick()) == (("bob", "mine"), theirs.overrides)
        book.release()
        lead.kept = "nonsense"
        assert of(await tick()) == (None, theirs.overrides)
        assert any("cannot be read" in sentence for sentence in daemon.status().troubles)
        # The leader dies right after it was given a hold, which is read with the lease that is taken.
        lead.follows, lead.term, lead.kept = "", 9, left(theirs)
        assert of(await tick()) == of(theirs)
        await daemon.release("ann")
        await tick()
        assert msgspec.json.decode(lead.kept, type=Left).orders == Orders(None, theirs.overrides)
        await daemon.stop()

    run_virtually(loop, test())
