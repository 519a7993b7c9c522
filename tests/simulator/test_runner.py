"""Runs of whole scenarios: what comes out is consistent, repeatable, and what the plant is known to do."""

import msgspec
import pytest

from controlplane.simulator.request import Finished
from controlplane.simulator.scenario.live import Live
from controlplane.simulator.scenario.policies import policy_named
from controlplane.simulator.scenario.reading import built_in_names, load_scenario
from controlplane.simulator.scenario.replica import Replica
from controlplane.simulator.scenario.result import Result, result_of, to_json
from controlplane.simulator.scenario.run import Run
from tests.simulator.scenarios import ran, scenario


def assert_consistent(result: Result) -> None:
    ended = result.completed + result.refused + result.failed + result.gave_up
    assert result.offered + result.in_system_at_start == ended + result.in_system_at_end
    assert sum(result.refused_by_length.values()) == result.refused == sum(result.refused_by_reason.values())
    for parts in (result.by_length, result.by_tenant):
        for name in ("offered", "completed", "refused", "good"):
            assert sum(getattr(part, name) for part in parts.values()) == getattr(result, name)
        tokens = sum(part.token_goodput for part in parts.values())
        assert tokens == pytest.approx(result.token_goodput)
    assert result.good <= result.completed
    assert result.request_goodput == pytest.approx(result.good / result.measured_seconds)
    assert result.token_goodput <= result.token_throughput + 1e-9
    users = result.users
    assert users.wanted == users.answered + users.refused + users.failed + users.gave_up + users.under_way


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_scenario_keeps_the_laws_of_a_run(name: str) -> None:
    """The run itself asserts conservation, Little's law and work conservation every second."""
    given = load_scenario(name)
    # A minute after the last fault is enough here, and for large fleets the load of two replicas.
    duration = min(given.duration, max((fault.at for fault in given.faults), default=15.0) + 60.0)
    given = given.changed(times=given.workload.times * min(1.0, 2 / len(given.replica_names)))
    _, result = ran(given.model_copy(update={"duration": max(duration, given.warmup + 30.0)}))
    assert_consistent(result)
    assert result.good > 0


def test_the_same_scenario_and_seed_give_the_same_bytes() -> None:
    given = load_scenario("noisy-tenant").model_copy(update={"duration": 90.0})
    first, again = (to_json(ran(given)[1]) for _ in range(2))
    assert first == again
    other = to_json(ran(given.changed(seed=2))[1])
    assert other != first
    assert msgspec.json.decode(first)["offered"] > 0


def test_a_tenant_that_floods_the_queue_takes_nothing_from_the_others() -> None:
    """Each of the others asks for two thirds of its share; alone it would get 99 % of that in time."""
    given = load_scenario("noisy-tenant").changed(policy=policy_named("fixed:145"))
    _, result = ran(given.model_copy(update={"duration": 150.0}))
    assert result.jain_index > 0.99
    for name in ("quiet", "calm"):
        tenant = result.by_tenant[name]
        assert tenant.good > 0.97 * (tenant.completed + tenant.refused)
    assert result.by_tenant["noisy"].refused > 0.5 * result.by_tenant["noisy"].offered


def test_the_policy_does_not_change_what_is_sent() -> None:
    offered = set()
    for policy in ("none", "slo", "fixed:40", "envoy"):
        _, result = ran(scenario(times=2, duration="60s").changed(policy=policy_named(policy)))
        offered.add((result.offered, result.by_length["under_4k"].offered))
    assert len(offered) == 1


def test_without_control_an_overloaded_engine_serves_nobody_in_time_and_with_it_most() -> None:
    """Nothing without control at twice the load, about the peak's token goodput with it."""
    peak = ran(scenario(policy="none", duration="150s"))[1].token_goodput
    alone = ran(scenario(policy="none", times=2, duration="150s"))[1]
    kept = ran(scenario(policy="slo", times=2, duration="150s"))[1]
    assert alone.token_goodput < 0.05 * peak
    assert kept.token_goodput > 0.95 * peak
    assert 0.3 < kept.refused / kept.offered < 0.7
    assert alone.refused == 0


