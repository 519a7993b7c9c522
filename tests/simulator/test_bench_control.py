"""`make bench-control`: what it measures, what it keeps, and how it judges."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_control
from benchmarks.control import kept, verdicts
from benchmarks.control.cells import (
    BASELINES,
    LAW,
    NONE,
    POLICIES,
    SCRAPED,
    Cell,
    Measured,
    fixed,
    incident_cells,
)
from benchmarks.control.figures import Class, Figures, Harm, Job, run
from benchmarks.control.kept import Runs, code_of
from benchmarks.control.loads import _OWN, TRACES, loads
from benchmarks.control.statistic import mean
from controlplane.simulator.scenario.policies import law_named
from controlplane.simulator.scenario.reading import load_scenario

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no ../shared/reference/traces")
SMALL = _OWN[0]._replace(seconds=30.0, warmup=10.0)


def figures(tokens: float, **more: Any) -> Figures:
    """Of a made-up run with so many good tokens a second."""
    plain: dict[str, Any] = {
        "seconds": 100.0,
        "offered": 1000,
        "completed": 500,
        "refused": 500,
        "good": 400,
        "request_goodput": 4.0,
        "ttft_p95_seconds": 0.5,
        "tpot_p95_seconds": 0.04,
        "preemptions": 0,
        "jain_index": 1.0,
        "limit_mean": 100.0,
        "by_length": {"under_1k": Class(500, 100, 400, tokens)},
        "by_tenant": {},
    }
    return Figures(token_goodput=tokens, **(plain | more))


def cell(times: float, oracle: float = 1000.0, **policies: float | list[Figures]) -> Measured:
    """Five seeds of a made-up cell; a policy is its goodput, or its runs."""
    of = Cell(f"chat at {times:g}x", "chat", times, lambda seed: load_scenario("steady-1x"))
    by_policy = {
        name: [figures(value)] * 5 if isinstance(value, float) else value for name, value in policies.items()
    }
    return Measured(of, 100, [figures(oracle)] * 5, by_policy)


def judged(*cells: Measured, peak: float = 900.0) -> dict[str, verdicts.Verdict]:
    return {one.what: one for one in verdicts.of_loads(cells, {"chat": peak})}


# What is measured


def test_every_seed_of_a_load_is_a_part_of_its_own_and_the_policy_changes_nothing_of_it() -> None:
    for load in loads():
        scenarios = [load.scenario(2.0, seed, load.seconds, load.warmup) for seed in (1, 2)]
        assert scenarios[0] != scenarios[1]
        assert scenarios[0].expected_requests == pytest.approx(2 * load.rate * load.seconds)
        assert scenarios[0].slo.tpot == 0.05
    (first,) = [run(Job(SMALL.scenario(2.0, 1, 30, 10).changed(policy=POLICIES[NONE])))]
    (again,) = [run(Job(SMALL.scenario(2.0, 1, 30, 10).changed(policy=POLICIES["aimd"])))]
    assert first.offered == again.offered
    assert first.good_tokens == ()


@needs_traces
def test_objectives_are_those_that_the_traces_are_judged_by() -> None:
    found = {load.name: load.scenario(1.0, 1, load.seconds, load.warmup).slo.ttft for load in loads()}
    assert found == {"azure-conv": 1.0, "azure-code": 2.5, "r1": 2.5, "m-small": 1.0, "mooncake": 10.0}


def test_all_laws_run_and_incidents_are_no_loads() -> None:
    assert {NONE, LAW, SCRAPED, "thresholds", *BASELINES} == set(POLICIES)
    names = [one.name for one in incident_cells()]
    assert {"step-to-3x", "mix-shift", "replica-lost", "noisy-tenant"} <= set(names)
    assert not any(name.startswith(("steady", "gpu")) for name in names)


def test_every_cell_of_the_bench_can_be_kept(tmp_path: Path) -> None:
    cells = incident_cells()
    with Runs(tmp_path / "runs.jsonl", 1) as runs:
        assert not any(runs.has(cell.job(POLICIES[LAW], 1)) for cell in cells)


def test_harm_counts_what_an_uncontrolled_engine_would_have_served_in_time() -> None:
    scenario = SMALL.scenario(0.8, 1, 30, 10)
    law = run(Job(scenario.changed(policy=fixed(2)), harm=True))
    assert law.harm is not None
    assert law.harm.good_alone > 100
    assert 0 < law.harm.refused <= law.refused
    assert 0.5 < law.harm.ratio <= 1
    free = run(Job(scenario.changed(policy=fixed(250)), harm=True))
    assert free.harm == Harm(law.harm.good_alone, 0, 0)


# What is kept


def test_a_run_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs = [Job(SMALL.scenario(1.0, seed, 12, 4).changed(policy=fixed(50))) for seed in (1, 2, 1)]
    with Runs(path, 1) as runs:
        found = runs.results(jobs)
        assert (runs.made, found[0]) == (2, found[2])
    with path.open("a") as file:
        file.write('{"job": "half a li')
    with Runs(path, 1) as runs:
        assert runs.has(jobs[0])
        assert runs.results(jobs) == found
        assert runs.made == 0


def test_a_changed_law_leaves_the_runs_of_others_and_changed_shared_code_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laws = [law_named(name) for name in ("slo", "fixed:3", "aimd", "gradient2-windowed")]
    real, before = kept._code, [code_of(law) for law in laws]

    def changed(what: str) -> list[bool]:
        kept._digest.cache_clear()
        monkeypatch.setattr(
            kept, "_code", lambda module: real(module) + ("changed" if module.endswith(what) else "")
        )
        return [code_of(law) != old for law, old in zip(laws, before, strict=True)]

    assert changed("limits.slo_gradient") == [True, False, False, False]
    assert changed("limits.sight") == [True, False, False, False], "what only that law imports"
    assert changed("limits.gradient2") == [False, False, False, True]
    assert changed("policy.limiting") == [True] * 4
    assert changed("simulator.engine") == [True] * 4
    kept._digest.cache_clear()


def test_comments_are_no_code() -> None:
    assert "kept of it" not in kept._code("benchmarks.control.figures")
    assert "Harm" in kept._code("benchmarks.control.figures")


# How it is judged


def test_a_law_that_is_as_good_as_the_oracle_holds() -> None:
    found = judged(
        cell(1.5, slo=990.0, none=500.0, aimd=700.0, **{SCRAPED: 950.0}),
        cell(10.0, slo=1000.0, none=0.0, aimd=800.0, **{SCRAPED: 930.0}),
    )
    assert [one.text() for one in found.values() if not one.holds] == []
    assert len(found) == 9 - 1  # no load is light


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"slo": 960.0}, {"at least 97 % of the oracle's", "their median"}),
        ({"slo": 985.0}, {"their median"}),
        ({"aimd": 995.0}, {"never significantly worse", "better than it"}),
        ({SCRAPED: 890.0}, {"with scrapes every 5 s"}),
        ({"peak": 1000.0}, {"from 1.5x on at least the best"}),
        ({"slo": [figures(990.0, preemptions=2)] * 5}, {"preemptions"}),
        (
            {"slo": [figures(990.0, by_length={"under_1k": Class(500, 400, 400, 700.0)})] * 5},
            {"each length class"},
        ),
    ],
)
def test_each_promise_can_fail(changes: dict[str, Any], failing: set[str]) -> None:
    peak = changes.pop("peak", 900.0) if "peak" in changes else 900.0
    given = {"slo": 990.0, "none": 500.0, "aimd": 700.0, SCRAPED: 950.0, **changes}
    found = judged(cell(2.0, **given), peak=peak)
    failed = {one.what for one in found.values() if not one.holds}
    assert len(failed) == len(failing)
    assert all(any(what.startswith(name) for what in failed) for name in failing)


def test_a_part_of_a_sweep_is_judged_where_the_whole_was_run() -> None:
    one = cell(2.0, slo=990.0)
    assert list(verdicts.of_sweeps([one])) == []
    (found,) = verdicts.of_sweeps([one, one._replace(part_of_best=1.0), one._replace(part_of_best=0.99)])
    assert (found.holds, "99.00%" in found.figure) == (False, True)


def test_under_capacity_harm_and_lost_goodput_are_judged() -> None:
    harmless = [figures(1000.0, harm=Harm(1000, 2, 1))] * 5
    found = judged(cell(0.8, slo=harmless, none=1004.0))
    assert [one.holds for one in found.values()] == [True, True, True]
    harmful = [figures(1000.0, harm=Harm(1000, 2, 2))] * 5
    found = judged(cell(0.8, slo=harmful, none=1006.0))
    assert [one.holds for one in found.values()] == [False, False, True]


def test_recovery_is_the_first_ten_seconds_that_are_good_again() -> None:
    """100 a second until 50, nothing until 62, then 95 of the 100 that it comes to in the end."""
    tokens = (100.0,) * 50 + (0.0,) * 12 + (95.0,) * 20 + (100.0,) * 40
    one = figures(0.0, good_tokens=tokens)
    # From second 12 on: 9 x 95 + ... ; one second of nothing among ten is too little (855), none is enough.
    found = verdicts.recovery("it", [one, one], [one, one], 50.0, (82.0, 122.0), within=12.0)
    assert (found.holds, found.figure) == (True, "after 12.0 ± 0.0 s")
    assert not verdicts.recovery("it", [one, one], [one, one], 50.0, (82.0, 122.0), within=11.0).holds
    never = figures(0.0, good_tokens=(100.0,) * 50 + (0.0,) * 30 + (100.0,) * 40)
    assert not verdicts.recovery("it", [never], [never], 50.0, (80.0, 120.0), within=20.0).holds


def test_a_law_that_comes_to_rest_too_low_has_not_recovered() -> None:
    low, best = (figures(0.0, good_tokens=(100.0,) * 50 + (after,) * 70) for after in (50.0, 100.0))
    assert not verdicts.recovery("it", [low], [best], 50.0, (80.0, 120.0), within=20.0).holds
    assert verdicts.recovery("it", [best], [low], 50.0, (80.0, 120.0), within=20.0).holds


def test_an_outage_is_judged_against_the_same_seconds_without_it() -> None:
    calm = [figures(0.0, good_tokens=(100.0,) * 60)] * 2
    hurt = [figures(0.0, good_tokens=(100.0,) * 20 + (90.0,) * 20 + (100.0,) * 20)] * 2
    assert verdicts.lost("it", hurt, calm, (20, 60)).figure == "5.0% ± 0.0%"
    assert not verdicts.lost("it", hurt, calm, (20, 60)).holds
    assert verdicts.lost("it", hurt, calm, (0, 20)).holds


def test_fairness_is_judged_by_tenant_and_by_jain() -> None:
    alone = [figures(0.0, by_tenant={"quiet": Class(10, 0, 10, 100.0)})]
    kept_all = [figures(0.0, by_tenant={"quiet": Class(10, 0, 10, 98.0)}, jain_index=0.99)]
    robbed = [figures(0.0, by_tenant={"quiet": Class(10, 3, 7, 70.0)}, jain_index=0.9)]
    assert [one.holds for one in verdicts.fairness(kept_all, alone, ["quiet"])] == [True, True]
    assert [one.holds for one in verdicts.fairness(robbed, alone, ["quiet"])] == [False, False]


def test_an_interval_is_that_of_student() -> None:
    found = mean([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.interval == pytest.approx(4.30 / 3**0.5)
    assert mean([1.0]).interval is None


# The whole


def test_a_small_bench_from_end_to_end_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_control, "loads", lambda: (SMALL,))
    monkeypatch.setattr(
        "benchmarks.control.cells.limit_grid", lambda most: (20, 60, 100, 160, 250), raising=True
    )
    arguments = ["bench", "--quick", "--cells", "2x", "--laws", "slo,none,aimd", "--processes", "1"]
    files = ["--json", str(tmp_path / "control.json"), "--runs", str(tmp_path / "runs.jsonl")]
    monkeypatch.setattr(sys, "argv", [*arguments, *files])
    bench_control.main()
    first = json.loads((tmp_path / "control.json").read_text())
    told = capsys.readouterr().out
    assert "own-conv at 2x" in told
    assert "holds  " in told or "FAILS  " in told
    assert first["cells"]["own-conv at 2x"]["slo"]["token_goodput_of_oracle"][0] > 0
    assert "| own-conv at 2x |" in (tmp_path / "control.md").read_text()
    bench_control.main()
    assert "0 runs were made" in capsys.readouterr().out
    again = json.loads((tmp_path / "control.json").read_text())
    assert again == first
    assert {"what", "holds", "figure"} == set(first["verdicts"][0])


def test_a_law_that_is_none_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--laws", "sol"])
    with pytest.raises(SystemExit):
        bench_control.main()
    assert "no law is called 'sol'" in capsys.readouterr().err
