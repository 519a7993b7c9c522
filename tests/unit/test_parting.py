"""The boundary between two pools inside the tick: when it is told, what it goes on from, what keeps it."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from fleets import NOON, FakeReplica, samples

from controlplane.policy import steer
from controlplane.policy.boundary.law import Boundary
from controlplane.policy.boundary.pair import PoolPair
from controlplane.policy.memory import Memory, rewind
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision, Hold, Mode, Orders, Override, Standing
from controlplane.signals.samples import OutcomeWindow, ReplicaWindow
from controlplane.signals.size_class import SizeClass
from controlplane.signals.snapshot import FleetSnapshot, PoolBoundary

PAIR = PoolPair(short="short", long="long", boundary=2048)
LAW = Boundary.model_validate({"confirm": "20s", "rest": "1m", "memory": "2m", "enough_requests": 50})
CHAT = {1024: (8.0, 5.0), 32_768: (0.5, 20.0)}
DOCUMENTS = {1024: (8.0, 5.0), 4096: (2.0, 10.0), 32_768: (0.5, 20.0)}
"""By size class: requests a second, seconds that one is there. A replica of the short pool runs a hundred at
once, one of the long pool ten: with the documents, 4,096 needs the fewest replicas, and without, any."""


def policy(pair: PoolPair | None = PAIR) -> PolicySettings:
    pools = {
        "short": PoolPolicy(limits={"law": "fixed", "limit": 100}),
        "long": PoolPolicy(limits={"law": "fixed", "limit": 10}),
    }
    return PolicySettings(pools=pools, pair=pair, boundary=LAW)


class Loop:
    """Ticks once a second with a window of each pool; the gateway `follows` what it would be told, or keeps
    its boundary."""

    def __init__(self, *, follows: bool = True, boundary: int = 2048) -> None:
        self.settings, self.memory, self.now = policy(), Memory(), NOON
        self.follows, self.boundary = follows, boundary
        self.replicas = {
            "short": [FakeReplica(f"s{i}", "short") for i in range(2)],
            "long": [FakeReplica(f"l{i}", "long") for i in range(4)],
        }
        self.decisions: list[Decision] = []
        self.snapshot: FleetSnapshot | None = None
        self.orders: Orders | None = None
        self.lost: tuple[FakeReplica, ...] = ()
        self.ahead = 0.0  # the gateway's clock, in seconds

    def __call__(
        self, mix: dict[int, tuple[float, float]] | None, seconds: int = 1, **more: Any
    ) -> PoolBoundary | None:
        """So many seconds of a mix, None where no gateway is heard; `more` stands in the windows."""
        for _ in range(seconds):
            windows = () if mix is None else self.windows(mix, more)
            every = [r for pool in self.replicas.values() for r in pool if r not in self.lost]
            given = samples(*every, at=self.now)
            targets = tuple(r.target for pool in self.replicas.values() for r in pool)
            given = msgspec.structs.replace(given, outcomes=windows, orders=self.orders, targets=targets)
            self.orders = None
            self.snapshot, decisions, self.memory = tick(given, self.memory, self.settings, self.now)
            self.decisions += [one for one in decisions if one.action == "set-boundary"]
            told = steer.boundary_tokens(self.snapshot, Standing.ENFORCE, None)
            if self.follows and told is not None:
                self.boundary = told
            self.now += 1.0
        assert self.snapshot is not None
        return self.snapshot.boundary

    def changes(self) -> list[tuple[str, str, str]]:
        return [(one.old, one.new, one.reason) for one in self.decisions]

    def windows(self, mix: dict[int, tuple[float, float]], more: dict[str, Any]) -> tuple[OutcomeWindow, ...]:
        below = {edge: part for edge, part in mix.items() if edge <= self.boundary}
        above = {edge: part for edge, part in mix.items() if edge > self.boundary}
        said = {"boundary_tokens": self.boundary, "longest_tokens": 16_384, **more}
        return self._window("short", below, said), self._window("long", above, {})

    def _window(self, pool: str, mix: dict[int, tuple[float, float]], said: dict[str, Any]) -> OutcomeWindow:
        at_work = round(sum(rate * stays for rate, stays in mix.values()))
        sizes = {
            edge: SizeClass(rate, rate, rate * stays, rate * stays * edge)
            for edge, (rate, stays) in mix.items()
        }
        seen = ReplicaWindow(in_flight=at_work, gaps=50 * at_work, gap_seconds=float(at_work))
        counts = dict.fromkeys(
            ("offered", "finished", "good", "failed", "gave_up", "tokens", "good_tokens", "in_flight"), 0
        )
        replicas = {self.replicas[pool][0].target.name: seen}
        gateway = said.pop("gateway", "gw") if said else "gw"
        end = self.now + self.ahead
        return OutcomeWindow(
            gateway, pool, end - 1, end, shed={}, replicas=replicas, sizes=sizes, **said, **counts
        )


def steady(loop: Loop, mix: dict[int, tuple[float, float]], seconds: int) -> Sequence[PoolBoundary | None]:
    return [loop(mix) for _ in range(seconds)]


def test_it_begins_with_the_first_word_of_a_gateway() -> None:
    loop = Loop()
    assert loop(None, 3) is None
    begun = loop(CHAT)
    assert begun is not None
    assert (begun.name, begun.tokens, begun.reason) == ("short/long", 2048, "start")
    assert loop.changes() == [("", "2048", "start")]


def test_a_shift_of_the_mix_moves_it_and_the_decision_says_why() -> None:
    loop = Loop()
    loop(CHAT, 60)
    assert len(loop.decisions) == 1, "without documents no boundary is better than this one"
    boundary = loop(DOCUMENTS, 60)
    assert boundary is not None
    assert (boundary.tokens, boundary.in_force) == (4096, 4096)
    assert boundary.since == loop.decisions[-1].at
    assert loop.changes()[1:] == [("2048", "4096", "fewer-replicas")]
    moved = loop.decisions[-1]
    assert moved.target == "short/long"
    assert moved.sentence.startswith(
        "requests of up to 4,096 tokens go to pool short, longer ones to long: From 2,048 to 4,096 tokens: "
    )
    evidence = {one.name: one for one in moved.evidence}
    assert evidence["short_replicas"].value == 2
    assert evidence["long_in_flight"].value == 30
    assert evidence["long_replicas_needed"].value == pytest.approx(1 / 0.85, rel=0.01)
    assert (evidence["short_kv_usage"].value, evidence["short_kv_usage"].age_seconds) == (0.0, 0.0)


def test_where_nobody_follows_it_is_told_once_and_taken_back_when_it_is_no_better_any_more() -> None:
    loop = Loop(follows=False)
    boundary = loop(DOCUMENTS, 200)
    assert boundary is not None
    assert (boundary.tokens, boundary.in_force) == (4096, 2048)
    assert loop.changes()[1:] == [("2048", "4096", "fewer-replicas")], "not again every minute"
    loop(CHAT, 600)
    assert loop.changes()[2:] == [("4096", "2048", "settled")]


def test_it_goes_on_from_the_boundary_in_force_where_nothing_is_remembered() -> None:
    loop = Loop(boundary=8192)
    begun = loop(DOCUMENTS)
    assert begun is not None
    assert begun.tokens == 8192
    loop(DOCUMENTS, 30)
    assert [new for _, new, _ in loop.changes()] == ["8192"]


def test_gateways_that_do_not_agree_are_not_believed() -> None:
    loop = Loop()
    windows = [
        *loop.windows(CHAT, {"boundary_tokens": 1024}),
        *loop.windows(CHAT, {"gateway": "other", "boundary_tokens": 4096}),
    ]
    given = msgspec.structs.replace(samples(at=NOON), outcomes=tuple(windows))
    snapshot, _, _ = tick(given, tick(samples(at=NOON - 1), Memory(), policy(), NOON - 1)[2], policy(), NOON)
    assert snapshot.boundary is not None
    assert (snapshot.boundary.tokens, snapshot.boundary.in_force) == (2048, None)


def test_another_configuration_is_a_persons_word() -> None:
    loop = Loop()
    loop(DOCUMENTS, 60)
    loop.settings = policy(PoolPair(short="short", long="long", boundary=1024))
    changed = loop(DOCUMENTS)
    assert changed is not None
    assert loop.changes()[-1] == ("4096", "1024", "start")
    loop.settings = policy(None)
    assert loop(DOCUMENTS) is None
    assert loop.memory.boundary is None


@pytest.mark.parametrize(
    "orders",
    [
        Orders(Hold(NOON, "ann", "racks")),
        Orders(None, (Override("pool", "long", "mode", Mode.OBSERVE, "ann", "test", NOON),)),
    ],
    ids=["hold", "override"],
)
def test_while_people_keep_it_the_law_looks_away(orders: Orders) -> None:
    loop = Loop()
    loop(CHAT, 60)
    loop.orders = orders
    before = loop.memory.boundary
    loop(DOCUMENTS, 120)
    assert before is not None
    assert loop.memory.boundary is not None
    assert loop.memory.boundary.state == before.state
    loop.orders = Orders()
    loop(DOCUMENTS, 10)
    assert len(loop.decisions) == 1, "what it did not look at confirms nothing"
    boundary = loop(DOCUMENTS, 60)
    assert boundary is not None
    assert boundary.tokens == 4096


def test_a_gateway_that_falls_silent_is_told_of_and_a_wish_begins_anew() -> None:
    loop = Loop()
    loop(CHAT, 60)
    loop(DOCUMENTS, 15)
    late = loop(None, 4)
    assert late is not None
    assert late.reason != "no-news", "a report that is late is not silence"
    silent = loop(None, 10)
    assert silent is not None
    assert (silent.reason, silent.tokens) == ("no-news", 2048)
    boundary = loop(DOCUMENTS, 18)
    assert boundary is not None
    assert boundary.tokens == 2048
    assert loop(DOCUMENTS, 10).tokens == 4096  # type: ignore[union-attr]


def test_after_an_absence_a_wish_of_before_is_forgotten_and_all_else_is_not() -> None:
    loop = Loop()
    loop(CHAT, 60)
    loop(DOCUMENTS, 20)
    assert loop.memory.boundary is not None
    assert loop.memory.boundary.state.wish_up
    learned = loop.memory.boundary.state.short.served
    loop.memory = msgspec.msgpack.decode(msgspec.msgpack.encode(loop.memory), type=Memory)
    loop.now += 3600
    boundary = loop(DOCUMENTS, 5)
    assert boundary is not None
    assert boundary.reason == "confirming"
    assert loop.memory.boundary is not None
    assert loop.memory.boundary.state.short.served > 0.9 * learned
    assert loop(DOCUMENTS, 30).tokens == 4096  # type: ignore[union-attr]


def test_a_clock_that_is_set_back_keeps_what_was_learned_and_rests() -> None:
    loop = Loop()
    loop(CHAT, 60)
    loop(DOCUMENTS, 60)
    loop.now -= 1000
    loop.memory = rewind(loop.memory, loop.now)
    boundary = loop.memory.boundary
    assert boundary is not None
    assert (boundary.tokens, boundary.end, boundary.state.moved_at) == (4096, loop.now, loop.now)
    assert boundary.state.short.served > 100
    loop(CHAT, 30)
    assert len(loop.decisions) == 2


def test_a_gateway_whose_clock_is_ahead_is_heard() -> None:
    loop = Loop()
    loop.ahead = 3.0
    loop(CHAT, 60)
    boundary = loop.memory.boundary
    assert boundary is not None
    learned = boundary.state.short
    assert learned.seconds == pytest.approx(LAW.memory * (1 - math.exp(-59 / LAW.memory)), rel=0.01)
    assert learned.served == pytest.approx(8 * learned.seconds, rel=0.01)


def test_replicas_that_do_not_answer_are_no_room() -> None:
    loop = Loop()
    loop(CHAT, 60)
    loop.lost = tuple(loop.replicas["long"])
    boundary = loop(DOCUMENTS, 60)
    assert boundary is not None
    assert (boundary.tokens, boundary.reason) == (2048, "no-replica")
