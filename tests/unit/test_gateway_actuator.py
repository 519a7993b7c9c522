"""How gateways are steered: what a message says, who answers for a decision, who is lost, who leads."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from gateway_fakes import FakeGateway
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_time import VirtualLoop, run_virtually

from controlplane.actuators.gateway import GatewayActuator, Level, NoGatewayError
from controlplane.policy.shares import Shares
from controlplane.signals.control import ReplicaOrder
from controlplane.signals.decision import Decision, Mode, Severity

NOON = 1_800_000_000.0


def orders(limit: float | None = 40.0, *names: str) -> tuple[ReplicaOrder, ...]:
    return tuple(
        ReplicaOrder(name=name, pool="chat", url=f"http://{name}:8000/metrics", limit=limit, kv_tokens=9000)
        for name in names or ("r0",)
    )


def decision(new: int = 40) -> Decision:
    return Decision("1-1", NOON, "set-limit", "r0", "30", str(new), "tpot-near", "more")


class Bench:
    """Gateways and a leader in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(NOON)
        self.gateways: list[FakeGateway] = []
        self.events: list[tuple[str, Severity]] = []
        self.sentences: list[str] = []

    def gateway(self, name: str = "gw", **more: Any) -> FakeGateway:
        made = FakeGateway(name, self.loop.wall, **more)
        self.gateways.append(made)
        return made

    def leader(self, term: int = 7, gateways: Sequence[FakeGateway] | None = None) -> GatewayActuator:
        links = [gateway.link for gateway in (self.gateways if gateways is None else gateways)]
        shares = Shares(term=term, now=self.loop.wall())
        steady, luck = self.loop.time, lambda: 0.5
        return GatewayActuator(links, shares, term, now=self.loop.wall, steady=steady, luck=luck)

    async def seconds(self, count: float, leader: GatewayActuator, level: Level | None = None) -> None:
        """A tick a second."""
        for _ in range(int(count)):
            leader.set_level(level or Level(orders()))
            await asyncio.sleep(1.0)
            told = leader.take_events()
            self.events += [(event.kind, event.severity) for event in told]
            self.sentences += [event.sentence for event in told]
            for gateway in self.gateways:
                gateway.look()

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        run_virtually(self.loop, test())


def test_each_tick_is_told_whole_with_a_term_a_rising_version_and_an_end() -> None:
    bench = Bench()
    gateway = bench.gateway()

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(5, leader, Level(orders(40.0, "r0", "r1"), Mode.ENFORCE, boundary_tokens=4096))
        await leader.close()

    bench.run(test)
    assert len(gateway.taken) == 4  # at first it was asked how it stands
    versions = [message.version for message in gateway.taken]
    assert versions == sorted(set(versions))
    message = gateway.taken[-1]
    assert (message.term, message.mode, message.boundary_tokens) == (7, Mode.ENFORCE, 4096)
    assert [order.name for order in message.replicas] == ["r0", "r1"]
    assert message.expires_at - message.sent_at == pytest.approx(10.0)
    assert message.share is None, "it has all of every replica by its configuration"
    assert gateway.admission.limits() == {"r0": 40.0, "r1": 40.0}
    assert not gateway.steering.is_alone
    assert bench.events == [("leading", Severity.INFO)]


def test_a_decision_is_done_once_every_gateway_has_taken_what_came_of_it() -> None:
    bench = Bench()
    slow, quick = bench.gateway("slow", standing=0.5), bench.gateway("quick", standing=0.5)

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(3, leader)
        through, wire = asyncio.Event(), slow.send

        async def late(call: Any) -> Any:
            await through.wait()
            return await wire(call)

        leader.set_links([slow.link._replace(send=late), quick.link])
        leader.set_level(Level(orders(50.0)))
        done = asyncio.create_task(leader.apply(decision()))
        await asyncio.sleep(1.0)
        assert not done.done()
        assert quick.admission.limits() == {"r0": 50.0}
        through.set()
        await asyncio.wait_for(done, 1.0)
        assert slow.admission.limits() == {"r0": 50.0}
        await leader.close()

    bench.run(test)


def test_gateways_that_are_lost_are_not_waited_for_and_none_is_a_failure() -> None:
    bench = Bench()
    gone, there = bench.gateway("gone", standing=0.5), bench.gateway("there", standing=0.5)

    async def test() -> None:
        leader = bench.leader()
        gone.cut = "connection refused"
        await bench.seconds(10, leader)
        await asyncio.wait_for(leader.apply(decision()), 0.1)
        there.cut = "connection refused"
        await bench.seconds(10, leader)
        leader.set_level(Level(orders(50.0)))
        with pytest.raises(NoGatewayError, match="no gateway answers: http://gone:9101: connection refused"):
            await asyncio.wait_for(leader.apply(decision()), 6.0)
        await leader.close()

    bench.run(test)


