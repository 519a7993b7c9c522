"""Two pools in virtual time: the mix of requests shifts, and the daemon's tick moves what parts them."""

from pathlib import Path

import pytest

from controlplane.daemon.journal import Entry, Journal
from controlplane.daemon.journal_file import Matching
from controlplane.daemon.replay import replay
from controlplane.daemon.settings import DaemonSettings
from controlplane.policy.memory import Memory
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.decision import Decision
from controlplane.signals.samples import Samples
from controlplane.simulator.scenario import watch
from controlplane.simulator.scenario.reading import parse_scenario
from controlplane.simulator.scenario.run import Run
from tests.simulator.scenarios import ran

SHIFT = """\
title: Documents come to two pools that were parted for chat; the long one has few slots
duration: {duration}
warmup: 30s
fleet:
  - {{engine: h100-8b, name: small, pool: short, options: {{max_model_len: 8192}}}}
  - {{engine: h100-8b, name: large, pool: long, options: {{max_num_seqs: 16}}}}
policy: {{law: slo, boundary: {{confirm: 20s, rest: 30s, memory: 1m, enough_requests: 100}}}}
admission: {{pools: {{short: short, long: long, boundary: 2048}}}}
workload:
  sources:
    - {{name: chat, prompt: {fixed_600}, output: {fixed_200}, rate: 4}}
    - {{name: books, prompt: {fixed_20k}, output: {fixed_200}, rate: 0.1}}
    - {{name: documents, prompt: {fixed_3k}, output: {fixed_200}, rate: {documents}}}
{more}"""


def shift(more: str = "", duration: str = "4m") -> Run:
    fixed = {
        f"fixed_{name}": f"{{kind: fixed, tokens: {tokens}}}"
        for name, tokens in (("200", 200), ("600", 600), ("3k", 3000), ("20k", 20_000))
    }
    documents = "{kind: steps, points: [[0s, 0], [90s, 3]]}"
    text = SHIFT.format(duration=duration, documents=documents, more=more, **fixed)
    return ran(parse_scenario(text, "shift.yaml", Path()))[0]


def moves(run: Run) -> list[Decision]:
    return [one for one in run.watch.decisions if one.action == "set-boundary"]


def test_a_shift_of_the_mix_moves_the_boundary_and_the_gateway_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[Entry] = []

    def recorded(samples: Samples, memory: Memory, policy: PolicySettings, now: float):
        snapshot, decisions, after = tick(samples, memory, policy, now)
        entries.append(Entry(now, policy, samples, decisions, snapshot.events, (), memory, after))
        return snapshot, decisions, after

    monkeypatch.setattr(watch, "tick", recorded)
    run = shift()
    told = [(one.old, one.new, one.reason) for one in moves(run)]
    assert told == [("", "2048", "start"), ("2048", "4096", "fewer-replicas")]
    assert run.watch.snapshot is not None
    assert run.watch.snapshot.boundary is not None
    assert run.watch.snapshot.boundary.in_force == 4096, "as the gateway says itself"

    path = tmp_path / "journal.db"
    for first in range(0, len(entries), 100):  # a daemon that is started anew every 100 ticks
        journal = Journal(DaemonSettings(journal=path), tick)
        for entry in entries[first : first + 100]:
            journal.append(entry)
        assert journal.close()
    again = replay(path, tick)
    assert (again.different, again.first_difference, again.gaps) == (0, "", 0)
    assert again.ticks == len(entries)
    kept = Journal(DaemonSettings(journal=path), tick)
    assert [one.new for one in kept.decisions(Matching(action="set-boundary"))] == ["4096", "2048"]
    assert kept.memory.boundary is not None
    assert kept.memory.boundary.tokens == 4096, "who starts again goes on from there"
    assert kept.memory.boundary.state.short.served > 100
    assert kept.close()


def test_while_the_daemon_is_away_the_gateway_keeps_the_boundary_that_it_was_told() -> None:
    run = shift("faults: [{kind: daemon-away, at: 150s, for: 60s}]\n", duration="3m")
    assert run.gateway.admission.mode == "enforce"
    assert [one.new for one in moves(run)] == ["2048", "4096"]
    short = [window for window in run.gateway.windows(300.0, is_alone=True) if window.pool == "short"]
    assert short
    assert {window.boundary_tokens for window in short} == {4096}
