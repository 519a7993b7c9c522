"""Shares of several gateways never add up to more than the whole, whatever happens to them."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controlplane.policy.shares import Share, Shares
from controlplane.signals.control import Grant

TERM, TOLERANCE = 10.0, 1.0
PATIENCE = 2 * TERM + 6 * TOLERANCE
NOW = 1_800_000_000.0  # times are Unix times, and differences of them have their grain


def leader(term: int = 1, now: float = NOW) -> Shares:
    return Shares(term=term, now=now, term_seconds=TERM, clock_tolerance_seconds=TOLERANCE)


class Gateways(RuleBasedStateMachine):
    """Gateways with clocks that differ, messages that are lost or late, leaders that come and go.

    One thing is given: a new gateway first reaches a leader, if there is one, within a term of its start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.term = 1
        self.leader = leader()
        self.born = 0
        self.alive: dict[str, tuple[Share, float, float]] = {}  # share, offset of its clock, time of birth
        self.known: set[str] = set()
        self.posted: list[tuple[float, Grant]] = []

    @precondition(lambda self: len(self.alive.keys() | self.known) < 4)
    @rule(offset=st.sampled_from([-TOLERANCE / 2, 0.0, TOLERANCE / 2]))
    def start(self, offset: float) -> None:
        self.born += 1
        share = Share(0.25, now=self.now + offset, patience_seconds=PATIENCE)
        self.alive[f"g{self.born}"] = (share, offset, self.now)

    @precondition(lambda self: self.alive)
    @rule(number=st.integers(0), arrives=st.booleans(), late=st.floats(0, 30), stale=st.booleans())
    def ask(self, number: int, arrives: bool, late: float, stale: bool) -> None:
        """A gateway asks for its next grant; the answer may come late or never."""
        name = list(self.alive)[number % len(self.alive)]
        share = self.alive[name][0]
        if name not in self.known:
            self.known.add(name)
            self.leader.join(name, share.standing)
        grant = self.leader.renew(name, self.now, None if stale else share.grant)
        if arrives:
            self.posted.append((self.now + late, grant))
            self.deliver()

    @rule(weights=st.lists(st.floats(0, 100), min_size=4, max_size=4))
    def demand(self, weights: list[float]) -> None:
        self.leader.weigh(dict(zip(self.known, weights, strict=False)))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 11.0]))
    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds * 4) or 1):
            self.now += min(seconds, 0.25)
            self.introduce()
            self.deliver()
            self.never_more_than_the_whole()

    @precondition(lambda self: self.alive)
    @rule(number=st.integers(0), said_goodbye=st.booleans())
    def die(self, number: int, said_goodbye: bool) -> None:
        name = list(self.alive)[number % len(self.alive)]
        del self.alive[name]
        if said_goodbye and name in self.known:
            self.known.remove(name)
            self.leader.leave(name)

    @precondition(lambda self: len(self.known) > len(self.alive))
    @rule()
    def bury(self) -> None:
        """Whoever runs the gateways says which are gone."""
        for name in self.known - self.alive.keys():
            self.known.remove(name)
            self.leader.leave(name)

    @rule()
    def change_leader(self) -> None:
        self.term += 1
        self.leader = leader(self.term, self.now)
        self.known = set()
        for name, (share, _, _) in self.alive.items():
            self.known.add(name)
            self.leader.join(name, share.standing)

    def introduce(self) -> None:
        for name, (share, _, birth) in self.alive.items():
            if name not in self.known and self.now - birth > TERM - 0.5:
                self.known.add(name)
                self.leader.join(name, share.standing)

    def deliver(self) -> None:
        due = [grant for at, grant in self.posted if at <= self.now]
        self.posted = [(at, grant) for at, grant in self.posted if at > self.now]
        for grant in due:
            if grant.gateway in self.alive:
                self.alive[grant.gateway][0].take(grant)

    @invariant()
    def never_more_than_the_whole(self) -> None:
        held = {name: share.held(self.now + offset) for name, (share, offset, _) in self.alive.items()}
        assert sum(held.values()) <= 1.0 + 1e-9, held
        assert all(share >= 0 for share in held.values())


TestGateways = Gateways.TestCase
TestGateways.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