def test_a_lost_gateway_is_told_once_tried_less_often_and_told_once_when_it_is_back() -> None:
    bench = Bench()
    gateway = bench.gateway()
    tries: list[float] = []

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(5, leader)
        wire = gateway.send

        async def counted(call: Any) -> Any:
            tries.append(bench.loop.time())
            return await wire(call)

        leader.set_links([gateway.link._replace(send=counted)])
        gateway.cut = "connection refused"
        await bench.seconds(600, leader)
        assert gateway.steering.is_alone
        gateway.cut = ""
        await bench.seconds(20, leader)
        await leader.close()

    bench.run(test)
    assert [kind for kind, _ in bench.events] == ["leading", "gateway-lost", "gateway-back"]
    assert 40 <= len([at for at in tries if at < 605]) <= 70, "one in 15 seconds at last, minus luck"
    assert not gateway.steering.is_alone


def test_the_limits_that_were_told_last_are_known_and_read_back_after_a_restart() -> None:
    bench = Bench()
    gateway = bench.gateway()

    async def test() -> None:
        first = bench.leader(term=7)
        await bench.seconds(3, first, Level(orders(50.0)))
        assert first.told == {"r0": 50.0}
        await first.close()
        second = bench.leader(term=8)
        await bench.seconds(1, second, Level(orders(None)))
        assert second.told == {"r0": 50.0}
        # A hold right after the start: what stands, stays, mode and all.
        await bench.seconds(3, second, Level(orders(second.told["r0"]), keeps_mode=True))
        await second.close()

    bench.run(test)
    assert gateway.taken[-1].term == 8
    assert gateway.admission.limits() == {"r0": 50.0}


def test_a_hold_keeps_the_mode_that_was_told_last() -> None:
    bench = Bench()
    gateway = bench.gateway()

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(3, leader, Level(orders(), Mode.ENFORCE))
        await bench.seconds(3, leader, Level(orders(), None, keeps_mode=True))
        assert gateway.taken[-1].mode is Mode.ENFORCE
        await bench.seconds(3, leader, Level(orders(), None))
        assert gateway.taken[-1].mode is None
        await leader.close()

    bench.run(test)


def test_a_gateway_that_follows_a_later_leader_does_not_obey_us() -> None:
    bench = Bench()
    gateway = bench.gateway()

    async def test() -> None:
        late, early = bench.leader(term=9), bench.leader(term=7)
        await bench.seconds(3, late, Level(orders(50.0)))
        await bench.seconds(8, early, Level(orders(20.0)))
        with pytest.raises(NoGatewayError, match="outdated to it: it follows term 9"):
            await early.apply(decision())
        assert (early.outranked_by, late.outranked_by) == (9, None)
        assert early.term == 7, "whether we may go on with a higher term is not ours to say"
        await asyncio.gather(late.close(), early.close())

    bench.run(test)
    assert gateway.admission.limits() == {"r0": 50.0}
    assert [kind for kind, _ in bench.events].count("gateway-outranks") == 1


def test_a_leader_with_a_higher_term_is_obeyed_again() -> None:
    bench = Bench()
    gateway = bench.gateway()

    async def test() -> None:
        late, early = bench.leader(term=9), bench.leader(term=7)
        await bench.seconds(3, late, Level(orders(50.0)))
        await bench.seconds(2, early, Level(orders(20.0)))
        assert early.outranked_by == 9
        early.lead(Shares(term=10, now=bench.loop.wall()), 10)
        assert early.outranked_by is None
        await bench.seconds(4, early, Level(orders(20.0)))
        await bench.seconds(4, late, Level(orders(50.0)))
        assert late.outranked_by == 10
        await asyncio.gather(late.close(), early.close())

    bench.run(test)
    assert gateway.admission.limits() == {"r0": 20.0}
    assert "gateway-lost" not in [kind for kind, _ in bench.events][:-2], "it was refused once only"


def test_another_of_our_own_term_outranks_us_too() -> None:
    bench = Bench()
    bench.gateway()

    async def test() -> None:
        one, other = bench.leader(term=7), bench.leader(term=7)
        await bench.seconds(30, one)
        await bench.seconds(2, other)
        assert other.outranked_by == 7
        await asyncio.gather(one.close(), other.close())

    bench.run(test)


