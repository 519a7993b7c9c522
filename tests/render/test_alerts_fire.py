"""Each alert on real rule evaluation (promtool): it fires when it should, and keeps silent when not."""

from pathlib import Path
from typing import Any

import pytest
from alert_cases import CASES, MORE, Case, Series
from promtool import SETTINGS, alert, needs_promtool, rules_for, run

from controlplane.render.alerts import all_alerts

ABSENT = {"ControlPlaneDown", "EngineTargetsMissing"}
"""Alerts that nothing at all is the reason of."""


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == {one.name for one in all_alerts(SETTINGS)}
    assert all(case.quiet for case in CASES.values())


def _firing(name: str) -> str:
    return f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'


def _test(name: str, why: str, series: Series, case: Case, count: int) -> dict[str, Any]:
    """It has `count` firing alerts at the end; where that is none, it had none before either."""
    at_the_end = bool(count) or "over again" in why
    return {
        "name": why,
        "interval": case.step,
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": _firing(name)
                if at_the_end
                else f"max_over_time(({_firing(name)})[{case.at}m:{case.step}])",
                "eval_time": f"{case.at}m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
        ],
    }


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_it_fires_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    cases = {"": CASES[name], **MORE.get(name, {})}
    tests = []
    for what, case in cases.items():
        tests.append(_test(name, f"fires {what}", case.fires, case, case.count))
        tests += [_test(name, f"{what}: {why}", series, case, 0) for why, series in case.quiet.items()]
    if name not in ABSENT:
        tests.append(_test(name, "no data at all", {}, CASES[name], 0))
    by_step: dict[str, list[dict[str, Any]]] = {}
    for test in tests:
        by_step.setdefault(test["interval"], []).append(test)
    for step, some in by_step.items():
        done = run(tmp_path, {"rules.yaml": rules_for(name)}, {"evaluation_interval": step, "tests": some})
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_what_it_says_is_a_sentence_with_its_values(name: str, tmp_path: Path) -> None:
    """promtool prints what fired where nothing was expected: the texts as a person would get them."""
    case = CASES[name]
    test = {
        "interval": case.step,
        "input_series": [{"series": key, "values": values} for key, values in case.fires.items()],
        "alert_rule_test": [{"alertname": name, "eval_time": f"{case.at}m", "exp_alerts": []}],
    }
    done = run(tmp_path, {"rules.yaml": rules_for(name)}, {"evaluation_interval": case.step, "tests": [test]})
    said = done.stdout + done.stderr
    got = said[said.index("got:") :]
    for broken in ("error expanding", "<no value>", "%!", "NaN", " of pool  ", "GPU  "):
        assert broken not in got, got
    summary = got.split('summary="')[1].split('", ')[0].split('"}')[0]
    assert summary[0].isupper() or summary[0].isdigit() or summary.startswith(("a:", "n1")), summary
    assert summary.endswith("."), summary
    assert f"runbooks/{name}.md" in got
    assert f"/d/controlplane-{alert(name).board}" in got