def test_under_capacity_control_changes_nothing() -> None:
    alone = ran(scenario(policy="none", times=0.6, duration="150s"))[1]
    kept = ran(scenario(policy="slo", times=0.6, duration="150s"))[1]
    assert kept.refused == 0
    assert kept.good >= 0.995 * alone.good


def test_observing_refuses_nobody_and_counts_what_it_would_have() -> None:
    result = ran(scenario(policy="{law: {law: fixed, limit: 20}, enforce: false}", times=2))[1]
    alone = ran(scenario(policy="none", times=2))[1]
    assert result.refused == 0
    assert (result.completed, result.good) == (alone.completed, alone.good)
    assert result.would_refuse > 0.5 * result.offered


def test_a_fixed_limit_is_never_exceeded_and_always_used_under_load() -> None:
    run, result = ran(scenario(policy="fixed:25", times=2))
    assert max(run.series.in_flight) == 25
    after = [n for t, n in zip(run.series.seconds, run.series.in_flight, strict=True) if t > 30]
    assert sum(after) / len(after) > 24
    assert result.limit_mean == 25


def test_the_daemon_sees_what_is_true_where_nothing_waits_before_the_engines() -> None:
    """Proven bounds from scrapes hold the truth, and are narrow."""
    daemon = ran(scenario(policy="none", times=0.9, duration="200s"))[1].daemon
    assert daemon is not None
    for bounds, true in (
        (daemon.request_goodput, daemon.true_request_goodput),
        (daemon.token_goodput, daemon.true_token_goodput),
    ):
        assert bounds.low <= true * (1 + 1e-9)
        assert bounds.high >= true * (1 - 1e-9)
        assert bounds.high - bounds.low < 0.1 * true


def test_littles_law_holds_on_a_steady_window() -> None:
    result = ran(scenario(policy="none", times=0.7, duration="300s"))[1]
    assert result.little_ratio == pytest.approx(1, abs=0.02)


def test_the_gateway_is_told_of_every_token_once() -> None:
    """Steps count tokens: what is told in between is what the engine has made."""

    class Counting(Run):
        off: list[int] = []  # noqa: RUF012 - of this test only

        def _finished(self, live: Live, event: Finished, replica: Replica, now: float) -> None:
            assert replica.engine is not None
            if not event.preemptions:
                steps = replica.engine.counters.steps - live.first_step
                self.off.append(1 + steps - event.output_tokens)
            super()._finished(live, event, replica, now)

    run = Counting(scenario(times=2))
    run.go()
    assert len(run.off) > 500
    assert set(run.off) == {0}
    windows = result_of(run, "test")
    assert windows.completed > 0


def test_classes_have_objectives_of_their_own() -> None:
    more = "    - {name: batch, mix: azure-conv, rate: 17.5, class: batch}\n"
    _, result = ran(scenario(more, times=1.2, duration="120s"))
    assert_consistent(result)
    # Batch requests may take two minutes: they wait, and interactive ones go first.
    assert result.ttft_p95_seconds is not None
    assert result.ttft_p95_seconds > 5
    assert result.request_goodput > 15


def test_tenants_get_their_shares() -> None:
    more = "    - {name: other, tenant: other, mix: azure-conv, rate: 70}\n"
    _, result = ran(scenario(more, rate=35, duration="120s"))
    assert result.jain_index is not None
    assert result.jain_index > 0.97
    other, default = result.by_tenant["other"], result.by_tenant["default"]
    assert other.token_goodput == pytest.approx(default.token_goodput, rel=0.25)


def test_clients_hang_up_and_retry() -> None:
    more = "      patience: {first_token: 2s}\n      retry: {backoff: exponential, tries: 3, first: 1s}\n"
    _, result = ran(scenario(more, policy="none", times=2, duration="120s"))
    assert_consistent(result)
    assert result.gave_up > 0
    assert result.users.tries > 1.3 * result.users.wanted


def test_a_request_longer_than_the_model_takes_is_refused_as_the_clients_error() -> None:
    lengths = "prompt: {kind: fixed, tokens: 200000}, output: {kind: fixed, tokens: 9}"
    text = f"    - {{name: long, rate: 1, {lengths}}}\n"
    _, result = ran(scenario(text, times=0.5))
    assert result.refused_by_reason["request_too_large"] > 5
    assert result.refused_by_length["from_16k"] == result.refused_by_reason["request_too_large"]
