"""The loop of production in virtual time: the daemon's tick moves the limits, without it a gateway's own."""

import json
from pathlib import Path

import pytest

from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.journal_file import Matching
from controlplane.daemon.replay import replay
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.limits.fixed import Fixed
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.samples import Samples
from controlplane.simulator.scenario import watch
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.faults import DaemonAway
from controlplane.simulator.scenario.policies import Policy
from controlplane.simulator.scenario.reading import load_scenario, parse_scenario
from controlplane.simulator.scenario.result import Result
from tests.simulator.scenarios import ran, scenario


def told(more: str = "", **values: object) -> Result:
    return ran(scenario(more, **values))[1]


def test_limits_come_from_the_daemons_tick_and_are_in_force_at_the_gateway() -> None:
    run, result = ran(scenario(times=2))
    changes = run.watch.limit_decisions
    assert len(changes) > 20
    assert [change.old for change in changes[1:]] == [change.new for change in changes[:-1]]
    assert run.gateway.admission.limits() == {"h100-8b-1": float(changes[-1].new)}
    assert result.limit_last == float(changes[-1].new)
    assert {change.reason for change in changes} >= {"start", "tpot-over"}


def test_every_limit_change_is_in_the_journal_and_a_replay_reaches_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(DaemonSettings(journal=path), tick)

    def recorded(samples: Samples, memory: Memory, policy: PolicySettings, now: float):
        snapshot, decisions, after = tick(samples, memory, policy, now)
        journal.append(Entry(now, policy, samples, decisions, snapshot.events, (), memory, after))
        return snapshot, decisions, after

    monkeypatch.setattr(watch, "tick", recorded)
    faults = (
        "  - {kind: lost, at: 40s, for: 20s, replica: h100-8b-2}\n  - {kind: scrape-nan, at: 30s, for: 9s}\n"
    )
    run, _ = ran(
        scenario(f"scrape: {{interval: 2s, timeout: 1s}}\nfaults:\n{faults}", times=2, replicas=2, rate=35)
    )
    assert journal.close()
    kept = Journal(DaemonSettings(journal=path), tick)
    changes = kept.decisions(Matching(action="set-limit"))[::-1]
    assert kept.close()
    assert [(c.target, c.old, c.new, c.reason) for c in changes] == [
        (c.target, c.old, c.new, c.reason) for c in run.watch.limit_decisions
    ]
    assert len(changes) > 40
    found = replay(path, tick)
    assert (found.different, found.first_difference) == (0, "")
    assert found.decisions >= len(changes)


def test_daemon_gone_for_ten_minutes_at_twice_the_load_while_replicas_are_replaced() -> None:
    """At least 90 % of the goodput with it."""
    given = load_scenario("daemon-away")
    with_it = given.model_copy(
        update={"faults": tuple(fault for fault in given.faults if not isinstance(fault, DaemonAway))}
    )
    run, alone = ran(given)
    _, steered = ran(with_it)
    assert alone.token_goodput >= 0.9 * steered.token_goodput
    assert alone.request_goodput >= 0.9 * steered.request_goodput
    # Nothing jumps when it is back: what the gateway has used for minutes is not treated as fresh.
    in_flight = dict(zip(run.series.seconds, run.series.in_flight, strict=True))
    assert min(in_flight[float(at)] for at in range(720, 740)) > 0.8 * in_flight[715.0]
    # Nothing came from the daemon meanwhile: all replicas that served at the end were found without it.
    away = [c for c in run.watch.limit_decisions if 120 < c.at - UNIX_START <= 719]
    assert away == []
    assert run.gateway.admission.limits().keys() >= {"h100-8b-4", "h100-8b-5", "h100-8b-6"}


def test_nothing_jumps_when_the_daemon_goes_and_when_it_is_back() -> None:
    run, _ = ran(scenario("faults:\n  - {kind: daemon-away, at: 60s, for: 60s}\n", times=2, duration="150s"))
    series = run.series
    limits = dict(zip(series.seconds, series.limit, strict=True))
    for at in (60, 61, 70, 71, 72, 120, 121, 122):
        assert abs(limits[float(at)] - limits[float(at - 1)]) <= 0.2 * limits[float(at - 1)], at
    assert len({limits[float(at)] for at in range(75, 115)}) > 5, "its own law moves them"


def test_with_scrapes_alone_the_law_keeps_most_of_the_goodput() -> None:
    """Every five seconds, as where the gateway is not ours; heavier cells are in `make bench-control`."""
    for more in ({"rate": 17.5}, {"rate": 17.5, "seed": 2}):
        known = told(times=2, duration="150s", **more)
        scraped = told(times=2, duration="150s", policy="{law: slo, sees: scrapes}", **more)
        assert scraped.token_goodput >= 0.9 * known.token_goodput


@pytest.mark.parametrize("sees", ["gateway", "scrapes"])
def test_an_engine_that_nobody_told_the_sequences_of_is_steered_nearly_as_well(sees: str) -> None:
    """It runs 32 at once; without a number the law has to find out."""

    def at_twice(policy: str) -> Result:
        policy = f"{{law: slo, sees: {sees}{policy}}}"
        return told(policy=policy, max_num_seqs=32, times=2, duration="5m", warmup="1m")

    untold, knowing = at_twice(""), at_twice(", max_num_seqs: 32")
    assert untold.token_goodput >= 0.93 * knowing.token_goodput
    assert untold.limit_last is not None
    assert untold.limit_last <= 36


WHOLE = "17.5\n      stream: false"
"""A rate, and what stands behind it."""


def test_answers_that_come_whole_are_steered_as_well_as_streams() -> None:
    """A gateway sees nothing of them before they end: the engine's page tells how fast it is."""
    _, streamed = ran(scenario(times=2, duration="2m"))
    _, whole = ran(scenario(times=2, duration="2m", rate=WHOLE))
    assert whole.token_goodput >= 0.95 * streamed.token_goodput
    assert whole.limit_mean is not None
    assert whole.limit_mean > 100


ONE_TOKEN = """\
title: classification
duration: 80s
warmup: 30s
seed: 1
fleet: [{engine: h100-8b}]
slo: {ttft: 500ms, tpot: 50ms}
workload:
  sources:
    - name: clients
      prompt: {kind: lognormal, median: 1000, sigma: 0.8, largest: 60000}
      output: {kind: fixed, tokens: 1}
      rate: 60
"""


def test_answers_of_one_token_come_near_to_the_best_fixed_limit() -> None:
    given = parse_scenario(ONE_TOKEN, "one.yaml", Path())
    best = max(
        ran(given.changed(policy=Policy(law=Fixed(limit=limit))))[1].token_goodput for limit in (3, 4, 6)
    )
    assert ran(given)[1].token_goodput >= 0.95 * best


def test_laws_of_the_round_trip_are_run_beside_it_and_set_the_limits_too() -> None:
    run, result = ran(scenario(policy="aimd", times=2))
    assert run.watch.limit_decisions == []
    limit = run.gateway.admission.limits()["h100-8b-1"]
    assert limit == result.limit_last
    assert limit < 1000


def test_the_law_named_in_the_result_is_the_one_that_ran() -> None:
    policy = told(times=0.3, duration="40s").policy
    assert (policy["law"], policy["ttft"]) == ("slo-gradient", "1s")
    assert json.dumps(policy)
