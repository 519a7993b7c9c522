"""Cases C1, C2 and C4: which replicas are in service; `test_case_c_live` has them with processes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.policy import steer
from controlplane.policy.memory import Memory
from controlplane.policy.readiness import Look, ReadinessSettings, Standing, look
from controlplane.policy.settings import PolicySettings
from controlplane.policy.tick import tick
from controlplane.signals.probe import Probe, ProbeKind, ProbeResult
from controlplane.signals.reading import Reason
from controlplane.signals.samples import Samples, Scrape, ScrapeFailure, Signals, Target

DATA = Path(__file__).parent / "data"
START = 1_000_000.0


def load(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text())


def in_service(names: Iterable[str]) -> dict[str, Standing]:
    return {name: Standing(START, started=True, ready=True) for name in names}


C1 = load("C1/probes.yaml")


@pytest.mark.parametrize("run", C1["runs"], ids=lambda run: str(run["name"]))
def test_C1_busy_is_not_dead(run: dict[str, Any]) -> None:
    given = C1["config"]
    settings = ReadinessSettings(
        failure_threshold=given["failure_threshold"], success_threshold=given["success_threshold"]
    )
    peers = [f"peer-{i}" for i in range(4)]
    standings = in_service(["it", *peers])
    for i, (probe, ready) in enumerate(zip(run["p"], run["ready_after"], strict=True)):
        looks = dict.fromkeys(peers, Look(probe=ProbeResult.OK))
        looks["it"] = Look(probe=ProbeResult(probe), flowing=run["gateway_tokens_flowing"])
        at = START + i * given["period_seconds"]
        standings = dict(look(standings, looks, at, settings).standings)
        assert standings["it"].ready == ready, (i, probe)
        assert all(standings[peer].ready for peer in peers)


C2 = load("C2/fleet.yaml")


@pytest.mark.parametrize("run", C2["runs"], ids=lambda run: str(run["name"]))
def test_C2_never_all_at_once(run: dict[str, Any]) -> None:
    given = C2["config"]
    settings = ReadinessSettings(
        failure_threshold=given["failure_threshold"], max_unready_ratio=given["max_unready_fraction"]
    )
    names = [str(i) for i in range(run["replicas"])]
    standings, told = in_service(names), set()
    steps = [run["failing"]] * (given["failure_threshold"] + 2)
    if "then_ok" in run:
        steps.append([i for i in run["failing"] if i not in run["then_ok"]])
    for step, failing in enumerate(steps):
        looks = {
            name: Look(probe=ProbeResult.TIMEOUT if int(name) in failing else ProbeResult.OK)
            for name in names
        }
        backend = run.get("metrics_backend_reachable", True)
        pool = look(standings, looks, START + 5 * step, settings, backend_answers=backend)
        standings = dict(pool.standings)
        told |= {sentence for _, sentence in pool.reports}
        out = [int(name) for name in names if not standings[name].ready]
        assert len(out) <= run.get("unready_at_most", len(names))
    assert out == run.get("unready_exactly", out)
    if "must_report" in run:
        assert run["must_report"] in told
    if "unready_at_most" in run and not told:
        assert len(names) == 1


C4 = load("C4/startup.yaml")


def test_C4_an_open_port_is_not_a_model() -> None:
    grace = C4["config"]["startup_grace_seconds"]
    settings = ReadinessSettings(startup_grace=f"{grace}s")
    standings: dict[str, Standing] = {}
    late: dict[str, Standing] | None = None
    for row in C4["rows"]:
        refused = row.get("tcp") == "refused"
        healthy = row.get("health") == 200
        probe = ProbeResult.REFUSED if refused else ProbeResult.OK if healthy else ProbeResult.TIMEOUT
        seen = Look(probe=probe, answered=row.get("one_token_completion") == 200)
        before = late if "variant" in row.get("note", "") and late is not None else standings
        pool = look(before, {"it": seen}, START + row["t"], settings)
        assert pool.standings["it"].ready == row["want_routed"], row
        told = {sentence for _, sentence in pool.reports}
        assert ("must_report" in row) == any(row.get("must_report", " ") in one for one in told), told
        if row["t"] == 900:
            late = dict(pool.standings)  # of which the last row goes on
        standings = dict(pool.standings)


def test_C4_in_the_tick_it_is_starting_and_counts_as_loading_until_it_has_answered() -> None:
    policy = PolicySettings.model_validate(
        {"pools": {"chat": {"scale": {"min": 1, "max": 4}, "readiness": {"startup_grace": "1800s"}}}}
    )
    memory, told = Memory(), set()
    rows = [row for row in C4["rows"] if "variant" not in row.get("note", "")]
    for second in range(0, 1200, 5):
        # The last row of which the time has come.
        row = next((row for row in reversed(rows) if row["t"] <= second), rows[0])
        samples = _seen_of_it(row, START + second)
        snapshot, decisions, memory = tick(samples, memory, policy, START + second)
        (order,) = steer.orders(snapshot, policy, {}, {})
        assert order.rotation == ("in" if row["want_routed"] else "starting"), second
        scale = snapshot.pools["chat"].scale
        if scale is not None and second < 1100:
            assert (scale.ready, scale.loading) == (0, 1), second
        told |= {decision.action for decision in decisions}
    assert scale is not None
    assert (scale.ready, scale.loading) == (1, 0)
    assert not told & {"set-rotation", "restart-workload"}


def _seen_of_it(row: dict[str, Any], at: float) -> Samples:
    """What is seen of the replica while a row holds; its metrics page is there with its health page."""
    target = Target("it", "chat", "http://it:8000/metrics")
    is_open = row["tcp"] == "open"
    health = ProbeResult.OK if row.get("health") == 200 else ProbeResult.TIMEOUT
    probes = [Probe("it", at, 1.0, ProbeKind.HEALTH, health if is_open else ProbeResult.REFUSED)]
    completed = row.get("one_token_completion")
    if completed is not None:
        result = ProbeResult.OK if completed == 200 else ProbeResult.TIMEOUT
        probes.append(Probe("it", at, 20.0, ProbeKind.TRIAL, result))
    gauges = {"running": 0.0, "waiting": 0.0, "generation_tokens_total": 0.0}
    page = Scrape("it", at, 0.1, "vllm", "", ("m",), {"0": Signals(gauges)}, Signals())
    failure = ScrapeFailure("it", at, Reason.SCRAPE_FAILED, "refused")
    return Samples(
        targets=(target,),
        scrapes=(page if row.get("health") == 200 else failure,),
        probes=tuple(probes),
        triable=frozenset({"it"}),
    )
