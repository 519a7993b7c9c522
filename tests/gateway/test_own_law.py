"""The gateway's own law: from the limits told last, on its own part, under the configured ceiling."""

import math

import pytest

from controlplane.gateway.admission.admission import Admission
from controlplane.gateway.admission.replica import ReplicaReading, ReplicaSpec
from controlplane.gateway.admission.request import Request
from controlplane.gateway.admission.settings import AdmissionSettings
from controlplane.gateway.admission.usage import Usage
from controlplane.gateway.admission.verdict import Admitted
from controlplane.gateway.own_law import OwnLaw
from controlplane.policy.settings import PolicySettings, PoolPolicy
from controlplane.signals.control import Grant
from controlplane.signals.decision import Mode
from controlplane.signals.reading import Reason
from controlplane.signals.samples import OutcomeWindow, ScrapeFailure, Target

TARGETS = (Target("r0", "chat", "http://r0:8000/metrics"),)
NOON = 1_800_000_000.0


def policy(**limits: object) -> PolicySettings:
    law = {"limits": {"law": "slo-gradient", **limits}}
    return PolicySettings(pools={"chat": PoolPolicy(slo={"ttft": "1s", "tpot": "50ms"}, **law)})


class Part:
    """A gateway with a share of one replica, kept full of streams whose tokens come `gap` seconds apart."""

    def __init__(self, share: float, told: float | None, settings: PolicySettings | None = None) -> None:
        self.now = NOON
        given = AdmissionSettings(mode=Mode.ENFORCE, standing_share=share)
        self.admission = Admission(given, gateway=f"gw{share}", now=self.now)
        self.admission.take_grant(Grant("gw", share, math.inf, 1, 1), self.now)
        self.admission.set_replicas([ReplicaSpec(name="r0", pool="chat")], self.now)
        if told is not None:
            self.admission.set_limits({"r0": told}, {}, self.now)
        self.law = OwnLaw(settings or policy())
        self.limits: list[float] = []
        self.tickets: list[Admitted] = []

    @property
    def in_flight(self) -> int:
        return self.admission.status(self.now).replicas["r0"].sequences

    def second(self, gap: float, *, fill: bool = True) -> None:
        """Tokens for a second, requests until it is full, and a look of its law."""
        while fill:
            verdict = self.admission.offer(
                Request(tenant="t", prompt_tokens=10, output_tokens=10), self.now, 0.5
            )
            if not isinstance(verdict, Admitted):
                break
            self.admission.first_token(verdict.ticket, self.now + 0.1)
            self.tickets.append(verdict)
        for _ in range(int(0.9 / gap)):
            self.now += gap
            for admitted in self.tickets:
                self.admission.tokens(admitted.ticket, 1, self.now)
        for admitted in self.tickets[: len(self.tickets) // 4]:
            self.admission.finished(admitted.ticket, self.now)
        self.tickets = self.tickets[len(self.tickets) // 4 :]
        self.now = math.ceil(self.now + 1e-3)
        failed = ScrapeFailure("r0", self.now, Reason.SCRAPE_FAILED, "connection refused")
        windows = self.admission.whole_view(self.admission.windows(self.now))
        found = self.law.look(TARGETS, (failed,), windows, self.now)
        self.admission.set_limits(found.limits, found.overcommit, self.now)
        self.tickets += [one for one in self.admission.poll(self.now) if isinstance(one, Admitted)]
        self.limits.append(found.limits["r0"])


def test_it_goes_on_from_the_limit_that_was_told_last() -> None:
    part = Part(1.0, 80.0)
    part.second(0.09)
    assert 60 <= part.limits[0] <= 80


def test_never_told_it_begins_as_the_daemon_would() -> None:
    part = Part(1.0, None)
    part.second(0.02, fill=False)
    assert part.limits[0] == 16


def test_the_configured_limit_is_a_ceiling_and_nothing_more() -> None:
    part = Part(1.0, 80.0, policy(max_limit=60))
    for _ in range(5):
        part.second(0.09)
    assert part.limits[0] == 60
    assert part.limits[-1] < 60


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_a_part_cuts_as_the_whole_would(share: float) -> None:
    """Full is where its own slots are full; what it has in flight falls by the factor of the whole."""
    part = Part(share, 80.0)
    part.second(0.09)
    for _ in range(12):
        part.second(0.09)
    assert part.limits == sorted(part.limits, reverse=True)
    assert 25 <= part.limits[-1] <= 60
    assert part.in_flight <= part.limits[-1] * share + 1


def test_gateways_that_cannot_hear_each_other_end_as_one_would() -> None:
    """One with all, and four with a quarter each, at the same pace of tokens: the same total, nearly: slots
    are whole."""
    whole, parts = Part(1.0, 80.0), [Part(0.25, 80.0) for _ in range(4)]
    for _ in range(10):
        for part in (whole, *parts):
            part.second(0.07)
    together = sum(0.25 * part.limits[-1] for part in parts)
    assert together == pytest.approx(whole.limits[-1], rel=0.15)


def test_no_growth_while_the_engine_is_not_seen() -> None:
    """The pages fail all the time here: latencies may cut, but nothing may grow on them alone."""
    part = Part(1.0, 40.0)
    for _ in range(40):
        part.second(0.02)
    assert part.limits[-1] <= 40


def test_one_that_has_no_share_is_told_nothing() -> None:
    admission = Admission(AdmissionSettings(standing_share=0.5), gateway="gw", now=NOON)
    admission.set_replicas([ReplicaSpec(name="r0", pool="chat")], NOON)
    assert admission.whole_view(admission.windows(NOON + 2)) == ()


def test_the_view_of_the_whole_leaves_other_pools_alone_and_shows_idle_replicas() -> None:
    admission = Admission(AdmissionSettings(), gateway="gw", now=NOON)
    admission.set_replicas([ReplicaSpec(name="r0", pool="chat"), ReplicaSpec(name="r1", pool="batch")], NOON)
    admission.set_limits({"r0": 7.0}, {}, NOON)
    seen: dict[str, OutcomeWindow] = {
        window.pool: window for window in admission.whole_view(admission.windows(NOON + 1.5))
    }
    assert {pool: set(window.replicas) for pool, window in seen.items()} == {"chat": {"r0"}, "batch": {"r1"}}
    assert (seen["chat"].replicas["r0"].limit, seen["batch"].replicas["r1"].limit) == (7.0, None)


def test_what_is_reserved_and_asked_for_is_told_and_reserved_as_of_the_whole() -> None:
    admission = Admission(AdmissionSettings(mode=Mode.ENFORCE, standing_share=0.5), gateway="gw", now=NOON)
    admission.take_grant(Grant("gw", 0.5, math.inf, 1, 1), NOON)
    admission.set_replicas([ReplicaSpec(name="r0", pool="chat", kv_tokens=10_000)], NOON)
    admission.set_limits({"r0": 6.0}, {}, NOON)
    request = Request(tenant="t", prompt_tokens=100, output_tokens=50)
    verdicts = [admission.offer(request, NOON + 0.1, 0.5) for _ in range(5)]
    let_in = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
    assert len(let_in) == 3
    admission.finished(let_in[0].ticket, NOON + 0.5)
    (window,) = admission.whole_view(admission.windows(NOON + 1.0))
    assert (window.asked, window.asked_tokens) == (5, 750)
    seen = window.replicas["r0"]
    assert (seen.reserved_tokens, seen.max_reserved_tokens) == (600, 900)


def test_what_came_is_of_the_whole_as_what_is_in_flight_is() -> None:
    """The law sets the one against the other: how long answers take, how many tokens a sequence brings."""
    part = Part(0.5, told=None)
    tickets = []
    for _ in range(3):
        verdict = part.admission.offer(Request(tenant="t", prompt_tokens=10, output_tokens=10), NOON, 0.5)
        assert isinstance(verdict, Admitted)
        tickets.append(verdict.ticket)
    for ticket in tickets[:2]:
        part.admission.tokens(ticket, 1, NOON + 0.1)
        part.admission.tokens(ticket, 4, NOON + 0.2)
    part.admission.finished(tickets[0], NOON + 0.25, Usage(10, 5))
    (window,) = part.admission.whole_view(part.admission.windows(NOON + 1.0))
    seen = window.replicas["r0"]
    assert (seen.in_flight, seen.max_in_flight) == (4, 6)
    assert (seen.paced, seen.slow, seen.gaps) == (2, 0, 16)
    assert seen.gap_seconds / seen.gaps == pytest.approx(0.025, rel=1e-4)
    assert seen.first_token is not None
    assert seen.first_token.count == 2, "as many as there were: more would be believed too soon"


def test_others_take_from_ours_only_what_they_have_beyond_their_part() -> None:
    admission = Admission(AdmissionSettings(standing_share=0.5), gateway="gw", now=NOON)
    admission.take_grant(Grant("gw", 0.5, math.inf, 1, 1), NOON)
    admission.set_replicas([ReplicaSpec(name="r0", pool="chat", kv_tokens=1000)], NOON)
    admission.set_limits({"r0": 20.0}, {}, NOON)
    for running, usage, ours in ((8.0, 0.4, (0.0, 0.0)), (13.0, 0.7, (3.0, 200.0))):
        reading = ReplicaReading(name="r0", at=NOON + running, running=running, waiting=0.0, kv_usage=usage)
        admission.set_readings([reading], NOON + running)
        status = admission.status(NOON + running).replicas["r0"]
        assert (status.foreign_sequences, status.foreign_tokens) == (ours[0], pytest.approx(ours[1]))
