"""One leader by a Lease: who takes it, who keeps it, and what a leader that was paused may still do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_api import KubeApi

from controlplane.actuators.call import Call, CallFailedError, Reply
from controlplane.actuators.leading import only_while_leading
from controlplane.daemon import leader as module
from controlplane.daemon.leader import TERM, ByLease
from controlplane.policy import election
from controlplane.policy.election import ACT_RATIO, Election, Lease
from controlplane.sources.kubernetes_api import Answered, Ask, KubernetesApi
from controlplane.sources.kubernetes_settings import KubernetesSettings, LeaseSettings

NOON = 1_764_000_000.0
D = 15.0
MANIFESTS = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "leader", "namespace": "control"},
        "rules": [
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "resourceNames": ["controlplane"],
                "verbs": ["get", "patch"],
            },
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "leader", "namespace": "control"},
        "subjects": [{"kind": "ServiceAccount", "name": "controlplane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leader"},
    },
]


class Patient(KubernetesApi):
    """A connection that waits for each answer, however slow the machine: none is late here but by the test's
    own clock."""

    async def send(self, ask: Ask) -> Answered:
        return await super().send(msgspec.structs.replace(ask, timeout_seconds=60.0))


class Candidate:
    """A daemon's side of the election, with a clock in the test's hand: `now` is everybody's, `behind` its
    own share of it that a pause has cost."""

    def __init__(self, site: "Site", name: str) -> None:
        path = site.api.kubeconfig(site.path / f"kubeconfig-{name}", site.token)
        self.api = Patient(KubernetesSettings(kubeconfig=path, namespace="control"))
        self.leader = ByLease(
            self.api,
            LeaseSettings(),
            name,
            wall=lambda: site.wall,
            steady=lambda: site.now,
            luck=lambda: 0.5,
        )
        self.sent: list[float] = []
        self.site = site

    async def step(self) -> int | None:
        try:
            await self.leader._step()
            self.leader.trouble = ""
        except Exception as error:
            self.leader.trouble = str(error)
        return self.leader.term

    async def write(self, while_sending: Callable[[], None] = lambda: None) -> bool:
        """One write that an actuator wants to make."""

        async def send(call: Call) -> Reply:
            while_sending()
            self.sent.append(self.site.now)
            return Reply(200, {}, b"")

        try:
            await only_while_leading(send, self.leader.seconds_left)(Call("PATCH", "/x", 10.0, 100))
        except CallFailedError:
            return False
        return True


class Site:
    def __init__(self, api: KubeApi, path: Path) -> None:
        self.api, self.path = api, path
        self.now, self.wall = 1000.0, NOON + 0.5
        self.token = api.service_account("control", "controlplane", *MANIFESTS)
        self.candidates: list[Candidate] = []

    def candidate(self, name: str) -> Candidate:
        self.candidates.append(Candidate(self, name))
        return self.candidates[-1]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    @property
    def lease(self) -> dict[str, Any]:
        return self.api.get("leases", "controlplane", "control")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with KubeApi() as api:
        site = Site(api, tmp_path)
        yield site
        for candidate in site.candidates:
            await candidate.api.close()


# -- with the API server -------------------------------------------------------------------------------


async def test_the_first_takes_it_and_keeps_it(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    assert await a.step() == int(NOON)
    assert await b.step() is None
    for _ in range(20):
        site.wait(2.5)
        assert await a.step() == int(NOON)
        assert await b.step() is None
    assert site.lease["spec"]["holderIdentity"] == "a"
    assert site.lease["spec"]["leaseTransitions"] == 0
    assert (a.leader.follows, b.leader.follows) == ("", "a")
    # A follower looks, a leader writes: neither lists or watches.
    assert {verb for verb, _ in site.api.counts} == {"get", "create", "patch"}


async def test_times_that_a_server_takes(site: Site) -> None:
    site.wall = NOON  # not one microsecond over the second
    a = site.candidate("a")
    assert await a.step() is not None
    assert site.lease["spec"]["renewTime"].endswith(".000000Z")


async def test_a_dead_leader_is_replaced_within_two_durations(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    first = await a.step()
    await b.step()
    died, took = site.now, None
    while took is None:
        site.wait(2.5)
        took = await b.step()
    assert first is not None
    assert took > first
    assert D <= site.now - died <= D + 5
    assert site.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_leaves_is_replaced_at_once(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    first = await a.step()
    await b.step()
    await a.leader.close()
    site.wait(2.5)
    second = await b.step()
    assert first is not None
    assert second is not None
    assert second > first
    assert a.leader.seconds_left() == 0


async def test_a_leader_that_leaves_in_the_middle_of_a_renewal_lets_go_all_the_same(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    await a.step()
    site.wait(2.5)
    site.api.fail("patch", "leases", times=1, lose="answer")  # it was renewed, and nobody heard of it
    await a.step()
    await a.leader.close()
    assert site.lease["spec"]["holderIdentity"] == ""
    await b.step()
    assert b.leader.term is not None


async def test_a_paused_leader_writes_nothing_any_more(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    await a.step()
    assert await a.write()
    for _ in range(8):  # a is paused
        await b.step()
        site.wait(2.5)
    assert b.leader.term is not None
    assert not await a.write()
    assert await b.write()
    assert a.leader.term is None
    assert await a.step() is None, "it sees that another leads"
    assert not await a.write()


async def test_it_stops_before_anybody_may_begin(site: Site) -> None:
    """Whatever the server does meanwhile: the time to act is counted from before the renewal was sent."""
    a = site.candidate("a")
    await a.step()
    site.api.fail("patch", "leases", status=503)
    site.api.fail("get", "leases", status=503)
    site.wait(ACT_RATIO * D - 0.1)
    await a.step()
    assert await a.write()
    site.wait(0.2)
    assert not await a.write()
    assert await a.step() is None
    assert "503" in a.leader.trouble


async def test_a_slow_renewal_counts_from_when_it_was_sent(site: Site) -> None:
    a = site.candidate("a")
    await a.step()
    site.wait(2.5)
    site.api.fail("patch", "leases", times=1, meddle=lambda: site.wait(8.0))
    await a.step()
    assert a.leader.seconds_left() == pytest.approx(ACT_RATIO * D - 8.0)


async def test_an_answer_that_is_lost_costs_no_lead(site: Site) -> None:
    a = site.candidate("a")
    term = await a.step()
    site.wait(2.5)
    site.api.fail("patch", "leases", times=1, lose="answer")  # it was renewed, and we do not know
    await a.step()
    site.wait(2.5)
    assert await a.step() == term
    assert a.leader.seconds_left() == pytest.approx(ACT_RATIO * D)


async def test_somebody_writes_on_the_lease(site: Site) -> None:
    a = site.candidate("a")
    term = await a.step()
    site.api.patch("leases", "controlplane", {"metadata": {"labels": {"team": "x"}}}, "control")
    site.wait(2.5)
    assert await a.step() == term
    assert site.lease["metadata"]["labels"] == {"team": "x"}


async def test_two_that_grab_at_once(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    terms = await asyncio.gather(a.step(), b.step())
    assert sorted(term is None for term in terms) == [False, True]
    site.wait(D)
    for one in (a, b):
        await one.step()
    site.wait(D)
    terms = await asyncio.gather(a.step(), b.step())
    assert [term for term in terms if term is not None] == [int(site.lease["metadata"]["annotations"][TERM])]


async def test_a_removed_lease_leaves_its_holder_time_to_notice(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    first = await a.step()
    await b.step()
    site.api.finish("leases", "controlplane", "control")
    site.wait(1.0)
    assert await b.step() is None, "a may still act"
    await a.step()
    assert a.leader.term is None
    site.wait(D)
    term = await b.step()
    assert first is not None
    assert term is not None
    assert term > first


async def test_terms_go_up_even_where_clocks_are_wrong(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    first = await a.step()
    await b.step()
    site.wall -= 86400 * 365
    site.now += D
    second = await b.step()
    assert first is not None
    assert second == first + 1


async def a_later_leader_without_a_lease(site: Site) -> tuple[Candidate, int, Candidate, int]:
    """The lease is deleted while a leads; b, whose clock is behind and who knows nothing, takes a new one."""
    a, b = site.candidate("a"), site.candidate("b")
    first = await a.step()
    site.api.finish("leases", "controlplane", "control")
    site.wall -= 300.0
    second = await b.step()
    assert first is not None
    assert second is not None
    assert second < first, "what the clock alone comes to"
    return a, first, b, second


async def test_a_leader_goes_above_the_term_that_a_gateway_names(site: Site) -> None:
    a, first, b, _ = await a_later_leader_without_a_lease(site)
    b.leader.outrank(first)
    b.leader.keep("a hold")
    assert await b.step() == first + 1
    assert site.lease["metadata"]["annotations"] == {TERM: str(first + 1), module.KEPT: "a hold"}
    a.leader.outrank(first + 1)
    assert await a.step() is None, "the lease that it held is another"
    assert site.lease["metadata"]["annotations"][TERM] == str(first + 1)
    await b.step()
    assert b.leader.term == first + 1, "what was answered once is not raised again"
    for _ in range(8):
        site.wait(2.5)
        await a.step()
    assert a.leader.term == first + 2, "the next one goes on from it"


async def test_an_ex_leader_raises_nothing(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    await a.step()
    for _ in range(8):  # a is paused
        await b.step()
        site.wait(2.5)
    stands = b.leader.term
    assert stands is not None
    a.leader.outrank(stands)
    assert await a.step() is None
    assert site.lease["metadata"]["annotations"][TERM] == str(stands)


async def test_a_raise_whose_answer_is_lost_stands_all_the_same(site: Site) -> None:
    _, first, b, _ = await a_later_leader_without_a_lease(site)
    b.leader.outrank(first)
    site.api.fail("patch", "leases", times=1, lose="answer")
    await b.step()
    assert await b.step() == first + 1
    assert site.lease["metadata"]["annotations"][TERM] == str(first + 1)


async def test_two_leases_do_not_raise_their_terms_over_each_other_for_ever(site: Site) -> None:
    a = site.candidate("a")
    term = await a.step()
    assert term is not None
    for times in range(1, 10):
        a.leader.outrank(term + 10 * times)
        site.wait(1.0)
        await a.step()
    assert a.leader.term == term + 10 * election.MOST_RAISES + 1
    site.wait(D)
    term = await a.step()
    assert term is not None
    a.leader.outrank(term)
    assert await a.step() == term + 1, "another lead, which may raise it again"


async def test_a_term_that_cannot_be_one_is_not_gone_above(site: Site) -> None:
    a = site.candidate("a")
    term = await a.step()
    a.leader.outrank(10**18)
    assert await a.step() == term


async def test_a_holder_that_lapsed_and_takes_it_again_is_no_new_holder(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    await a.step()
    await b.step()
    site.wait(D)
    await b.step()
    assert site.lease["spec"]["leaseTransitions"] == 1
    site.wait(D)  # b lapses, and nobody else is there
    await b.step()
    assert (b.leader.term is not None, site.lease["spec"]["leaseTransitions"]) == (True, 1)


async def test_what_a_leader_leaves_is_there_for_the_next(site: Site) -> None:
    a, b = site.candidate("a"), site.candidate("b")
    await a.step()
    a.leader.keep("a hold")
    site.wait(2.5)
    await a.step()
    await b.step()
    assert b.leader.kept == "a hold"
    with pytest.raises(ValueError, match="more than a lease can hold"):
        a.leader.keep("x" * 200_000)
    for _ in range(8):
        site.wait(2.5)
        await b.step()
    assert b.leader.term is not None
    assert b.leader.kept == "a hold"
    b.leader.keep("none")
    await b.step()
    for _ in range(8):  # and back: what a left when it led before is out of date
        site.wait(2.5)
        await a.step()
    site.wait(2.5)
    await a.step()
    assert (a.leader.term is not None, a.leader.kept) == (True, "none")


async def test_a_lease_of_nobody_is_free(site: Site) -> None:
    site.api.create(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "controlplane", "namespace": "control"},
            "spec": {},
        }
    )
    assert await site.candidate("a").step() is not None


async def test_who_may_not_get_the_lease_says_so(site: Site) -> None:
    site.token = site.api.service_account("control", "nobody")
    a = site.candidate("a")
    assert await a.step() is None
    assert "403" in a.leader.trouble
    assert "leases" in a.leader.trouble


async def test_the_loop_takes_keeps_and_lets_go(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEPS", 1500)
    a = site.candidate("a")
    a.leader.open()
    async with asyncio.timeout(60):
        while site.api.counts["patch", "leases"] < 3:
            await a.leader._stepped.wait()  # whoever ends it within a step cannot know what became of that
    await a.leader.close()
    assert site.lease["spec"]["holderIdentity"] == ""


# -- the law alone -------------------------------------------------------------------------------------


NAMES = ("a", "b", "c")
LOOKS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.5, 2.5, 7.0, 16.0]),
    st.sampled_from([0.0, 0.0, 1.0, 9.0]),
    st.sampled_from([0, 0, 7, 40]),
)


@settings(max_examples=300)
@given(st.lists(LOOKS, min_size=3, max_size=40), st.lists(st.floats(0.95, 1.05), min_size=3, max_size=3))
def test_never_two_leaders(looks: list[tuple[str, float, float, int]], paces: list[float]) -> None:
    """Any order of looks, renewals and pauses, each answer as late as it likes, clocks a tenth apart, and
    gateways that name terms which nobody here has had."""
    now, lease, version = 0.0, None, 0
    states, pace = {name: Election() for name in NAMES}, dict(zip(NAMES, paces, strict=True))
    terms: list[int] = []
    for name, wait, delay, named in looks:
        now += wait
        sent_at, state = now * pace[name], states[name]
        if state.leads(sent_at) and lease is not None and lease == state.lease:
            version += 1
            term = election.outranking(lease.term, named)
            terms.extend({term} - {lease.term})
            lease = Lease(name, term, D, f"renewed {version}", str(version), lease.changes)
            state = election.holds(lease, sent_at)
        else:
            state = election.saw(state, lease, name, sent_at)
            if election.may_take(state, name, sent_at):
                version += 1
                lease = Lease(name, election.next_term(state, 5.0), D, f"renewed {version}", str(version))
                terms.append(lease.term)
                state = election.holds(lease, sent_at)
        states[name] = state
        leading = [one for one, state in states.items() if state.leads(now * pace[one])]
        assert len(leading) <= 1, leading
        now += delay
    assert terms == sorted(set(terms))
