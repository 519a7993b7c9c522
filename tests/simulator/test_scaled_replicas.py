"""Replicas that come and go as the daemon asks for them, in virtual time with cold starts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.replay import replay
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision
from controlplane.signals.samples import Samples
from controlplane.simulator.scenario import watch
from controlplane.simulator.scenario.elastic import Elastic
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.scenario.run import Run
from tests.simulator.scenarios import ran

BURST = """\
title: A burst to three times what one replica does, in small engines that start within half a minute
duration: 6m
warmup: 10s
fleet:
  - {engine: h100-8b, name: e, replicas: 5, started: 1, cold_start: 30s, cold_start_cv: 0.1,
     options: {max_num_seqs: 12}}
slo: {ttft: 1s, tpot: 50ms}
policy: {law: slo, scale: {min: 1, max: 5, cold_start: 30s, down_after: 40s, down_every: 15s}}
workload:
  sources:
    - name: chat
      prompt: {kind: fixed, tokens: 600}
      output: {kind: fixed, tokens: 150}
      rate: {kind: lines, points: [[0s, 3], [1m, 7], [80s, 20], [3m, 20], [200s, 2], [6m, 2]]}
"""


def counts(run: Run) -> list[tuple[int, int]]:
    return [(int(one.old or 0), int(one.new)) for one in run.watch.decisions if one.action == "scale"]


def test_a_burst_is_answered_after_a_cold_start_and_replicas_leave_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[Entry] = []

    def recorded(
        samples: Samples, memory: Memory, policy: PolicySettings, now: float
    ) -> tuple[object, tuple[Decision, ...], Memory]:
        snapshot, decisions, after = tick(samples, memory, policy, now)
        entries.append(Entry(now, policy, samples, decisions, snapshot.events, (), memory, after))
        return snapshot, decisions, after

    monkeypatch.setattr(watch, "tick", recorded)
    run, result = ran(parse_scenario(BURST, "burst.yaml", Path()))
    told = counts(run)
    most = max(new for _, new in told)
    assert most >= 3
    assert run.watch.snapshot is not None
    scale = run.watch.snapshot.pools["default"].scale
    assert scale is not None
    assert scale.replicas < most
    assert all(old - new == 1 for old, new in told if old > new)
    assert sum(replica.engine is not None for replica in run.replicas) == scale.replicas
    assert result.failed == 0, "who is taken away finishes what it has"
    assert result.good > 0.7 * result.offered
    assert run.elastic.replica_seconds < 5 * 360

    path = tmp_path / "journal.db"
    for first in range(0, len(entries), 100):  # a daemon that is started anew every 100 ticks
        journal = Journal(DaemonSettings(journal=path), tick)
        for entry in entries[first : first + 100]:
            journal.append(entry)
        assert journal.close()
    again = replay(path, tick)
    assert (again.different, again.first_difference, again.ticks) == (0, "", len(entries))
    kept = Journal(DaemonSettings(journal=path), tick)
    known = kept.memory.pools["default"].scale
    assert known is not None
    assert known.wish is not None
    assert known.wish.replicas == scale.replicas, "who starts again goes on from there"
    assert kept.close()


SLOW = """\
title: Two peaks, in engines that take three times as long to start as is configured
duration: 16m
warmup: 10s
fleet:
  - {engine: h100-8b, name: e, replicas: 6, started: 1, cold_start: 180s, cold_start_cv: 0.1,
     options: {max_num_seqs: 12}}
slo: {ttft: 1s, tpot: 50ms}
policy: {law: slo, scale: {min: 1, max: 6, cold_start: 60s, down_after: 60s, down_every: 30s}}
workload:
  sources:
    - name: chat
      prompt: {kind: fixed, tokens: 600}
      output: {kind: fixed, tokens: 150}
      rate:
        kind: lines
        points: [[0s, 3], [1m, 7], [2m, 22], [8m, 22], [9m, 3], [12m, 3], [13m, 20], [16m, 20]]
"""


def test_a_pool_learns_that_it_starts_slower_than_is_configured() -> None:
    run, _ = ran(parse_scenario(SLOW, "slow.yaml", Path()))
    told = [one for one in run.watch.decisions if one.action == "scale"]
    expected = [{e.name: e.value for e in one.evidence}["cold_start_seconds"] for one in told]
    assert expected[0] == 60.0
    assert expected[-1] == pytest.approx(180.0, abs=30.0)
    assert run.watch.snapshot is not None
    scale = run.watch.snapshot.pools["default"].scale
    assert scale is not None
    assert scale.cold_start_seconds == expected[-1]
    assert f"expected at most in {expected[-1]:.0f} s" in told[-1].sentence, (
        "the second peak is seen so early"
    )


def test_one_that_is_taken_away_while_it_loads_never_comes() -> None:
    run = Run(parse_scenario(BURST, "burst.yaml", Path()))
    for replica in run.replicas[1:]:
        replica.discovered = False
    started: list[str] = []
    timers: list[Callable[[float], None]] = []
    elastic = Elastic(
        run.replicas, lambda replica, now: started.append(replica.name), lambda at, act: timers.append(act)
    )
    elastic.ask("default", 3, 10.0)
    elastic.ask("default", 2, 15.0)
    elastic.second()
    assert elastic.replica_seconds == 2
    for come in timers:
        come(60.0)
    there = [replica.name for replica in run.replicas if replica.discovered]
    assert len(there) == 2
    assert started == [name for name in there if name != "e-1"]
