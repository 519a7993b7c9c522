"""Faults of a scenario: what they do to the fleet, and what the daemon and the gateway see of them."""

from typing import Any

import pytest

from controlplane.signals.reading import Known, Reason, Unknown
from controlplane.signals.snapshot import FleetSnapshot, ReplicaSnapshot, ReplicaState
from controlplane.simulator.scenario.clock import UNIX_START
from controlplane.simulator.scenario.result import Result, result_of
from controlplane.simulator.scenario.run import Run
from tests.simulator.scenarios import scenario


class Seen(Run):
    """A run that keeps every snapshot and, by second, what each engine holds."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.snapshots: dict[float, FleetSnapshot] = {}
        self.inside: dict[float, list[int]] = {}

    def _look(self, now: float) -> None:
        super()._look(now)
        assert self.watch.snapshot is not None
        self.snapshots[now] = self.watch.snapshot

    def _every_second(self, now: float) -> None:
        super()._every_second(now)
        self.inside[now] = [len(replica.requests) for replica in self.replicas]

    def replica(self, at: float, number: int = 1) -> ReplicaSnapshot:
        return self.snapshots[at].replicas[f"h100-8b-{number}"]


def seen(faults: str, **values: Any) -> tuple[Seen, Result]:
    run = Seen(scenario(f"scrape: {{interval: 2s, timeout: 1800ms}}\nfaults:\n{faults}", **values))
    run.go()
    return run, result_of(run, "test")


def told(result: Result) -> dict[str, float]:
    """When each kind of event or decision was first told."""
    first: dict[str, float] = {}
    for one in result.told:
        first.setdefault(one.kind, one.at)
    return first


def test_a_lost_replica_breaks_its_requests_and_comes_back_empty() -> None:
    run, result = seen("  - {kind: lost, at: 40s, for: 30s, replica: h100-8b-2}\n", replicas=2, rate=25)
    assert all(run.inside[second][1] == 0 for second in range(41, 70))
    assert run.inside[39.0][1] > 20
    assert run.inside[90.0][1] > 20
    assert result.failed > 0  # those that had begun to answer; the others were sent elsewhere
    assert result.failed + result.refused < 0.3 * result.offered
    assert 40.0 <= told(result)["scrape-failing"] <= 46.0
    assert told(result)["restart"] == 70.0
    assert run.replica(42.0, 2).state is ReplicaState.UP  # one page that failed says nothing yet
    assert run.replica(80.0, 2).restarts == 1


def test_a_restarted_replica_answers_after_its_cold_start() -> None:
    run, result = seen("  - {kind: restarted, at: 40s, replica: h100-8b-1}\n")  # cold start: 30 s
    assert run.inside[39.0] > [20]
    assert all(run.inside[second] == [0] for second in range(41, 70))
    assert told(result)["restart"] == 70.0
    assert run.inside[85.0] > [20]
    assert result.refused_by_reason["breaker_open"] > 0


def test_a_replica_that_is_started_is_not_known_before() -> None:
    run, _ = seen("  - {kind: started, at: 20s, replica: h100-8b-2}\n", replicas=2, rate=25)
    assert "h100-8b-2" not in run.snapshots[18.0].replicas
    assert run.replica(30.0, 2).state is ReplicaState.UNREACHABLE  # it loads its weights
    assert run.replica(50.0, 2).state is ReplicaState.UP
    assert all(run.inside[second][1] == 0 for second in range(1, 50))
    assert run.inside[85.0][1] > 15
    # Slow start: a fresh replica is given less than its share at first.
    assert run.inside[53.0][1] < 0.7 * run.inside[85.0][1]


def test_a_wedged_replica_answers_scrapes_and_nothing_else() -> None:
    run, result = seen(
        "  - {kind: wedged, at: 35s, for: 45s, replica: h100-8b-2}\n", replicas=2, rate=20, duration="100s"
    )
    stalls = [one.at for one in result.told if one.kind in ("wedged", "stalled")]
    assert 65.0 <= stalls[0] <= 70.0  # 30 s without a token
    assert run.replica(70.0, 2).state is ReplicaState.UP
    held = [run.inside[second][1] for second in range(36, 80)]
    assert held == sorted(held)  # nothing ends
    assert run.inside[99.0][1] < max(held)
    assert told(result).keys() & {"wedged-over", "stalled-over"}


def test_a_slowed_engine_takes_longer_for_everything() -> None:
    plain = seen("  - {kind: slowed, at: 89s, replica: h100-8b-1, to: 50%}\n", policy="none", times=0.4)[1]
    slow = seen("  - {kind: slowed, at: 1s, replica: h100-8b-1, to: 50%}\n", policy="none", times=0.4)[1]
    assert plain.tpot_p50_seconds is not None
    assert slow.tpot_p50_seconds is not None
    assert slow.tpot_p50_seconds > 2 * plain.tpot_p50_seconds


def test_an_xid_ends_all_replicas_of_the_node() -> None:
    text = "  - {kind: xid, at: 40s, node: h100-8b-node-1, code: 79}\n"
    run = Seen(scenario(f"faults:\n{text}", replicas=2, rate=20))
    assert run.scenario.nodes == {"h100-8b-node-1": ("h100-8b-1",), "h100-8b-node-2": ("h100-8b-2",)}
    run.go()
    assert all(run.inside[second][0] == 0 for second in range(41, 91))
    assert run.inside[90.0][1] > 20


def test_pages_that_do_not_arrive_make_readings_stale_but_take_nothing_out_of_rotation() -> None:
    for fault in ("scrape-failing", "prometheus-away"):
        run, result = seen(f"  - {{kind: {fault}, at: 35s, for: 40s}}\n", times=0.8)
        assert isinstance(run.replica(34.0).load.kv_usage, Known)
        assert run.replica(50.0).state is ReplicaState.UP  # the last page still speaks
        stale = run.replica(60.0).load.kv_usage
        assert isinstance(stale, Unknown)
        assert stale.reason is Reason.STALE
        assert isinstance(run.replica(80.0).load.kv_usage, Known)
        assert ("scrape-failing" in told(result)) == (fault == "scrape-failing")
        assert result.refused < 0.01 * result.offered


def test_frozen_pages_are_found_out() -> None:
    run, result = seen("  - {kind: scrape-frozen, at: 35s, for: 40s}\n", times=0.8)
    before, frozen = run.replica(34.0), run.replica(50.0)
    assert isinstance(before.load.running, Known)
    assert isinstance(frozen.load.running, Known)
    assert frozen.load.running.value == before.load.running.value
    assert frozen.load.running.at > before.load.running.at  # it claims to be new
    assert told(result).keys() & {"frozen-gauges", "stalled", "wedged"}


def test_nan_gauges_are_unknown_and_everything_else_is_not() -> None:
    run, _ = seen("  - {kind: scrape-nan, at: 35s, for: 40s}\n", times=0.8)
    load = run.replica(50.0).load
    assert isinstance(load.kv_usage, Unknown)
    assert load.kv_usage.reason is Reason.NOT_A_NUMBER
    assert isinstance(load.generation_tokens_per_second, Known)


def test_slow_pages_arrive_late_or_never() -> None:
    run, _ = seen("  - {kind: scrape-slow, at: 35s, for: 40s, seconds: 1500ms}\n", times=0.8)
    late = run.replica(50.0)
    assert late.scrape_seconds == 1.5
    # Asked for at every even second; a tick has what had come by then.
    for tick, came in ((49.0, 47.5), (50.0, 49.5), (51.0, 49.5)):
        running = run.replica(tick).load.running
        assert isinstance(running, Known)
        assert running.at == pytest.approx(UNIX_START + came)
    run, result = seen("  - {kind: scrape-slow, at: 35s, for: 40s, seconds: 5s}\n", times=0.8)
    assert 36.0 <= told(result)["scrape-failing"] <= 42.0
    assert isinstance(run.replica(60.0).load.running, Unknown)


def test_a_fault_of_one_replicas_pages_spares_the_others() -> None:
    run, _ = seen("  - {kind: scrape-nan, at: 35s, replica: h100-8b-2}\n", replicas=2, rate=20)
    assert isinstance(run.replica(60.0, 1).load.kv_usage, Known)
    assert isinstance(run.replica(60.0, 2).load.kv_usage, Unknown)