def renewed(shares: Shares, held: dict[str, Share], until: float, start: float) -> None:
    """All gateways renew every second."""
    now = start
    while now < until:
        for name, share in held.items():
            share.take(shares.renew(name, now, share.grant))
        now += 1.0


def test_shares_follow_the_demand() -> None:
    shares = leader()
    held = {name: Share(0.5, now=NOW, patience_seconds=PATIENCE) for name in ("a", "b")}
    for name in held:
        shares.join(name, 0.5)
    shares.weigh({"a": 900.0, "b": 100.0})
    renewed(shares, held, NOW + 60.0, NOW)
    assert held["a"].held(NOW + 60.0) == pytest.approx(0.7)
    assert held["b"].held(NOW + 60.0) == pytest.approx(0.3)
    shares.weigh({"a": 0.0, "b": 100.0})
    renewed(shares, held, NOW + 120.0, NOW + 60.0)
    assert held["a"].held(NOW + 120.0) == pytest.approx(0.25)
    assert held["b"].held(NOW + 120.0) == pytest.approx(0.75)


def test_without_a_leader_all_are_back_at_their_standing_shares() -> None:
    shares = leader()
    held = {name: Share(0.5, now=NOW, patience_seconds=PATIENCE) for name in ("a", "b")}
    for name in held:
        shares.join(name, 0.5)
    shares.weigh({"a": 900.0, "b": 100.0})
    renewed(shares, held, NOW + 60.0, NOW)
    assert [share.held(NOW + 80.0) for share in held.values()] == [0.5, 0.5]


def test_a_dead_gateway_s_share_is_granted_again_only_when_it_has_lapsed() -> None:
    shares = leader()
    for name in ("a", "b"):
        shares.join(name, 0.25)
    now = NOW + 30.0  # past the blind term
    a, b = (Share(0.25, now=NOW, patience_seconds=PATIENCE) for _ in range(2))
    a.take(shares.renew("a", now))
    b.take(shares.renew("b", now))
    assert a.held(now) + b.held(now) == 1.0
    # b dies without a word.
    for seconds in (3.0, 6.0, 9.0):
        a.take(shares.renew("a", now + seconds, a.grant))
        assert a.held(now + seconds) == 0.5
    shares.leave("b")
    assert shares.renew("a", now + 9.5, a.grant).share == 1.0


def test_the_silent_keep_their_standing_share() -> None:
    shares = leader()
    shares.join("a", 0.25)
    shares.join("b", 0.25)
    now = NOW + 30.0
    shares.renew("b", now)
    shares.weigh({"a": 1.0})
    assert shares.renew("a", now + 1.0).share == 0.5
    assert shares.renew("a", now + 60.0).share == 0.75
    assert shares.renew("a", now + 6000.0).share == 0.75


def test_a_gateway_alone_needs_no_leader() -> None:
    assert Share(1.0, now=NOW).held(NOW) == 1.0


def test_a_new_gateway_holds_nothing_until_others_must_know_of_it() -> None:
    share = Share(0.5, now=NOW, patience_seconds=PATIENCE)
    assert share.held(NOW + PATIENCE - 0.1) == 0.0
    assert share.changes_at(NOW) == NOW + PATIENCE
    assert share.held(NOW + PATIENCE) == 0.5


def test_lower_terms_and_older_versions_are_refused() -> None:
    share = Share(0.5, now=NOW)
    new: dict[str, Any] = {"gateway": "a", "expires_at": NOW + 10}
    assert share.take(Grant(share=0.6, term=2, version=1, **new))
    assert not share.take(Grant(share=0.9, term=1, version=99, **new))
    assert not share.take(Grant(share=0.9, term=2, version=1, **new))
    assert share.held(NOW) == 0.6
    assert share.take(Grant(share=0.7, term=2, version=2, **new))
    assert share.take(Grant(share=0.8, term=3, version=1, **new))
    assert share.held(NOW) == 0.8


def test_standing_shares_over_the_whole_are_refused() -> None:
    shares = leader()
    shares.join("a", 0.6)
    with pytest.raises(
        ValueError, match=r"gateway b has a standing share of 0.5, but those of the others add up to 0.6"
    ):
        shares.join("b", 0.5)
    shares.join("a", 0.5)
    shares.join("b", 0.5)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Share(1.5, now=NOW)