def test_standing_shares_that_add_up_to_too_much_are_told() -> None:
    bench = Bench()
    bench.gateway("a"), bench.gateway("b")

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(4, leader)
        await leader.close()

    bench.run(test)
    assert [kind for kind, _ in bench.events].count("gateway-shares") == 1
    assert all(gateway.taken for gateway in bench.gateways), "they are steered all the same"


def test_shares_follow_the_demand_and_stay_where_nothing_is_said_of_it() -> None:
    bench = Bench()
    a, b = bench.gateway("a", standing=0.5), bench.gateway("b", standing=0.5)

    async def test() -> None:
        leader = bench.leader()
        await bench.seconds(60, leader, Level(orders(), demand={"a": 900.0, "b": 100.0}))
        assert (a.share, b.share) == (pytest.approx(0.7), pytest.approx(0.3))
        await bench.seconds(30, leader, Level(orders(), demand=None))
        assert (a.share, b.share) == (pytest.approx(0.7), pytest.approx(0.3))
        await leader.close()

    bench.run(test)


def test_a_lost_gateway_keeps_its_share_until_its_link_is_taken_away() -> None:
    """It may still serve, cut off from us."""
    bench = Bench()
    a, b = bench.gateway("a", standing=0.5), bench.gateway("b", standing=0.3)

    async def test() -> None:
        leader = bench.leader()
        level = Level(orders(), demand={"a": 900.0, "b": 0.0})
        await bench.seconds(60, leader, level)
        b.cut = "no route to host"
        await bench.seconds(640, leader, level)
        assert (a.share, b.share) == (pytest.approx(0.7), pytest.approx(0.3))
        leader.set_links([a.link])
        await bench.seconds(5, leader, level)
        assert a.share == pytest.approx(1.0)
        await leader.close()

    bench.run(test)
    assert bench.sentences[1:] == [
        "http://b:9101: no route to host; it goes on by itself and has 30% of every replica, "
        "which nobody else gets until it is back or its link is taken away"
    ]


def test_a_restarted_daemon_moves_no_share_at_once() -> None:
    bench = Bench()
    a, b = bench.gateway("a", standing=0.5), bench.gateway("b", standing=0.5)

    async def test() -> None:
        first = bench.leader(term=7)
        await bench.seconds(60, first, Level(orders(), demand={"a": 900.0, "b": 100.0}))
        await first.close()
        second = bench.leader(term=8)
        await bench.seconds(3, second, Level(orders(), demand={"a": 900.0, "b": 100.0}))
        assert (a.share, b.share) == (pytest.approx(0.7), pytest.approx(0.3))
        await second.close()

    bench.run(test)
    assert (a.taken[-1].term, b.taken[-1].term) == (8, 8)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["tick", "tick", "cut", "heal", "restart-gateway", "new-leader", "old-leader", "demand"]
        ),
        st.integers(0, 2),
        st.integers(1, 12),
    ),
    min_size=5,
    max_size=40,
)


@given(steps=STEPS, standing=st.sampled_from([(0.34, 0.33, 0.33), (0.5, 0.3, 0.1), (0.2, 0.2, 0.2)]))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_shares_never_add_up_to_more_than_the_whole_while_leaders_change(
    steps: list[tuple[str, int, int]], standing: tuple[float, float, float]
) -> None:
    """Real messages to real gateways: they are cut off, come back, begin anew; leaders die, are followed by
    others, and one that was paused goes on to steer beside its successor."""
    bench = Bench()
    three = [bench.gateway(f"g{i}", standing=share, offset=0.4 * (i - 1)) for i, share in enumerate(standing)]

    async def test() -> None:
        term, demand = 1, {"g0": 1.0}
        leaders = [bench.leader(term)]
        for what, which, seconds in steps:
            if what == "cut":
                three[which].cut = "no route to host"
            elif what == "heal":
                three[which].cut = ""
            elif what == "restart-gateway":
                three[which].start()
            elif what == "new-leader":
                term += 1
                if which:  # the one before it is dead, and not only paused
                    await leaders.pop().close()
                leaders = [*leaders[-1:], bench.leader(term)]
            elif what == "demand":
                demand = {f"g{i}": float(seconds if i == which else 1) for i in range(3)}
            beside = leaders if what == "old-leader" else leaders[-1:]
            for _ in range(seconds):
                for leader in beside:
                    leader.set_level(Level(orders(), demand=demand))
                for _ in range(2):
                    await asyncio.sleep(0.5)
                    shares = [gateway.share for gateway in three]
                    assert sum(shares) <= 1.0 + 1e-9, (bench.loop.time(), shares)
                    for gateway in three:
                        gateway.look()
        await asyncio.gather(*(leader.close() for leader in leaders))

    bench.run(test)
